"""The service on Ray Serve, which starts, balances and replaces its replicas.

`vitlab.serve.deployment` is for Python; Ray's command line and configuration files call `build`:
`serve run vitlab.serve.ray_app:build weights=runs/photos`.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vitlab.errors import OptionError
from vitlab.packages import needed
from vitlab.serve.limits import Limits, name_of
from vitlab.weights.hub import check_weights

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
    name: str = "vitlab",
    num_replicas: int | Literal["auto"] = 1,
    autoscaling_config: Mapping[str, object] | None = None,
    num_cpus: float = 1,
    num_gpus: float = 0,
    max_queued_requests: int | None = None,
    health_check_period_s: float = 10,
    graceful_shutdown_timeout_s: float = 60,
) -> Any:
    """Return the service as a Ray Serve application, for `ray.serve.run`.

    Each replica holds the models and answers as `vitlab serve` does. It takes as many requests as
    its queue has places and answers 503 beyond them; `max_queued_requests` bounds those that wait
    in front of the replicas. A model cannot be changed while it runs: deploy again.

    Args:
        weights: a run folder, a saved folder, a file or a name on the Hub; or several by name.
            Every node must see them under the same path
        limits: of each replica
        device: of each replica: auto, cpu or cuda
        precision: auto, fp32 or bf16, as `vitlab serve` has it
        token_file: with a token that requests must carry, on every node; empty for none
        name: of the deployment
        num_replicas: Ray's, as all that follow: how many, or "auto"
        autoscaling_config: as `{"min_replicas": 1, "max_replicas": 8}`; instead of `num_replicas`
        num_cpus: cores that Ray sets aside for a replica; PyTorch computes with as many threads
        num_gpus: GPUs, or a share of one
        max_queued_requests: in each proxy; beyond it Ray answers 503. None: the places of a queue
        health_check_period_s: seconds between two checks of a replica
        graceful_shutdown_timeout_s: seconds in which a replica answers what it has accepted

    Returns:
        A `ray.serve.Application`.

    Raises:
        OptionError: no weights, or both `num_replicas` and `autoscaling_config`.
        WeightsError: weights that do not exist.
        PackageError: Ray Serve, or what the service needs, is not installed.
    """
    serve = _ray_serve()
    scale = _scale(num_replicas, autoscaling_config)
    sources, token = named(weights), _absolute(token_file) if token_file else ""

    def build() -> "FastAPI":
        """Load everything in the process of a replica."""
        return service(sources, limits, device, precision, token)

    queued = limits.queue if max_queued_requests is None else max_queued_requests
    return serve.deployment(
        serve.ingress(build)(Replica),
        name=name,
        ray_actor_options={"num_cpus": num_cpus, "num_gpus": num_gpus},
        max_ongoing_requests=limits.queue + SPARE,
        max_queued_requests=queued,
        health_check_period_s=health_check_period_s,
        graceful_shutdown_timeout_s=graceful_shutdown_timeout_s,
        **scale,
    ).bind()


def build(args: dict[str, Any]) -> Any:
    """Return the application that Ray deploys, from the arguments of `deployment`.

    Raises:
        UserError: as `deployment` does; also `limits` that cannot be.
        ValueError: an argument that there is not, or of another type.
    """
    from pydantic import validate_call

    limits = Limits.of(**args.get("limits", {}))
    checked = validate_call(config={"arbitrary_types_allowed": True})(deployment)
    return checked(**args | {"limits": limits})


def _scale(
    num_replicas: int | Literal["auto"], autoscaling_config: Mapping[str, object] | None
) -> dict[str, object]:
    if autoscaling_config is None:
        return {"num_replicas": num_replicas}
    if num_replicas != 1:
        raise OptionError("give num_replicas or autoscaling_config, not both")
    return {"autoscaling_config": dict(autoscaling_config)}


def _ray_serve() -> Any:
    """Return Ray Serve, and see to what the replicas need."""
    needed("fastapi", "vitlab.serve")
    needed("ray", "vitlab.serve.deployment")
    from ray import serve

    return serve


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

    engine = Engine(limits=limits, device=device, precision=precision)
    for name, source in sources.items():
        engine.add(name, source)
    token = read_token(token_file)[0] if token_file else ""
    app = application(engine, limits=limits, token=token, fixed=True)

    @asynccontextmanager
    async def running(_: object) -> AsyncIterator[None]:
        await engine.start()
        try:
            yield
        finally:
            await engine.stop()

    app.router.lifespan_context = running
    return app
