"""Everything that changes while a run goes on, and its way into a checkpoint and back."""

from dataclasses import dataclass, field
from typing import Any

import torch

from vitlab.models.create import Model
from vitlab.training import moments
from vitlab.training.averaging import WeightAverage
from vitlab.training.checkpoint import Checkpoint, flatten, pick
from vitlab.training.optimisers import settled


@dataclass
class State:
    """Where a run stands: after `step` steps, with `step` the next to take.

    Attributes:
        model: the weights that are trained
        average: their average, where the recipe keeps one
        optimiser: its moments
        step: batches done
        tally: sums since the last line of the journal (loss, correct, images)
        seconds: time spent training, over all sessions
        seen: images trained on
        bad: what was said of each damaged image; the message names it
        journal: bytes of metrics.jsonl that belong to the steps done
    """

    model: Model
    average: WeightAverage[Model] | None
    optimiser: torch.optim.Optimizer
    step: int = 0
    tally: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    seen: int = 0
    bad: list[str] = field(default_factory=list)
    journal: int = 0

    @property
    def kept(self) -> Model:
        """The weights that are evaluated and saved."""
        if self.average is not None:
            return self.average.model
        return settled(self.model, self.optimiser)

    def checkpoint(self) -> Checkpoint:
        """The whole state as tensors and JSON."""
        tensors = flatten("model", self.model.state_dict())
        if self.average is not None:
            tensors |= flatten("average", self.average.model.state_dict())
        own, rest = moments.pack(self.optimiser)
        tensors |= flatten("optimiser", own)
        plain = ("step", "tally", "seconds", "seen", "bad", "journal")
        return Checkpoint(tensors, {key: getattr(self, key) for key in plain} | {"optimiser": rest})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Become what `checkpoint()` saw, bit for bit."""
        self.model.load_state_dict(pick("model", checkpoint.tensors))
        if self.average is not None:
            self.average.model.load_state_dict(pick("average", checkpoint.tensors))
        plain = dict(checkpoint.state)
        rest: dict[str, Any] | None = plain.pop("optimiser", None)
        moments.unpack(self.optimiser, pick("optimiser", checkpoint.tensors), rest)
        for key, value in plain.items():
            setattr(self, key, value)
