"""The images that a model is evaluated on: a split, or what training held out."""

from dataclasses import dataclass, replace
from typing import Any, Literal

from vitlab.data.contents import has_unidentified
from vitlab.data.holdout import apply_moves, fingerprint, fold_of, hold_out, learned
from vitlab.data.images import Images
from vitlab.data.labels import UnknownClassError
from vitlab.data.open import open_images
from vitlab.data.open_splits import split_opened
from vitlab.data.settings import Columns
from vitlab.data.sources.request import Given, title_of
from vitlab.data.splits import Splits
from vitlab.errors import DataError
from vitlab.models.model import Model
from vitlab.models.seen import Seen
from vitlab.progress import LOG

SHOWN = 10  # classes that a message lists
UNREAD = (
    "a training of the model ended before its images were identified: whether it has learned from "
    "any of these is not known"
)
Split = Literal["auto", "train", "validation", "test", "all"]


@dataclass(frozen=True)
class Chosen:
    """Images to evaluate a model on.

    Attributes:
        split: their name: train, validation, test, or all of data that came unsplit
        source: the images
        learned_from: how many of them the model has learned from
        notes: what was left out, and what the figures must be read with
    """

    split: str
    source: Images
    learned_from: int = 0
    notes: tuple[str, ...] = ()

    @property
    def about(self) -> dict[str, Any]:
        """What figures of these images say of them, by the keys of the command's JSON."""
        learned_from = {"learned_from": self.learned_from} if self.learned_from else {}
        return {"split": self.split, "notes": [*self.notes]} | learned_from


def choose(model: Model, data: Given, split: Split, columns: Columns | None = None) -> Chosen:
    """Return the images to evaluate a model on.

    By default, and of the test split, they are those that the model has not learned from; if it has
    learned from every one, they are all evaluated, and that is said.

    Raises:
        DataError: no such data or split, or classes that the model does not have.
    """
    return chosen(model, as_trained(model, open_for(model, data, columns)), title_of(data), split)


def chosen(model: Model, splits: Splits, title: str, split: Split) -> Chosen:
    """Return those of some splits to evaluate a model on, as `choose`.

    Raises:
        DataError: no such split.
    """
    whole = splits.whole
    if whole is not None and (split == "all" or (split == "auto" and not _held_out(model, whole))):
        name = "all"
        source = whole
    elif split == "all":
        raise DataError(f"{title} comes in splits: choose train, validation or test")
    else:
        name = "test" if split == "auto" else split
        if name not in splits.parts:
            raise DataError(f"{title} has no {name} split; choose from {', '.join(splits.parts)}")
        source = splits.parts[name]
    found = unlearned(source, model.seen, name, leave_out=split in ("auto", "test"))
    notes = tuple(note for note in splits.notes if note.startswith("left out"))
    return replace(found, notes=notes + found.notes)


def unlearned(source: Images, seen: Seen, name: str = "test", *, leave_out: bool = True) -> Chosen:
    """Return the images that a model has not learned from; all of them where there are no others.

    Args:
        source: the images
        seen: what the model has seen
        name: of the images, unless some are left out
        leave_out: whether to; else it is only said
    """
    known = learned(source, seen)
    count = len(source)
    notes = [UNREAD] if has_unidentified(seen) else []
    if leave_out and 0 < len(known) < count:
        notes.append(
            f"left out {len(known):,} of {count:,} images, which the model has learned from"
        )
        name = "test"
        source = source.without(known)
        known = known[:0]
    if len(known):
        notes.append(f"{len(known):,} of {count:,} images were learned from: figures are too good")
    if before := len(learned(source, seen, labeled=False)):
        notes.append(f"{before:,} of {len(source):,} images were in its training without labels")
    return Chosen(name, source, len(known), tuple(notes))


def open_for(model: Model, data: Given, columns: Columns | None = None) -> Splits:
    """Return the splits of a data set, the labels mapped to the model's classes by name.

    A model that does not name its classes has them in the order of the data; a warning says so.

    Of unsplit data that the model was trained on, the test split is exactly what training held out.

    Raises:
        DataError: no such data, or classes that the model does not have.
    """
    title = title_of(data)
    labels = model.config.labels
    try:
        splits = split_opened(open_images(data, classes=labels, columns=columns))
    except UnknownClassError as error:
        shown = ", ".join(labels[:SHOWN]) + (", …" if len(labels) > SHOWN else "")
        raise DataError(
            f"{error}; the classes of the model are {shown}: rename the class, or leave its images "
            "out (a class without images does no harm)"
        ) from None
    if len(splits.classes) != model.config.classes:
        raise DataError(
            f"{title} has {len(splits.classes)} classes, but the model has {model.config.classes}, "
            "without names: name them (--labels, labels=…), and classes are matched by name"
        )
    if not model.config.labels:
        shown = ", ".join(f"{number} {name}" for number, name in enumerate(splits.classes[:3]))
        LOG.warning(
            f"{model.source or model.config.name} does not name its classes, so those of {title} "
            f"are matched by position ({shown}, …); --labels (labels=…) gives their names"
        )
    return as_held_out(model, splits)


def as_held_out(model: Model, splits: Splits) -> Splits:
    """Return unsplit data that a model was trained on as training split it; others as they are."""
    if splits.whole is None or not _held_out(model, splits.whole):
        return splits
    about = model.provenance
    if fold := about.get("fold", ""):
        return fold_of(splits, fold)
    return hold_out(splits.whole, about["held_out"], splits.notes)


def as_trained(model: Model, splits: Splits) -> Splits:
    """Return splits of `open_for` with near-duplicates on one side, as training put them."""
    changed = model.provenance.get("moved")
    if not changed or splits.whole is None or not _held_out(model, splits.whole):
        return splits
    return apply_moves(splits, changed)


def _held_out(model: Model, whole: Images) -> bool:
    """Whether a model's training held a part of exactly these images out."""
    if not model.provenance.get("held_out", 0.0):
        return False
    return fingerprint(whole) == model.provenance.get("fingerprint")
