"""The numbers of metrics.jsonl, reported to TensorBoard, Weights & Biases or trackio as well.

A tracker must not disturb a run: each sends in the background, and whatever it raises is reported
once, then the run continues without it.
"""

import hashlib
import importlib
import json
from collections.abc import Callable
from typing import Any

from vitlab.errors import PackageError
from vitlab.progress import say
from vitlab.runs.run_folder import RunFolder

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
        on_line: called with each line; what it raises ends the run
    """

    def __init__(
        self, folder: RunFolder, name: str, step: int = 0, on_line: OnLine | None = None
    ) -> None:
        self.name, self.on_line = name, on_line
        self.parts: tuple[Write, Callable[[], None]] | None = None
        if name != "no":
            begin = _tensorboard if name == "tensorboard" else _wandb_like
            self.parts = self._tried(begin, find(name), folder, step)

    def write(self, line: dict[str, Any]) -> None:
        """Pass a line of the journal on."""
        if self.on_line is not None:
            self.on_line(dict(line))
        if self.parts is not None:
            self._tried(self.parts[0], scalars(line), int(line.get("step", 0)))

    def close(self) -> None:
        """Let the tracker finish."""
        if self.parts is not None:
            self._tried(self.parts[1])

    def _tried(self, act: Callable[..., Any], *given: Any) -> Any:
        """Return what a tracker's function returns; if it fails, say so and do without it."""
        try:
            return act(*given)
        except (Exception, SystemExit) as error:  # a tracker may raise anything
            self.parts = None
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            say(f"{self.name} failed, continuing without it: {reason}")


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
