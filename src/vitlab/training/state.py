"""The state of a run, all that changes in it, and its way into a checkpoint and back."""

from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor, nn

from vitlab.models.model import Model
from vitlab.objectives.pretext_task import OwningObjective
from vitlab.optim import moments
from vitlab.optim.averaging import WeightAverage
from vitlab.optim.optimizers import evaluation_weights
from vitlab.optim.sliced import placed
from vitlab.training.damage import DamagedImages
from vitlab.training.guard import Figures

SMOOTH = 0.9  # weight of the steps before, in the moving average of the loss
GOOD = 3.0  # times the lowest loss that a step may have for the weights before it to count as good
LEAST = 0.01  # nats: a loss below is not told from zero
EXPLODED = 100.0  # times the lowest loss (and nats at least): no run that learns comes to that


@dataclass(frozen=True)
class Checkpoint:
    """What a run needs to continue: tensors by name, and everything else as JSON values.

    `journal` is the content of metrics.jsonl; None in checkpoints of the code that kept none.
    """

    tensors: dict[str, Tensor]
    state: dict[str, Any]
    journal: bytes | None = None


def pick(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint under a prefix, such as `model.`, by their own names."""
    start = f"{prefix}."
    return {n.removeprefix(start): t for n, t in tensors.items() if n.startswith(start)}


@dataclass
class Tally:
    """What a run counts.

    Attributes:
        sums: loss, the objective's figures (correct answers) and images since the last training
            line of the journal
        since: loss and images since the last evaluation
        seconds: time spent training, over all sessions
        seen: images trained on
        bad: the damaged images
        journal: bytes of metrics.jsonl that belong to the steps done
        spent: seconds of all sessions, everything included
        unmeasured: whether the evaluation that is due after this step is still to be done
        skipped: steps whose batches were skipped
        streak: how many steps in a row were not finite, or exploded, up to this one
        smooth: the loss of an image, as a moving average over the steps; None before the first
        lowest: the lowest that it has been
        sound: the newest step after which the weights have proved good, by the loss of the next
            step: at most `GOOD` times the lowest; -1 before the first
    """

    sums: dict[str, float] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    seen: int = 0
    bad: DamagedImages = field(default_factory=DamagedImages)
    journal: int = 0
    spent: float = 0.0
    unmeasured: bool = False
    skipped: int = 0
    streak: int = 0
    smooth: float | None = None
    lowest: float | None = None
    sound: int = -1

    def add(self, figures: Figures) -> str:
        """Add the figures of a step; of one that was not finite, that it was skipped.

        Returns:
            What is wrong with the step: it is not finite, or its loss has exploded; else nothing.
        """
        fault = f"non-finite {figures.fault}" if figures.fault else self._judge(figures)
        self.streak = self.streak + 1 if fault else 0
        if figures.fault:
            self.skipped += 1
            return fault
        for key, value in figures.sums.items():
            for sums in (self.sums, self.since):
                sums[key] = sums.get(key, 0.0) + value
        self.seen += figures.images
        return fault

    def _judge(self, figures: Figures) -> str:
        """Compare the loss of a step with the lowest; return in what way it has exploded, if so."""
        if not figures.images:  # all were damaged
            return ""
        loss = figures.loss / figures.images
        self.smooth = loss if self.smooth is None else SMOOTH * self.smooth + (1 - SMOOTH) * loss
        lowest = self.smooth if self.lowest is None else self.lowest
        self.lowest = min(lowest, self.smooth)
        if loss <= lowest + (GOOD - 1) * max(abs(lowest), LEAST):
            self.sound = figures.step - 1
        exploded = loss > lowest + EXPLODED * max(abs(lowest), 1.0)
        return f"the loss exploded from {lowest:.3g} to {loss:,.6g}" if exploded else ""


def means(sums: dict[str, float]) -> dict[str, float]:
    """Return the means over the images of what was summed over them; `correct` is the accuracy."""
    images = max(1.0, sums.get("images", 0.0))
    named = {"accuracy" if key == "correct" else key: value for key, value in sums.items()}
    return {key: value / images for key, value in named.items() if key != "images"}


@dataclass
class Best:
    """The best weights on the validation images: the highest score, ties to the lower loss.

    Attributes:
        step: number of steps they had taken (0: none, or there are no weights yet)
        score: theirs (`Metric.score`)
        loss: theirs, in nats
        since: evaluations since then
        fallen: how those after them have become so much worse that the run ends
        start: the score of the weights before the first step, where they were compared; else -1
        trained: the best score of others; -1 without
        weights: a copy of them, buffers included
        head: the same of what answers with them, if it is no part of the model
    """

    step: int = 0
    score: float = -1.0
    loss: float = 0.0
    since: int = 0
    fallen: str = ""
    start: float = -1.0
    trained: float = -1.0
    weights: dict[str, Tensor] = field(default_factory=dict)
    head: dict[str, Tensor] = field(default_factory=dict)

    def compare(
        self, step: int, score: float, loss: float, model: nn.Module, head: nn.Module | None = None
    ) -> None:
        """Compare an evaluation with the best so far; keep the weights if it is better."""
        if step:
            self.trained = max(self.trained, score)
        else:
            self.start = score
        if self.weights and (score, -loss) <= (self.score, -self.loss):
            self.since += 1
            return
        self.step, self.score, self.loss, self.since = step, score, loss, 0
        self.weights, self.head = (
            {} if each is None else {name: own.clone() for name, own in each.state_dict().items()}
            for each in (model, head)
        )

    @property
    def untrained(self) -> bool:
        """Whether these are the weights before the first step."""
        return bool(self.weights) and not self.step

    def exhausted(self, patience: int) -> bool:
        """Return whether `patience` evaluations (0: no limit) have passed without a gain."""
        return 0 < patience <= self.since

    def restore(self, model: nn.Module, head: nn.Module | None = None) -> None:
        """Load the best weights, if there are any, into a model and what answers with it."""
        for module, weights in ((model, self.weights), (head, self.head)):
            if module is not None and weights:
                module.load_state_dict(weights)

    def lines(self, step: int, total: int, first: str, figure: str) -> list[str]:
        """Return what to say of the best weights at the end of a run.

        Args:
            step: number of steps taken
            total: number planned
            first: what they are before the first step
            figure: their figure, and on which images
        """
        of = first if self.untrained else f"those of step {self.step:,}"
        early = self.fallen
        if not early and step < total:
            early = f"no gain in {self.since} evaluations: ended after step {step:,} of {total:,}"
        return [early] * bool(early) + [f"the best weights are {of}: {figure}"]

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the weights as JSON values."""
        return {key: own for key, own in vars(self).items() if key not in ("weights", "head")}


@dataclass
class RunState:
    """Where a run stands: after `step` steps, with step number `step` (from 0) the next to take.

    `Trainer.step` alone changes the first four, and the task.

    Attributes:
        model: the weights that are trained
        average: their average, where the recipe has one
        optimizer: its moments
        step: number of steps done
        tally: what the run counts
        best: the best weights so far, where the run may stop early
        task: what the objective trains beside the model, where it has modules of its own
        answers: whether these answer with the model, so that they are evaluated and saved with it
        head_average: their average then, where the recipe has one
        ended: model and head of a run that is over, if they are not the last ones
    """

    model: Model
    average: WeightAverage[Model] | None
    optimizer: torch.optim.Optimizer
    step: int = 0
    tally: Tally = field(default_factory=Tally)
    best: Best = field(default_factory=Best)
    task: OwningObjective | None = None
    answers: bool = False
    head_average: WeightAverage[OwningObjective] | None = None
    ended: tuple[Model, OwningObjective | None] | None = None

    @property
    def evaluated(self) -> Model:
        """The weights that are evaluated and saved."""
        if self.ended is not None:
            return self.ended[0]
        model = self.model if self.task is None else self.task.kept(self.model)
        if model is not self.model:  # a momentum teacher, an average itself
            return model
        if self.average is not None:
            return self.average.model
        return evaluation_weights(model, self.optimizer)

    @property
    def head(self) -> OwningObjective | None:
        """What answers with the evaluated weights, if it is no part of the model."""
        if self.ended is not None:
            return self.ended[1]
        if self.task is None or not self.answers:
            return None
        if self.head_average is not None:
            return self.head_average.model
        return evaluation_weights(self.task, self.optimizer)

    def adopt_best(self) -> None:
        """Evaluate and save the best weights from here on."""
        self.ended = self.evaluated, self.head
        self.best.restore(*self.ended)

    @property
    def _modules(self) -> dict[str, nn.Module]:
        """What learns or follows, by its prefix in a checkpoint."""
        found: dict[str, nn.Module | None] = {
            "model": self.model,
            "average": None if self.average is None else self.average.model,
            "head-average": None if self.head_average is None else self.head_average.model,
            "task": self.task,
        }
        return {prefix: module for prefix, module in found.items() if module is not None}

    def checkpoint(self) -> Checkpoint:
        """Return the whole state as tensors and JSON."""
        own, rest = moments.pack(self.optimizer)
        parts = {prefix: module.state_dict() for prefix, module in self._modules.items()}
        parts |= {"optimizer": own, "best": self.best.weights, "best-head": self.best.head}
        tensors = {f"{prefix}.{n}": t for prefix, part in parts.items() for n, t in part.items()}
        values = {"step": self.step} | vars(self.tally) | {"bad": self.tally.bad.as_json()}
        return Checkpoint(tensors, values | {"optimizer": rest, "best": self.best.as_dict()})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Become what `checkpoint()` returned, bit for bit."""
        for prefix, module in self._modules.items():  # each process its slices of a sharded one
            tensors, mine = pick(prefix, checkpoint.tensors), module.state_dict()
            found = {n: placed(t, mine[n]) if n in mine else t for n, t in tensors.items()}
            module.load_state_dict(found)
        values: dict[str, Any] = checkpoint.state
        moments.unpack(
            self.optimizer, pick("optimizer", checkpoint.tensors), values.get("optimizer")
        )
        device = next(self.model.parameters()).device
        weights, head = (
            {n: t.to(device) for n, t in pick(key, checkpoint.tensors).items()}
            for key in ("best", "best-head")
        )
        best = {"score" if k == "accuracy" else k: v for k, v in values["best"].items()}  # its name
        self.best, self.ended = Best(**best, weights=weights, head=head), None
        counted = {f.name: values[f.name] for f in fields(Tally) if f.name in values}
        damaged = DamagedImages.from_json(counted.get("bad", []))
        self.tally = Tally(**counted | {"bad": damaged})
        self.step = values["step"]
