"""Runs command lines in forked children of a process that has imported everything.

Reads a JSON list of words per line of stdin, answers with one JSON object per line: exit status,
stdout, stderr, seconds, and the longest silence. The working folder is that of the caller.
"""

import contextlib
import importlib
import json
import os
import pkgutil
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path

SILENCE = (
    20.0  # seconds without a line on stderr that end a child; the goal is 10 on a free machine
)
WORK = 40.0  # seconds after which a child that shows progress is ended: it was a valid line
MEMORY = 8 * 2**30  # bytes of address space


def preload() -> None:
    """Import every module of the package, and what the commands import lazily."""
    import vitlab

    for each in pkgutil.walk_packages(vitlab.__path__, "vitlab."):
        if not each.name.endswith("__main__") and "adapters" not in each.name:
            importlib.import_module(each.name)
    for name in ("datasets", "pytorch_optimizer", "jinja2", "torch.utils.tensorboard"):
        importlib.import_module(name)


def child(words: list[str], out: int, err: int) -> None:
    """Run one command line and end, as the command would."""
    os.setsid()
    os.dup2(out, 1)
    os.dup2(err, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    from vitlab.cli import main

    code = 1
    try:
        main(words)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    except BaseException:
        import traceback

        traceback.print_exc()
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def answer(words: list[str]) -> dict[str, object]:
    """Run one command line in a child and watch it."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = last = time.monotonic()
        size, silence, status, ended = 0, 0.0, None, ""
        process = os.fork()
        if process == 0:
            child(words, out.fileno(), err.fileno())
        while True:
            done, raw = os.waitpid(process, os.WNOHANG)
            now = time.monotonic()
            if (grown := os.fstat(err.fileno()).st_size) != size:
                size, last = grown, now
            silence = max(silence, now - last)
            if done:
                status = os.waitstatus_to_exitcode(raw)
                break
            if not ended and (now - last > SILENCE or now - start > WORK):
                ended = "silent" if now - last > SILENCE else "working"
                os.killpg(process, signal.SIGKILL)
            time.sleep(0.005)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode("utf-8", "backslashreplace"))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)  # workers that were left
    return {"words": words, "code": status, "out": texts[0], "err": texts[1], "ended": ended,
            "seconds": time.monotonic() - start, "silence": silence}  # fmt: skip


def main() -> None:
    """Answer until stdin ends."""
    preload()
    print(json.dumps({"ready": str(Path.cwd())}), flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
