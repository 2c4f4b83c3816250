"""Output of a run in the terminal: a summary before its first step, then table and progress."""

from dataclasses import dataclass, field
from typing import Any

from vitlab.data.summary import class_lines
from vitlab.evaluation.metrics import MAIN, METRICS
from vitlab.models.cost import cost
from vitlab.optim.schedule import warmup_steps
from vitlab.progress import GAP
from vitlab.training.observer import Observer
from vitlab.training.plan import RunPlan
from vitlab.training.state import RunState, means
from vitlab.units import clock, counted, epochs, percent, si

LEFT_OUT = ("time", "lr", "train loss", "epoch", "step")  # on narrow terminals, in this order


def announcement(observer: Observer, plan: RunPlan, fixed: bool) -> list[str]:
    """Return what will be trained, on what, for how long; a line each.

    Args:
        observer: of the run
        plan: in force
        fixed: whether the number of steps is decided, not still to be fitted into a budget
    """
    task, state = observer.task, observer.state
    config, price, recipe = task.config, cost(task.config), task.recipe
    rows, columns = config.size
    what = f"{rows}x{columns}x{config.channels}"
    what += (
        f" and {config.classes} classes"
        if config.classes
        else ", without labels" * (not recipe.pretext.annotated)
    )
    lines = [
        f"{config.name} for {what}: "
        f"{si(price.params, 2)} parameters, {si(price.macs, 2)} multiply-adds per image"
    ]
    if task.base is not None:
        free = sum(w.numel() for w in state.model.parameters() if w.requires_grad)
        lines.append(
            f"starting from {recipe.start.weights or 'the given model'} (fingerprint "
            f"{task.base_fingerprint[:12]}); tune={recipe.start.tune} trains {free:,} parameters"
        )
    if own := state.task:
        count = sum(weight.numel() for weight in own.parameters())
        what = f"task {recipe.pretext.task}"
        if teacher := recipe.distill.teacher:
            what = f"learning from {teacher} ({recipe.distill.distill})"
        lines.append(f"{what}: {si(count, 2)} parameters of its own")
    held_out = "held-out" if recipe.pretext.unlabeled else "test"
    names = {"train": "training", "validation": "validation", "test": held_out}
    parts = [f"{len(images):,} {names[part]}" for part, images in task.splits.parts.items()]
    lines.append(f"{recipe.data.data}: {', '.join(parts[:-1])} and {parts[-1]} images")
    about = class_lines(task.splits) if config.classes else []
    lines += [*task.told, *task.splits.notes, *about, *_length(observer, plan, fixed)]
    return lines + [f"continuing after step {state.step:,}"] * bool(state.step)


def _length(observer: Observer, plan: RunPlan, fixed: bool) -> list[str]:
    """Return how long the run is, where it happens, and what is odd about it."""
    task, recipe, world = observer.task, plan.recipe, observer.world
    planned = f"{counted(plan.total, 'step')} of {counted(recipe.batch, 'image')}"
    planned += f" ({epochs(plan.total / plan.epoch)})"
    if not fixed:
        planned = f"as many steps as fit into {recipe.budget}"
    where = f"{world.size} processes, " * (world.size > 1) + str(observer.device)
    lines = [f"{planned} on {where} in {recipe.precision}; run folder {task.folder.path}"]
    every = max(1.0, plan.evaluate_every)
    held_out = f"evaluated on the {len(observer.held_out):,} {observer.on} images"
    if every < plan.total:
        between = epochs(every / plan.epoch)
        often = "every epoch" if between == "1 epoch" else f"every {between}"
        lines.append(f"{held_out} {often}")
        if every > max(1.0, recipe.test_every * plan.epoch):
            lines[-1] += f", not every {recipe.test_every:g}: more would slow the run down"
    else:
        lines.append(f"{held_out} at the end")
    if 0 < plan.total <= warmup_steps(plan.epoch, recipe.schedule):
        lines.append("the warm-up is as long as the run: the learning rate never reaches its peak")
    return lines


@dataclass
class Rows:
    """Formats the table's rows, one per evaluation, under one header.

    Attributes:
        on: the split that is evaluated, `validation` or `test`
        figures: metrics (`METRICS`), and figures of a pretext task
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
            *((_title(name), _shown(name, point), 7) for name in self.figures),
            ("lr", f"{lr:.2e}", 8),
            ("time", clock(seconds), 8),
        ]
        for left_out in ("", *LEFT_OUT):
            cells = [cell for cell in cells if cell[0] != left_out]
            head = GAP.join(f"{name:>{max(wide, len(name))}}" for name, _, wide in cells)
            if not self.width or len(head) < self.width:
                break
        row = GAP.join(f"{text:>{max(wide, len(name))}}" for name, text, wide in cells)
        begun, self.begun = self.begun, True
        return [row] if begun else [head, row]


def _title(name: str) -> str:
    return METRICS[name].word if name in MAIN.values() else name.replace("_", " ")


def _shown(name: str, point: dict[str, Any]) -> str:
    return METRICS[name].text(point[name]) if name in MAIN.values() else f"{point[name]:.3f}"


def progress(state: RunState, plan: RunPlan, speed: float) -> str:
    """Return how training goes, in a few parts, the most important one first.

    Args:
        state: of the run
        plan: in force
        speed: images per second
    """
    known, epochs = means({"loss": 0.0} | state.tally.sums), plan.total / plan.epoch
    total = f"{epochs:.3g}" if epochs < 100 else f"{epochs:,.0f}"
    parts = [
        f"epoch {state.step / plan.epoch:.1f}/{total}",
        f"loss {known['loss']:.3f}",
        *([f"accuracy {percent(known['accuracy'])}"] if "accuracy" in known else []),
        f"{speed:,.0f} images/s",
    ]
    return GAP.join(parts)
