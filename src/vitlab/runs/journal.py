"""The journal of a run, `metrics.jsonl`."""

import json
import math
import os
from pathlib import Path
from typing import Any

from vitlab.files import explained


class Journal:
    """`metrics.jsonl`: one JSON object per line.

    Lines are appended; resuming cuts the file back to the checkpoint. A line that a killed process
    did not finish is skipped.

    Args:
        file: its place
        silent: write nothing, as every process but the first does
    """

    def __init__(self, file: Path, silent: bool = False) -> None:
        self.file, self.silent = file, silent

    def cut(self, size: int) -> None:
        """Drop everything after the first `size` bytes: those steps will be taken again."""
        if not self.silent:
            with explained(self.file), self.file.open("ab") as stream:
                stream.truncate(size)

    def write(self, line: dict[str, Any]) -> None:
        """Append a line; numbers that are not finite become null."""
        if self.silent:
            return
        finite = {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in line.items()
        }
        with explained(self.file), self.file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(finite) + "\n")

    def sync(self) -> int:
        """Wait until all lines are on the disk; return the file's size in bytes."""
        if self.silent:
            return 0
        with explained(self.file), self.file.open("ab") as stream:
            os.fsync(stream.fileno())
            return stream.tell()

    def read(self) -> list[dict[str, Any]]:
        """Return all complete lines."""
        try:
            lines = self.file.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in lines if line.endswith("}")]
