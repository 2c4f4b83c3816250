"""The table that a run prints while it trains: a row per evaluation, under one header."""

from dataclasses import dataclass, field
from typing import Any

from vitlab.progress import GAP
from vitlab.training.plan import Plan
from vitlab.training.saving.state import State
from vitlab.units import clock, percent

LEFT_OUT = ("time", "lr", "train loss", "epoch", "step")  # on narrow terminals, in this order


@dataclass
class Rows:
    """Formats the rows.

    Attributes:
        on: the split that is evaluated, `validation` or `test`
        figures: `accuracy`, or `mAP` where images have several labels; those of a pretext task
        total: steps of the whole run, for the width of their column
        width: columns of the terminal; what does not fit is left out; None for no limit
        begun: whether the header is printed
    """

    on: str
    figures: tuple[str, ...]
    total: int
    width: int | None = None
    begun: bool = field(default=False, init=False)

    def lines(
        self,
        position: dict[str, float],
        training: float,
        point: dict[str, Any],
        lr: float,
        seconds: float,
    ) -> list[str]:
        """Return the line of a row, the first time after the header.

        Args:
            position: `epoch` and `step`
            training: mean training loss since the last row, in nats
            point: `loss` and `accuracy` (or `map`) of the evaluation
            lr: learning rate of the last step
            seconds: since the start, over all sessions
        """
        cells = [
            ("epoch", f"{position['epoch']:.2f}", 7),
            ("step", f"{position['step']:,}", len(f"{self.total:,}")),
            ("train loss", f"{training:.3f}", 0),
            (f"{self.on} loss", f"{point['loss']:.3f}", 0),
            *((name.replace("_", " "), _shown(name, point), 7) for name in self.figures),
            ("lr", f"{lr:.2e}", 8),
            ("time", clock(seconds), 8),
        ]
        for name in LEFT_OUT:
            if self.width and self._wide(cells) >= self.width:
                cells = [cell for cell in cells if cell[0] != name]
        head = GAP.join(f"{name:>{max(wide, len(name))}}" for name, _, wide in cells)
        row = GAP.join(f"{text:>{max(wide, len(name))}}" for name, text, wide in cells)
        begun, self.begun = self.begun, True
        return [row] if begun else [head, row]

    def _wide(self, cells: list[tuple[str, str, int]]) -> int:
        return sum(max(wide, len(name)) + len(GAP) for name, _, wide in cells) - len(GAP)


def _shown(name: str, point: dict[str, Any]) -> str:
    if name in ("accuracy", "mAP"):
        return percent(point.get("map", point["accuracy"]))
    return f"{point[name]:.3f}"


def progress(state: State, plan: Plan, speed: float) -> str:
    """Return how training goes, in a few parts, the most important one first.

    Args:
        state: of the run
        plan: in force
        speed: images per second
    """
    means, epochs = state.tally.means, plan.total / plan.epoch
    total = f"{epochs:.3g}" if epochs < 100 else f"{epochs:,.0f}"
    parts = [
        f"epoch {state.step / plan.epoch:.1f}/{total}",
        f"loss {means['loss']:.3f}",
        *([f"accuracy {percent(means['accuracy'])}"] if "accuracy" in means else []),
        f"{speed:,.0f} images/s",
    ]
    return GAP.join(parts)
