"""Confident learning, worked out by hand and computed again from the paper's equations."""

import numpy as np
import pytest
from numpy.typing import NDArray

from vitlab.data.labels import MultiLabels, SingleLabels
from vitlab.errors import DataError
from vitlab.evaluation import label_errors
from vitlab.evaluation.label_errors import confident_joint, expected_errors, find_label_errors

# Two classes. The thresholds are the means (0.9 + 0.7 + 0.2) / 3 = 0.6 and (0.8 + 0.4) / 2 = 0.6.
HAND = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.2, 0.8], [0.6, 0.4]])
GIVEN = np.array([0, 0, 0, 1, 1])


def noisy(classes: int, images: int, share: float) -> tuple[NDArray[np.float64], ...]:
    """Probabilities of a fair model, labels of which a share is wrong, and which these are."""
    generator = np.random.default_rng(classes)
    true = generator.integers(0, classes, images)
    scores = generator.normal(size=(images, classes)) + 5 * np.eye(classes)[true]
    wrong = generator.random(images) < share
    given = np.where(wrong, (true + generator.integers(1, classes, images)) % classes, true)
    return np.exp(scores) / np.exp(scores).sum(1, keepdims=True), given, wrong


def from_the_paper(chances: NDArray[np.float64], given: NDArray[np.int64]) -> set[tuple[int, int]]:
    """The off-diagonals of the confident joint, image by image, as equation 1 reads."""
    classes = chances.shape[1]
    limits = {
        c: np.mean([row[c] for row, y in zip(chances, given, strict=True) if y == c])
        for c in range(classes)
        if c in given
    }
    found = set()
    for place, (row, y) in enumerate(zip(chances.tolist(), given.tolist(), strict=True)):
        reached = [c for c, limit in limits.items() if row[c] >= limit - 1e-9]
        if reached and (best := max(reached, key=lambda c: row[c])) != y:
            found.add((place, best))
    return found


def test_a_case_worked_out_by_hand() -> None:
    joint, likely = confident_joint(HAND, GIVEN)
    assert likely.tolist() == [0, 0, 1, 1, 0]
    assert joint.tolist() == [[2, 1], [1, 1]]
    assert expected_errors(joint, np.array([3, 2])) == pytest.approx(3 * 1 / 3 + 2 * 1 / 2)
    found = find_label_errors(HAND, SingleLabels(GIVEN))
    assert [(s.place, s.given, s.better) for s in found.suspects] == [
        (2, (0,), (1,)), (4, (1,), (0,)),
    ]  # fmt: skip
    assert [s.margin for s in found.suspects] == pytest.approx([0.2 - 0.8, 0.4 - 0.6])
    assert [s.own for s in found.suspects] == pytest.approx([0.2, 0.4])
    assert (found.images, found.estimated) == (5, pytest.approx(2))


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_papers_equations_give_the_same(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_errors, "ROWS", 97)  # in several pieces
    chances, given, wrong = noisy(classes, 500, 0.1)
    own = chances[np.arange(500), given]
    others = np.where(np.eye(classes, dtype=bool)[given], -1, chances).max(1)
    expected = {each for each in from_the_paper(chances, given) if own[each[0]] < others[each[0]]}
    found = find_label_errors(chances, SingleLabels(given))
    assert {(s.place, s.better[0]) for s in found.suspects} == expected
    assert [s.own for s in found.suspects] == sorted(s.own for s in found.suspects)
    assert [s.own for s in found.suspects] == [own[s.place] for s in found.suspects]
    margins = [s.margin for s in found.suspects]
    assert margins == pytest.approx([(own - others)[s.place] for s in found.suspects])
    hits = [bool(wrong[s.place]) for s in found.suspects]
    assert sum(hits) / len(hits) > 0.7
    assert sum(hits) / wrong.sum() > 0.8
    assert found.estimated == pytest.approx(wrong.sum(), rel=0.35)


def test_what_cannot_be_told_is_no_error() -> None:
    even = find_label_errors(np.full((6, 3), 1 / 3), SingleLabels(np.array([0, 1, 2, 0, 1, 2])))
    assert even.suspects == []
    # No image is labeled 2: it has no threshold, so that no image can be confidently of it.
    chances = np.array([[0.6, 0.1, 0.3], [0.1, 0.2, 0.7], [0.1, 0.8, 0.1]])
    absent = find_label_errors(chances, SingleLabels(np.array([0, 0, 1])))
    assert absent.suspects == []
    none = find_label_errors(np.empty((0, 3)), SingleLabels(np.empty(0, np.int64)))
    assert (none.suspects, none.estimated, none.images) == ([], 0.0, 0)


def test_several_labels_are_as_many_questions() -> None:
    chances, given, _ = noisy(2, 300, 0.1)
    sure = np.tile([[0.97, 0.02], [0.01, 0.99]], (150, 1))
    table = np.stack([given == 1, np.tile([1, 0], 150), np.tile([0, 1], 150)], 1).astype(np.uint8)
    table[7, 1] = 1  # the model says it is not there
    found = find_label_errors(np.column_stack([chances[:, 1], sure]), MultiLabels.of_table(table))
    alone = find_label_errors(chances, SingleLabels(given))
    asked = {s.place: s for s in found.suspects}
    assert asked[7].given != asked[7].better
    assert set(asked[7].given) - set(asked[7].better) >= {1}
    assert set(asked) == {s.place for s in alone.suspects} | {7}
    for each in alone.suspects:
        if each.place != 7:
            assert set(asked[each.place].given) ^ set(asked[each.place].better) == {0}
            assert asked[each.place].margin == pytest.approx(each.margin)
    assert [s.own for s in found.suspects] == sorted(s.own for s in found.suspects)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(DataError, match="4 labels for predictions of 5 images"):
        find_label_errors(HAND, SingleLabels(GIVEN[:4]))
    with pytest.raises(DataError, match="label 2 is out of range: the model has 2 classes"):
        find_label_errors(HAND, SingleLabels(GIVEN + 1))
    with pytest.raises(DataError, match="not a number"):
        find_label_errors(np.full((5, 2), np.nan), SingleLabels(GIVEN))
