"""Six finished runs, one of each kind of answer: made once for all processes of a session.

Tests read them and copy what they change: at the end of a session the files are as they were. Each
run is made when it is first asked for, and has its data in the folder `data` beside it.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from numpy.typing import NDArray
from PIL import Image

import vitlab
from conftest import BRIEF, QUICK, SHOWN, fewer_scenes, photo_folder
from made_scenes import scene_folder
from vitlab.effort import Effort
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder

PICTURES = 80  # that have numbers
TAGS = ("red", "green", "odd")
LOCK = ".lock"  # of a run, which whoever reads it may make


def make_digits(place: Path) -> None:
    """A classifier of digits, made by the command line."""
    from vitlab.cli import main

    with pytest.raises(SystemExit) as stop:
        main(["train", "digits", "--out", str(place / "run"), *QUICK], effort=Effort(memory=False))
    assert not stop.value.code


def write_tags(folder: Path, *parts: str) -> str:
    """Write pictures with several labels in these splits, or unsplit; return their list."""
    rows = []
    for number, part in enumerate(parts):
        photo_folder(folder / part, {"red": 5 + number, "green": 5})
        split = {} if part == "all" else {"split": part}
        rows += [
            {"path": f"{part}/{name}/{i:03d}.png", "labels": [name, *["odd"] * i][:2]} | split
            for name in ("red", "green")
            for i in range(5)
        ]
    (folder / "list.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return str(folder / "list.jsonl")


def make_tags(place: Path) -> None:
    """A run on images with several labels, with a report."""
    table = write_tags(place / "data", "train", "val", "test")
    recipe = vitlab.recipe(
        "small", table, model="ViT(width=16,depth=1,heads=2,mlp=32)/4", steps=2, batch=8,
        warmup=0.0, loss="bce",
    )  # fmt: skip
    host = Host(workers=0, check_duplicates="no", effort=SHOWN)  # images are alike
    vitlab.train(recipe, place / "run", host=host)


def make_boxes(place: Path) -> None:
    """A detector of digits in few scenes."""
    how: dict[str, Any] = {
        "model": "ViT(width=16,depth=2,heads=2,mlp=32)/8", "image_size": 48, "batch": 16,
        "steps": 3, "warmup": 0, "query_blocks": 1, "object_queries": 9, "precision": "fp32",
    }  # fmt: skip
    recipe = vitlab.recipe("detect", "digit-scenes", **how)
    host = Host(workers=0, device="cpu", effort=BRIEF)
    with pytest.MonkeyPatch.context() as patch:
        for _ in fewer_scenes(patch):
            vitlab.train(recipe, place / "run", host=host)


def make_masks(place: Path) -> None:
    """A probe of pixels on random weights, with a report and all resamples, as `evaluate` has."""
    scenes = scene_folder(place / "data", 24)
    weights = write_weights(place, "ViT(width=16,depth=2,heads=2,mlp=32)/4", image_size=32)
    host = Host(workers=0, device="cpu")
    vitlab.probe(str(scenes), weights, place / "run", task="segment", host=host, quiet=True)


def write_weights(place: Path, name: str, **choices: Any) -> Path:
    """Save a model without classes, of random weights, beside a run."""
    generator = torch.Generator().manual_seed(0)
    model = vitlab.create(name, classes=0, generator=generator, **choices)
    return vitlab.save(model, place / "weights")


def pixels_of(number: int) -> tuple[NDArray[np.uint8], tuple[float, float]]:
    """A gray picture, 16x16, and two numbers of it: brightness in dollars, and its slope."""
    left, right = np.random.default_rng(number).integers(20, 235, 2).tolist()
    picture = np.full((16, 16), left, np.uint8)
    picture[:, 8:] = right
    return picture, (1e6 + left + right, (left - right) / 100)


def make_numbers(place: Path) -> None:
    """A ridge regression of two numbers of pictures on the features of random weights."""
    (place / "data").mkdir()
    lines = ["path,price,slope,odd,same"]
    for number in range(PICTURES):
        picture, (price, slope) = pixels_of(number)
        Image.fromarray(picture).save(place / "data" / f"{number}.png")
        odd = {3: "nan", 5: "", 8: "two", 9: "inf"}.get(number, number)
        lines.append(f"{number}.png,{price},{slope},{odd},7")
    table = place / "data" / "table.csv"
    table.write_text("\n".join(lines))
    weights = write_weights(
        place, "ViT(width=16,depth=2,heads=2,mlp=32)/8", image_size=16, channels=1
    )
    host = Host(  # two halves of other grays are near-duplicates, whatever the grays
        workers=0, device="cpu", report="no", checkpoint_every=1000, check_duplicates="no",
        effort=BRIEF,
    )  # fmt: skip
    vitlab.probe(table, weights, place / "run", targets="price,slope", host=host, cache=None)


def make_unlabeled(place: Path) -> None:
    """A run without labels, watched by neighbors, with a report; `said` is what it said."""
    recipe = vitlab.recipe(
        "masked-patch", "digits", model="ViT(width=16,depth=2,heads=2,mlp=32)/4", epochs=1,
        batch=256, warmup_steps=0, precision="fp32",
    )  # fmt: skip
    host = Host(probe="digits", probe_by="knn", workers=0, effort=SHOWN)
    with (place / "said").open("w") as said, redirect_stderr(said):
        vitlab.train(recipe, place / "run", host=host, command="vitlab pretrain digits")


MAKERS: dict[str, Callable[[Path], None]] = {
    "digits": make_digits,
    "tags": make_tags,
    "boxes": make_boxes,
    "masks": make_masks,
    "numbers": make_numbers,
    "unlabeled": make_unlabeled,
}


class SixRuns:
    """The runs by their kind, below a folder that the processes of a session share."""

    def __init__(self, root: Path, makers: Mapping[str, Callable[[Path], None]] = MAKERS) -> None:
        self.root = root
        self.makers = makers
        self.asked = set[str]()

    def folder(self, kind: str) -> Path:
        """Return the folder of a run, which the first process that asks makes."""
        place = self.root / kind
        self.root.mkdir(exist_ok=True)
        with FileLock(self.root / f"{kind}.lock"):
            listed = self.root / f"{kind}.json"  # written last
            if not listed.exists():
                shutil.rmtree(place, ignore_errors=True)  # of a process that failed
                place.mkdir()
                self.makers[kind](place)
                listed.write_text(json.dumps(files_below(place)))
        self.asked.add(kind)
        return place / "run"

    def changed(self) -> list[str]:
        """Return which files are no longer as they were made, or are new."""
        changed = []
        for kind in sorted(self.asked):
            made = json.loads((self.root / f"{kind}.json").read_text())
            now = files_below(self.root / kind)
            names = made.keys() | now.keys()
            changed += [f"{kind}/{name}" for name in names if made.get(name) != now.get(name)]
        return sorted(changed)


def files_below(folder: Path) -> dict[str, list[int]]:
    """Return the files below a folder, by name, with their sizes and times."""
    listed = {}
    for file in folder.rglob("*"):
        if file.is_file() and file.name != LOCK:
            about = file.stat()
            listed[file.relative_to(folder).as_posix()] = [about.st_size, about.st_mtime_ns]
    return listed


def run_in(folder: Path) -> vitlab.Run:
    """Return a finished run as `vitlab.train` returns it."""
    result = RunFolder(folder).result()
    assert result is not None
    return vitlab.Run(folder, result, vitlab.load(folder))


def shared_folder(base: Path) -> Path:
    """Return the folder for all processes of a session, given the one of this process."""
    return base.parent if base.name.startswith("popen-") else base


@pytest.fixture(scope="session")
def six_runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SixRuns]:
    """Finished runs that tests look at: they copy one to change it."""
    runs = SixRuns(shared_folder(tmp_path_factory.getbasetemp()) / "six-runs")
    yield runs
    assert not (changed := runs.changed()), f"a test has written into {', '.join(changed)}"


@pytest.fixture(scope="session")
def digits_run(six_runs: SixRuns) -> Path:
    """A finished run on digits, with a report and all resamples."""
    return six_runs.folder("digits")


@pytest.fixture(scope="session")
def tags_run(six_runs: SixRuns) -> Path:
    """One on images with several labels, with a report."""
    return six_runs.folder("tags")


@pytest.fixture(scope="session")
def boxes_run(six_runs: SixRuns) -> Path:
    """One that detects digits in scenes."""
    return six_runs.folder("boxes")


@pytest.fixture(scope="session")
def masks_run(six_runs: SixRuns) -> Path:
    """One that segments shapes, a probe, with a report and all resamples."""
    return six_runs.folder("masks")


@pytest.fixture(scope="session")
def numbers_run(six_runs: SixRuns) -> Path:
    """One that tells two numbers of a picture, a probe."""
    return six_runs.folder("numbers")


@pytest.fixture(scope="session")
def unlabeled_run(six_runs: SixRuns) -> Path:
    """One without labels, watched by neighbors, with a report."""
    return six_runs.folder("unlabeled")
