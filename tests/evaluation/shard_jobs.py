"""Small shards, a tiny model, and processes that fill a folder of parts."""

import io
import json
import multiprocessing
import os
import tarfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import vitlab
from conftest import photo
from evaluation.small_models import noisy
from steady import PATIENCE, wait_until
from vitlab.evaluation import infer
from vitlab.evaluation.classification import classify_shards, unlabeled
from vitlab.evaluation.compute import Compute

BATCH = 4
CLASSES = ("blue", "green", "red")


def tiny(seed: int = 0) -> vitlab.VisionTransformer:
    return noisy(seed=seed, labels=CLASSES)


def shards(folder: Path, count: int, images: int, label: Callable[[int], str] | None = None) -> str:
    """Tar files of so many images each; the sixth of all is damaged. Returns their glob."""
    folder.mkdir(parents=True)
    for shard in range(count):
        with tarfile.open(folder / f"s-{shard:03d}.tar", "w") as archive:
            for number in range(shard * images, (shard + 1) * images):
                stream = io.BytesIO()
                photo(number, 12, 10, number % 3).save(stream, "PNG")
                members = {"png": b"no image" if number == 5 else stream.getvalue()}
                if label is not None:
                    members["cls"] = label(number).encode()
                for kind, content in members.items():
                    info = tarfile.TarInfo(f"{number:05d}.{kind}")
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
    return str(folder / "s-*.tar")


def small_batches() -> Iterator[None]:
    """A fixture: as few images at a time as eight per part allow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(infer, "BATCH", BATCH)
        yield


def embed(
    data: str, out: Path, *, before: Callable[[], object] | None = None, **how: Any
) -> dict[str, Any]:
    """Embed with parts of eight images; in a process of its own, do something before each pass."""
    if before is not None:
        take = infer.take
        infer.take = lambda *given: (before(), take(*given))[1]
    how = {"workers": 0, "device": "cpu", "part_images": 8} | how
    return vitlab.embed(tiny(), data, out, **how)


def predict(data: str, out: Path, **how: Any) -> dict[str, Any]:
    """Predict with parts of eight images."""
    model = tiny()
    compute = Compute("cpu", "auto", workers=0)
    how = {"part_images": 8} | how
    return classify_shards(out, model, lambda: unlabeled(model, data), compute, **how)


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder of parts, but the lock; no drafts may be left."""
    files = [each for each in folder.rglob("*") if each.is_file() and each.name != "_lock"]
    return {str(each.relative_to(folder)): each.read_bytes() for each in sorted(files)}


def started(work: Callable[[], Any], say: Path | None = None) -> Any:
    """A process of its own, which writes down what `work` returns."""

    def run() -> None:
        try:
            said = {"value": work()}
        except BaseException as error:
            text = "".join(traceback.format_exception(error))
            said = {"kind": type(error).__name__, "error": str(error), "trace": text}
        if say is not None:
            say.write_text(json.dumps(said))
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process


def all_of(works: list[Callable[[], Any]], place: Path) -> list[dict[str, Any]]:
    """What each says when all run at once, knowing nothing of each other."""
    place.mkdir()
    files = [place / f"{number}.json" for number in range(len(works))]
    for process in [started(work, file) for work, file in zip(works, files, strict=True)]:
        process.join(PATIENCE)
    return [json.loads(file.read_text()) for file in files]


def parts_in(folder: Path) -> int:
    """How many parts are complete."""
    return len(list((folder / "_parts").glob("[!.]*")))


def killed(work: Callable[..., Any], folder: Path, parts: int) -> None:
    """A process that goes no further once so many parts are there, and is killed."""

    def hang() -> None:
        while parts_in(folder) >= parts:
            time.sleep(PATIENCE)

    process = started(partial(work, before=hang))
    wait_until(lambda: parts_in(folder) >= parts)
    process.kill()
    process.join()
