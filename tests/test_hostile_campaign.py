"""Other people's files, mutated by the thousand: one line, quickly, in little memory.

`VITLAB_CAMPAIGN=1000 pytest -m campaign tests/test_hostile_campaign.py -rP`, 1000 being the
mutations of each kind.
"""

import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet as pq
from safetensors.torch import load_file

import vitlab
from conftest import photo, photo_folder
from steady import PATIENCE
from vitlab.data.open_splits import open_to_learn
from vitlab.errors import ImageError

CASES = int(os.environ.get("VITLAB_CAMPAIGN", "200"))
SLOWEST, LARGEST = 60, 2**30  # seconds of computing a case, bytes of all
HOSTILE: tuple[Any, ...] = (
    10**9, -1, 0, 10**30, 1e308, float("nan"), "x" * 10_000, "/etc/passwd", "../../x", "/dev/zero",
    None, True, [], [[]] * 50, {}, {"a": {"a": 1}}, "\0", "\ud800", "9" * 5000, [10**9] * 3,
)  # fmt: skip

pytestmark = pytest.mark.campaign
Mutate = Callable[[Path, np.random.Generator], None]
Use = Callable[[Path], object]


def scrambled(file: Path, generator: np.random.Generator) -> None:
    """Flip bits, cut, insert zeros, or copy a part over another."""
    content = bytearray(file.read_bytes())
    for _ in range(int(generator.integers(1, 6))):
        at, other = (int(each) for each in generator.integers(0, len(content), 2))
        match int(generator.integers(0, 5)):
            case 0 | 1:
                content[at] ^= 1 << int(generator.integers(0, 8))
            case 2:
                content[at : at + 4] = b"\xff" * len(content[at : at + 4])
            case 3:
                content[at : at + 8] = content[other : other + len(content[at : at + 8])]
            case 4:
                del content[max(at, 1) :]
    file.write_bytes(bytes(content))


def replaced(value: Any, generator: np.random.Generator) -> Any:
    """The same JSON with one value somewhere replaced by a hostile one."""
    inside = isinstance(value, dict | list) and len(value) and generator.random() < 0.9
    if not inside:
        return HOSTILE[int(generator.integers(len(HOSTILE)))]
    keys = list(value) if isinstance(value, dict) else range(len(value))
    key = keys[int(generator.integers(len(keys)))]
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[key] = replaced(value[key], generator)  # type: ignore[index]
    return changed


def hostile_config(folder: Path, generator: np.random.Generator) -> None:
    file = folder / "config.json"
    content = json.loads(file.read_text())
    del content["sha256"]
    file.write_text(json.dumps(replaced(content, generator)))


def hostile_rows(file: Path, generator: np.random.Generator) -> None:
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    row = int(generator.integers(len(lines)))
    lines[row] = replaced(lines[row], generator)
    file.write_text("\n".join(map(json.dumps, lines)))


def hostile_cells(file: Path, generator: np.random.Generator) -> None:
    before = file.read_bytes()
    rows = pq.read_table(file).to_pylist()
    images = [each["image"] for each in rows]
    labels = [each["label"] for each in rows]
    if generator.random() < 0.5:
        labels = replaced(labels, generator)
    else:
        images[0] = {"bytes": None, "path": replaced("", generator)}
    try:
        pq.write_table(pa.table({"image": images, "label": labels}), file)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):  # no such file can be
        file.write_bytes(before)
        scrambled(file, generator)


def within(mutate: Mutate, name: str = "") -> Mutate:
    """The same for a file in a folder: one of the usual name, or any."""

    def inside(folder: Path, generator: np.random.Generator) -> None:
        files = sorted(each for each in folder.rglob(name or "*") if each.is_file())
        mutate(files[int(generator.integers(len(files)))], generator)

    return inside


def tiny() -> Any:
    generator = torch.Generator().manual_seed(3)
    return vitlab.create("ViT(width=8,depth=1,heads=2,mlp=8)/4", 3, 8, generator=generator)


def weights(place: Path) -> object:
    found = place / "m.pth" if (place / "m.pth").is_file() else place
    return vitlab.load(found, image_size=8)


def data(place: Path) -> object:
    """Open the data and decode all of it."""
    lists = sorted(place.glob("*.jsonl")) + sorted(place.glob("*.csv"))
    splits = open_to_learn(str(lists[0] if lists else place))
    for part in splits.parts.values():
        for number in range(min(len(part), 50)):
            try:
                part.image(number).decode(3)
            except ImageError as error:
                assert str(error).isprintable()
    return splits


def original(kind: str, folder: Path) -> None:
    """Write what is mutated."""
    match kind:
        case "folder" | "config":
            vitlab.save(tiny(), folder)
        case "transformers" | "timm" | "google":
            vitlab.save(vitlab.create("ViT-Ti1/8", 3, 16, gelu="tanh"), folder, to=kind)
        case "zip" | "pickle":
            original("timm", folder)
            tensors = load_file(folder / "model.safetensors")
            shutil.rmtree(folder)
            folder.mkdir()
            torch.save({"model": tensors, "epoch": 3}, folder / "m.pth",
                       _use_new_zipfile_serialization=kind == "zip")  # fmt: skip
        case "safetensors":
            original("timm", folder)
            (folder / "config.json").unlink()
        case "images" | "csv" | "jsonl":
            photo_folder(folder, {"a": 4, "b": 4})
            for number, ending in enumerate(("jpg", "webp", "gif", "bmp", "tif", "avif")):
                photo(number).save(folder / "a" / f"x{number}.{ending}")
            rows = [{"path": f"{c}/00{n}.png", "label": c} for c in "ab" for n in range(4)]
            if kind == "jsonl":
                (folder / "l.jsonl").write_text("\n".join(map(json.dumps, rows)))
            if kind == "csv":
                lines = [f"{row['path']},{row['label']}" for row in rows]
                (folder / "l.csv").write_text("\n".join(["path,label", *lines]))
        case "parquet" | "cells":
            photo_folder(folder, {"a": 12})
            cells = [{"bytes": file.read_bytes(), "path": None} for file in folder.rglob("*.png")]
            shutil.rmtree(folder / "a")
            table = pa.table({"image": cells, "label": [0, 1] * 6})
            pq.write_table(table, folder / "all.parquet")


KINDS: dict[str, tuple[Mutate, Use]] = {
    "folder": (within(scrambled), weights),
    "config": (hostile_config, weights),
    "transformers": (within(scrambled), weights),
    "timm": (within(scrambled), weights),
    "google": (within(scrambled), weights),
    "zip": (within(scrambled), weights),
    "pickle": (within(scrambled), weights),
    "safetensors": (within(scrambled), weights),
    "images": (within(scrambled), data),
    "csv": (within(scrambled, "*.csv"), data),
    "jsonl": (within(hostile_rows, "*.jsonl"), data),
    "parquet": (within(scrambled), data),
    "cells": (within(hostile_cells), data),
}


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    """Raise where something hangs."""

    def stop(number: int, frame: object) -> None:
        raise TimeoutError(f"no answer in {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def memory(mark: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(mark))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", KINDS)
def test_mutated(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    mutate, use = KINDS[kind]
    original(kind, tmp_path / "original")
    state = None
    if kind in ("folder", "config"):
        state = tiny().state_dict()
    use(tmp_path / "original")
    Path("/proc/self/clear_refs").write_text("5")
    before, slowest, ends = memory("VmHWM"), 0.0, Counter[str]()
    for number in range(CASES):
        place = tmp_path / "mutated"
        shutil.rmtree(place, ignore_errors=True)
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        shutil.copytree(tmp_path / "original", place)
        mutate(place, np.random.default_rng((number, len(kind))))
        start = time.process_time()
        try:
            with limited(round(PATIENCE)):
                found = use(place)
            ends["read"] += 1
            if kind == "folder" and state:
                tensors = found.state_dict()  # type: ignore[attr-defined]
                assert all(torch.equal(tensors[name], state[name]) for name in state)
        except vitlab.UserError as error:
            ends[type(error).__name__] += 1
            assert str(error).isprintable(), number
            assert len(str(error)) < 20_000, number
        except Exception as error:
            raise AssertionError(f"{kind} {number}: {type(error).__name__}: {error}") from error
        slowest = max(slowest, time.process_time() - start)
    grown = memory("VmHWM") - before
    said = capfd.readouterr().err
    print(f"{kind}: {dict(ends)}, slowest {slowest:.2f} s, {grown / 2**20:.0f} MB more at most")
    assert slowest < SLOWEST
    assert grown < LARGEST
    assert not said
