"""Copies across splits are found whatever is learned: classes, numbers, boxes or masks."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

import vitlab
from conftest import BRIEF, call
from places_opened import open_masks, open_targets
from vitlab.data.box_targets import BoxTargets
from vitlab.data.images import Images, concat
from vitlab.data.labels import MultiLabels, SingleLabels
from vitlab.data.number_targets import NumberTargets, numbers_of
from vitlab.data.settings import Columns, Data
from vitlab.data.sources.memory import Arrays
from vitlab.data.standardize import standardize
from vitlab.errors import DataError
from vitlab.recipes.recipe import Host

SIZE = 48
TINY = {"model": "ViT-Ti/16", "width": 16, "depth": 2, "heads": 1, "steps": 1, "batch": 4}


class Row(NamedTuple):
    """An image: the seed of its picture, its split, and a number that its labels are made of."""

    seed: int
    split: str
    label: int


def pixels(seed: int) -> np.ndarray:
    """A rough picture of its own, always the same."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (9, 9, 3), np.uint8))
    return np.asarray(coarse.resize((SIZE, SIZE), Image.Resampling.BICUBIC))


def box(label: int) -> list[int]:
    return [4 + label % 20, 6, 12, 10 + label % 8]


def as_list(root: Path, rows: Sequence[Row], column: str, cell: Callable[[int], str]) -> Path:
    root.mkdir(exist_ok=True)
    lines = [f"path,split,{column},site"]
    for number, row in enumerate(rows):
        Image.fromarray(pixels(row.seed)).save(root / f"{number}.png")
        lines.append(f"{number}.png,{row.split},{cell(row.label)},site{row.label % 5}")
    (root / "list.csv").write_text("\n".join(lines))
    return root / "list.csv"


def of_classes(root: Path, rows: Sequence[Row]) -> Path:
    return as_list(root, rows, "label", lambda label: "ab"[label % 2])


def of_several(root: Path, rows: Sequence[Row]) -> Path:
    return as_list(root, rows, "labels", lambda label: ("a|b", "b", "a|c")[label % 3])


def of_numbers(root: Path, rows: Sequence[Row]) -> Path:
    return as_list(root, rows, "age", str)


def of_masks(root: Path, rows: Sequence[Row]) -> Path:
    (root / "masks").mkdir(parents=True)
    for label in {row.label for row in rows}:
        mask = np.zeros((SIZE, SIZE), np.uint8)
        left, top, width, height = box(label)
        mask[top : top + height, left : left + width] = 1
        Image.fromarray(mask).save(root / "masks" / f"{label}.png")
    return as_list(root, rows, "mask", lambda label: f"masks/{label}.png")


def of_boxes(root: Path, rows: Sequence[Row]) -> Path:
    splits = {row.split for row in rows}
    for split in splits:
        images, boxes = [], []
        own = [(number, row) for number, row in enumerate(rows) if row.split == split]
        (folder := root / split).mkdir(parents=True)
        for number, row in own:
            Image.fromarray(pixels(row.seed)).save(folder / f"{number}.png")
            images.append({"id": number, "file_name": f"{number}.png", "width": SIZE,
                           "height": SIZE, "site": f"site{row.label % 5}"})  # fmt: skip
            boxes.append({"image_id": number, "category_id": 1, "bbox": box(row.label)})
        said = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "thing"}]}
        (folder / "_annotations.coco.json").write_text(json.dumps(said))
    return root


KINDS: dict[str, tuple[Callable[[Path, Sequence[Row]], Path], dict[str, Any]]] = {
    "classes": (of_classes, {}),
    "several": (of_several, {"loss": "bce"}),
    "numbers": (of_numbers, {"targets": "age"}),
    "boxes": (of_boxes, {"query_blocks": 1}),
    "masks": (of_masks, {"task": "segment"}),
}
AGAIN = {"numbers": "with other numbers", "boxes": "with other boxes", "masks": "with another mask"}


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run to fine-tune: a task of masks begins with one."""
    root = tmp_path_factory.mktemp("scenes")
    rows = [Row(1000 + n, "", n) for n in range(8)]
    model = vitlab.create("ViT(width=16,depth=2,heads=1,mlp=16)/16", classes=0, image_size=SIZE)
    host = Host(workers=0, report="no", effort=BRIEF)
    vitlab.probe(of_masks(root, rows), model, root / "run", task="segment", by="ridge",
                 quiet=True, host=host)  # fmt: skip
    return root / "run"


def trained(kind: str, data: Path, out: Path, segmenter: Path, **more: Any) -> vitlab.Run:
    """Train on data of a kind for a step."""
    host = Host(
        workers=0, report="no", check_duplicates=more.pop("check_duplicates", "auto"), effort=BRIEF
    )
    fields = KINDS[kind][1] | more
    if kind == "masks":
        return vitlab.finetune(str(data), str(segmenter), out, host=host, steps=1, batch=4,
                               quiet=True, **fields)  # fmt: skip
    if kind in ("classes", "several"):
        recipe = vitlab.recipe("digits", data=str(data), **TINY, **fields)
    else:
        name = {"numbers": "regress", "boxes": "detect"}[kind]
        recipe = vitlab.recipe(name, data=str(data), image_size=SIZE, **TINY, **fields)
    return vitlab.train(recipe, out, host=host)


def copied(count: int, others: int = 0) -> list[Row]:
    """20 training images, `count` test images that are copies of some, and other test images."""
    train = [Row(n, "train", n) for n in range(20)]
    test = [Row(n, "test", n) for n in range(count)]
    return [*train, *test, *(Row(100 + n, "test", n) for n in range(others))]


@pytest.mark.parametrize("kind", KINDS)
def test_a_test_split_of_copies_is_refused(kind: str, tmp_path: Path, segmenter: Path) -> None:
    data = KINDS[kind][0](tmp_path / "data", copied(10))
    with pytest.raises(DataError, match="10 of the 10 test images are copies of training images"):
        trained(kind, data, tmp_path / "run", segmenter)
    assert not (tmp_path / "run").exists()
    run = trained(kind, data, tmp_path / "dropped", segmenter, drop_duplicates=True)
    assert any("left out of training: 10 of 20" in note for note in run.metrics["notes"])
    assert "trained_on" not in run.metrics
    run = trained(kind, data, tmp_path / "anyway", segmenter, check_duplicates="no")
    assert not any("copies" in note for note in run.metrics["notes"])


@pytest.mark.parametrize("kind", KINDS)
def test_some_copies_are_said_and_copies_with_other_labels_too(
    kind: str, tmp_path: Path, segmenter: Path
) -> None:
    rows = [*copied(2, others=4), Row(5, "train", 5), Row(6, "train", 7)]
    run = trained(kind, KINDS[kind][0](tmp_path / "data", rows), tmp_path / "run", segmenter)
    text = "\n".join(run.metrics["notes"])
    assert "2 of the 6 test images are among the training images, as near-duplicates" in text
    again = AGAIN.get(kind, "under another class")
    assert f"1 training images occur again {again}, such as " in text
    assert run.metrics["trained_on"] == 2
    assert (tmp_path / "run" / "duplicates.json").is_file()


@pytest.mark.parametrize("kind", ["numbers", "masks"])
def test_a_probe_looks_for_copies_too(kind: str, tmp_path: Path) -> None:
    data = KINDS[kind][0](tmp_path / "data", copied(10))
    model = vitlab.create("ViT(width=16,depth=2,heads=1,mlp=16)/16", classes=0, image_size=SIZE)
    own = {"numbers": {"targets": "age"}, "masks": {"task": "segment", "by": "ridge"}}[kind]
    how = own | {"quiet": True, "host": Host(workers=0, report="no", effort=BRIEF)}
    with pytest.raises(DataError, match="10 of the 10 test images are copies of training images"):
        vitlab.probe(data, model, tmp_path / "run", **how)
    data = KINDS[kind][0](tmp_path / "more", copied(2, others=8))
    run = vitlab.probe(data, model, tmp_path / "run", **how)
    assert run.metrics["trained_on"] == 2
    assert any("2 of the 10 test images are among" in note for note in run.metrics["notes"])
    again = vitlab.probe(data, model, tmp_path / "run", resume=True, **how)
    assert again.metrics["trained_on"] == 2


def unsplit() -> list[Row]:
    """Images, of half of which there is another that is nearly the same."""
    return [Row(n // 2 if n < 24 else n, "", n) for n in range(36)]


@pytest.mark.parametrize("kind", ["numbers", "masks"])
def test_near_duplicates_of_unsplit_images_are_put_on_one_side(
    kind: str, tmp_path: Path, segmenter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = KINDS[kind][0](tmp_path / "data", unsplit())
    for number in range(1, 24, 2):  # no copy to the byte: which side it is on is by chance
        with Image.open(tmp_path / "data" / f"{number}.png") as image:
            image.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(
                tmp_path / "data" / f"{number}.png"
            )
    run = trained(kind, data, tmp_path / "run", segmenter)
    found = json.loads((tmp_path / "run" / "duplicates.json").read_text())
    assert found["moved"]
    assert any("were moved to the split of their near-dup" in n for n in run.metrics["notes"])
    how = "--device", "cpu", "--workers", "0", "--json"
    code, out, err = call(capsys, "evaluate", str(tmp_path / "run"), str(data), *how)
    assert code == 0, err
    measured, figure = json.loads(out), {"numbers": "r2", "masks": "miou"}[kind]
    assert measured["images"] == run.metrics["test_images"]
    assert measured[figure] == pytest.approx(run.metrics[figure], abs=1e-4)


def test_what_has_moved_is_standardized_as_the_rest(tmp_path: Path) -> None:
    file = of_numbers(tmp_path, [Row(n, "", n) for n in range(20)])
    splits = standardize(open_targets(file, ["age"], Data()))
    assert splits.whole is not None
    mean, deviation = numbers_of(splits.train).mean(), numbers_of(splits.train).std()
    for part in (splits.train, splits.test, splits.whole.take(np.arange(20))):
        wanted = (numbers_of(part) - mean) / deviation
        assert part.target.batch() == pytest.approx(wanted)


def test_labels_of_all_kinds_are_joined() -> None:
    images = Images.of(
        Arrays(np.zeros((3, 4, 4, 1), np.uint8), "image"), SingleLabels(np.arange(3)), ("a",)
    )
    scale = np.array([[2.0], [3.0]])
    boxes = [[(1, 0.1, 0.1, 0.5, 0.5)], [], [(0, 0, 0, 1, 1), (1, 0, 0, 0.5, 0.5)]]
    for labels in (
        SingleLabels(np.array([2, 0, 1])),
        MultiLabels.of_table(np.eye(3, dtype=np.uint8)),
        NumberTargets(np.array([[0.0], [5.0], [11.0]]), scale),
        BoxTargets.of(boxes, 2),
    ):
        part = images.with_target(labels, ("a", "b", "c"))
        parts = part.take(np.array([0, 1])), part.take(np.array([2, 0, 2]))
        if isinstance(labels, BoxTargets):  # of other data, which has fewer objects in an image
            parts = parts[0].with_target(BoxTargets.of(boxes[:2], 2), ("a", "b")), parts[1]
        joined = concat(parts).target
        chosen = labels.take([0, 1, 2, 0, 2])
        assert type(joined) is type(labels)
        assert np.array_equal(joined.batch(), chosen.batch())
        equal = [joined.are_equal(2, other) for other in range(5)]
        assert equal == [False, False, True, False, True]


def test_copies_with_the_numbers_0_and_5_differ_as_others_do() -> None:
    labels = NumberTargets(np.array([[0.0], [5.0], [11.0], [99.0], [5.0]]))
    assert not labels.are_equal(0, 1)
    assert not labels.are_equal(2, 3)
    assert labels.are_equal(1, 4)
    assert labels.classes_of(1) == ()


def test_masks_of_several_sources_are_joined(tmp_path: Path) -> None:
    one = open_masks(of_masks(tmp_path / "a", [Row(n, "", n) for n in range(3)])).parts["all"]
    two = open_masks(of_masks(tmp_path / "b", [Row(n, "", n + 1) for n in range(4)])).parts["all"]
    joined = concat((one.take(np.array([2, 0])), two)).target
    sides, whole = (SIZE, SIZE), (0, 0, SIZE, SIZE)
    for number, (source, own) in enumerate([(one, 2), (one, 0), (two, 0), (two, 1)]):
        assert np.array_equal(
            joined.cropped(number, whole, sides, sides), source.target.truth(own, sides)
        )
    assert joined.are_equal(0, 3)
    assert not joined.are_equal(0, 2)
    assert not joined.classes_of(0)


@pytest.mark.parametrize("kind", ["numbers", "masks"])
def test_groups_stay_on_one_side_whatever_is_learned(kind: str, tmp_path: Path) -> None:
    file = KINDS[kind][0](tmp_path / "data", [Row(n, "", n) for n in range(20)])
    by = Data(group_column="site")
    if kind == "numbers":
        splits = open_targets(file, ["age"], by)
    else:
        from vitlab.data.open_splits import split_opened

        splits = split_opened(open_masks(file, columns=by), 0.3)
    train, test = ({int(Path(part.name(n)).stem) % 5 for n in range(len(part))}
                   for part in (splits.train, splits.test))  # fmt: skip
    assert train
    assert test
    assert not train & test


def test_groups_of_what_has_no_columns_are_refused(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    of_masks(tmp_path, [Row(n, "", n) for n in range(3)])
    for number in range(3):
        (tmp_path / f"{number}.png").rename(tmp_path / "images" / f"{number}.png")
    with pytest.raises(DataError, match="has no columns, so that group_column means nothing"):
        open_masks(tmp_path, columns=Columns(group_column="site"))
    file = of_masks(tmp_path / "more", [Row(n, "", n) for n in range(3)])
    with pytest.raises(DataError, match="has no column 'day'"):
        open_masks(file, columns=Columns(group_column="day"))
