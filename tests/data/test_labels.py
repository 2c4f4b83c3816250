"""Labels: one class per image, or several."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier

from vitlab.data.altered import Altered
from vitlab.data.class_index import index_labels
from vitlab.data.images import Images, concat
from vitlab.data.labels import MultiLabels, SingleLabels
from vitlab.data.number_targets import NumberTargets
from vitlab.data.sources.memory import Arrays
from vitlab.data.splits import Splits
from vitlab.data.summary import class_lines, missing_lines, most_frequent
from vitlab.errors import DataError

ONE = SingleLabels(np.array([2, 0, 1, 2, 2]))
SEVERAL = MultiLabels.of_table(np.array([[1, 0, 1], [0, 0, 0], [0, 1, 1]], np.uint8))


def test_labels_index_the_sorted_classes_or_the_names() -> None:
    labels, order = index_labels(["10", "b", "9", "a", "10"], "data")
    assert order == ("9", "10", "a", "b")  # numbers by value, words after them
    assert isinstance(labels, SingleLabels)
    assert labels.values.tolist() == [1, 3, 0, 2, 1]
    labels, order = index_labels(["a", ["b", "a"], (), "c"], "data")
    assert order == ("a", "b", "c")
    assert isinstance(labels, MultiLabels)
    assert labels.values.tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1]]
    labels, order = index_labels(["1", "b", "0", ["a"]], "data", names=("a", "b"))
    assert (labels.values.tolist(), order) == ([[0, 1], [0, 1], [1, 0], [1, 0]], ("a", "b"))
    labels, _ = index_labels(["0", "1"], "data", names=("1", "0"))  # numbers are always indices
    assert labels.values.tolist() == [0, 1]
    for label in ("2", "x", "-1"):
        with pytest.raises(DataError, match=f"data: label '{label}' is not one of its 2 classes"):
            index_labels([label], "data", names=("a", "b"))


def test_numbers_are_drawn_whatever_they_are() -> None:
    labels = NumberTargets(np.arange(100.0)[:, None])
    orders = [labels.shuffle_evenly(np.random.default_rng(seed)) for seed in range(5)]
    assert {least for _, least in orders} == {1}
    assert len({int(order[0]) for order, _ in orders}) == 5
    assert sorted(orders[0][0]) == list(range(100))


def test_every_beginning_of_the_nested_order_has_its_share_of_each_class() -> None:
    labels = SingleLabels(np.random.default_rng(1).permutation(np.repeat([0, 1, 3], [600, 90, 7])))
    order, least = labels.shuffle_evenly(np.random.default_rng(0))
    assert least == 3
    assert sorted(order) == list(range(697))
    assert sorted(labels.take(order[:3]).values) == [0, 1, 3]
    for count in (10, 50, 350, 697):
        found = labels.take(order[:count]).counts(4)
        for have, all_ in zip(found, labels.counts(4), strict=True):
            assert abs(have - count * all_ / 697) <= 1.5
    again, _ = labels.shuffle_evenly(np.random.default_rng(0))
    assert np.array_equal(again, order)
    assert not np.array_equal(labels.shuffle_evenly(np.random.default_rng(1))[0], order)
    inside = order[labels.values[order] == 0]
    assert not np.array_equal(inside, np.sort(inside))  # no image before others for its number


def test_several_labels_are_drawn_after_an_image_of_each_class() -> None:
    table = np.zeros((300, 4), np.uint8)
    table[:, 0] = 1
    table[7, 1] = table[200, 1] = table[13, 3] = 1  # and nothing has class 2
    labels = MultiLabels.of_table(table)
    order, least = labels.shuffle_evenly(np.random.default_rng(0))
    assert sorted(order) == list(range(300))
    assert least in (2, 3)
    assert labels.take(order[:least]).values.any(0).tolist() == [True, True, False, True]
    assert not labels.take(order[: least - 1]).values.any(0).all()
    assert not np.array_equal(order[least:], np.sort(order[least:]))


def source(counts: list[int], names: tuple[str, ...] | None = None) -> Images:
    labels = SingleLabels(np.repeat(np.arange(len(counts)), counts))
    images = np.zeros((len(labels), 1, 1, 1), np.uint8)
    return Images.of(
        Arrays(images), labels, names or tuple(f"class {n}" for n in range(len(counts)))
    )


def test_what_is_said_of_classes() -> None:
    names = ("cat", "dog", "fox")
    splits = Splits(source([1200, 80, 8], names), source([30, 9, 1], names))
    assert class_lines(splits) == [
        "training images per class: cat 1,200, dog 80, fox 8",
        "always answering 'cat' would be right for 75.0% of the test images",
    ]
    many, even = source([732, *[1000] * 1000, 1300]), source([50] * 13)
    assert class_lines(Splits(many, many))[0] == (
        "1,002 classes, the smallest with 732 training images (class 0), the largest with 1,300 "
        "(class 1001)"
    )
    assert class_lines(Splits(even, even))[0] == "13 classes with 50 training images each"
    assert missing_lines(Splits(source([1] * 9), source([0, 1, *[0] * 7]))) == [
        "the test images have none of 8 classes: class 0, class 2, class 3, …"
    ]
    table = MultiLabels.of_table(np.array([[1, 1], [0, 1], [0, 0]], np.uint8))
    several = source([2, 1]).with_target(table, ("class 0", "class 1"))
    splits = Splits(several, several)
    assert class_lines(splits) == ["training images per class: class 0 1, class 1 2"]
    assert most_frequent(splits) is None


def test_the_largest_class_is_that_of_the_training_images() -> None:
    """As scikit-learn's most frequent guess: the test images may have another one."""
    splits = Splits(source([5, 9, 1]), source([6, 3, 1]))
    train, test = splits.train.target.values, splits.test.target.values
    guess = DummyClassifier(strategy="most_frequent").fit(train[:, None], train)
    assert most_frequent(splits) == ("class 1", pytest.approx(guess.score(test[:, None], test)))


def arrays(first: int, count: int, title: str) -> Images:
    images = np.arange(first, first + count, dtype=np.uint8).reshape(-1, 1, 1, 1)
    labels = SingleLabels(np.arange(count) % 2)
    return Images.of(
        Arrays(np.broadcast_to(images, (count, 2, 3, 1)), title), labels, ("even", "odd")
    )


def test_joined_sources_stand_one_after_the_other() -> None:
    nothing = arrays(0, 2, "none").take(np.empty(0, np.int64))
    both = concat((arrays(0, 3, "a"), nothing, arrays(3, 2, "b")))
    assert len(both) == 5
    assert [int(both.image(number).decode(1)[0, 0, 0]) for number in range(5)] == [0, 1, 2, 3, 4]
    assert [both.name(number) for number in range(5)] == ["a 0", "a 1", "a 2", "b 0", "b 1"]
    assert both.target.values.tolist() == [0, 1, 0, 0, 1]
    assert (both.classes, both.in_memory) == (("even", "odd"), True)


def test_relabeled_and_altered_sources_change_one_thing_only() -> None:
    whole = arrays(5, 3, "a")
    table = MultiLabels.of_table(np.eye(3, dtype=np.uint8))
    named = whole.with_target(table, ("x", "y", "z"))
    assert (named.target, named.classes, len(named), named.in_memory) == (
        table, ("x", "y", "z"), 3, True)  # fmt: skip
    assert named.image(2).content() == whole.image(2).content()
    assert named.name(1) == "a 1"
    changed = pickle.loads(
        pickle.dumps(replace(named, store=Altered(named.store, np.negative)))
    )  # as a worker gets it
    image = changed.image(0)
    assert (image.name, image.shape(), int(image.decode(3)[0, 0, 0])) == ("a 0", (2, 3, 1), 251)
    pixels, box = image.decode_box(1, lambda rows, columns: (0, 0, rows, columns), (1, 1))
    assert (pixels.shape, box) == ((2, 3, 1), (0, 0, 2, 3))
    assert (len(changed), changed.name(2), changed.classes) == (3, "a 2", ("x", "y", "z"))
    with pytest.raises(IndexError):
        changed.image(3).decode(1)
