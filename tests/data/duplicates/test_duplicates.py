"""Near-duplicates: altered copies are found, other pictures are not."""

import functools
import os
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

import vitlab
from conftest import photo
from made_files import encoded
from vitlab.data.duplicates import signatures as signing
from vitlab.data.duplicates.candidates import Cells, describe, mirror, parts
from vitlab.data.duplicates.finding import compare, find
from vitlab.data.duplicates.signatures import signatures
from vitlab.data.images import Images
from vitlab.data.sources.image_files import image_paths, named_files
from vitlab.data.sources.memory import digits
from vitlab.data.sources.pictures import Pictures
from vitlab.errors import DataError

Picture = Image.Image
Alter = Callable[[Picture], Picture]


def source(pictures: list[Picture]) -> Pictures:
    """Pictures of any size as a source."""
    return Images.of(Pictures(pictures))


def scene(seed: int, side: int = 48) -> Picture:
    """A picture of its own: a rough background and a few objects."""
    rng = np.random.default_rng(seed)
    noise = np.zeros((side, side, 3))
    for cells in (3, 6, 12):
        coarse = rng.integers(0, 256, (cells, cells, 3), np.uint8)
        noise += np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC))
    picture = Image.fromarray((noise / 3).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    for _ in range(6):
        x, y, w, h = rng.integers(0, side, 4)
        draw.ellipse((x, y, x + w // 2, y + h // 2), fill=tuple(rng.integers(0, 256, 3).tolist()))
    return picture


def stored(kind: str, quality: int) -> Alter:
    return lambda picture: Image.open(BytesIO(encoded(picture, kind, quality=quality))).convert(
        "RGB"
    )


def resized(factor: float) -> Alter:
    return lambda picture: picture.resize(
        (round(picture.width * factor), round(picture.height * factor)), Image.Resampling.BICUBIC
    )


def cropped(x: float, y: float, share: float = 0.9) -> Alter:
    def alter(picture: Picture) -> Picture:
        w, h = round(picture.width * share), round(picture.height * share)
        left, top = round(x * (picture.width - w)), round(y * (picture.height - h))
        box = (left, top, left + w, top + h)
        return picture.resize(picture.size, Image.Resampling.BICUBIC, box)

    return alter


def flipped(picture: Picture) -> Picture:
    return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def together(*steps: Alter) -> Alter:
    return lambda picture: functools.reduce(lambda each, step: step(each), steps, picture)


ALTERED: dict[str, Alter] = {
    "the same": lambda picture: picture, "half": resized(0.5), "double": resized(2),
    "jpeg": stored("JPEG", 50), "webp": stored("WEBP", 50), "flipped": flipped,
    "corner": cropped(0, 0), "center": cropped(0.5, 0.5), "edge": cropped(1, 0.4),
    "all": together(flipped, cropped(0.3, 0.8), resized(0.75), stored("JPEG", 70)),
}  # fmt: skip
SCENES = [scene(seed) for seed in range(80)]


FEW = ("half", "jpeg", "flipped", "edge", "all")  # the others are for the campaign
KINDS = [pytest.param(kind, marks=[] if kind in FEW else pytest.mark.campaign) for kind in ALTERED]


@pytest.mark.parametrize("kind", KINDS)
def test_altered_copies_are_found_and_nothing_else(kind: str) -> None:
    originals, copies = source(SCENES), source([ALTERED[kind](each) for each in SCENES[:50]])
    for first, second in ((originals, copies), (copies, originals)):  # whichever was altered
        pairs = vitlab.duplicates(first, second)
        assert all(i == j and 0.85 < score <= 1 for i, j, score in pairs)
        assert len(pairs) >= 49  # the campaign below measures the recall on photographs


def test_pairs_within_a_set_come_once() -> None:
    mixed = source([*SCENES[:20], *(flipped(each) for each in SCENES[:20]), SCENES[3]])
    pairs = vitlab.duplicates(mixed)
    expected = {(i, i + 20) for i in range(20)} | {(3, 40), (23, 40)}
    assert sorted((i, j) for i, j, _ in pairs) == sorted(expected)
    assert [score for i, j, score in pairs if (i, j) == (3, 40)] == [1.0]


def test_similar_pictures_are_not_copies() -> None:
    """Handwritten digits of one class agree in their large forms."""
    few = digits()
    chosen = few.take(np.arange(250))
    assert vitlab.duplicates(chosen) == []
    changed = [each.copy() for each in SCENES[:30]]
    for each in changed:  # another object
        ImageDraw.Draw(each).ellipse((14, 14, 30, 30), fill="white", outline="black")
    assert vitlab.duplicates(source(SCENES[:30]), source(changed)) == []


def test_blank_pictures_match_nothing() -> None:
    blank = [Image.new("RGB", (40, 40), color) for color in ("white", "white", "black", "gray")]
    pairs = compare(source([*blank, SCENES[0]]), source([*blank, SCENES[0]])).pairs
    assert pairs.tuples() == [(4, 4, 1.0)]
    assert pairs.flat == (4, 4)


@pytest.mark.workers
def test_signatures_depend_on_no_workers_or_memory(tmp_path, monkeypatch) -> None:
    paths = [tmp_path / f"{n}.png" for n in range(100)]
    for n, path in enumerate(paths):
        SCENES[n % len(SCENES)].save(path)
    done = list[int]()
    alone = signatures(image_paths(list(map(str, paths))), workers=0, progress=done.append)
    assert done == [64, 100]
    state = torch.get_rng_state()
    monkeypatch.setattr(signing, "IN_MEMORY", 0)
    several = signatures(image_paths(list(map(str, paths))), workers=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert isinstance(several.rows, np.memmap)
    assert (alone.rows == several.rows).all()
    assert [(i, j) for i, j, _ in find(several).tuples()] == [(n, n + 80) for n in range(20)]


def test_damaged_images_are_listed(tmp_path: Path) -> None:
    SCENES[0].save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    (tmp_path / "c.png").write_bytes(b"no image")
    paths = [[str(tmp_path / f"{each}.png") for each in own] for own in ("ab", "c")]
    compared = compare(*(named_files(own, "") for own in paths), workers=0)
    assert len(compared.pairs) == 0
    assert len(compared.damaged) == 2
    assert "b.png" in compared.damaged[0]


def test_lists_folders_and_data(tmp_path: Path) -> None:
    for folder, kind in (("a", "png"), ("b", "webp")):
        (tmp_path / folder / "deep").mkdir(parents=True)
        for n in range(6):
            SCENES[n].save(tmp_path / folder / "deep" / f"{n}.{kind}", quality=60)
    expected = [(n, n) for n in range(6)]
    for first, second in (
        (tmp_path / "a", str(tmp_path / "b")),
        (sorted((tmp_path / "a").rglob("*.png")), tmp_path / "b"),
        (str(tmp_path / "a"), [str(each) for each in sorted((tmp_path / "b").rglob("*.webp"))]),
    ):
        assert [(i, j) for i, j, _ in vitlab.duplicates(first, second, workers=0)] == expected
    one = tmp_path / "b" / "deep" / "4.webp"
    assert [pair[:2] for pair in vitlab.duplicates(tmp_path / "a", str(one))] == [(4, 0)]


def test_what_cannot_be_compared() -> None:
    for images, message in (
        ([], "the given data has no images"),
        (["missing.png"], "no such file: missing.png"),
        ([3], "item 0 of the given data is of type int"),
        ("missing-folder", "no such file or folder: missing-folder"),
    ):
        with pytest.raises(DataError, match=message):
            vitlab.duplicates(images)


def test_cells_miss_next_to_nothing() -> None:
    """Against every training image compared with every view of every test image."""
    pictures = [scene(seed, 32) for seed in range(200)]
    originals = signatures(source(pictures))
    copies = signatures(source([ALTERED["all"](each) for each in pictures[:60]]))
    everything = np.arange(200), np.arange(60)
    found: set[tuple[int, int]] = set()
    cells = Cells(originals.rows["luma"], everything[0])
    for i, j, _ in cells.candidates(copies.rows["luma"], everything[1]):
        found |= set(zip(i.tolist(), j.tolist(), strict=True))
    known = describe(originals.rows["luma"])
    views = [describe(copies.rows["luma"], part) for part in range(len(parts()))]
    nearest = torch.stack(
        [view * sign @ known.T for view in views for sign in (torch.ones(1), mirror())]
    ).amax(0)
    expected = {(int(i), int(j)) for j, i in torch.nonzero(nearest > 0.83)}
    assert found <= expected
    assert len(found) >= 0.99 * len(expected)
    assert {(n, n) for n in range(60)} <= found


def test_a_mirrored_description_is_that_of_the_mirrored_picture() -> None:
    luma = signatures(source(SCENES[:10])).rows["luma"]
    other = luma[:, :, ::-1].copy()
    places = parts()
    for number, (left, top, right, bottom) in enumerate(places):
        opposite = min(
            range(len(places)),
            key=lambda n: np.abs(np.subtract(places[n], (1 - right, top, 1 - left, bottom))).sum(),
        )
        mine, theirs = describe(luma, number) * mirror(), describe(other, opposite)
        assert torch.allclose(mine, theirs, atol=1e-4)


CIFAR = os.environ.get("VITLAB_CIFAR10", "")


@pytest.mark.campaign
@pytest.mark.skipif(not CIFAR, reason="VITLAB_CIFAR10 names no Parquet file")
@pytest.mark.parametrize("kind", ALTERED)
def test_recall_on_cifar10(kind: str) -> None:
    """2,000 images and altered copies, but for pairs that CIFAR-10 itself has."""
    import datasets

    rows = datasets.load_dataset("parquet", data_files=CIFAR)["train"].select(range(2000))
    column = next(name for name in rows.features if name in ("image", "img"))
    originals = [each.convert("RGB") for each in rows[column]]
    known = {pair for i, j, _ in vitlab.duplicates(source(originals)) for pair in ((i, j), (j, i))}
    found = vitlab.duplicates(
        source(originals), source([ALTERED[kind](each) for each in originals])
    )
    assert sum(i == j for i, j, _ in found) >= 0.99 * len(originals)
    others = {(i, j) for i, j, _ in found if i != j}
    assert len(others - known) <= 2, others - known  # near-duplicates that one alteration reveals


def test_images_in_memory() -> None:
    images = [photo(seed, 64, 80) for seed in range(3)]
    again = np.asarray(images[1].resize((60, 48)))
    assert [pair[:2] for pair in vitlab.duplicates(images, [again], workers=0)] == [(1, 0)]
    clear = images[0].copy()
    clear.putalpha(Image.fromarray(np.repeat(np.uint8([[0, 255]]), 40, 1).repeat(64, 0)))
    white = np.asarray(images[0]).copy()
    white[:, :40] = 255  # as what is transparent is seen
    assert [pair[:2] for pair in vitlab.duplicates([white], [clear], workers=0)] == [(0, 0)]
    labeled = {"train": [(each, "a") for each in images], "test": [(again, "a")] * 2}
    assert [pair[:2] for pair in vitlab.duplicates(labeled, workers=0)] == [(1, 0), (1, 1)]
