"""The table of images: what is taken, joined and sent is what rows say; targets of every kind."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from conftest import photo_folder
from vitlab.data.box_targets import BoxTargets
from vitlab.data.holdout import apply_moves, copies_together, hold_out, take_partition
from vitlab.data.images import Images, concat, places_in
from vitlab.data.labels import MultiLabels, SingleLabels
from vitlab.data.number_targets import NumberTargets
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Data
from vitlab.data.sources.memory import Arrays
from vitlab.data.splits import Splits
from vitlab.data.target import Target


def images_of(count: int, title: str = "image", target: Target | None = None) -> Images:
    pixels = np.arange(count, dtype=np.uint8)[:, None, None, None]
    target = SingleLabels(np.arange(count) % 2) if target is None else target
    return Images.of(Arrays(pixels, title), target, ("even", "odd"))


def names(images: Images) -> list[str]:
    return [images.name(row) for row in range(len(images))]


ROWS = st.lists(st.integers(0, 8), max_size=12)


@given(st.lists(st.tuples(st.integers(0, 2), ROWS), min_size=1, max_size=5))
def test_joined_rows_are_those_of_the_parts(chosen: list[tuple[int, list[int]]]) -> None:
    wholes = [images_of(9, title) for title in "abc"]
    parts = [wholes[number].take(rows) for number, rows in chosen]
    joined = concat(parts)
    assert names(joined) == [name for part in parts for name in names(part)]
    assert joined.target.batch().tolist() == [n for part in parts for n in part.target.batch()]
    again = pickle.loads(pickle.dumps(joined))
    assert names(again) == names(joined)
    assert again.rows.dtype == np.int64
    for whole, part in zip((wholes[number] for number, _ in chosen), parts, strict=True):
        assert places_in(part, whole).tolist() == part.rows.tolist()
    first = places_in(joined, wholes[0])
    assert [first[row] >= 0 for row in range(len(joined))] == [
        name.startswith("a ") for name in names(joined)
    ]


def test_columns_are_taken_and_joined_with_their_rows() -> None:
    whole = images_of(6).in_groups("aabbcc")
    assert whole.group is not None
    part = whole.take([5, 0, 1])
    assert part.group is not None
    assert part.group.tolist() == whole.group[[5, 0, 1]].tolist()
    both = concat([part, whole])
    assert both.group is not None
    assert both.group.tolist() == [*part.group.tolist(), *whole.group.tolist()]
    assert concat([part, images_of(2)]).group is None, "one of them has no groups"
    assert part.without_labels().group is part.group
    assert len(pickle.dumps(images_of(250))) < len(pickle.dumps(images_of(250).take([1] * 250)))


TABLES = st.integers(1, 5).flatmap(
    lambda classes: st.lists(
        st.lists(st.integers(0, 1), min_size=classes, max_size=classes), min_size=1, max_size=8
    )
)


@given(TABLES, st.data())
def test_several_labels_are_as_a_table_of_them(rows: list[list[int]], data: Any) -> None:
    table = np.array(rows, np.uint8)
    images, classes = table.shape
    labels = MultiLabels.of_table(table)
    assert np.array_equal(labels.values, table)
    assert labels.content() == table.tobytes()
    assert labels.counts(classes) == table.sum(0).tolist()
    assert [labels.classes_of(row) for row in range(images)] == [
        tuple(np.flatnonzero(own)) for own in table
    ]
    some = data.draw(st.lists(st.integers(0, images - 1), max_size=9))
    assert np.array_equal(labels.take(some).values, table[np.array(some, np.int64)])
    assert np.array_equal(MultiLabels.concat([labels, labels.take(some)]).values,
                          np.concatenate([table, table[np.array(some, np.int64)]]))  # fmt: skip
    moved = np.array(data.draw(st.permutations(range(classes + 1))))[:classes]
    wanted = np.zeros((images, classes + 1), np.uint8)
    wanted[:, moved] = table
    assert np.array_equal(labels.reindexed(moved, classes + 1).values, wanted)
    order, least = labels.shuffle_evenly(np.random.default_rng(0))
    assert sorted(order) == list(range(images))
    assert np.array_equal(table[order[:least]].any(0), table.any(0))


def test_boxes_and_numbers_index_other_classes() -> None:
    boxes = BoxTargets.of([[(1, 0, 0, 1, 1)], [], [(0, 0, 0, 0.5, 1), (1, 0, 0, 1, 1)]], 2)
    other = boxes.reindexed(np.array([2, 0]), 3)
    assert [other.classes_of(row) for row in range(3)] == [(0,), (), (0, 2)]
    assert other.boxes[1, :, 0].tolist() == [-1, -1]
    numbers = NumberTargets(np.array([[1.0, 2.0]])).reindexed(np.array([1, 0]), 2)
    assert numbers.values.tolist() == [[2.0, 1.0]]


@pytest.mark.parametrize("kind", ["label", "labels", "numbers", "boxes"])
def test_groups_and_folds_are_kept_whatever_is_learned(kind: str) -> None:
    generator = np.random.default_rng(0)
    targets: dict[str, Target] = {
        "label": SingleLabels(np.arange(120) % 2),
        "labels": MultiLabels.of_table(generator.integers(0, 2, (120, 2), np.uint8)),
        "numbers": NumberTargets(generator.random((120, 2))),
        "boxes": BoxTargets.of([[(n % 2, 0, 0, 1, 1)] for n in range(120)], 2),
    }
    whole = images_of(120, target=targets[kind]).in_groups(n // 3 for n in range(120))
    splits = hold_out(whole, 0.3)
    tested = [take_partition(splits, Data(data="x", fold=f"{part}/3")).test for part in range(1, 4)]
    assert sorted(name for part in tested for name in names(part)) == sorted(names(whole))
    for parts in ([splits.train, splits.test], tested):
        groups = [{*part.group.tolist()} for part in parts if part.group is not None]
        assert sum(map(len, groups)) == 40, "no group is on two sides"
        assert all(len(part) == len(part.target) for part in parts)


def test_images_beside_class_folders_stay_where_they_are_when_copies_move(tmp_path: Path) -> None:
    """Copies on both sides change sides by their place in the whole, not among all that train."""
    folder = photo_folder(tmp_path / "p", {"a": 12, "b": 12})
    for number in range(7):
        shade = np.full((8, 8, 3), 30 * number, np.uint8)
        Image.fromarray(shade).save(folder / f"beside-{number}.png")
    splits = open_to_learn(str(folder), "optional")
    assert splits.whole is not None
    assert len(splits.train) + len(splits.test) == len(splits.whole) + 7
    pairs = [(row, len(splits.train) + place) for place, row in enumerate((0, 3, 5))]
    changed = copies_together(splits, pairs)
    assert changed
    after = apply_moves(splits, changed)
    assert sorted(names(after.train) + names(after.test)) == sorted(
        names(splits.train) + names(splits.test)
    )
    beside = {name for name in names(splits.train) if Path(name).name.startswith("beside")}
    assert len(beside) == 7
    assert beside <= {*names(after.train)}
    both = [names(splits.train)[one] for one, _ in pairs]
    twins = [names(splits.test)[other - len(splits.train)] for _, other in pairs]
    sides = {name: name in names(after.train) for name in [*both, *twins]}
    assert all(sides[one] == sides[other] for one, other in zip(both, twins, strict=True))


def test_splits_name_their_parts() -> None:
    train, test = images_of(4), images_of(2)
    assert [*Splits(train, test).parts] == ["train", "test"]
