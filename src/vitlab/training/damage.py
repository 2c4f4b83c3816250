"""Damaged images of a run: how many there are, and the messages about the first of them."""

import hashlib
from dataclasses import dataclass, field
from typing import Any, Self

MOST = 100  # messages that are kept


@dataclass(frozen=True)
class DamagedImages:
    """The damaged images of a run, each counted once.

    Attributes:
        numbers: of 8 bytes each, made of the message about an image, which names it
        texts: the messages about the first hundred
    """

    numbers: set[int] = field(default_factory=set)
    texts: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.numbers)

    def note(self, message: str) -> bool:
        """Count the image that a message is about; return whether it was not known before."""
        content = message.encode(errors="surrogatepass")
        number = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())
        if number in self.numbers:
            return False
        self.numbers.add(number)
        if len(self.texts) < MOST:
            self.texts.append(message)
        return True

    def lines(self) -> list[str]:
        """Return a line about each of the first hundred, and one about all others."""
        lines = [f"skipped: {message}" for message in self.texts]
        if others := len(self) - len(self.texts):
            lines.append(f"skipped: {others:,} more damaged images, named while the run went on")
        return lines

    def as_json(self) -> dict[str, list[Any]]:
        """Return the JSON value of a checkpoint."""
        return {"numbers": sorted(self.numbers), "texts": list(self.texts)}

    @classmethod
    def from_json(cls, value: dict[str, list[Any]] | list[str]) -> Self:
        """Return those of a checkpoint; in older ones they are a list of all messages."""
        if isinstance(value, dict):
            return cls(set(value["numbers"]), list(value["texts"]))
        images = cls()
        for message in value:
            images.note(message)
        return images
