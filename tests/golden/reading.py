"""Files as text that can be compared: JSON sorted, pages as their words, tensors by their sizes."""

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

WIDE = 140  # characters of a line of JSON
IN_A_ROW = 6  # numbers of a longer list
FIRST = 3  # numbers of a tensor, or of a vector in a table
ROWS = 40  # of a table
TEXTS = {".csv", ".md", ".txt", ".py"}
UNDETERMINED = (  # values that rounding decides: their shape remains
    "embedding_filters",  # principal components of filters that are nearly random
    "unlike.axes",  # of directions, whose signs are free
    "qkv.bias",  # a key's has no gradient but rounding, of which Adam makes a step
)


def text_of(file: Path) -> str:
    """Return what is recorded of a file."""
    ending = file.suffix
    if "checkpoints" in file.parts:
        return "a file, which has the state of PyTorch's optimizer: lines that resume read it"
    if ending == ".toml":  # an array on one line
        return re.sub(r"\[\n +([^\[\]]*?),\n\]", _joined, file.read_text(encoding="utf-8"))
    if ending in TEXTS:
        return file.read_text(encoding="utf-8")
    if ending == ".json":
        return pretty(json.loads(file.read_text(encoding="utf-8"), object_hook=_determined))
    if ending == ".jsonl":
        lines = file.read_text(encoding="utf-8").splitlines()
        return "\n".join(pretty(json.loads(line)) for line in lines)
    if ending == ".html":
        return words_of(file.read_text(encoding="utf-8"))
    if ending in (".safetensors", ".npy"):
        return "\n".join(_tensors(file))
    if ending == ".parquet":
        return "\n".join(_rows(file))
    return f"a file {ending or file.name}"


def _determined(value: dict[str, Any]) -> dict[str, Any]:
    return {key: "UNDETERMINED" if key in UNDETERMINED else own for key, own in value.items()}


def _joined(array: re.Match[str]) -> str:
    inside = re.sub(r"\n +", " ", array[1])
    return f"[{inside}]"


def pretty(value: Any, indent: int = 0) -> str:
    """Return a JSON value with sorted keys, a line for each; what fits is on one line."""
    plain = json.dumps(value, sort_keys=True, ensure_ascii=False)
    own = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    flat = not any(isinstance(each, dict | list) for each in own)
    if not own or (flat and len(plain) <= WIDE):
        return plain
    inner = "  " * (indent + 1)
    if isinstance(value, dict):
        rows = [f"{json.dumps(key)}: {pretty(value[key], indent + 1)}" for key in sorted(value)]
    elif flat and all(isinstance(each, int | float) for each in value):
        rows = list(_packed([json.dumps(each) for each in value]))
    else:
        rows = [pretty(each, indent + 1) for each in value]
    body = ",\n".join(f"{inner}{row}" for row in rows)
    left, right = "{}" if isinstance(value, dict) else "[]"
    return f"{left}\n{body}\n{'  ' * indent}{right}"


def _packed(cells: list[str]) -> Iterator[str]:
    """Yield rows of as many numbers, however many digits each has."""
    for start in range(0, len(cells), IN_A_ROW):
        yield ", ".join(cells[start : start + IN_A_ROW])


class _Words(HTMLParser):
    """The words of a page, a line for each block; alternatives and titles too."""

    BLOCKS = frozenset(
        [
            "p",
            "div",
            "section",
            "h1",
            "h2",
            "h3",
            "h4",
            "li",
            "tr",
            "table",
            "ul",
            "ol",
            "dl",
            "dt",
            "figure",
            "figcaption",
            "summary",
            "details",
            "svg",
            "title",
            "header",
            "footer",
            "main",
            "nav",
            "pre",
        ]
    )
    CELLS = frozenset(("td", "th", "dd", "text", "span"))
    SILENT = frozenset(("style", "script"))

    def __init__(self) -> None:
        super().__init__()
        self.parts = list[str]()
        self.silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.silent += tag in self.SILENT
        if tag in self.BLOCKS:
            self.parts.append("\n")
        elif tag in self.CELLS:
            self.parts.append(" | ")
        self.parts += [
            f" [{value}] " for key, value in attrs if key in ("alt", "aria-label") and value
        ]

    def handle_endtag(self, tag: str) -> None:
        self.silent -= tag in self.SILENT
        if tag in self.BLOCKS:
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.parts.append(re.sub(r"\s+", " ", data))


def words_of(page: str) -> str:
    """Return the text of a page."""
    reader = _Words()
    reader.feed(page)
    lines = (re.sub(r" +", " ", line).strip() for line in "".join(reader.parts).split("\n"))
    return "\n".join(line for line in lines if line)


def _figure(value: float) -> str:
    return f"{float(value):.6g}" if value else "0.0"


def _tensors(file: Path) -> Iterator[str]:
    """Yield a line for each tensor: shape, norm and first numbers; sums of whole numbers."""
    import numpy as np
    import torch
    from safetensors.torch import load_file

    arrays = file.suffix == ".npy"
    tensors = {"": torch.from_numpy(np.load(file))} if arrays else load_file(file)
    for name, tensor in sorted(tensors.items()):
        shape = "x".join(map(str, tensor.shape)) or "1"
        first = tensor.flatten()[:FIRST].tolist()
        about = f"{name} {str(tensor.dtype).removeprefix('torch.')} {shape}".strip()
        if name.endswith(UNDETERMINED):
            yield f"{about}: UNDETERMINED"
        elif tensor.is_floating_point():
            norm = _figure(tensor.double().norm().item())
            yield f"{about}: norm {norm}, first {' '.join(map(_figure, first))}"
        else:
            yield f"{about}: sum {int(tensor.long().sum())}, first {' '.join(map(str, first))}"


def _rows(file: Path) -> Iterator[str]:
    """Yield the columns of a table, and its first rows."""
    from pyarrow import parquet

    table = parquet.read_table(file)
    yield f"{table.num_rows} rows: " + ", ".join(
        f"{each.name} {each.type}" for each in table.schema
    )
    yield from (
        f"{key.decode()}: {value.decode(errors='replace')}"
        for key, value in sorted((table.schema.metadata or {}).items())
        if key != b"ARROW:schema"
    )
    for row in table.slice(0, ROWS).to_pylist():
        yield json.dumps({key: _cell(value) for key, value in row.items()}, default=str)


def _cell(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _cell(own) for key, own in value.items()}
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    if isinstance(value, list) and value and isinstance(value[0], float):
        return [*value[:FIRST], "norm", sum(each * each for each in value) ** 0.5]
    return value
