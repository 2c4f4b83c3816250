"""Listings of servers: their answers about files, shared so that other processes need not ask.

With many processes, a store of objects would be asked for the state of every shard by each of them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

Kind = Literal["state", "names", "refusal"]
"""Size and mark of a file; the URLs that a pattern stands for; why a file cannot be read."""
Listing = dict[str, dict[str, Any]]
"""Answers by their kind, then by URL or pattern, as JSON has them."""
RECORDED: list[Listing] = []  # by the blocks that record
USED: list[Listing] = []  # by the blocks that use one


@contextmanager
def record_listing() -> Iterator[Listing]:
    """Record what servers say of their files in the block."""
    listing: Listing = {}
    RECORDED.append(listing)
    try:
        yield listing
    finally:
        RECORDED.pop()


@contextmanager
def use_listing(listing: Listing) -> Iterator[None]:
    """Believe what another process was told, in the block."""
    USED.append(listing)
    try:
        yield
    finally:
        USED.pop()


def record_answer(kind: Kind, url: str, answer: object) -> None:
    """Record an answer, where that is asked for."""
    for listing in RECORDED:
        listing.setdefault(kind, {})[url] = answer


def find_answer(kind: Kind, url: str) -> Any:
    """Return what another process was told; None if it was not."""
    return next((listing[kind][url] for listing in USED if url in listing.get(kind, ())), None)
