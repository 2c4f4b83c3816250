"""All that is measured on a GPU, in one command of at most nine minutes.

`python benchmarks/gpu.py --out runs/gpu`
`python benchmarks/gpu.py --dry-run`

First come the tests that need a GPU, then each table in order of worth (`gpu_parts.py`), each by
its own command in a process of its own with a limit of its own: a crash, a hang or a lack of memory
costs one part. What a part printed is kept in OUT/parts as it ends, also if it was stopped at its
limit, and OUT/report.md is written anew. When the time is over, the same command goes on with the
parts that are missing, and then with those that failed; `--parts` names those to be made (again).
`--dry-run` makes every part on the CPU at tiny sizes. Needs torch, timm and transformers.
"""

import argparse
import contextlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from gpu_parts import PARTS, Part
from gpu_report import Kept, goals, report, state_of

HERE = Path(__file__).parent
NAMES = [part.name for part in PARTS]
PACKAGES = ("torch", "timm", "transformers", "triton")
NO_TESTS = 5  # pytest's status if none is selected; scripts do not end with it
ERRORS = 4000  # characters of what a part said on stderr
DRY_LIMITS = 10  # times a part's limit, which spares a borrowed GPU, where a dry run names parts


def about(dry: bool) -> dict[str, str]:
    """Return the device and the versions."""
    on_gpu = torch.cuda.is_available() and not dry
    said = {"device": torch.cuda.get_device_name() if on_gpu else "cpu"}
    for name in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            said[name] = version(name)
    return said | ({"CUDA": str(torch.version.cuda)} if on_gpu else {})


def command(part: Part, dry: bool, folder: Path, data: str | None) -> list[str]:
    """Return a part's command, beginning with the interpreter."""
    places = {"DATA": data or "DATA"}
    words = [places.get(w, w) for w in shlex.split(part.dry if dry else part.words)]
    words = [word.replace("FOLDER", str(folder)) for word in words]
    first = [str(HERE / words[0])] if words[0].endswith(".py") else ["-m", words[0]]
    return [sys.executable, *first, *words[1:]]


def environment(dry: bool) -> dict[str, str]:
    """Return a part's environment: this checkout, no network, output as it comes."""
    paths = [str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    own |= {"HF_HUB_OFFLINE": "1"}
    if dry:  # compiling takes longer than all else at tiny sizes
        own |= {"CUDA_VISIBLE_DEVICES": "", "TORCH_COMPILE_DISABLE": "1", "VITLAB_GPU_TESTS": "cpu"}
    return dict(os.environ) | own


def run(words: list[str], limit: float, dry: bool) -> dict[str, Any]:
    """Run a part; return what it printed, in which state it ended, and after how long."""
    start = time.monotonic()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            words,
            cwd=HERE.parent,
            env=environment(dry),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
            state = "done" if code in (0, NO_TESTS) else "failed"
        except subprocess.TimeoutExpired:
            code, state = -1, "stopped"
        finally:  # with the processes that it started, such as compilers; also after Ctrl-C
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        texts = [stream.read() for stream in (out, errors) if stream.seek(0) == 0]
    seconds = round(time.monotonic() - start, 1)
    script = os.path.relpath(words[1], HERE.parent) if words[1].endswith(".py") else words[1]
    return {
        "command": ["python", script, *words[2:]],
        "state": state,
        "status": code,
        "seconds": seconds,
        "date": date.today().isoformat(),
        "stdout": texts[0],
        "stderr": texts[1][-ERRORS:],
    }


def kept_in(folder: Path, said: dict[str, str]) -> Kept:
    """Return what earlier calls left; refuse that of another machine."""
    found: Kept = {}
    for name in NAMES:
        file = folder / "parts" / f"{name}.json"
        if file.exists():
            found[name] = json.loads(file.read_text())
            if found[name]["about"] != said:
                sys.exit(
                    f"{file} was measured with {found[name]['about']}, and this is {said}: "
                    "choose another folder with --out"
                )
    return found


def due(kept: Kept, asked: list[str]) -> list[Part]:
    """Return the parts to be made: those asked for, or the missing ones and then the failed."""
    if asked:
        return [part for part in PARTS if part.name in asked]
    usual = [part for part in PARTS if not part.asked]
    missing = [part for part in usual if part.name not in kept]
    return missing + [p for p in usual if p.name in kept and kept[p.name]["state"] != "done"]


def lacks(words: list[str]) -> str:
    """Return what a part's command cannot do without, if it is missing."""
    script = Path(words[1])
    if script.suffix == ".py":
        return "" if script.exists() else f"{os.path.relpath(script, HERE.parent)} is missing"
    places = [word for word in words if word.startswith("tests/")]
    if gone := [place for place in places if not (HERE.parent / place).exists()]:
        return f"{gone[0]} is missing"
    return "" if importlib.util.find_spec(words[2]) else f"{words[2]} is not installed"


def save(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(file.name + ".part")
    draft.write_text(text)
    draft.replace(file)


def measure(parts: list[Part], kept: Kept, said: dict[str, str], args: argparse.Namespace) -> int:
    """Make parts while there is time; return how many were left out."""
    end, left = time.monotonic() + 60 * args.minutes, 0
    for part in parts:
        time_left = end - time.monotonic()
        if time_left < part.limit / 2 and not args.parts:
            left += 1  # a shorter one may still fit
            continue
        words = command(part, args.dry_run, args.out, args.data)
        if lacking := lacks(words):
            print(f"{part.name:16} left out: {lacking}", flush=True)
            continue
        named = part.limit * (DRY_LIMITS if args.dry_run else 1)
        limit = named if args.parts else min(part.limit, time_left)
        kept[part.name] = {"about": said} | run(words, limit, args.dry_run)
        save(args.out / "parts" / f"{part.name}.json", json.dumps(kept[part.name], indent=1))
        save(args.out / "report.md", report(said, kept))
        print(f"{part.name:16} {state_of(kept[part.name])}", flush=True)
    return left


def main() -> None:
    """Measure, write the report, and print how far the goals were reached."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", type=Path, help="folder (default: runs/gpu; a dry run's: a new one)"
    )
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--parts", nargs="+", default=[], choices=NAMES, metavar="PART")
    parser.add_argument("--data", help="of the part cifar10")
    parser.add_argument("--dry-run", action="store_true")
    args = parser.parse_args()
    if not args.dry_run and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU: add --dry-run to try every part on the CPU")
    if "cifar10" in args.parts and not args.data and not args.dry_run:
        parser.error("the part cifar10 needs --data: a folder or Parquet file of CIFAR-10")
    given = args.out is not None
    args.out = (args.out or Path(tempfile.mkdtemp() if args.dry_run else "runs/gpu")).resolve()
    said = about(args.dry_run)
    print(", ".join(f"{key} {value}" for key, value in said.items()), flush=True)
    kept = kept_in(args.out, said)
    left = measure(due(kept, args.parts), kept, said, args)
    save(args.out / "report.md", report(said, kept))
    print(f"\n{goals(kept, args.dry_run)}\n")
    if args.dry_run and not given:
        shutil.rmtree(args.out)
    else:
        print(f"{args.out / 'report.md'} has the tables")
    if left:
        print(f"{left} parts are left: run the same command again")
    if any(each["state"] == "failed" for each in kept.values()):
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # the part under way is lost, its processes are ended
        print("\ninterrupted: run the same command again to go on", file=sys.stderr)
        sys.exit(130)
