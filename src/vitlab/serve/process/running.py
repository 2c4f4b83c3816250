"""From the options of `vitlab serve` to a service that ran."""

import asyncio
import logging
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitlab.precision import Engine as EngineName
from vitlab.precision import ServePrecision
from vitlab.serve.app import application
from vitlab.serve.decoding.decoder import STATM
from vitlab.serve.engine import Engine
from vitlab.serve.http.access import hosts_of, read_token
from vitlab.serve.http.logs import log, log_to
from vitlab.serve.limits import Limits
from vitlab.serve.process.addresses import is_loopback, listen, url_of
from vitlab.serve.process.server import Service
from vitlab.serve.process.watched import Watched


def serve(
    models: Sequence[tuple[str, str]],
    *,
    limits: Limits,
    address: tuple[str, int],
    token_file: str = "",
    watch: str = "",
    allow_empty: bool = False,
    drain: float = 30.0,
    device: str = "auto",
    precision: ServePrecision = "auto",
    engine: EngineName = "auto",
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Serve models until a signal.

    Args:
        models: name and place of each
        limits: of requests
        address: host and port; port 0 for any
        token_file: file with the token that requests must carry; empty for none
        watch: folder whose models are served too; empty for none
        allow_empty: ready without a model, and an empty folder removes the last ones
        drain: seconds in which requests under way are answered after the signal
        device: auto, cpu, cuda, cuda:N or mps
        precision: auto, fp32, bf16 or int8, as `vitlab serve` has it
        engine: auto or one by its name, as `vitlab serve` has it
        say: tells a person where the service is, once it listens

    Returns:
        `url`, and how many `requests` about how many `images` there were.

    Raises:
        UserError: a model cannot be loaded, or the address cannot be listened on.
        KeyboardInterrupt: the signal was SIGINT.
    """
    log_to()
    if not STATM.exists():
        text = "this system sets no bound on the memory of the processes that decode images"
        log("warning", logging.WARNING, reason=text)
    token, warning = read_token(token_file) if token_file else ("", "")
    core = Engine(
        limits=limits, allow_empty=allow_empty, device=device, precision=precision, engine=engine
    )
    for name, place in models:
        core.add(name, place)
    app = application(core, limits=limits, token=token, hosts=hosts_of(address[0]))
    watched = Watched(Path(watch), core) if watch else None
    opened = listen(*address)
    if not token and not is_loopback(address[0]):
        warning = f"anybody who reaches {address[0]} can use this service: --token-file FILE"
    if warning:
        log("warning", logging.WARNING, reason=warning)
    url = url_of(opened)
    cards = core.cards()
    line = example(url, token_file, classes=not cards or bool(cards[0].classes))
    log("listening", url=url, example=line)
    say(f"listening on {url}; try: {line}")
    service = Service(app, core, drain, watched)
    asyncio.run(service.run(opened))
    if service.signal == signal.SIGINT:
        raise KeyboardInterrupt("interrupted; every request that was accepted has its answer")
    return {"url": url, **app.state.desk.counts}


def example(url: str, token_file: str = "", *, classes: bool = True) -> str:
    """Return a line for a shell that asks the service about a photograph.

    Args:
        url: of the service
        token_file: that holds the token it asks for
        classes: whether the model has a classifier; else its features are asked for
    """
    header = f'-H "Authorization: Bearer $(cat {token_file})" ' if token_file else ""
    return f"curl {header}-F image=@photo.jpg {url}/{'predict' if classes else 'features'}"
