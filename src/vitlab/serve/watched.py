"""A watched folder: its models are served, and polling notices those that come, change and go."""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

from vitlab.errors import UserError
from vitlab.files import HEADS
from vitlab.serve.engine import Engine
from vitlab.serve.limits import name_of
from vitlab.serve.logs import log

PAUSE = 1.0  # seconds between two looks
MOST = 10_000  # files of one model that are looked at
FIRST_LOOKS = 60  # at most, before the service is ready
LOOKS = 3  # in a row without a model, after which it is served no more

# of each file: its name, inode, size, and times of change of its content and of itself
Signature = tuple[tuple[str, int, int, int, int], ...]


class Watched:
    """Serves the models in a folder, each by the name of its file or folder.

    A model is loaded once two looks in a row found the same sizes and times, so that a copy that is
    not complete is left alone. It leaves once three looks in a row at a folder that can be read do
    not find it; if nothing is left in the folder, which is what a volume that is not mounted looks
    like, all models stay, unless the engine may be empty.

    Args:
        folder: that may change at any time, or not exist yet
        engine: that serves them; other models of it are left alone
    """

    def __init__(self, folder: str | Path, engine: Engine) -> None:
        self.folder = Path(folder)
        self.engine = engine
        self._before: dict[str, tuple[Path, Signature]] = {}
        self._tried: dict[str, Signature] = {}
        self._missed: dict[str, int] = {}  # of each model that is served: looks without it
        self._ignored: dict[Path, str] = {}  # what has no name of its own, and why
        self._why = ""  # the folder was not read at the last look

    async def begin(self) -> None:
        """Load or refuse what is in the folder, once it does not change any more, or a minute."""
        for _ in range(FIRST_LOOKS):
            await asyncio.to_thread(self.look)
            if all(name in self._tried or not files for name, (_, files) in self._before.items()):
                return
            await asyncio.sleep(PAUSE)

    async def watch(self) -> None:
        """Look again and again; loading happens in a thread."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(PAUSE)

    def look(self) -> None:
        """Compare the folder with what is served, and add, replace and remove models."""
        try:
            found = self._found()
            if not found and self._missed and not self.engine.allow_empty:
                raise OSError("it is empty, as if it were not mounted")
        except OSError as error:
            if self._why != str(error):
                reason = f"{error}: the models that came from there stay"
                log("folder not read", logging.ERROR, folder=str(self.folder), reason=reason)
            self._why = str(error)
            return
        self._why = ""
        for name in sorted(self._missed):
            self._missed[name] = 0 if name in found else self._missed[name] + 1
            if self._missed[name] >= LOOKS:
                self._remove(name)
        self._tried = {name: each for name, each in self._tried.items() if name in found}
        for name, (path, signature) in found.items():
            settled = signature and self._before.get(name) == (path, signature)
            if settled and self._tried.get(name) != signature:
                self._tried[name] = signature
                self._load(name, path)
        self._before = found

    def _found(self) -> dict[str, tuple[Path, Signature]]:
        """Return each model there by name; of two with the same the one that was there before.

        Raises:
            OSError: the folder or what is in it cannot be read.
        """
        found: dict[str, tuple[Path, Signature]] = {}
        served = {path for path, _ in self._before.values()}
        ignored = dict[Path, str]()
        paths = [path for path in self.folder.iterdir() if path.name[0] != "."]
        for path in sorted(paths, key=lambda path: (path not in served, path)):
            try:
                name = name_of(str(path))
                if name in found:
                    first = found[name][0].name
                    ignored[path] = f"its name would be {name}, as that of {first}: rename it"
                    continue
                with suppress(FileNotFoundError):  # it has just gone
                    found[name] = (path, _signature(path))
            except UserError:
                ignored[path] = "its name has no ASCII letter or digit: rename it"
        for path in sorted(ignored.keys() - self._ignored.keys()):
            log("model ignored", logging.WARNING, file=path.name, reason=ignored[path])
        self._ignored = ignored
        return found

    def _load(self, name: str, path: Path) -> None:
        known = name in self._missed and any(card.name == name for card in self.engine.cards())
        try:
            self.engine.add(name, path, replace=known)
        except Exception as error:  # also of a file that nobody expected: the others go on
            expected = isinstance(error, UserError)
            level = logging.WARNING if expected else logging.ERROR
            self.engine.metrics.loads_failed.inc()
            log("model not loaded", level, error=not expected, model=name, reason=str(error))
            return
        self._missed[name] = 0
        log("model replaced" if known else "model added", model=name)

    def _remove(self, name: str) -> None:
        del self._missed[name]
        try:
            self.engine.remove(name)
        except UserError as error:  # a request removed it before
            log("model not removed", logging.WARNING, model=name, reason=str(error))
            return
        log("model removed", model=name)


def _signature(path: Path) -> Signature:
    """Return what changes with a file, or with any file that matters in a folder.

    One of the same size and time, as `cp -p` and `rsync -t` make it, has another inode, or another
    time of change of the inode.
    """
    folder = path / "model" if (path / "model").is_dir() else path  # of a run
    files = sorted(folder.iterdir()) if folder.is_dir() else [path]
    files += [path / name for name in HEADS] if folder != path else []
    found = [(file.name, file.stat()) for file in files[:MOST] if file.is_file()]
    return tuple(
        (name, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
        for name, about in found
    )
