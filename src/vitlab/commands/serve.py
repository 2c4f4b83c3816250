"""`vitlab serve`."""

from dataclasses import dataclass
from typing import Any

from vitlab.commands import DeviceOptions, EngineOptions
from vitlab.errors import OptionError
from vitlab.options import argument, at_least, at_most, option, when
from vitlab.precision import ServePrecision
from vitlab.serve.limits import Limits
from vitlab.serve.model_names import split
from vitlab.weights.hub import check_weights

SUMMARY = "Serve models over HTTP: classes, features, and where they look."
NEEDS = ("fastapi", "uvicorn", "prometheus_client")


def check_served(models: tuple[str, ...]) -> None:
    """Refuse models without a name, and weights that cannot exist.

    Raises:
        OptionError: nothing can be a model's name, or two have the same.
        WeightsError: no such file or folder.
    """
    names = [split(each)[0] for each in models]
    if twice := [name for name in names if names.count(name) > 1]:
        raise OptionError(f"two models are named {twice[0]}: name them, as {twice[0]}-2=WEIGHTS")
    check_weights(tuple(split(each)[1] for each in models))


@dataclass(frozen=True, kw_only=True)
class Serve(EngineOptions, DeviceOptions):
    """Models, an address, and bounds on what may be asked."""

    models: tuple[str, ...] = argument(
        "a run folder, a saved model, a weights file or delta, or user/name on the Hugging Face "
        "Hub; NAME=WEIGHTS names it",
        check_served,
        default=(),
    )
    port: int = option(8000, "port to listen on; 0 for any", at_least(0), at_most(65535))
    host: str = option(
        "127.0.0.1", "address to listen on: this machine alone; 0.0.0.0 for every network"
    )
    token_file: str = option(
        "", "file with the token that requests must carry; it also lets them add and remove models"
    )
    watch: str = option(
        "", "folder whose models are served, and added, replaced and removed as they come and go"
    )
    allow_empty: bool = option(
        False,
        "be ready without a model, and let an emptied folder remove the last ones",
        only=when("watch"),
    )
    drain: float = option(
        30.0, "most seconds to answer what was accepted, once asked to stop", at_least(0)
    )
    precision: ServePrecision = option(
        "auto",
        "fp32; bf16; int8 with the scales that vitlab export --precision int8 has measured; or "
        "auto: bf16 where the device multiplies it faster and probabilities agree with fp32",
    )
    limits: Limits = Limits()


def begin(options: Serve) -> None:
    """Refuse what cannot be served or listened on, before PyTorch is imported."""
    from vitlab.serve.http.access import read_token
    from vitlab.serve.process.addresses import listen

    if not options.models and not options.watch:
        raise OptionError("name a model to serve, or a folder of them with --watch FOLDER")
    if options.token_file:
        read_token(options.token_file)
    listen(options.host, options.port).close()


def run(options: Serve) -> dict[str, Any]:
    """Serve until a signal: SIGTERM ends with status 0, and Ctrl-C with 130.

    Raises:
        KeyboardInterrupt: it was Ctrl-C; everything that was accepted has been answered.
    """
    import sys

    from vitlab.progress import say
    from vitlab.serve.process.running import serve

    how = options.values("limits token_file watch allow_empty drain device precision engine")
    how["say"] = say if sys.stderr.isatty() else lambda text: None  # else all lines are JSON
    named = [split(each) for each in options.models]
    return serve(named, address=(options.host, options.port), **how)


def show(result: dict[str, Any]) -> None:
    """Print what was answered."""
    print(f"{result['requests']:,} requests, {result['images']:,} images")
