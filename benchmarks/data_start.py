"""What a run does before its first step, by the number of images, the kind of data and the ranks.

    python benchmarks/data_start.py FOLDER --images 10000 100000 1000000 --ranks 1 2 4

Makes tiny images in FOLDER, of 1,000 classes in training and test images: class folders, a CSV list
of the same files, Parquet files of 50,000 rows, and tar shards of 10,000 images. A run is started
on each, twice: with an empty cache (`first`), and on data that was seen before (`again`). Each
process writes down, from the end of its imports to its first step: processor seconds (its own and
those of its workers), how far its memory grew, and how many files below FOLDER it opened. The first
process reads, the others of a machine come after it.

Below the measured rows follow calculated ones: a + b n by least squares of relative errors, for the
numbers of images of ImageNet-1k, ImageNet-21k and JFT-300M, and for 1, 8 and 512 ranks (8 on a
machine). Data and rows that are there are not made again. Needs torch and pyarrow.
"""

import argparse
import io
import json
import mmap
import os
import resource
import shutil
import socket
import subprocess
import sys
import tarfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

KINDS = ("folders", "list", "parquet", "shards")
STATES = ("first", "again")
LARGE = {"ImageNet-1k": 1_281_167, "ImageNet-21k": 14_197_122, "JFT-300M": 303_000_000}
RANKS = (1, 8, 512)
A_MACHINE = 8  # ranks
CLASSES, ROWS, MEMBERS = 1000, 50_000, 10_000
SIDE = 32  # pixels
TESTED = 0.05  # images to test on, of those to train on; 50,000 at most
SLOTS = 4096  # processes whose opened files are counted apart


@dataclass(frozen=True)
class Row:
    """What one process did before its first step.

    Attributes:
        kind: of data
        images: training images
        ranks: processes
        state: whether the data was seen before
        rank: of this process
        seconds: of the processor, workers included
        memory: bytes that it grew by, at its peak
        opened: files below the folder
    """

    kind: str
    images: int
    ranks: int
    state: str
    rank: int
    seconds: float
    memory: int
    opened: int


# Data


def content(number: int) -> bytes:
    """Return the JPEG file of a picture of its own, always the same."""
    coarse = np.random.default_rng(number).integers(0, 256, (6, 6, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(coarse).resize((SIDE, SIDE)).save(stream, "JPEG", quality=60)
    return stream.getvalue()


def parts(images: int) -> dict[str, range]:
    """Return the numbers of the images of each split."""
    return {"train": range(images), "test": range(images, images + min(50_000, images // 20))}


def make(kind: str, images: int, root: Path) -> Path:
    """Make data of a kind, unless it is there; return what a run is given."""
    place = root / f"{'folders' if kind == 'list' else kind}-{images}"
    if not place.is_dir():
        draft = place.with_name(f"{place.name}.new")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        {"parquet": make_tables, "shards": make_shards}.get(kind, make_folders)(draft, images)
        draft.rename(place)
    if kind != "list":
        return place
    file = root / f"list-{images}.csv"
    if not file.exists():
        lines = [
            f"{place.name}/{split}/{number % CLASSES:04d}/{number}.jpg,{number % CLASSES},{split}\n"
            for split, numbers in parts(images).items()
            for number in numbers
        ]
        file.write_text("".join(["path,label,split\n", *lines]))
    return file


def make_folders(root: Path, images: int) -> None:
    """Make class folders."""
    for split, numbers in parts(images).items():
        for label in range(CLASSES):
            (root / split / f"{label:04d}").mkdir(parents=True)
        for number in numbers:
            file = root / split / f"{number % CLASSES:04d}" / f"{number}.jpg"
            file.write_bytes(content(number))


def make_tables(root: Path, images: int) -> None:
    """Make Parquet files."""
    import pyarrow
    from pyarrow import parquet

    for split, numbers in parts(images).items():
        for first in range(0, len(numbers), ROWS):
            own = numbers[first : first + ROWS]
            columns = {
                "image": [{"bytes": content(number), "path": None} for number in own],
                "label": [number % CLASSES for number in own],
            }
            table = pyarrow.table(columns)
            parquet.write_table(table, root / f"{split}-{first // ROWS:05d}.parquet")


def make_shards(root: Path, images: int) -> None:
    """Make tar shards."""
    for split, numbers in parts(images).items():
        for first in range(0, len(numbers), MEMBERS):
            with tarfile.open(root / f"{split}-{first // MEMBERS:05d}.tar", "w") as shard:
                for number in numbers[first : first + MEMBERS]:
                    label = str(number % CLASSES).encode()
                    for name, data in (("jpg", content(number)), ("cls", label)):
                        member = tarfile.TarInfo(f"{number:09d}.{name}")
                        member.size = len(data)
                        shard.addfile(member, io.BytesIO(data))


# One process


def used() -> float:
    """Return the processor seconds of this process and of its workers."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in found)


def peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class OpenedFiles:
    """Counts the files below a folder that this process and its children open."""

    def __init__(self, root: Path) -> None:
        self.root = os.fspath(root)
        self.counts = np.frombuffer(mmap.mmap(-1, 8 * SLOTS), np.int64)
        sys.addaudithook(self._note)

    def _note(self, event: str, given: tuple[Any, ...]) -> None:
        if event != "open":
            return
        name = given[0] if isinstance(given[0], str) else ""
        if name.startswith(self.root) or (name and not name.startswith("/")):
            self.counts[os.getpid() % SLOTS] += 1


def start(data: str, root: str, out: str) -> None:
    """Start a run, write down what it took, and end before its first step."""
    import vitlab
    from vitlab.recipes.recipe import Host
    from vitlab.training.session import Session

    rank = int(os.environ.get("RANK", "0"))
    model = "ViT(width=16,depth=1,heads=1,mlp=16)/16"
    recipe = vitlab.recipe("small", data, model=model, image_size=32, steps=2, batch=64)
    opened = OpenedFiles(Path(root))
    before, memory = used(), peak()

    def stop(session: Session) -> None:
        found = {"seconds": used() - before, "memory": peak() - memory}
        found["opened"] = int(opened.counts.sum())
        Path(out, f"{rank}.json").write_text(json.dumps(found))
        os._exit(0)

    Session.run = stop  # type: ignore[method-assign]
    vitlab.train(recipe, Path(out, "run"), host=Host(device="cpu", workers=0, report="no"))


# All of them


def rows_of(kind: str, images: int, ranks: int, root: Path) -> list[Row]:
    """Start a run on data that was not seen before, and again."""
    data = make(kind, images, root)
    cache = root / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    rows = []
    for state in STATES:
        out = root / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        words = [sys.executable, __file__, str(root), "--start", str(data), str(out)]
        around = os.environ | {"VITLAB_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
        if ranks > 1:
            around |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            around |= {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
        processes = []
        for rank in range(ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)} if ranks > 1 else {}
            log = (out / f"{rank}.log").open("w")
            processes.append(subprocess.Popen(words, env=around | own, stderr=log, stdout=log))
        if any(process.wait() for process in processes):
            sys.exit((out / "0.log").read_text())
        for rank in range(ranks):
            found = json.loads((out / f"{rank}.json").read_text())
            rows.append(Row(kind, images, ranks, state, rank, **found))
    return rows


def fitted(images: list[int], values: list[float], wanted: int) -> float:
    """Return a + b n for another number of images, by least squares of relative errors."""
    weights = 1 / np.maximum(values, 1e-9)
    table = np.stack([np.ones(len(images)), np.array(images, float)], 1)
    found, *_ = np.linalg.lstsq(table * weights[:, None], values * weights, rcond=None)
    return float(max(0.0, found @ [1, wanted]))


def figures(rows: list[Row], kind: str, state: str, leads: bool) -> dict[str, list[Any]]:
    """Return the numbers of images and what was measured of them, means over the processes."""
    own = [row for row in rows if (row.kind, row.state, row.rank == 0) == (kind, state, leads)]
    counts = sorted({row.images for row in own})
    found: dict[str, list[Any]] = {"images": counts}
    for name in ("seconds", "memory", "opened"):
        found[name] = [
            float(np.mean([getattr(row, name) for row in own if row.images == count]))
            for count in counts
        ]
    return found


def print_table(rows: list[Row]) -> None:
    """Print what was measured, and what follows from it."""
    print("| data | images | ranks | | CPU s: one, each other | MB: one, each other | opened |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for kind in KINDS:
        for count in sorted({row.images for row in rows if row.kind == kind}):
            for ranks in sorted({row.ranks for row in rows if row.images == count}):
                for state in STATES:
                    own = [
                        row for row in rows
                        if (row.kind, row.images, row.ranks, row.state)
                        == (kind, count, ranks, state)
                    ]  # fmt: skip
                    if own:
                        print_measured(own)
    for kind in KINDS:
        for state in STATES:
            one, other = (figures(rows, kind, state, leads) for leads in (True, False))
            if len(one["images"]) > 1:
                print_calculated(kind, state, one, other)


def print_measured(own: list[Row]) -> None:
    """Print a row of what was measured."""
    first, others = own[0], own[1:]

    def pair(name: str, scale: float, digits: int) -> str:
        mean = float(np.mean([getattr(row, name) for row in others])) if others else None
        cells = [getattr(first, name), *([] if mean is None else [mean])]
        return ", ".join(f"{each / scale:,.{digits}f}" for each in cells)

    cells = [first.kind, f"{first.images:,}", str(first.ranks), first.state]
    cells += [pair("seconds", 1, 1), pair("memory", 1e6, 0)]
    print(f"| {' | '.join([*cells, f'{sum(row.opened for row in own):,}'])} |", flush=True)


def print_calculated(
    kind: str, state: str, one: dict[str, list[Any]], other: dict[str, list[Any]]
) -> None:
    """Print the rows of large data sets."""
    for name, count in LARGE.items():
        lead = {key: fitted(one["images"], one[key], count) for key in one if key != "images"}
        rest = dict.fromkeys(lead, 0.0)
        if len(other["images"]) > 1:
            rest = {key: fitted(other["images"], other[key], count) for key in lead}
        for ranks in RANKS:
            leaders = -(-ranks // A_MACHINE)
            opened = leaders * lead["opened"] + (ranks - leaders) * rest["opened"]
            cells = [f"{kind} (calculated)", name, str(ranks), state]
            cells += [f"{lead['seconds']:,.0f}, {rest['seconds']:,.1f}"]
            cells += [f"{lead['memory'] / 1e6:,.0f}, {rest['memory'] / 1e6:,.0f}"]
            print(f"| {' | '.join([*cells, f'{opened:,.0f}'])} |")


def main() -> None:
    """Make, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("root", type=Path, metavar="FOLDER")
    parser.add_argument("--images", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--start", nargs=2, metavar=("DATA", "OUT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.start:
        start(given.start[0], str(given.root), given.start[1])
        return
    given.root.mkdir(parents=True, exist_ok=True)
    file = given.root / "rows.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    rows = [Row(**json.loads(line)) for line in lines]
    known = {(row.kind, row.images, row.ranks) for row in rows}
    for images in given.images:
        for kind in given.kinds:
            for ranks in given.ranks:
                if (kind, images, ranks) in known:
                    continue
                found = rows_of(kind, images, ranks, given.root.resolve())
                rows += found
                with file.open("a") as stream:
                    stream.writelines(json.dumps(asdict(row)) + "\n" for row in found)
    print_table(rows)


if __name__ == "__main__":
    main()
