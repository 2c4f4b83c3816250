"""Words for the splits of data: train, validation and test, however they are spelled."""

import re

SPLIT_WORDS = {
    "train": ("train", "training"),
    "validation": ("val", "valid", "validation", "dev", "eval", "evaluation"),
    "test": ("test", "testing"),
}
"""Spellings of the names of splits, in lower case."""

SPLIT_OF = {word: split for split, words in SPLIT_WORDS.items() for word in words}
_LIKE_A_SPLIT = re.compile(
    r"(train|test|val|valid|validation|dev|eval|hold[-_ ]?out)([-_ ]?(set|data|split|id|ood))?"
    r"[-_ ]?\d*|.*[-_ ]?(train|test)(ing)?|(train|test)(ing)?[-_ ].*|trainval|extra|unlabell?ed|"
    r"unsupervised"
)


def is_like_a_split(word: str) -> bool:
    """Return whether a word in lower case is the name of a split, or much like one."""
    return word in SPLIT_OF or _LIKE_A_SPLIT.fullmatch(word) is not None
