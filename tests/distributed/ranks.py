"""Several processes of one run, forked from the test's own: no imports to wait for."""

import json
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from steady import PATIENCE


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _rank(work: Callable[[], Any], environment: dict[str, str], place: Path) -> None:
    os.environ |= environment
    try:
        said = {"value": work()}
    except BaseException as error:  # the parent compares it
        text = "".join(traceback.format_exception(error))
        said = {"error": str(error), "kind": type(error).__name__, "trace": text}
        said["quiet"] = getattr(error, "quiet", False)
    place.write_text(json.dumps(said))
    os._exit(0)


def start_ranks(size: int, work: Callable[[], Any], place: Path) -> list[Any]:
    """So many processes that call `work`."""
    context, port = multiprocessing.get_context("fork"), free_port()
    place.mkdir(parents=True, exist_ok=True)
    processes = []
    for rank in range(size):
        environment = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        words = {key: str(value) for key, value in environment.items()}
        arguments = (work, words, place / f"said-{rank}.json")
        processes.append(context.Process(target=_rank, args=arguments))
        processes[-1].start()
    return processes


def on_ranks(size: int, work: Callable[[], Any], place: Path) -> list[dict[str, Any]]:
    """What `work` returns or raises in each of so many processes, in which it is called."""
    processes = start_ranks(size, work, place)
    for process in processes:
        process.join(PATIENCE)
        if process.is_alive():
            process.kill()
    files = [place / f"said-{rank}.json" for rank in range(size)]
    return [json.loads(f.read_text()) if f.exists() else {"error": "none"} for f in files]
