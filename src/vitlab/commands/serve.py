"""`vitlab serve`."""

from dataclasses import dataclass
from typing import Any

from vitlab.command_table import Command
from vitlab.commands import DeviceOptions, EngineOptions
from vitlab.errors import OptionError
from vitlab.options import argument, at_least, at_most, option, when
from vitlab.precision import ServePrecision
from vitlab.serve.limits import Limits, named_models


@dataclass(frozen=True, kw_only=True)
class Serve(EngineOptions, DeviceOptions):
    """Models, an address, and bounds on what may be asked."""

    models: tuple[str, ...] = argument(
        "a run folder, a saved model, a weights file or delta, or user/name on the Hugging Face "
        "Hub; NAME=WEIGHTS names it",
        named_models,
        default=(),
    )
    port: int = option(8000, "port to listen on; 0 for any", at_least(0), at_most(65535))
    host: str = option(
        "127.0.0.1", "address to listen on: this machine alone; 0.0.0.0 for every network"
    )
    token_file: str = option(
        "", "file with the token that requests must carry; it also lets them add and remove models"
    )
    admin_token_file: str = option(
        "", "file with a second token, which alone may add and remove models"
    )
    metrics_port: int = option(
        0,
        "another port of the same host, for /metrics without a token; 0 for none",
        at_least(0),
        at_most(65535),
    )
    watch: str = option(
        "", "folder of models: new ones are added, changed ones replaced, missing ones removed"
    )
    allow_empty: bool = option(
        False,
        "be ready without a model, and let an emptied folder remove the last ones",
        only=when("watch"),
    )
    drain: float = option(
        30.0, "seconds to finish accepted requests after a signal to stop, at most", at_least(0)
    )
    precision: ServePrecision = option(
        "auto",
        "fp32; bf16; int8 with the scales that vitlab export --precision int8 has measured; or "
        "auto: bf16 where the device multiplies it faster and probabilities agree with fp32",
    )
    limits: Limits = Limits()


def begin(options: Serve) -> None:
    """Refuse what cannot be served or listened on, before PyTorch is imported."""
    from vitlab.serve.access import listen, read_token
    from vitlab.serve.logs import log, log_to_stderr

    if not options.models and not options.watch:
        raise OptionError("name a model to serve, or a folder of them with --watch FOLDER")
    read_token(options.token_file)
    read_token(options.admin_token_file)
    with listen(options.host, options.port):
        if options.metrics_port:
            listen(options.host, options.metrics_port).close()
    log_to_stderr()  # from now on each line is JSON
    log("starting", models=[name for name, _ in named_models(options.models)])


def run(options: Serve) -> dict[str, Any]:
    """Serve until a signal: SIGTERM ends with status 0, and Ctrl-C with 130.

    Raises:
        KeyboardInterrupt: it was Ctrl-C; everything that was accepted has been answered.
    """
    import sys

    from vitlab.progress import say
    from vitlab.serve.service import serve

    how = options.values("limits token_file admin_token_file metrics_port watch allow_empty")
    how |= options.values("drain device precision engine")
    how["say"] = say if sys.stderr.isatty() else lambda text: None  # else all lines are JSON
    named = named_models(options.models)
    return serve(named, address=(options.host, options.port), **how)


def show(result: dict[str, Any]) -> None:
    """Print what was answered."""
    print(f"{result['requests']:,} requests, {result['images']:,} images")


COMMAND = Command(
    run, show=show, begin=begin, needs=("fastapi", "uvicorn", "prometheus_client"), lasts=True
)
