"""Paths that lists and tables name, which must stay inside of the folder that the user names."""

import os
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Inside:
    """Which paths are inside of some folders, links followed.

    A list or a table is often somebody else's: it must not decide which files of this machine are
    read. (The files in class folders are not named by anybody; links among them are the user's own,
    and are followed.)

    Attributes:
        roots: the folders; paths are relative to the first
        anywhere: the user trusts the list or table, so that every path will do
    """

    roots: tuple[Path, ...]
    anywhere: bool = False
    _known: dict[str, bool] = field(default_factory=dict)  # folders that were looked at

    def holds(self, path: Path) -> bool:
        """Return whether a path, absolute or relative to the working folder, is inside."""
        if self.anywhere:
            return True
        folder, name = os.path.split(path)
        if folder not in self._known:
            self._known[folder] = self._is_inside(Path(folder))
        if name in ("", os.curdir, os.pardir) or os.path.islink(path):  # noqa: PTH114
            return self._is_inside(path)
        return self._known[folder]

    def _is_inside(self, path: Path) -> bool:
        try:
            whole = path.resolve()
            return any(whole.is_relative_to(root.resolve()) for root in self.roots)
        except (OSError, RuntimeError, ValueError):  # a ring of links, for example
            return False
