"""Data opened once for several runs: counted, the same bits, the same record of each run."""

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitlab
from conftest import BRIEF, LIGHT, TINY, photo, photo_folder
from vitlab.data import opened_data as room
from vitlab.data.decode.stored import EncodedImage
from vitlab.data.images import Images
from vitlab.data.loading.cache import CachedPixels, cached
from vitlab.data.opened_data import OpenedData
from vitlab.data.settings import Data
from vitlab.files import sha256
from vitlab.recipes.recipe import Host

QUICK = TINY | {"image_size": 8, "steps": 2, "batch": 16}
QUIET = Host(check_duplicates="no", report="no", workers=0, effort=BRIEF)
SPEEDS = ("images_per_second", "peak_memory", "seconds", "run")


@pytest.fixture
def count(monkeypatch):
    """Count how often data is opened, and images are decoded whole, since the last call."""
    opens, images = list[object](), list[str]()
    real, decode = room.open_to_learn, EncodedImage.decode_box

    def open_it(data: Any, *given: Any, **named: Any) -> Any:
        opens.append(data)
        return real(data, *given, **named)

    monkeypatch.setattr(room, "open_to_learn", open_it)

    def decode_it(self: EncodedImage, *given: Any, **named: Any) -> Any:
        images.append(self.name)
        return decode(self, *given, **named)

    monkeypatch.setattr(EncodedImage, "decode_box", decode_it)

    def counts() -> tuple[int, int]:
        found = len(opens), len(images)
        opens.clear()
        images.clear()
        return found

    return counts


def record(run: vitlab.Run) -> tuple[Any, ...]:
    """What a run leaves, but for times and places."""
    tables = tomllib.loads((run.folder / "run.toml").read_text())
    tables["run"].pop("started")
    figures = {key: value for key, value in run.metrics.items() if key not in SPEEDS}
    return tables, repr(figures), sha256(run.folder / "model" / "model.safetensors")


VARIANTS: dict[str, dict[str, Any]] = {
    "dev_share": {"dev_share": 0.3, "train_images": 40},
    "share": {"train_images": 0.5},
}


def test_runs_open_and_decode_once_and_have_the_same_bits(photos, tmp_path, count) -> None:
    opened, found = OpenedData(), {}
    for name, fields in VARIANTS.items():
        options = vitlab.recipe("small", data=str(photos), **QUICK, **fields)
        runs = [
            vitlab.train(options, tmp_path / kind / name, opened=given, host=QUIET)
            for kind, given in (("alone", None), ("shared", opened))
        ]
        assert record(runs[0]) == record(runs[1])
        found[name] = runs[1]
    count()
    again = vitlab.train(options.changed(seed=2), tmp_path / "again", opened=opened, host=QUIET)
    assert count() == (0, 0)
    assert record(again) != record(found["share"])
    vitlab.train(
        options.changed(seed=2), again.folder, resume=True, host=LIGHT
    )  # by hand, as any run
    assert count() == (1, 0)


def test_images_without_labels_are_opened_once_too(photos, tmp_path, count) -> None:
    fields = {"decoder_depth": 1, "decoder_width": 16, "decoder_heads": 2} | QUICK
    recipe, opened = vitlab.recipe("mae", data=str(photos), **fields), OpenedData()
    runs = [vitlab.train(recipe, tmp_path / name, opened=opened, host=QUIET) for name in ("a", "b")]
    assert count() == (1, 60)
    alone = vitlab.train(recipe, tmp_path / "alone", host=QUIET)
    assert record(runs[0]) == record(runs[1]) == record(alone)


def same(ours: Images, theirs: Images) -> bool:
    return all(
        np.array_equal(ours.image(i).decode(3), theirs.image(i).decode(3)) for i in range(len(ours))
    )


def test_a_part_is_cached_if_it_is_by_itself(tmp_path: Path, count) -> None:
    folder = photo_folder(tmp_path / "p", {"a": 8, "b": 8})
    photo(0, 30, 40).save(folder / "a" / "003.png")  # of another size
    (folder / "b" / "001.png").write_bytes(b"damaged")
    photo(0).save(folder / "b" / "002.jpg")
    (folder / "b" / "002.png").unlink()
    opened = OpenedData()
    whole = opened.splits(Data(data=str(folder))).whole
    parts = {"one size": [0, 1, 2, 4], "two sizes": [2, 3, 4], "damaged": [8, 9], "JPEG": [0, 10]}
    count()
    for name, numbers in parts.items():
        part = whole.take(np.array(numbers))
        ours, theirs = opened.cached(part, 3), cached(part, 3)
        assert type(ours.store) is type(theirs.store), name
        if isinstance(ours.store, CachedPixels):
            assert same(ours, part)
            names = [[each.name(i) for i in range(len(each))] for each in (ours, part)]
            assert names[0] == names[1]
            assert np.array_equal(ours.target.values, part.target.values)
    count()
    nested = whole.take(np.array([9, 4, 1])).take(np.array([2, 1]))
    assert isinstance(opened.cached(nested, 3).store, CachedPixels)
    assert count() == (0, 0)


def test_images_in_memory_are_never_taken_for_those_of_before(tmp_path: Path) -> None:
    generator, opened = np.random.default_rng(0), OpenedData()
    recipe, runs = vitlab.recipe("small", **QUICK), list[vitlab.Run]()
    images = [generator.integers(0, 255, (40, 8, 8, 3), np.uint8) for _ in range(2)]
    for number, given in enumerate((opened, opened, None)):
        data = images[min(number, 1)], [0, 1] * 20
        runs += [vitlab.train(recipe, tmp_path / str(number), data=data, opened=given, host=QUIET)]
    assert record(runs[0]) != record(runs[1]) == record(runs[2])
