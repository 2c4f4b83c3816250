"""Heads' files of other people: one line that names the file, before anything is built.

`pytest -m campaign tests/weights/test_hostile_heads.py -rP` tries every change with every command.
"""

import csv
import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from conftest import call
from made_damage import changes, damaged_bytes, read_head, sealed_bytes
from made_heads import VALUES, save_heads
from vitlab.errors import CONTROL
from vitlab.files import DETECT, REGRESS, SEGMENT

FILES = {"masks": SEGMENT, "queries": SEGMENT, "boxes": DETECT, "numbers": REGRESS}
STEP = 7  # of the changes, one in so many is tried by the suite
HOW = ("--device", "cpu", "--workers", "0")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_heads(tmp_path_factory.mktemp("heads"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Four images that each kind of head can be measured on."""
    root, draw = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name in ("images", "masks"):
        (root / name).mkdir()
    for number in range(4):
        pixels = draw.integers(0, 255, (16, 16, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(root / "images" / f"{number}.png")
        mask = np.array(VALUES, np.uint8)[draw.integers(0, 3, (16, 16))]
        Image.fromarray(mask).save(root / "masks" / f"{number}.png")
    (root / "classes.txt").write_text("0 ground\n1 disk\n7 square\n")
    with (root / "ages.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("image", "age", "height"))
        rows.writerows((f"images/{n}.png", 20 + n, 150 + 3 * n) for n in range(4))
    boxes = [
        {"image_id": n, "category_id": 1 + n % 2, "bbox": [2, 2, 8, 8], "area": 64, "iscrowd": 0}
        for n in range(4)
    ]
    names = [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    images = [
        {"id": n, "file_name": f"images/{n}.png", "width": 16, "height": 16} for n in range(4)
    ]
    coco = {"images": images, "categories": names, "annotations": boxes}
    (root / "coco.json").write_text(json.dumps(coco))
    both = {"masks": root, "queries": root, "boxes": root / "coco.json"}
    return both | {"numbers": root / "ages.csv"}


def changed(file: Path, kind: str) -> Iterator[tuple[str, bytes]]:
    """Every change of a head's file, and its name."""
    whole, names = file.read_bytes(), "targets" if kind == "numbers" else "classes"
    for what, change in changes(read_head(file), names):
        head = read_head(file)
        change(head)
        yield what, sealed_bytes(head)
    yield from damaged_bytes(whole)


def words_of(command: str, run: Path, data: Path, out: Path) -> tuple[str, ...]:
    match command:
        case "predict":
            images = (data if data.is_dir() else data.parent) / "images"
            return ("predict", str(run), str(images), *HOW)
        case "evaluate":
            return ("evaluate", str(run), str(data), "--split", "all", *HOW)
    return ("export", str(run), "--to", "onnx", "--out", str(out))


def check_refused(capsys: Any, file: Path, what: str, *words: str) -> None:
    code, out, err = call(capsys, *words)
    assert code == 2, (what, out)
    assert str(file.parent) in err.splitlines()[-1], what
    assert not CONTROL.search(out + err.replace("\n", "")), what


@pytest.mark.parametrize("kind", FILES)
def test_a_changed_head_is_refused_before_it_is_built(
    kind: str, runs: dict[str, Path], data: dict[str, Path], tmp_path: Path, capsys: Any
) -> None:
    file = runs[kind] / FILES[kind]
    words = words_of("predict", runs[kind], data[kind], tmp_path / "out")
    assert call(capsys, *words)[0] == 0
    before, tried = file.read_bytes(), [*changed(file, kind)]
    assert len(tried) > 150
    try:
        for what, content in tried[first_of(kind) :: STEP]:
            file.write_bytes(content)
            check_refused(capsys, file, what, *words)
    finally:
        file.write_bytes(before)


def first_of(kind: str) -> int:
    """Where a kind begins to count, so that each tries other changes."""
    return [*FILES].index(kind)


@pytest.mark.parametrize("kind", FILES)
def test_what_a_sound_head_may_say(
    kind: str, runs: dict[str, Path], data: dict[str, Path], tmp_path: Path, capsys: Any
) -> None:
    """Other names, and masks in which every number counts."""
    file = runs[kind] / FILES[kind]
    before, head = file.read_bytes(), read_head(file)
    names = "targets" if kind == "numbers" else "classes"
    head.about[names] = ["größe (m²)", "класс", "猫"][: len(head.about[names])]
    if "ignored" in head.about:
        head.about["ignored"] = None
    file.write_bytes(sealed_bytes(head))
    try:
        code, out, err = call(
            capsys, *words_of("predict", runs[kind], data[kind], tmp_path), "--json"
        )
        assert code == 0, err
        assert json.loads(out)["images"] == 4
    finally:
        file.write_bytes(before)


def test_a_head_on_a_model_that_cannot_have_it_is_refused(
    runs: dict[str, Path], data: dict[str, Path], tmp_path: Path, capsys: Any
) -> None:
    """A ResNet has no tokens that queries could join, whatever fingerprint a file claims."""
    import vitlab
    from vitlab.weights.identity import fingerprint

    run = tmp_path / "run"
    model = vitlab.create("BiT-R(1)x1", classes=0, image_size=32, fit="squash", crop=1.0)
    vitlab.save(model, run / "model")
    for kind in FILES:
        head = read_head(runs[kind] / FILES[kind])
        head.base = fingerprint(model)
        file = run / FILES[kind]
        file.write_bytes(sealed_bytes(head))
        check_refused(capsys, file, kind, *words_of("predict", run, data[kind], tmp_path / "out"))
        file.unlink()


@pytest.mark.campaign
@pytest.mark.parametrize("command", ["predict", "evaluate", "export"])
@pytest.mark.parametrize("kind", FILES)
def test_every_change_with_every_command(
    kind: str,
    command: str,
    runs: dict[str, Path],
    data: dict[str, Path],
    tmp_path: Path,
    capsys: Any,
) -> None:
    file, counts, slowest = runs[kind] / FILES[kind], Counter[str](), (0.0, "")
    words = words_of(command, runs[kind], data[kind], tmp_path / "out")
    before = file.read_bytes()
    try:
        for what, content in [*changed(file, kind)]:
            file.write_bytes(content)
            began = time.process_time()
            check_refused(capsys, file, what, *words)
            slowest = max(slowest, (time.process_time() - began, what))
            counts["refused"] += 1
            assert not (tmp_path / "out").exists()
    finally:
        file.write_bytes(before)
    print(f"{kind} {command}: {counts['refused']} refused, the slowest in {slowest}")
