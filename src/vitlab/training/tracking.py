"""The numbers of metrics.jsonl, reported to TensorBoard, Weights & Biases or trackio as well.

A tracker must not disturb a run: it works in a thread of its own, lines that it is too slow for are
dropped, and whatever it raises is reported once, then the run continues without it.
"""

import hashlib
import importlib
import json
import queue
import threading
from collections.abc import Callable
from typing import Any

from vitlab.errors import PackageError
from vitlab.progress import say
from vitlab.runs.run_folder import RunFolder

WAITING = 1000  # lines
PATIENCE = 15.0  # seconds for the last lines when the run ends
PACKAGES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "trackio": "trackio"}

OnLine = Callable[[dict[str, Any]], None]
"""What a caller of `vitlab.train` does with each line of metrics.jsonl."""

Write = Callable[[dict[str, float], int], None]  # scalars by name, at a step


class Tracker:
    """Passes lines on to a tracker; `no` does nothing.

    Args:
        folder: the run's folder
        name: no, tensorboard, wandb or trackio
        step: number of steps done before this session
        on_line: called with each line, in the run's own thread; what it raises ends the run
    """

    def __init__(
        self, folder: RunFolder, name: str, step: int = 0, on_line: OnLine | None = None
    ) -> None:
        self.name, self.folder, self.first, self.on_line = name, folder, step, on_line
        self.lines: queue.Queue[dict[str, Any] | None] = queue.Queue(WAITING)
        self.thread: threading.Thread | None = None
        if name != "no":
            self.module = find(name)
            self.thread = threading.Thread(target=self._work, name="tracker", daemon=True)
            self.thread.start()

    def write(self, line: dict[str, Any]) -> None:
        """Pass a line of the journal on, without ever waiting for the tracker."""
        if self.on_line is not None:
            self.on_line(dict(line))
        if self.thread is not None and not self.lines.full():
            self.lines.put_nowait(line)

    def close(self) -> None:
        """Let the tracker finish, within some seconds."""
        if self.thread is None:
            return
        try:
            self.lines.put(None, timeout=PATIENCE)
            self.thread.join(PATIENCE)
        except queue.Full:
            pass
        if self.thread.is_alive():
            say(f"{self.name} is too slow: its last lines are lost")
        self.thread = None

    def _work(self) -> None:
        try:
            write, close = _OPEN[self.name](self.module, self.folder, self.first)
            while (line := self.lines.get()) is not None:
                write(scalars(line), int(line.get("step", 0)))
            close()
        except BaseException as error:  # a tracker may raise anything
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            say(f"{self.name} failed, continuing without it: {reason}")
            while self.lines.get() is not None:  # so that no writer waits
                pass


def find(name: str) -> Any:
    """Return a tracker's module.

    Raises:
        PackageError: its package is not installed.
    """
    try:
        return importlib.import_module(PACKAGES[name])
    except ImportError as error:
        raise PackageError(
            f"--track {name} needs a package that is missing ({error}): pip install {name}"
        ) from error


def scalars(line: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a line of the journal, named `train/loss` and so on."""
    kind = line.get("kind", "run")
    return {
        f"{kind}/{key}": value
        for key, value in line.items()
        if key != "step" and isinstance(value, int | float) and not isinstance(value, bool)
    }


def _tensorboard(module: Any, folder: RunFolder, step: int) -> tuple[Write, Callable[[], None]]:
    """Write event files into the run's folder; events after `step` are void."""
    writer = module.SummaryWriter(str(folder.path / "tensorboard"), purge_step=step + 1)
    if not step:
        writer.add_text("recipe", f"```\n{json.dumps(folder.recipe.as_tables(), indent=1)}\n```")

    def write(numbers: dict[str, float], step: int) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)

    return write, writer.close


def _wandb_like(module: Any, folder: RunFolder, step: int) -> tuple[Write, Callable[[], None]]:
    """Log to Weights & Biases, or to trackio, which has the same functions."""
    own = {key: each for key, each in folder.tables["run"].items() if key != "format"}
    mark = hashlib.sha256(json.dumps(own).encode()).hexdigest()[:12]
    name = f"{folder.path.name}-{mark}"  # the same when the run is resumed
    here = {"id": name, "dir": str(folder.path)} if module.__name__ == "wandb" else {}
    module.init(
        project="vitlab", name=name, config=folder.recipe.as_tables(), resume="allow", **here
    )

    def write(numbers: dict[str, float], step: int) -> None:
        module.log(numbers, step=step)

    return write, module.finish


_OPEN: dict[str, Callable[[Any, RunFolder, int], tuple[Write, Callable[[], None]]]] = {
    "tensorboard": _tensorboard,
    "wandb": _wandb_like,
    "trackio": _wandb_like,
}
