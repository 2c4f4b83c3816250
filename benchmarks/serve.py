"""The service under load, beside LitServe and a plain FastAPI, on the same model and client.

`python benchmarks/serve.py` (about 5 minutes; add `--soak 10` for ten minutes of overload)

For each server, in a process of its own on loopback: a closed loop for the throughput at
saturation, 70% of the bare model's rate as a Poisson process for the latency, and ten times that
rate for what overload does. A request is one JPEG of 500x375 in a form. The bare model is timed
before and after, since the machine may be shared, and rates are compared with the better of both.
The JSON file has all that was measured so far.
Needs the packages of `vitlab[serve]`; LitServe is left out where it is not installed.

Where other programs use the same cores, set OMP_WAIT_POLICY=passive. PyTorch's threads spin while
they wait for each other: one of them that loses its core stops all, and a pass of 35 ms took 3 s.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path
from typing import Any

import processes
import traffic
from traffic import BROKEN, LATE, Traffic, percentile

PHOTOS, ROWS, COLUMNS, QUALITY = 32, 375, 500, 90
AT_ONCE, LEAST = 4, 16  # requests under way at saturation: times the best batch, and at least
LOAD, OVERLOAD = 0.7, 10.0  # of the bare model's rate
NEAR = 1e-3  # of a probability: the same photo, in another batch
PROBE = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def photos(seed: int = 0) -> list[bytes]:
    """Return JPEGs with about the detail, and so the bytes, of photographs."""
    import numpy as np
    from PIL import Image

    generator, found = np.random.default_rng(seed), []
    for _ in range(PHOTOS):
        pixels = np.zeros((ROWS, COLUMNS, 3))
        for side in (4, 16, 64, 256):
            coarse = Image.fromarray(generator.integers(0, 256, (side, side, 3), np.uint8))
            pixels += np.asarray(coarse.resize((COLUMNS, ROWS))) / side**0.3
        stream = BytesIO()
        Image.fromarray((pixels * 255 / pixels.max()).astype(np.uint8)).save(
            stream, "JPEG", quality=QUALITY
        )
        found.append(stream.getvalue())
    return found


def form(image: bytes) -> bytes:
    """Return a whole request with one image."""
    mark = b"a-line-that-no-image-has"
    head = b'Content-Disposition: form-data; name="image"; filename="photo.jpg"'
    body = b"--%b\r\n%b\r\nContent-Type: image/jpeg\r\n\r\n%b\r\n--%b--\r\n" % (
        mark, head, image, mark,
    )  # fmt: skip
    return (
        b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; "
        b"boundary=%b\r\nContent-Length: %d\r\n\r\n%b" % (mark, len(body), body)
    )


def top_of(body: bytes) -> tuple[str, float] | None:
    """Return the likeliest class in an answer of any of the servers."""
    try:
        answer = json.loads(body)
        best = (answer["predictions"][0] if "predictions" in answer else answer)["top"][0]
        return best["class"], best["probability"]
    except (ValueError, LookupError, TypeError):
        return None


class Session:
    """One server, its requests, and what was measured."""

    def __init__(
        self, pid: int, port: int, args: argparse.Namespace, bare: dict[str, float]
    ) -> None:
        self.pid, self.port, self.args, self.bare = pid, port, args, bare
        self.requests = [form(each) for each in photos()]
        self.right: list[tuple[str, float] | None] = []
        self.found: dict[str, Any] = {}

    def run(self, load: Any, watch: Any = lambda seconds: None) -> Traffic:
        """Run one load."""
        return asyncio.run(
            traffic.run(self.port, load, patience=self.args.patience, probing=PROBE, watch=watch)
        )

    def warm(self) -> None:
        """Ask for each photo once, with nothing beside it: the answers that are right."""
        first = self.run(lambda pool: traffic.saturate(pool, self.requests, 1, 1.0))
        if set(first.statuses) != {200}:
            raise SystemExit(f"the server answers with {dict(first.statuses)}")
        rest = [n for n in range(PHOTOS) if n not in {each.number for each in first.outcomes}]

        async def once(pool: traffic.Pool) -> None:
            for number in rest:
                pool.traffic.outcomes.append(await pool.ask(number, self.requests[number]))

        both = first.outcomes + self.run(once).outcomes
        answers = {each.number: top_of(each.body) for each in both}
        self.right = [answers[number] for number in range(PHOTOS)]

    def saturation(self) -> None:
        """Measure how many images per second it answers."""
        at_once, seconds = max(LEAST, int(AT_ONCE * self.bare["batch"])), self.args.seconds
        self.run(lambda pool: traffic.saturate(pool, self.requests, at_once, min(3.0, seconds)))
        done = self.run(lambda pool: traffic.saturate(pool, self.requests, at_once, seconds))
        rate = len(done.times(200)) / done.wall
        self.found |= {"saturation": rate, "statuses at saturation": dict(done.statuses)}
        self.found["client share at saturation"] = done.cpu / done.wall

    def latency(self) -> None:
        """Measure how long it takes to answer at 70% of the bare model's rate."""
        rate, seconds = LOAD * self.bare["rate"], 2 * self.args.seconds
        done = self.run(lambda pool: traffic.arrive(pool, self.requests, rate, seconds, 1))
        times = done.times(200)
        self.found |= {"p50": percentile(times, 50), "p99": percentile(times, 99)}
        self.found |= {"requests": len(done.outcomes), "statuses": dict(done.statuses)}
        self.found |= {"lag": done.lag, "client share": done.cpu / done.wall}

    def overload(self, seconds: float = 0.0, key: str = "overload") -> None:
        """Ask for ten times what the bare model could answer."""
        seconds = seconds or self.args.seconds
        rate, kept = OVERLOAD * self.bare["rate"], [(0.0, processes.memory(self.pid))]

        def watch(now: float) -> None:
            if now > kept[-1][0] + max(1.0, seconds / 60):
                kept.append((now, processes.memory(self.pid)))

        done = self.run(lambda pool: traffic.arrive(pool, self.requests, rate, seconds, 2), watch)
        kept.append((done.wall, processes.memory(self.pid)))
        served, shed, known = done.times(200), done.times(503), done.statuses
        health = sorted(each.seconds for each in done.probes)
        self.found[key] = {
            "requests": len(done.outcomes),
            "statuses": dict(known),
            "goodput": len(served) / done.wall,
            "p50": percentile(served, 50),
            "p99": percentile(served, 99),
            "refused p50": percentile(shed, 50),
            "refused p99": percentile(shed, 99),
            "unanswered": known[LATE] + known[BROKEN],
            "wrong": done.surplus + self._wrong(done),
            "health p50": percentile(health, 50),
            "health p99": percentile(health, 99),
            "health failed": sum(each.status != 200 for each in done.probes),
            "memory": kept,
            "lag": done.lag,
            "client share": done.cpu / done.wall,
        }

    def _wrong(self, done: Traffic) -> int:
        """Count answers that are not those of the same photo alone."""
        answers = [
            (self.right[each.number], top_of(each.body))
            for each in done.outcomes
            if each.status == 200
        ]
        return sum(
            not right or not got or right[0] != got[0] or abs(right[1] - got[1]) > NEAR
            for right, got in answers
        )


def table(found: dict[str, dict[str, Any]], bare: dict[str, float]) -> str:
    """Return what was measured as a table, a server per column, beside the bare model."""
    batch, rate = bare["seconds"], bare["rate"]

    def ms(seconds: float | None) -> str:
        return "–" if seconds is None else f"{1000 * seconds:,.0f}"

    def rates(value: float) -> str:
        return f"{value:.1f} ({value / rate:.0%})"

    def both(of: dict[str, Any], name: str) -> str:
        return f"{ms(of[f'{name}p50'])}, {ms(of[f'{name}p99'])}"

    rows: dict[str, Callable[[dict[str, Any], dict[str, Any]], str]] = {
        "images/s at saturation (of the bare model)": lambda s, o: rates(s["saturation"]),
        "70% load: p50, p99, ms": lambda s, o: both(s, ""),
        "p99 over the time of a batch": lambda s, o: f"{(s['p99'] or 0) / batch:.1f}",
        "10 times the load: images/s (of the bare model)": lambda s, o: rates(o["goodput"]),
        "p50, p99 of the answers, ms": lambda s, o: both(o, ""),
        "requests": lambda s, o: f"{o['requests']:,}",
        "refused with 503": lambda s, o: f"{o['statuses'].get(503, 0):,}",
        "p50, p99 of the refusals, ms": lambda s, o: both(o, "refused "),
        "without an answer": lambda s, o: f"{o['unanswered']:,}",
        "wrong answers": lambda s, o: f"{o['wrong']:,}",
        "p50, p99 of `/health`, ms": lambda s, o: both(o, "health "),
        "MB before, after": lambda s, o: f"{o['memory'][0][1]:,.0f}, {o['memory'][-1][1]:,.0f}",
        "client's share of a core, 70% and 10 times": lambda s, o: (
            f"{s['client share']:.0%}, {o['client share']:.0%}"
        ),
    }
    names = [processes.NAMES[kind] for kind in found]
    lines = [f"| | {' | '.join(names)} |", "| --- " * (1 + len(names)) + "|"]
    for title, cell in rows.items():
        cells = [cell(each, each["overload"]) for each in found.values()]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def soaked(found: dict[str, Any], minutes: float) -> str:
    """Return a sentence about the memory of a long overload."""
    kept = found["soak"]["memory"]
    early = next(mb for now, mb in kept if now >= 6 * minutes)
    sizes = f"{kept[0][1]:,.0f} MB before, {early:,.0f} after a tenth, {kept[-1][1]:,.0f} after"
    soak = found["soak"]
    return (
        f"{minutes:g} minutes of ten times the load: {soak['goodput']:.1f} images/s, "
        f"{soak['unanswered']:,} without an answer, {soak['wrong']:,} wrong; {sizes}."
    )


def about() -> str:
    """Return the date, the machine and the versions."""
    named = []
    for name in ("torch", "fastapi", "uvicorn", "litserve"):
        try:
            named.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    load = os.getloadavg()[0]
    return (
        f"{date.today()}, {os.cpu_count()} cores, {platform.processor() or platform.machine()}, "
        f"load {load:.1f}, {', '.join(named)}: `python {' '.join(sys.argv)}`"
    )


def measure(args: argparse.Namespace, folder: Path, found: dict[str, Any]) -> None:
    """Measure every server, and keep what is known in the JSON file."""

    def keep() -> None:
        args.out.write_text(json.dumps(found, indent=1), encoding="utf-8")

    bare = found["bare"]
    for kind in args.servers:
        if why := processes.available(kind):
            print(why, file=sys.stderr)
            continue
        result = found["servers"][kind] = {"load average": os.getloadavg()[0]}
        with processes.started(kind, folder, int(bare["batch"])) as (pid, port):
            session = Session(pid, port, args, bare)
            session.found = result
            for phase in (session.warm, session.saturation, session.latency, session.overload):
                phase()
                keep()
            if args.soak and kind == "vitlab":
                session.overload(60 * args.soak, "soak")
        keep()
        print(f"{processes.NAMES[kind]}: done", file=sys.stderr)
    again = processes.measure_bare(folder, args.rounds)
    found["bare again"] = again
    keep()


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="S/16:224", help="SIZE/PATCH:PIXELS")
    parser.add_argument("--servers", nargs="+", default=list(processes.NAMES))
    parser.add_argument("--seconds", type=float, default=15.0, help="of saturation and overload")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds, of the client")
    parser.add_argument("--rounds", type=int, default=10, help="of timing the bare model")
    parser.add_argument("--soak", type=float, default=0.0, help="minutes of overload, of ours only")
    parser.add_argument("--out", type=Path, default=Path("serve.json"))
    args = parser.parse_args()
    found: dict[str, Any] = {"about": about(), "servers": {}}
    with tempfile.TemporaryDirectory() as folder:
        processes.write_model(args.model, Path(folder) / "model")
        found["bare"] = processes.measure_bare(Path(folder) / "model", args.rounds)
        measure(args, Path(folder) / "model", found)
    bare, again = found["bare"], found["bare again"]
    print(
        f"{found['about']}\n\nThe bare model: {bare['rate']:.1f} images/s in batches of "
        f"{bare['batch']} ({1000 * bare['seconds']:,.0f} ms); {again['rate']:.1f} afterwards.\n"
    )
    best = max(bare, again, key=lambda each: each["rate"])
    print(table(found["servers"], best))
    if args.soak and "vitlab" in found["servers"]:
        print(f"\n{soaked(found['servers']['vitlab'], args.soak)}")


if __name__ == "__main__":
    main()
