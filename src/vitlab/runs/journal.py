"""The journal of a run, `metrics.jsonl`."""

import json
import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from vitlab.documents import parse_json
from vitlab.errors import RunError
from vitlab.files import explained, staged_file, sync
from vitlab.units import counted

CURVES = ("train", "test", "validation", "held-out")  # kinds of lines that are of a step
TEXTS = {
    "kind", "model", "run", "report", "task", "device", "split", "data", "engine",
    "pool", "how", "true", "predicted", "class", "target", "by",
}  # fmt: skip
COUNTS = {  # numbers beside the metrics
    "step", "epoch", "loss", "lr", "params", "macs", "images", "seconds", "images_per_second",
    "peak_memory", "damaged", "skipped_steps", "rollbacks", "held_out", "test_images", "majority",
    "train_images", "temperature", "learned_from", "trained_on", "accuracy_without", "objects",
    "feature_rank", "dead_features", "target_error", "layer", "l2", "folds", "width", "pixels",
}  # fmt: skip
LARGEST = 2**63  # of a number
NEEDED = {  # keys without which a line is damaged
    "train": ("step", "epoch", "loss"),
    "test": ("step", "epoch", "loss"),
    "held-out": ("step", "epoch", "loss"),
    "result": ("model", "params", "macs", "images", "seconds"),
}


class Journal:
    """`metrics.jsonl`: one JSON object per line.

    Lines are appended. A checkpoint keeps a copy of what belongs to it, from which a resumed run
    restores the file, whatever has become of it. Readers skip what is not a line of a journal.

    Args:
        file: its place
        silent: write nothing, as every process but the first does

    Attributes:
        content: what belongs to the run, as far as this process has restored and written it
    """

    def __init__(self, file: Path, silent: bool = False) -> None:
        self.file, self.silent = file, silent
        self.content = b""

    def restore(self, content: bytes | None = b"", size: int = 0) -> str:
        """Make the file what it was at a checkpoint: later steps will be taken again.

        Args:
            content: the checkpoint's copy; None for a checkpoint of the code that kept none
            size: bytes that the file had then, where there is no copy

        Returns:
            A remark for the user if anything had to be repaired; else nothing.

        Raises:
            DiskError: the file cannot be written.
        """
        if self.silent:
            return ""
        with explained(self.file):
            found = self.file.read_bytes() if self.file.is_file() else None
            self.content = _whole((found or b"")[:size]) if content is None else content
            kept, lost = len(self.content), content is None and len(self.content) < size
            if found is not None and found.startswith(self.content):
                with self.file.open("r+b") as stream:
                    stream.truncate(kept)
            else:
                with staged_file(self.file) as draft:
                    draft.write_bytes(self.content)
            sync(self.file.parent)
        if lost:
            return f"{self.file} was damaged: lines before the checkpoint are missing from it"
        if self.content and not (found or b"").startswith(self.content):
            state = "missing" if found is None else "damaged"
            return f"{self.file} was {state}: restored from the checkpoint"
        return ""

    def write(self, line: dict[str, Any]) -> None:
        """Append a line; numbers that are not finite become null.

        Raises:
            DiskError: the file cannot be written, or is missing: it is not created again.
        """
        if self.silent:
            return
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in line.items()
        }
        text = json.dumps(finite).encode() + b"\n"
        with explained(self.file), self.file.open("r+b") as stream:
            stream.seek(0, 2)
            stream.write(text)
        self.content += text

    def sync(self) -> int:
        """Wait until all lines are on the disk; return their size in bytes."""
        if not self.silent:
            with explained(self.file):
                sync(self.file)
        return len(self.content)

    def read(self) -> list[dict[str, Any]]:
        """Return all lines that can be read, and say how many are damaged.

        A last line that a killed process did not finish is left out in silence.

        Raises:
            RunError: the file cannot be read.
        """
        try:
            *parts, last = self.file.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"cannot read {self.file}: {error.strerror}") from error
        lines = [_parsed(part) for part in parts]
        if damaged := sum(line is None for line in lines):
            from vitlab.progress import say  # slow to import

            say(f"{self.file}: {counted(damaged, 'damaged line')} skipped")
        return [line for line in (*lines, _parsed(last)) if line is not None]


def _whole(content: bytes) -> bytes:
    """Return the undamaged lines at the beginning."""
    lines = content.splitlines(keepends=True)
    good = [line.endswith(b"\n") and _parsed(line) is not None for line in lines]
    return b"".join(lines[: good.index(False)] if False in good else lines)


def _parsed(text: bytes) -> dict[str, Any] | None:
    """Return a line; None if it is damaged."""
    try:
        line = parse_json(text, "a line", RunError)
    except RunError:
        return None
    if not isinstance(line.get("kind"), str):
        return None
    if not all(_is_possible(key, value, line["kind"]) for key, value in line.items()):
        return None
    return line if all(key in line for key in NEEDED.get(line["kind"], ())) else None


def _is_possible(key: str, value: Any, kind: str = "") -> bool:
    """Return whether a value may stand under a key: text, a number, or what is made of these."""
    if key in PARTS:
        return PARTS[key](value)
    if key in TEXTS:
        return value is None or isinstance(value, str)
    if kind in CURVES and key in ("step", "epoch"):
        return _is_number(value) and value >= 0
    if kind in CURVES or key in COUNTS or key in _metrics():
        return value is None or isinstance(value, bool) or _is_number(value)
    return True


@cache
def _metrics() -> frozenset[str]:
    from vitlab.evaluation.metrics import METRICS  # slow to import

    return frozenset(METRICS)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not (isinstance(value, int) and abs(value) > LARGEST)


def _are_rows(value: Any) -> bool:
    """Whether it is a table: objects with the same keys."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        return False
    alike = all(each.keys() == value[0].keys() for each in value)
    return alike and all(_is_possible(key, own) for each in value for key, own in each.items())


def _are_classes(value: Any) -> bool:
    """Whether it is the table of a task's classes, or the names of classes."""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return True
    return _are_rows(value) and any(set(value[0]) >= own for own in CLASSES)


def _are_intervals(value: Any) -> bool:
    ends = value.values() if isinstance(value, dict) else [None]
    return all(
        isinstance(own, list) and len(own) == 2 and all(map(_is_number, own)) for own in ends
    )


def _is_object(value: Any) -> bool:
    """Whether it is text, or an object whose parts are possible."""
    if not isinstance(value, dict):
        return isinstance(value, str)
    return all(_is_possible(key, own) for key, own in value.items())


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


CLASSES = (  # columns of the table of a task's classes, by task
    {"class", "precision", "recall", "f1", "images"},
    {"class", "iou", "boundary_iou", "pixels", "images"},
    {"class", "ap50", "ap", "objects"},
)
PARTS: dict[str, Callable[[Any], bool]] = {
    "classes": _are_classes,
    "targets": _are_rows,
    "tried": lambda value: _is_number(value) or _are_rows(value),
    "confused": _are_rows,
    "intervals": _are_intervals,
    "notes": _are_texts,
    "head": _is_object,
    "head_start": lambda value: isinstance(value, dict) and _is_object(value),
    "calibration": lambda value: isinstance(value, dict) and _is_object(value),
}
"""What is made of texts and numbers, by its key."""
