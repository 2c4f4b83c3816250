"""Record of test images among the training images, and the notes on them for the user."""

from dataclasses import dataclass, field
from typing import Any

from vitlab.data.splits import Splits
from vitlab.training.leak_scope import bound_share
from vitlab.units import duration


@dataclass(frozen=True)
class Leaks:
    """What was found, by the numbers of the images in their splits.

    Attributes:
        kind: `near`, `sample`, `bytes` or `files`: by what images were compared, or a sample of
            them beside their bytes; `alike`: by bytes, since most are near-duplicates
        train: training images that show a test or validation image
        test: the test images among those
        validation: the validation images among those
        exact: how many of the test images have the same bytes, or are the same file
        dropped: whether the training images are left out
        seconds: that the full check would take on two cores; 0 if it was not left out
        doubtful: training images whose bytes are there again with other labels, in pairs
        seen_test: test images left out, since the models that the run begins with learned from them
        seen_validation: validation images likewise
        learned_from: how many of the test images they learned from, where those are all there are
        seen_without_labels: how many test images they saw without labels
        damaged: messages about images that could not be compared
        moved: images that were put beside their near-duplicates: numbers in the whole, by split
        sample: how many of the `train` and the `other` images were compared, if not all were, and
            how many of the former were near-duplicates (`found`)
    """

    kind: str
    train: tuple[int, ...] = ()
    test: tuple[int, ...] = ()
    validation: tuple[int, ...] = ()
    exact: int = 0
    dropped: bool = False
    seconds: float = 0.0
    doubtful: tuple[tuple[int, int], ...] = ()
    seen_test: tuple[int, ...] = ()
    seen_validation: tuple[int, ...] = ()
    learned_from: int = 0
    seen_without_labels: int = 0
    damaged: tuple[str, ...] = ()
    moved: dict[str, list[int]] = field(default_factory=dict)
    sample: dict[str, int] = field(default_factory=dict)


def leak_figures(found: dict[str, Any] | None) -> dict[str, int]:
    """Return how many test images were learned from, before the run or in it, where there are any.

    Args:
        found: what `find_leaks` returned
    """
    leaks = Leaks(**found) if found else Leaks("files")
    trained_on = 0 if leaks.dropped else len(leaks.test)
    counts = {"learned_from": leaks.learned_from, "trained_on": trained_on}
    return {key: count for key, count in counts.items() if count}


def describe_seen(leaks: Leaks, count: int) -> list[str]:
    """Return lines on test images that were learned from before the run."""
    lines, left = [], count - len(leaks.seen_test)
    if leaks.learned_from:
        lines.append(
            f"the weights or the teacher of this run have learned from {leaks.learned_from:,} of "
            f"{count:,} test images, and there are no others: figures on them are too good"
        )
    if leaks.seen_test:
        lines.append(
            f"{len(leaks.seen_test):,} of {count:,} test images are left out: the weights or the "
            "teacher of this run have learned from them"
        )
    if leaks.seen_without_labels:
        lines.append(
            f"{leaks.seen_without_labels:,} of {left:,} test images were in the training without "
            "labels of the weights or the teacher of this run"
        )
    return lines


def describe_leaks(splits: Splits, leaks: Leaks) -> list[str]:
    """Return what the user should know, a line each."""
    kinds = {
        "near": "near-duplicates",
        "files": "the same files",
        "sample": "exact copies, or near-duplicates in a sample",
    }
    kind = kinds.get(leaks.kind, "exact copies")
    lines = []
    if leaks.doubtful:
        one, other = (splits.train.name(index) for index in leaks.doubtful[0])
        lines.append(
            f"{len(leaks.doubtful):,} training images occur again {splits.train.target.again}, "
            f"such as {one} and {other}"
        )
    named = (("test", splits.test, leaks.test), ("validation", splits.validation, leaks.validation))
    for name, source, indices in named:
        if source is not None and indices:
            lines.append(
                f"{len(indices):,} of the {len(source):,} {name} images are among the training "
                f"images, as {kind}"
            )
    if leaks.moved:
        count = sum(map(len, leaks.moved.values()))
        lines.append(
            f"{count:,} images were moved to the split of their near-duplicates, so that copies of "
            "a picture are either all trained on or all tested on"
        )
    if leaks.dropped:
        lines.append(
            f"left out of training: {len(leaks.train):,} of {len(splits.train):,} training images, "
            "which show test or validation images"
        )
    elif leaks.test:
        lines[bool(leaks.doubtful)] += (
            ": figures on them are too good; vitlab duplicates shows them, --drop-duplicates "
            "leaves them out of training"
        )
    elif leaks.kind == "near":
        compared = f" ({len(leaks.damaged):,} damaged images could not be compared)"
        lines.append(
            "no test image is a near-duplicate of a training image" + compared * bool(leaks.damaged)
        )
    if leaks.kind == "alike":
        lines.append(
            "most images look so alike that near-duplicates mean nothing: only exact copies of "
            "test images were looked for among the training images"
        )
    if leaks.sample:
        lines.append(_sample_line(splits, leaks))
    elif leaks.seconds:
        lines.append(
            "not checked for near-duplicates of test images among the training images, which would "
            f"take {duration(leaks.seconds)} on two cores: run vitlab duplicates, or pass "
            "--check-duplicates yes"
        )
    return lines


def _sample_line(splits: Splits, leaks: Leaks) -> str:
    """Return what a sample says of all images."""
    found, train, others = (leaks.sample[name] for name in ("found", "train", "other"))
    every = len(splits.test) + len(splits.validation or ())
    which = f"{others:,} of the {every:,}" if others < every else f"the {every:,}"
    kind = "test images" if splits.validation is None else "test and validation images"
    return (
        f"of {train:,} training images drawn at random, {found:,} are near-duplicates of {which} "
        f"{kind}, at most {100 * bound_share(found, train):.2g}% of all training images (95%): "
        f"comparing all would take {duration(leaks.seconds)} on two cores: run vitlab duplicates, "
        "or pass --check-duplicates yes"
    )
