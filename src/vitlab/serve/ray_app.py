"""The service on Ray Serve, which starts, balances and replaces its replicas.

`vitlab.serve.deployment` is for Python; Ray's command line and configuration files call `build`:
`serve run vitlab.serve.ray_app:build weights=runs/photos`.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from vitlab.errors import OptionError
from vitlab.packages import needed
from vitlab.serve.limits import Limits, name_of
from vitlab.weights.hub import check_weights, is_hub_name

if TYPE_CHECKING:
    from fastapi import FastAPI

SPARE = 16  # requests beyond the queue that a replica takes: for those that ask for no image


class Replica:
    """A process with the models; what it answers is the application that `service` returns."""


def deployment(
    weights: str | Path | Mapping[str, str | Path],
    *,
    limits: Limits = Limits(),
    device: str = "auto",
    precision: Literal["auto", "fp32", "bf16"] = "auto",
    token_file: str | Path = "",
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Return the service as a Ray Serve application, for `ray.serve.run`.

    Each replica holds the models and answers as `vitlab serve` does. It takes as many requests as
    its queue has places and answers 503 beyond them; as many more wait in front of the replicas. A
    model cannot be changed while it runs: deploy again.

    Args:
        weights: a run folder, a saved folder, a file or a name on the Hub; or several by name.
            Every node must see them under the same path
        limits: of each replica
        device: of each replica: auto, cpu or cuda
        precision: auto, fp32 or bf16, as `vitlab serve` has it
        token_file: with a token that requests must carry, on every node; empty for none
        options: of `ray.serve.deployment`, as `{"num_replicas": 2, "ray_actor_options":
            {"num_cpus": 4}}`: PyTorch computes with as many threads as a replica has cores

    Returns:
        A `ray.serve.Application`.

    Raises:
        OptionError: no weights.
        WeightsError: weights that do not exist.
        PackageError: Ray Serve, or what the service needs, is not installed.
    """
    needed("fastapi", "vitlab.serve")
    needed("ray", "vitlab.serve.deployment")
    from ray import serve

    sources, token = named(weights), _absolute(token_file) if token_file else ""

    def build() -> "FastAPI":
        """Load everything in the process of a replica."""
        return service(sources, limits, device, precision, token)

    usual = {
        "name": "vitlab",
        "max_ongoing_requests": limits.queue + SPARE,
        "max_queued_requests": limits.queue,
        "graceful_shutdown_timeout_s": 60,
    }
    return serve.deployment(serve.ingress(build)(Replica), **usual | dict(options)).bind()


def build(args: dict[str, Any]) -> Any:
    """Return the application that Ray deploys, from the arguments of `deployment`.

    Raises:
        UserError: as `deployment` does; also `limits` that cannot be.
        TypeError: an argument that there is not.
    """
    return deployment(**args | {"limits": Limits.of(**args.get("limits", {}))})


def named(weights: str | Path | Mapping[str, str | Path]) -> dict[str, str]:
    """Return weights by name, with whole paths: a replica runs in another folder.

    Raises:
        OptionError: none are given.
        WeightsError: they do not exist.
    """
    given = dict(weights) if isinstance(weights, Mapping) else {name_of(str(weights)): weights}
    if not given:
        raise OptionError("weights must name at least one model")
    for source in given.values():
        if not is_hub_name(str(source)):  # which replicas ask for, not this machine
            check_weights(str(source))
    return {key: _absolute(source) for key, source in given.items()}


def _absolute(source: str | Path) -> str:
    """Return the whole path of what exists here; other names, as those on the Hub, unchanged."""
    path = Path(source).expanduser()
    return str(path.absolute()) if path.exists() else str(source)


def service(
    sources: Mapping[str, str],
    limits: Limits,
    device: str,
    precision: Literal["auto", "fp32", "bf16"],
    token_file: str,
) -> "FastAPI":
    """Return the service with its models loaded; it starts and stops with its server.

    Args:
        sources: places of models, by name
        limits: of requests
        device: auto, cpu, cuda, cuda:N or mps
        precision: auto, fp32 or bf16, as `vitlab serve` has it
        token_file: with the token that requests must carry; empty for none
    """
    from vitlab.serve.access import read_token
    from vitlab.serve.app import application
    from vitlab.serve.engine import Engine
    from vitlab.serve.faster import Faster

    engine = Engine(limits=limits, device=device, precision=precision)
    for name, source in sources.items():
        engine.add(name, source)
    app = application(engine, token=read_token(token_file), fixed=True)

    @asynccontextmanager
    async def running(_: object) -> AsyncIterator[None]:
        await engine.start()
        faster = Faster(engine)
        timing = asyncio.create_task(faster.watch())
        try:
            yield
        finally:
            timing.cancel()
            await engine.stop()
            await faster.stop()

    app.router.lifespan_context = running
    return app
