"""How long `vitlab predict` of one photo takes from a cold process, beside `import torch` alone.

`python benchmarks/start.py photo.jpg --models Ti/16 B/16 --rounds 15`

Each model has random weights and is saved with `vitlab.save`. Processes take turns: `python -c
"import torch"`, then the command per model. Files and compiled bytecode are cached, as on a machine
where the command has run before: all bytecode is written into a temporary folder by a first,
unmeasured round. Times are medians; ratios are medians over rounds. CPU time counts all threads of
a process; on a busy machine compare that, on one thread (`OMP_NUM_THREADS=1`).
"""

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import torch
from measuring import machine

import vitlab

ALONE = 'python -c "import torch"'


def once(words: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Return the seconds of one process, and its CPU time."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(words, env=environment, capture_output=True, check=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, used


def works(models: list[str], image: Path, folder: Path) -> dict[str, list[str]]:
    """Return the words of each process; models are made and saved first."""
    found = {ALONE: [sys.executable, "-c", "import torch"]}
    for name in models:
        place = folder / name.replace("/", "-")
        torch.manual_seed(0)
        model = vitlab.create(f"ViT-{name}", classes=1000, image_size=224)
        torch.nn.init.normal_(model.head.classify.weight, std=0.02)
        vitlab.save(model, place)
        command = [sys.executable, "-m", "vitlab", "predict", str(place), str(image)]
        found[f"vitlab predict, ViT-{name}"] = command
    return found


def row(name: str, times: dict[str, list[tuple[float, float]]]) -> str:
    """Return one line of the table."""
    cells = [name]
    for which in (0, 1):
        own, base = ([each[which] for each in times[key]] for key in (name, ALONE))
        ratio = statistics.median(a / b for a, b in zip(own, base, strict=True))
        cells += [f"{statistics.median(own):.2f}", f"{ratio:.2f}"]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("image", type=Path, help="a photo")
    parser.add_argument("--models", nargs="+", default=["Ti/16", "B/16"])
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{date.today()}, {machine('cpu')}, Python {platform.python_version()}, load {load:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = str(Path(folder) / "bytecode")
        chosen = works(args.models, args.image.resolve(), Path(folder))
        for words in chosen.values():
            once(words, environment)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in chosen}
        for turn in range(args.rounds):
            for name in list(chosen) if turn % 2 else list(reversed(chosen)):
                times[name].append(once(chosen[name], environment))
    print("| process | s | over import torch | CPU s | over import torch |")
    print("| --- | --: | --: | --: | --: |")
    for name in chosen:
        print(row(name, times))


if __name__ == "__main__":
    main()
