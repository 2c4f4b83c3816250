"""The journal of a run, `metrics.jsonl`."""

import json
import math
from pathlib import Path
from typing import Any

from vitlab.errors import RunError
from vitlab.files import explained, staged_file, sync
from vitlab.units import counted

NUMBERS = ("step", "epoch", "loss", "accuracy", "lr")
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
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or not isinstance(line.get("kind"), str):
        return None
    numbers = [line[key] for key in NUMBERS if key in line]
    if not all(each is None or isinstance(each, int | float) for each in numbers):
        return None
    return line if all(key in line for key in NEEDED.get(line["kind"], ())) else None
