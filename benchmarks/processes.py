"""Servers as processes: started, waited for, weighed and ended, with nothing but Python."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SERVERS = Path(__file__).resolve().parent / "servers.py"
NAMES = {"vitlab": "vitlab serve", "litserve": "LitServe", "fastapi": "plain FastAPI"}


def write_model(name: str, folder: Path) -> None:
    """Save a model of random weights."""
    subprocess.run([sys.executable, str(SERVERS), "write", name, str(folder)], check=True)


def measure_bare(folder: Path, rounds: int) -> dict[str, float]:
    """Time the model without a server."""
    command = [sys.executable, str(SERVERS), "bare", str(folder), str(rounds)]
    found: dict[str, float] = json.loads(subprocess.check_output(command))
    return found


def available(kind: str) -> str:
    """Return why a server is left out, empty if it is not."""
    if kind == "vitlab":
        return ""
    missing = importlib.util.find_spec(kind) is None
    return f"{NAMES[kind]} is left out: pip install {kind}" if missing else ""


def free_port() -> int:
    """Return a port of this machine that nobody uses."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def started(kind: str, folder: Path, batch: int, wait: float = 120.0) -> Iterator[tuple[int, int]]:
    """Yield the process and the port of a server that answers; it is ended afterwards."""
    port = free_port()
    own = [sys.executable, str(SERVERS), kind, str(folder), str(port), str(batch)]
    ours = [sys.executable, "-m", "vitlab", "serve", f"model={folder}", "--port", str(port)]
    command = ours if kind == "vitlab" else own
    log = folder.parent / f"{kind}.log"  # a line per request would slow a terminal, and so a server
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, start_new_session=True)
    try:
        path, until = "ready" if kind == "vitlab" else "health", time.monotonic() + wait
        while not _answers(f"http://127.0.0.1:{port}/{path}"):
            if process.poll() is not None or time.monotonic() > until:
                last = log.read_text(errors="replace")[-2000:]
                raise SystemExit(f"{' '.join(command)} did not start:\n{last}")
            time.sleep(0.2)
        yield process.pid, port
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(20)
        for pid in family(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.wait()


def _answers(url: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def family(pid: int) -> list[int]:
    """Return the processes of the session that a server leads; empty where there is no /proc."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == pid and fields[0] != "Z":
            found.append(int(folder.name))
    return found


def memory(pid: int) -> float:
    """Return the MB of a server and its processes; pages that they share count once."""
    total = 0
    for each in family(pid):
        try:
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024 / 1e6
