"""The table of released files: its rows, and files of the same names, shapes and wrapping.

A row of `released.toml` names a published file, and has
- `file`: its name (`model.safetensors` if not given); in a folder if `json` has files beside it
- `parts`: lists of tensors, perhaps with a prefix (`vit.|…`), with sizes as symbols: `3D D`.
  `{#}` counts to `L`, `{@}` to `T`, `{a,b}` is either; `.*` are a weight and its bias
- `wrap`: the entry of the checkpoint that holds them; `*`: a name's part before `/` is the entry
- `record`, `args`: what the checkpoint holds beside tensors
- `json`: files beside it, in which `$values` stands for one of `values`, and a number for as many
  class names
- `expect`: fields that the original code computes with; `source` says where that is written
- `tell`: what a user must say, because the file does not and no convention decides
- `doubtful`: fields that are assumed otherwise, which the warning must name
- `settle`: what decides them, if it is not those fields themselves
- `asks`: how the message asks for `tell`, where it is not read without
- `refused`: why it is not read, as the message says it
"""

import argparse
import json
import math
import re
import struct
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

Shape = tuple[int, ...]
FILE = Path(__file__).parent / "released.toml"
NORMALIZATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "half": ((0.5,) * 3, (0.5,) * 3),
    "none": ((0.0,) * 3, (1.0,) * 3),
    "openai": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "sat": ((0.43, 0.411, 0.296), (0.213, 0.156, 0.143)),
}
FACTS = ("rope_embed.periods",)  # tensors whose numbers a reader looks at
WHOLE_NUMBERS = ("position_ids", "relative_position_index", "num_batches_tracked")
LARGE = 2_000_000_000  # numbers of which a byte each is enough address space
SHALLOW = 2  # blocks of a file that is written, where nothing hangs on how many there are


@dataclass(frozen=True)
class Row:
    """One released file."""

    name: str
    parts: list[str]
    sizes: dict[str, int]
    source: str
    file: str = "model.safetensors"
    wrap: str = ""
    record: dict[str, Any] = field(default_factory=dict)
    args: dict[str, Any] = field(default_factory=dict)
    json: dict[str, str] = field(default_factory=dict)
    expect: dict[str, Any] = field(default_factory=dict)
    tell: dict[str, Any] = field(default_factory=dict)
    doubtful: list[str] = field(default_factory=list)
    settle: dict[str, Any] = field(default_factory=dict)
    part: str = ""
    asks: str = ""
    refused: str = ""

    @property
    def wanted(self) -> dict[str, Any]:
        """The fields of the configuration, as a configuration holds them."""
        fields = {k: tuple(v) if isinstance(v, list) else v for k, v in self.expect.items()}
        if normalization := fields.pop("normalization", ""):
            fields["mean"], fields["std"] = NORMALIZATIONS[normalization]
        return fields

    @property
    def shapes(self) -> dict[str, Shape]:
        """Every tensor of the file and its shape."""
        return self.shapes_by(self.sizes)

    @property
    def written(self) -> dict[str, Shape]:
        """The same with few blocks, unless their number is stated or tells DINOv2's models."""
        deep = "model_type" in self.contents().get("config.json", {}) or "dinov2" in self.name
        return self.shapes_by(self.sizes if deep else self.sizes | {"L": SHALLOW})

    def shapes_by(self, sizes: dict[str, int]) -> dict[str, Shape]:
        found: dict[str, Shape] = {}
        for part in self.parts:
            prefix, _, name = part.rpartition("|")
            for line in TABLE["parts"][name].splitlines():
                pattern, _, words = line.partition(": ")
                shape = tuple(_size(word, sizes) for word in words.split() if word != "1*")
                for stored in _names(prefix + pattern, sizes):
                    if stored.endswith(".*"):
                        found[f"{stored[:-1]}weight"], found[f"{stored[:-1]}bias"] = (
                            shape,
                            shape[:1],
                        )
                    else:
                        found[stored] = shape
        return found

    def contents(self) -> dict[str, dict[str, Any]]:
        """The JSON files beside the tensors."""
        return {name: _expanded(json.loads(text)) for name, text in self.json.items()}


def _load() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


TABLE = _load()


def rows() -> list[Row]:
    return [Row(**each) for each in TABLE["file"]]


def _size(word: str, sizes: dict[str, int]) -> int:
    found = re.fullmatch(r"(\d*)([A-Z]?)", word)
    assert found, word
    return int(found[1] or 1) * (sizes[found[2]] if found[2] else 1)


def _names(pattern: str, sizes: dict[str, int]) -> Iterator[str]:
    """Every name that a pattern stands for."""
    counts = {"#": sizes.get("L", 0), "@": sizes.get("T", 0)}
    pieces = re.split(r"\{(.*?)\}", pattern)
    choices = [
        [str(n) for n in range(counts[word])] if word in counts else word.split(",")
        for word in pieces[1::2]
    ]
    for chosen in product(*choices):
        words = (*chosen, "")
        yield "".join(text + words[place] for place, text in enumerate(pieces[::2]))


def _expanded(content: Any) -> Any:
    if not isinstance(content, dict):
        return content
    content = {key: _expanded(value) for key, value in content.items()}
    if shared := content.pop("$values", ""):
        content |= json.loads(TABLE["values"][shared])
    if isinstance(count := content.get("id2label"), int):
        content["id2label"] = {str(n): f"class {n}" for n in range(count)}
        content["label2id"] = {f"class {n}": n for n in range(count)}
    return content


def write(row: Row, folder: Path) -> Path:
    """Write a file like a released one, with its wrapping; return what a user would name."""
    file = folder / row.file
    if row.file.endswith(".npz"):
        generator = np.random.default_rng(0)
        whole = generator.normal(size=1 << 16).astype("<f2")
        arrays = {name: np.resize(whole, shape) for name, shape in row.written.items()}
        np.savez(file, **arrays)
    elif row.file.endswith(".safetensors"):
        write_tensors(row.written, file)
    else:
        torch.save(_wrapped(row), file)
    for name, content in row.contents().items():
        (folder / name).write_text(json.dumps(content))
    return folder if row.json else file


def write_tensors(shapes: dict[str, Shape], file: Path) -> None:
    """Zeros that take no space: all of the numbers are a hole in the file."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    large = sum(map(math.prod, shapes.values())) > LARGE
    size, usual = (1, "F8_E4M3") if large else (4, "F32")
    end = 0
    for name, shape in shapes.items():
        whole, fact = name.endswith(WHOLE_NUMBERS), name.endswith(FACTS)
        start, end = end, end + math.prod(shape) * (8 if whole else 4 if fact else size)
        kind = "I64" if whole else "F32" if fact else usual
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + end)
        for name in filter(lambda name: name.endswith(FACTS), shapes):
            stream.seek(8 + len(text) + header[name]["data_offsets"][0])
            stream.write(_fact(name, shapes[name]).numpy().astype("<f4").tobytes())


def _wrapped(row: Row) -> Any:
    generator = torch.Generator().manual_seed(0)
    one = torch.randn((), generator=generator)
    entries: dict[str, Any] = {}
    for name, shape in row.written.items():
        entry, _, inner = name.rpartition("/") if row.wrap == "*" else ("", "", name)
        place = entries.setdefault(entry, {}) if entry else entries
        place[inner] = _tensor(name, shape, one)
    if row.wrap not in ("", "*"):
        entries = {row.wrap: entries}
    more = {"args": argparse.Namespace(**row.args)} if row.args else {}
    return entries | row.record | more


def _tensor(name: str, shape: Shape, one: Tensor) -> Tensor:
    """One number at every place, which takes no space, except where the numbers are facts."""
    if name.endswith(WHOLE_NUMBERS):
        return torch.zeros(shape, dtype=torch.int64)
    if name.endswith(FACTS):
        return _fact(name, shape)
    if name.endswith("qkv.bias_mask"):
        mask = torch.ones(shape)
        mask.reshape(3, -1)[1] = 0
        return mask
    return one.expand(shape)


def _fact(name: str, shape: Shape) -> Tensor:
    """A tensor of `FACTS`: DINOv3's periods, stored coarsely."""
    return (100.0 ** (torch.arange(shape[0]) / shape[0])).to(torch.bfloat16).float()
