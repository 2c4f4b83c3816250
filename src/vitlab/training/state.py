"""Everything that changes while a run goes on, and its way into a checkpoint and back."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitlab.distributed.parallel import placed
from vitlab.models.create import Model
from vitlab.optim import moments
from vitlab.optim.averaging import WeightAverage
from vitlab.optim.optimizers import settled
from vitlab.training.checkpoint import Checkpoint, flatten, pick
from vitlab.training.patience import Best


@dataclass
class State:
    """Where a run stands: after `step` steps, with `step` the next to take.

    Attributes:
        model: the weights that are trained
        average: their average, where the recipe keeps one
        optimizer: its moments
        step: batches done
        tally: sums since the last line of the journal (loss, correct, images)
        seconds: time spent training, over all sessions
        seen: images trained on
        bad: what was said of each damaged image; the message names it
        journal: bytes of metrics.jsonl that belong to the steps done
        spent: seconds of earlier sessions, all told
        best: the best weights so far, where the run may stop early
    """

    model: Model
    average: WeightAverage[Model] | None
    optimizer: torch.optim.Optimizer
    step: int = 0
    tally: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    seen: int = 0
    bad: list[str] = field(default_factory=list)
    journal: int = 0
    spent: float = 0.0
    best: Best = field(default_factory=Best)

    @property
    def kept(self) -> Model:
        """The weights that are evaluated and saved."""
        if self.average is not None:
            return self.average.model
        return settled(self.model, self.optimizer)

    def checkpoint(self) -> Checkpoint:
        """The whole state as tensors and JSON."""
        tensors = flatten("model", self.model.state_dict())
        if self.average is not None:
            tensors |= flatten("average", self.average.model.state_dict())
        own, rest = moments.pack(self.optimizer)
        tensors |= flatten("optimizer", own) | flatten("best", self.best.weights)
        plain = ("step", "tally", "seconds", "seen", "bad", "journal", "spent")
        values = {key: getattr(self, key) for key in plain}
        return Checkpoint(tensors, values | {"optimizer": rest, "best": self.best.plain()})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Become what `checkpoint()` saw, bit for bit."""
        _load(self.model, pick("model", checkpoint.tensors))
        if self.average is not None:
            _load(self.average.model, pick("average", checkpoint.tensors))
        values = dict(checkpoint.state)
        rest: dict[str, Any] | None = values.pop("optimizer", None)
        moments.unpack(self.optimizer, pick("optimizer", checkpoint.tensors), rest)
        best = values.pop("best", {})  # earlier versions had none
        weights = pick("best", checkpoint.tensors)
        self.best = Best(**best, weights={n: t.to(self._device) for n, t in weights.items()})
        for key, value in values.items():
            setattr(self, key, value)

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device


def _load(model: Model, tensors: dict[str, Tensor]) -> None:
    """Give a model its weights, each process its slice where the model is sharded."""
    own = model.state_dict()
    model.load_state_dict({k: placed(t, own[k]) if k in own else t for k, t in tensors.items()})
