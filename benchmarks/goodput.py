"""Goodput of the service at 0.8, 2 and 10 times its capacity: answers within the deadline.

`python benchmarks/goodput.py WEIGHTS --size 98 --timeout 5` (about 8 minutes)

Capacity is what a closed loop of 32 clients gets, before each load and after it: the machine may be
shared. Each load is an open loop, requests at the times of a Poisson process, and each request is a
JPEG of 500x375 in a form. Memory is of all processes of the service; what was computed for nobody
is read from its own metrics. The client takes time of the same cores: the second share is of the
capacity that the cores have without what it takes beyond its part at capacity.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import processes
import traffic

import serve

LOADS, CLIENTS, CLOSED = (0.8, 2.0, 10.0), 32, 15.0


def metrics(port: int) -> dict[str, float]:
    """Return the metrics without labels."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    return {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", text, re.MULTILINE)}


def computed(port: int) -> float:
    """Return the images that the model has computed."""
    return metrics(port)["vitlab_batch_images_sum"]


def cores(pid: int) -> dict[str, float]:
    """Return the seconds of processor time so far: of event loop, model and decoders."""
    found = dict.fromkeys(("event loop", "model", "decoders"), 0.0)
    for each in processes.family(pid):
        for file in Path(f"/proc/{each}/task").glob("*/stat"):
            ticks = file.read_text().rpartition(")")[2].split()[11:13]
            thread = "event loop" if file.parent.name == str(pid) else "model"
            name = thread if each == pid else "decoders"
            found[name] += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return found


def measured(
    session: serve.Session, watch: int, seconds: float, deadline: float
) -> list[dict[str, Any]]:
    """Return a row per load."""

    def capacity() -> tuple[float, float]:
        done = session.run(lambda pool: traffic.saturate(pool, session.requests, CLIENTS, CLOSED))
        return len(done.times(200)) / done.wall, done.cpu / done.wall

    rows, (before, usual) = [], capacity()
    for load in LOADS:
        rate, first, mb = load * before, computed(watch), processes.memory(session.pid)
        spent = cores(session.pid)
        done = session.run(
            lambda pool, rate=rate: traffic.arrive(pool, session.requests, rate, seconds, 1)
        )
        spent = {name: each - spent[name] for name, each in cores(session.pid).items()}
        images, (after, _) = computed(watch) - first, capacity()
        good = sum(each <= deadline for each in done.times(200))
        here = min(rate, (before + after) / 2)  # what could be answered
        free = 1 - max(0.0, done.cpu / done.wall - usual) / (len(os.sched_getaffinity(0)) - usual)
        health = sorted(each.seconds for each in done.probes)
        rows.append(
            {
                "load": load,
                "capacity before": before,
                "capacity after": after,
                "requests": len(done.outcomes),
                "statuses": dict(done.statuses),
                "share of what could be answered": good / (here * done.wall),
                "the same without the client": good / (min(rate, here * free) * done.wall),
                "p50": traffic.percentile(done.times(200), 50),
                "p99": traffic.percentile(done.times(200), 99),
                "refused p99": traffic.percentile(done.times(503), 99),
                "health p99": traffic.percentile(health, 99),
                "computed for nobody": max(0.0, 1 - len(done.times(200)) / images),
                "MB before": mb,
                "MB after": processes.memory(session.pid),
                "cores": {"client": done.cpu / done.wall}
                | {name: each / done.wall for name, each in spent.items()},
                "load of the machine": os.getloadavg()[0],
            }
        )
        print(json.dumps(rows[-1]), flush=True)
        before = after
    return rows


def main() -> None:
    """Start the service, measure it, and print a row per load."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights")
    parser.add_argument("--size", type=int, default=98)
    parser.add_argument("--timeout", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=120.0)
    args = parser.parse_args()
    args.patience = args.timeout + 5
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "model"
        port, watch = processes.free_port(), processes.free_port()
        code = "import sys, vitlab; a, b, c = sys.argv[1:]; "
        code += "vitlab.save(vitlab.load(a, image_size=int(b)), c)"
        subprocess.run(
            [sys.executable, "-c", code, args.weights, str(args.size), saved], check=True
        )
        words = ["serve", f"model={saved}", "--port", str(port), "--timeout", str(args.timeout)]
        words += ["--metrics-port", str(watch)]
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "vitlab", *words], stderr=log, start_new_session=True
            )
            try:
                while not processes._answers(f"http://127.0.0.1:{port}/ready"):
                    time.sleep(0.2)
                session = serve.Session(process.pid, port, args, {})
                session.requests = [
                    each.replace(b"POST /predict", b"POST /features") for each in session.requests
                ]
                measured(session, watch, args.seconds, args.timeout)
            finally:
                process.terminate()
                process.wait(60)


if __name__ == "__main__":
    main()
