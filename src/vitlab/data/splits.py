"""Splits of opened data: its own, or a share of each class that is held out for testing."""

from vitlab.data.holdout import in_splits
from vitlab.data.images import Images, concat
from vitlab.data.open import Opened
from vitlab.data.sources.request import ALL, Splits


def split_opened(opened: Opened, fraction: float = 0.2) -> Splits:
    """Return training and test images: those of the data, or a share that is held out.

    Args:
        opened: with labels
        fraction: of each class, held out for testing where the data comes unsplit
    """
    return in_splits(opened.parts, fraction, opened.notes)


def group_by_split(opened: Opened) -> dict[str, Images]:
    """Return images by split, none of them empty: what would be held out is `test`.

    Images without labels are in their own split, unless it has labeled ones; else in `all`.
    """
    splits = dict(opened.parts)
    if opened.unsplit is not None and not opened.lacks:
        splits = split_opened(opened).parts
    beside = [source for name, source in opened.unlabeled.items() if name in splits]
    splits |= {name: own for name, own in opened.unlabeled.items() if name not in splits}
    if beside:
        whole = [*beside, *([splits[ALL]] if ALL in opened.unlabeled else [])]
        splits[ALL] = concat(whole)
    return {name: source for name, source in splits.items() if len(source)}
