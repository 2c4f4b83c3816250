"""The part of a batch, or of a test, that each process of a run gets."""


def slice_of(count: int, rank: int, size: int) -> range:
    """Return which of `count` images process `rank` of `size` gets; shares differ by one at most.

    The shares of all processes, concatenated, are all images in their order.
    """
    return range(count * rank // size, count * (rank + 1) // size)


def own_part(count: int, rank: int, size: int) -> range:
    """Return which of a batch's `count` images process `rank` of `size` learns from.

    Pairs, which Mixup and CutMix mix, stay together, unless a process would then have none.
    """
    each = 2 if count >= 2 * size else 1
    pairs = slice_of(-(-count // each), rank, size)
    return range(pairs.start * each, min(pairs.stop * each, count))
