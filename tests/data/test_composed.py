"""Sources made of other sources."""

import pickle

import numpy as np
import pytest

from vitlab.data.labels import MultiLabels, SingleLabels
from vitlab.data.sources.memory import Arrays
from vitlab.data.sources.source import Altered, Joined, Relabeled, Subset


def arrays(first: int, count: int, title: str) -> Arrays:
    images = np.arange(first, first + count, dtype=np.uint8).reshape(-1, 1, 1, 1)
    labels = SingleLabels(np.arange(count) % 2)
    return Arrays(np.broadcast_to(images, (count, 2, 3, 1)), labels, ("even", "odd"), title)


def test_joined_sources_stand_one_after_the_other() -> None:
    nothing = Subset(arrays(0, 2, "none"), np.empty(0, np.int64))
    both = Joined((arrays(0, 3, "a"), nothing, arrays(3, 2, "b")))
    assert len(both) == 5
    assert [int(both.image(number).decode(1)[0, 0, 0]) for number in range(5)] == [0, 1, 2, 3, 4]
    assert [both.name(number) for number in range(5)] == ["a 0", "a 1", "a 2", "b 0", "b 1"]
    assert both.labels.values.tolist() == [0, 1, 0, 0, 1]
    assert (both.classes, both.in_memory) == (("even", "odd"), True)


def test_relabeled_and_altered_sources_change_one_thing_only() -> None:
    whole = arrays(5, 3, "a")
    table = MultiLabels(np.eye(3, dtype=np.uint8))
    named = Relabeled(whole, table, ("x", "y", "z"))
    assert (named.labels, named.classes, len(named), named.in_memory) == (
        table, ("x", "y", "z"), 3, True)  # fmt: skip
    assert named.image(2).content() == whole.image(2).content()
    assert named.name(1) == "a 1"
    changed = pickle.loads(pickle.dumps(Altered(named, np.negative)))  # as a worker gets it
    image = changed.image(0)
    assert (image.name, image.shape(), int(image.decode(3)[0, 0, 0])) == ("a 0", (2, 3, 1), 251)
    pixels, box = image.decode_box(1, lambda rows, columns: (0, 0, rows, columns), (1, 1))
    assert (pixels.shape, box) == ((2, 3, 1), (0, 0, 2, 3))
    assert (len(changed), changed.name(2), changed.classes) == (3, "a 2", ("x", "y", "z"))
    with pytest.raises(IndexError):
        changed.image(3).decode(1)
