"""What a run is tested on, if not on the test images: a part of those it could learn from."""

from dataclasses import replace

import numpy as np

from vitlab.data.settings import Data, part_of
from vitlab.data.sources.protocol import Source, Subset, counts
from vitlab.data.sources.splits import SPLIT_SEED, Splits, hold_out, with_train_images
from vitlab.errors import DataError


def partitioned(splits: Splits, options: Data) -> Splits:
    """Return splits whose test images are the part of the training images that the options name.

    The part belongs to the data: it is the same for every recipe and seed. A validation split stays
    as it is. The test images play no part, except that `fold` of unsplit data counts all images.

    Raises:
        DataError: too few images for that.
        OptionError: more training images than there are, or too few.
    """
    if options.fold:
        return fold_of(splits, options.fold)
    if not options.dev_share:
        return splits
    splits = with_train_images(splits, options.train_images)  # what is held out is among them
    inner = hold_out(splits.train, options.dev_share)
    if not len(inner.test):
        raise DataError(
            f"{options.data}: {options.dev_share:.1%} of each class is less than one image: "
            "choose a larger share"
        )
    kind = splits.train.labels.share(options.dev_share)
    note = (
        f"{kind} of the training images held out to test on (always the same): "
        f"{len(inner.test):,} images; the test images play no part"
    )
    return replace(splits, train=inner.train, test=inner.test, notes=[*splits.notes, note])


def fold_of(splits: Splits, fold: str) -> Splits:
    """Return one part of the images as the test split, and all others as the training split.

    Raises:
        DataError: fewer images than parts.
    """
    part, parts = part_of(fold)
    source = splits.train if splits.whole is None else splits.whole
    if len(source) < parts:
        raise DataError(f"{len(source):,} images cannot be dealt out to {parts} folds")
    dealt = source.labels.parts(parts, np.random.default_rng(SPLIT_SEED))
    test, train = np.flatnonzero(dealt == part - 1), np.flatnonzero(dealt != part - 1)
    kept = Subset(source, train)
    note = (
        f"fold {part} of {parts}: tested on {len(test):,} of {len(source):,} images, trained on "
        "the others"
    )
    notes = [note, *_missing(source, kept)]
    if splits.whole is None:
        notes = [*splits.notes, *notes]
    return replace(splits, train=kept, test=Subset(source, test), notes=notes)


def _missing(source: Source, kept: Source) -> list[str]:
    """Return a remark on each class of which no image is left to learn from."""
    before, left = counts(source), counts(kept)
    lost = [name for name, count in before.items() if count and not left[name]]
    return [f"class {name!r}: its only image is in the test fold" for name in lost]
