"""Files of heads, changed in every way by a person who also mends their checksums."""

import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from vitlab.weights.identity import checksum, checksums

ESCAPES = "\x1b[31mred\x1b[0m"
TURNED = "a\u202ednuorg"  # what follows is shown from right to left
HUGE = 10**5
WRONG: tuple[Any, ...] = (None, True, -1, 0, 1e300, 10**30, "ab", [], {}, [[1]], {"a": {"b": 1}})


@dataclass
class HeadFile:
    """What is in the file of a head.

    Attributes:
        about: its facts, without checksums
        base: fingerprint of its model
        tensors: by name
    """

    about: dict[str, Any]
    base: Any
    tensors: dict[str, Tensor]


Change = Callable[[HeadFile], None]


def read_head(file: Path) -> HeadFile:
    """Read the file that `save_head` wrote."""
    with safe_open(file, "pt") as stored:
        about = json.loads(stored.metadata()["about"])
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    about.pop("checksum")
    about.pop("sha256")
    return HeadFile(about, about.pop("model"), tensors)


def sealed_bytes(head: HeadFile) -> bytes:
    """Return a file with right checksums, whatever is in it."""
    about = head.about | {"model": head.base, "sha256": checksums(head.tensors)}
    text = json.dumps(about | {"checksum": checksum(about)})
    return save(head.tensors, metadata={"about": text})


def fact(name: str, value: Any) -> Change:
    """Replace a fact, or add one."""

    def change(head: HeadFile) -> None:
        head.about[name] = value

    return change


def without_fact(name: str) -> Change:
    """Leave a fact out."""

    def change(head: HeadFile) -> None:
        del head.about[name]

    return change


def tensor(name: str, make: Callable[[Tensor], Tensor]) -> Change:
    """Replace a tensor by what is made of it."""

    def change(head: HeadFile) -> None:
        head.tensors[name] = make(head.tensors[name]).contiguous()

    return change


def without_tensor(name: str) -> Change:
    """Leave a tensor out."""

    def change(head: HeadFile) -> None:
        del head.tensors[name]

    return change


def renamed(name: str) -> Change:
    """Give a tensor another name."""

    def change(head: HeadFile) -> None:
        head.tensors[f"{name}s"] = head.tensors.pop(name)

    return change


def extra(name: str) -> Change:
    """Add a tensor."""

    def change(head: HeadFile) -> None:
        head.tensors[name] = torch.zeros(3)

    return change


def of_base(value: Any) -> Change:
    """Replace the model's fingerprint."""

    def change(head: HeadFile) -> None:
        head.base = value

    return change


def filled(value: float) -> Callable[[Tensor], Tensor]:
    """Put a value in the last place of a tensor."""

    def make(whole: Tensor) -> Tensor:
        made = whole.clone()
        made.view(-1)[-1] = value
        return made

    return make


FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "bf16": lambda each: each.bfloat16(),
    "fp16": lambda each: each.half(),
    "int32": lambda each: each.int(),
    "int64": lambda each: each.long(),
    "uint8": lambda each: each.to(torch.uint8),
    "bool": lambda each: each.bool(),
    "complex": lambda each: each.to(torch.complex64),
    "other floats": lambda each: each.double() if each.dtype == torch.float32 else each.float(),
    "NaN": filled(float("nan")),
    "Inf": filled(float("inf")),
    "one more row": lambda each: torch.cat([each, each[:1]]),
    "one row less": lambda each: each[1:],
    "no rows": lambda each: each[:0],
    "one row": lambda each: each[:1],
    "flat": lambda each: each.flatten() if each.ndim > 1 else each[None],
    "deep": lambda each: each[None],
    "a scalar": lambda each: each.flatten()[0],
    "many rows": lambda each: each[:1].repeat(1000, *[1] * (each.ndim - 1)),
}


def changes(head: HeadFile, names: str) -> Iterator[tuple[str, Change]]:
    """Yield changes that no reader should believe, each with its name.

    Args:
        head: a sound one
        names: the fact that holds its names: `classes` or `targets`
    """
    for name, value in head.about.items():
        yield f"without {name}", without_fact(name)
        for wrong in WRONG:
            if wrong != value and not is_possible(name, wrong):
                yield f"{name}={wrong!r}", fact(name, wrong)
    yield from changed_names([*head.about[names]], names)
    yield "a fact more", fact("extra", 1)
    yield "a fact of the reader's", fact("self", 1)
    deep: Any = []
    for _ in range(900):  # what JSON still reads
        deep = [deep]
    yield "nested facts", fact(names, deep)
    for wrong in (*WRONG, "0" * 64):
        yield f"of model {wrong!r}", of_base(wrong)
    for name in head.tensors:
        yield f"without tensor {name}", without_tensor(name)
        yield f"tensor {name} renamed", renamed(name)
    yield "a tensor more", extra("more")
    yield "a tensor of the reader's", extra("model")
    for name in chosen_tensors(head):
        for form, make in FORMS.items():
            yield f"tensor {name}: {form}", tensor(name, make)
    if "scale" in head.tensors:
        yield "deviation 0", tensor("scale", filled(0.0))
        yield "deviation below 0", tensor("scale", filled(-9.0))
        yield "one target's scale", tensor("scale", lambda each: each[:, :1])
        yield "a scale of one dimension", tensor("scale", lambda each: each[:, 0])


def changed_names(own: list[str], fact_name: str) -> Iterator[tuple[str, Change]]:
    """Yield changes of the names of classes or targets."""
    lists: dict[str, Any] = {
        "one name more": [*own, "more"],
        "one name less": own[1:],
        "no names": [],
        "the same name twice": [own[0], *own[:1], *own[2:]],
        "an empty name": ["", *own[1:]],
        "a blank name": ["  ", *own[1:]],
        "a name with escapes": [ESCAPES, *own[1:]],
        "a name with a line end": ["a\nb", *own[1:]],
        "a name with C1": ["a\x9b31m", *own[1:]],
        "a name with DEL": ["a\x7f", *own[1:]],
        "a turned name": [TURNED, *own[1:]],
        "a name with half a pair": ["\ud800", *own[1:]],
        "a line separator": ["a\u2028b", *own[1:]],
        "a very long name": ["a" * HUGE, *own[1:]],
        "a number as a name": [1, *own[1:]],
        "null as a name": [None, *own[1:]],
        "a list as a name": [["a"], *own[1:]],
        "a table as a name": [{"a": 1}, *own[1:]],
        "names as text": "".join(own),
        "names as a table": dict.fromkeys(own, 1),
        "so many names": [str(number) for number in range(HUGE)],
    }
    for what, value in lists.items():
        yield what, fact(fact_name, value)
    yield "so many queries", fact("queries", HUGE)


def is_possible(name: str, value: Any) -> bool:
    """Return whether a fact may be so in another sound file of the same tensors."""
    return name == "ignored" and value is None


def chosen_tensors(head: HeadFile) -> list[str]:
    """Return a few tensors of each shape."""
    found: dict[int, list[str]] = {}
    for name, each in head.tensors.items():
        found.setdefault(each.ndim, []).append(name)
    return [name for names in found.values() for name in names[:2]]


def damaged_bytes(whole: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield damaged forms of a safetensors file, each with its name."""
    length = struct.unpack("<Q", whole[:8])[0]
    header, rest = json.loads(whole[8 : 8 + length]), whole[8 + length :]

    def packed(changed: dict[str, Any]) -> bytes:
        text = json.dumps(changed).encode()
        return struct.pack("<Q", len(text)) + text + rest

    for share in (0, 1, 7, 8, 9, length // 2, length + 8, len(whole) - 1):
        yield f"cut at {share}", whole[:share]
    for place in (3, 8, 20, length // 2, length + 8, len(whole) - 2):
        changed = bytearray(whole)
        changed[place] ^= 1
        yield f"flipped at {place}", bytes(changed)
    own = header["__metadata__"]["about"]
    for what, text in {
        "null": "null", "a list": "[1]", "a number": "1", "text": '"a"', "nothing": "",
        "an empty object": "{}", "nested": "[" * 10_000 + "]" * 10_000, "cut": own[: len(own) // 2],
        "a long number": '{"a": ' + "9" * 5000 + "}", "a second object": own + own,
    }.items():  # fmt: skip
        yield f"about is {what}", packed(header | {"__metadata__": {"about": text}})
    yield "no about", packed(header | {"__metadata__": {"other": own}})
    yield "no metadata", packed({k: each for k, each in header.items() if k != "__metadata__"})
    yield "about is no text", packed(header | {"__metadata__": {"about": json.loads(own)}})
    yield "bytes more", whole + b"\0" * 8
