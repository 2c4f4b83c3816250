"""Images to decide by while training, which are not those that are reported on."""

from dataclasses import replace

from vitlab.data.sources.splits import Splits, hold_out

SHARE = 0.1  # of each class


def with_validation(splits: Splits) -> Splits:
    """The same splits, with a validation split taken from the training images where there is none.

    Choosing the best weights by the test images would make their figures too good.
    """
    if splits.validation is not None:
        return splits
    inner = hold_out(splits.train, SHARE)
    note = (
        f"{SHARE:.0%} of each class of the training images held out to decide when to stop "
        f"(stratified, fixed): {len(inner.test):,} images"
    )
    return replace(splits, train=inner.train, validation=inner.test, notes=[*splits.notes, note])
