"""Listings of servers: what one process was told of their files, so that others need not ask.

With many processes, a store of objects would be asked for the state of every shard by each of them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ServerListing:
    """What servers have said of their files.

    Attributes:
        states: size and state of files, by URL
        names: the URLs that a pattern stands for
        refusals: why files cannot be read, by URL
    """

    states: dict[str, tuple[int, str]] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ServerListing":
        """Return a listing that was sent as JSON."""
        states = {url: (int(size), str(text)) for url, (size, text) in value["states"].items()}
        return cls(states, dict(value["names"]), dict(value["refusals"]))


RECORDED: list[ServerListing] = []  # by the blocks that record
USED: list[ServerListing] = []  # by the blocks that use one


@contextmanager
def record_listing() -> Iterator[ServerListing]:
    """Record what servers say of their files in the block."""
    listing = ServerListing()
    RECORDED.append(listing)
    try:
        yield listing
    finally:
        RECORDED.remove(listing)


@contextmanager
def use_listing(listing: ServerListing) -> Iterator[None]:
    """Believe what another process was told, in the block."""
    USED.append(listing)
    try:
        yield
    finally:
        USED.remove(listing)


def find_state(url: str) -> tuple[int, str] | None:
    """Return the size and the state of a file as another process was told; None if it was not."""
    return next((listing.states[url] for listing in USED if url in listing.states), None)


def find_refusal(url: str) -> str:
    """Return why a file cannot be read, as another process was told; empty if it was not."""
    return next((listing.refusals[url] for listing in USED if url in listing.refusals), "")


def find_names(pattern: str) -> list[str] | None:
    """Return the URLs that a pattern stands for, as another process was told."""
    return next((listing.names[pattern] for listing in USED if pattern in listing.names), None)
