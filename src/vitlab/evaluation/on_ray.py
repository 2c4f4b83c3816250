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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from vitlab.distributed.launch import joined, read_environment
from vitlab.distributed.world import World
from vitlab.errors import DataError, DiskError, OptionError, RunError, UserError
from vitlab.evaluation.compute import Compute, borrowed
from vitlab.evaluation.shards import WHOLE, Shard, ShardFolder, ShardNumber, Write, some_content
from vitlab.machine.cores import cores
from vitlab.packages import needed
from vitlab.places import JOB
from vitlab.precision import fixed
from vitlab.progress import Meter, named_if_slow

CORES = 4  # of an actor without a GPU: more of them would each need a model in memory
TRIES = 4  # at a part whose actor dies: Ray would go on for ever
ANSWER = 10  # seconds


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


@contextmanager
def writers(
    asked: Compute, on: str, share: ShardNumber, timeout: float
) -> Iterator[tuple[World, Compute, Write]]:
    """Yield the processes that fill a folder, how this one computes, and what writes the parts.

    Args:
        asked: where and how to compute
        on: ray, or empty for this process and those of torchrun
        share: of the work that this process does
        timeout: seconds that a process of torchrun waits for the others
    """
    spread = check_on(on, share)
    with joined("cpu" if spread else str(asked.device), timeout, resumes=False) as (world, place):
        if spread:
            here, theirs = shared_out(asked)
            yield world, here, partial(write_on_ray, theirs)
        else:
            here = replace(asked, device=place, sharing=world.local_size, measure=False)
            yield world, here, ShardFolder.write


def write_on_ray(
    compute: Compute, folder: ShardFolder, shards: Sequence[Shard], shown: bool
) -> None:
    """Compute parts of a folder on Ray, as `ShardFolder.write` does here.

    Args:
        compute: where and how: `device` as the actors have it
        folder: of the parts
        shards: the parts
        shown: whether to show how far it is

    Raises:
        RunError: Ray gave up.
        UserError: of any actor, with its own type.
    """
    if not shards:
        return
    from ray.data import ActorPoolStrategy, DataContext, from_items
    from ray.exceptions import RayError

    job = replace(folder.job, compute=compute)
    done = 0
    every = {each: number for number, each in enumerate(job.shards)}
    numbers = [every[each] for each in shards]
    count = len(shards)
    known = [some_content(each) for each in job.sources.values()]
    with cluster() as ray, Meter(sum(each.images for each in shards), 0, job.title, shown) as meter:
        actors, each = room(ray, str(compute.device))
        with borrowed(job.model, torch.device("cpu")):
            sent = ray.put((folder.path, job, known, Path.cwd()))
        context = DataContext.get_current()
        context.enable_progress_bars = False  # they would go to stdout
        context.actor_pool_util_upscaling_threshold = 0.75  # more actors where all are busy
        pool = ActorPoolStrategy(
            initial_size=max(1, min(actors, count)), max_size=count, max_tasks_in_flight_per_actor=1
        )
        items = from_items(numbers, override_num_blocks=count)  # no tasks: actors have all
        pieces = items.map(Actor, fn_constructor_args=[[sent]], compute=pool, **each)
        try:
            for row in pieces.iter_rows():
                if isinstance(row["error"], UserError):
                    raise row["error"]
                shard = job.shards[row["item"]]
                done += shard.images
                meter.show(done, "images")
                receipt = folder.receipt(shard)
                for message in receipt.bad if receipt else ():
                    job.warn(f"skipped: {message}")
        except RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise RunError(f"Ray gave up ({reason}): run the same command to continue") from error
    folder.tidy()


class Actor:
    """What Ray holds in a process of its own: a model, and images."""

    def __init__(self, sent: Any) -> None:
        self.sent = sent

    @cached_property
    def folder(self) -> ShardFolder:
        """The folder to fill; made where an error can be sent to the driver."""
        import ray

        path, job, known, home = ray.get(self.sent[0])
        with suppress(OSError):
            os.chdir(home)  # names of files may be relative
        if [some_content(each) for each in job.sources.values()] != known:
            raise DataError(
                f"node {ray.util.get_node_ip_address()} does not have the images that this process "
                "sees: put them where all nodes see them, and give whole paths"
            )
        if not (path / JOB).is_file():
            raise DiskError(
                f"an actor cannot see {path}: choose a folder on storage that all nodes share"
            )
        own = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
        compute = replace(job.compute, sharing=max(1, int(cores() // own)))
        return ShardFolder(path, replace(job, compute=compute))

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Compute a part; an error of the user is a result."""
        try:
            folder = self.folder
            shard = folder.job.shards[row["item"]]
            if folder.deaths(shard) >= TRIES:
                raise RunError(
                    f"{TRIES} processes died while they computed {folder.file(shard)}: if the node "
                    "has too little memory, choose smaller --part-images or fewer --workers"
                )
            folder.write([shard], False)
        except UserError as error:
            return row | {"error": error}
        return row | {"error": None}


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
            with named_if_slow("waiting for Ray"):
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
