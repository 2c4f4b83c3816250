"""A pass over images on a Ray cluster: Ray Data's actors, each with the model, compute its parts.

Batch k has the same results on every actor, and a part of a folder is written under another
name, then renamed. So an actor that dies loses nothing: Ray starts another one, which computes that
part again. The processes of a local cluster end with this one.
"""

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from vitlab.data.sources.source import Source
from vitlab.distributed.launch import joined, read_environment
from vitlab.distributed.world import World
from vitlab.errors import DataError, DiskError, OptionError, RunError, UserError
from vitlab.evaluation.compute import Compute, borrowed
from vitlab.evaluation.shards import (
    WHOLE,
    Shard,
    ShardFolder,
    ShardJob,
    ShardNumber,
    Write,
    some_content,
)
from vitlab.machine.cores import cores
from vitlab.models.model import Model
from vitlab.packages import needed
from vitlab.places import JOB
from vitlab.precision import fixed
from vitlab.progress import Meter

CORES = 4  # of an actor without a GPU: more of them would each need a model in memory
TRIES = 4  # at a part whose actor dies: Ray would go on for ever
ANSWER = 10  # seconds

Work = Callable[[int], Any]


def check_on(on: str, share: ShardNumber = WHOLE, option: str = "shard") -> bool:
    """Return whether Ray computes.

    Args:
        on: that was asked for
        share: of the work that this process does
        option: the name of this share

    Raises:
        OptionError: another name, or processes that share the work already.
        PackageError: Ray is not installed.
    """
    if on not in ("", "ray"):
        raise OptionError(f"on must be ray, or empty for this process, not {on!r}")
    if not on:
        return False
    world = read_environment(os.environ)
    if world.size > 1 or share.count > 1:
        other = option if share.count > 1 else "torchrun"
        raise world.shared(OptionError(f"on=ray starts its own processes: leave out {other}"))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # Ray Data sets off a warning each time
    needed("ray", "on=ray")
    needed("pyarrow", "on=ray")
    return True


def shared_out(compute: Compute) -> tuple[Compute, Compute]:
    """Return how this process, which only describes the work, and the actors compute."""
    theirs = replace(compute, precision=fixed(compute.precision), measure=False)
    return replace(theirs, device="cpu", engine="plain"), theirs


Build = Callable[[Compute], ShardJob]
Writer = Callable[[Build, Model, Collection[Source]], Write]
"""Makes what writes parts of a folder, of how a job is built, its model, and the images."""


@contextmanager
def writers(
    asked: Compute, on: str, share: ShardNumber, timeout: float
) -> Iterator[tuple[World, Compute, Writer]]:
    """Yield the processes that fill a folder, how this one computes, and what writes the parts.

    Args:
        asked: where and how to compute
        on: ray, or empty for this process and those of torchrun
        share: of the work that this process does
        timeout: seconds that a process of torchrun waits for the others
    """
    spread = check_on(on, share)
    with joined("cpu" if spread else str(asked.device), timeout) as (world, place):
        if spread:
            here, theirs = shared_out(asked)
            yield world, here, partial(fill_on_ray, theirs)
        else:
            here = replace(asked, device=place, sharing=world.local_size, measure=False)
            yield world, here, lambda *job: ShardFolder.write


def fill_on_ray(compute: Compute, build: Build, model: Model, sources: Collection[Source]) -> Write:
    """Return what writes parts of a folder on Ray, in place of `ShardFolder.write`.

    Args:
        compute: where and how
        build: makes the folder's job in the process of an actor
        model: that the job computes with
        sources: the images
    """

    def write(folder: ShardFolder, shards: Sequence[Shard], shown: bool) -> None:
        path = folder.path

        def work(compute: Compute) -> Work:
            if not (path / JOB).is_file():
                raise DiskError(
                    f"an actor cannot see {path}: choose a folder on storage that all nodes share"
                )
            own = ShardFolder(path, build(compute))

            def fill(number: int) -> None:
                if own.deaths(shards[number]) >= TRIES:
                    raise RunError(
                        f"{TRIES} processes died while they computed {own.file(shards[number])}: "
                        "if the node has too little memory, choose smaller --part-images or fewer "
                        "--workers"
                    )
                own.write([shards[number]], False)

            return fill

        total, done = sum(each.images for each in shards), 0
        with Meter(total, 0, folder.job.title, shown) as meter:
            for number, _ in computed(work, len(shards), model, sources, compute):
                done += shards[number].images
                meter.show(done, "images")
                receipt = folder.receipt(shards[number])
                for message in receipt.bad if receipt else ():
                    folder.job.warn(f"skipped: {message}")
        folder.tidy()

    return write


def computed(
    work: Callable[[Compute], Work],
    count: int,
    model: Model,
    sources: Collection[Source],
    compute: Compute,
) -> Iterator[tuple[int, Any]]:
    """Yield the results of some pieces of work, by number, as they come.

    Args:
        work: makes in an actor what computes a piece by its number
        count: of the pieces
        model: that computes, which is sent from the memory of the host
        sources: the images
        compute: where and how: `device` as the actors have it

    Raises:
        RunError: Ray gave up.
        UserError: of any actor, with its own type.
    """
    if not count:
        return
    from ray.data import ActorPoolStrategy, DataContext, from_items
    from ray.exceptions import RayError

    with cluster() as ray:
        actors, each = room(ray, str(compute.device))
        with borrowed(model, torch.device("cpu")):
            sent = ray.put((work, compute, sources, [*map(some_content, sources)], Path.cwd()))
        context = DataContext.get_current()
        context.enable_progress_bars = False  # they would go to stdout
        context.actor_pool_util_upscaling_threshold = 0.75  # more actors where all are busy
        pool = ActorPoolStrategy(
            initial_size=max(1, min(actors, count)), max_size=count, max_tasks_in_flight_per_actor=1
        )
        items = from_items([*range(count)], override_num_blocks=count)  # no tasks: actors have all
        pieces = items.map(Actor, fn_constructor_args=[[sent]], compute=pool, **each)
        try:
            for row in pieces.iter_rows():
                if isinstance(result := row["result"], UserError):
                    raise result
                yield row["item"], result
        except RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise RunError(f"Ray gave up ({reason}): run the same command to continue") from error


class Actor:
    """What Ray holds in a process of its own: a model, and images."""

    def __init__(self, sent: Any) -> None:
        self.sent = sent

    @cached_property
    def work(self) -> Work:
        """Make what computes, where an error can be sent to the driver."""
        import ray

        make, compute, sources, expected, home = ray.get(self.sent[0])
        with suppress(OSError):
            os.chdir(home)  # names of files may be relative
        if [*map(some_content, sources)] != expected:
            raise DataError(
                f"node {ray.util.get_node_ip_address()} does not have the images that this process "
                "sees: put them where all nodes see them, and give whole paths"
            )
        own = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
        return make(replace(compute, sharing=max(1, int(cores() // own))))

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Compute a piece; an error of the user is a result."""
        try:
            return row | {"result": self.work(row["item"])}
        except UserError as error:
            return row | {"result": error}


@contextmanager
def cluster() -> Iterator[Any]:
    """Connect to the cluster that RAY_ADDRESS or Ray names, or start one; yield the package."""
    ray = needed("ray", "on=ray")
    for name in ("ray", "ray.data"):
        logging.getLogger(name).setLevel(logging.ERROR)
    with redirect_stdout(sys.stderr):  # where Ray tells of actors that died
        if ray.is_initialized():
            yield ray
            return
        host, _, port = os.environ.get("RAY_ADDRESS", "").rpartition(":")
        stop = signal.getsignal(signal.SIGTERM)
        try:
            if port.isdigit():  # if nothing answers, Ray itself tries for a quarter of an hour
                socket.create_connection((host, int(port)), ANSWER).close()
            ray.init(logging_level="error", log_to_driver=False, include_dashboard=False)
        except (OSError, ValueError) as error:
            raise RunError(
                f"no Ray cluster ({error}): set RAY_ADDRESS to HOST:6379, or unset it to start one"
            ) from None
        try:
            with suppress(ValueError):  # not the main thread
                signal.signal(signal.SIGTERM, stop)  # Ray has put its own in place
            yield ray
        finally:
            ray.shutdown()


def room(ray: Any, device: str) -> tuple[int, dict[str, float]]:
    """Return how many actors, or tasks, there is room for now, and what each takes."""
    nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
    if device != "cpu" and (with_gpu := [each for each in nodes if each.get("GPU")]):
        own = min(each.get("CPU", 0) // each["GPU"] for each in with_gpu)
        return int(sum(each["GPU"] for each in with_gpu)), {"num_gpus": 1, "num_cpus": own}
    own = min([CORES, *(each["CPU"] for each in nodes if each.get("CPU"))])
    return int(sum(each.get("CPU", 0) // own for each in nodes)), {"num_cpus": own}
