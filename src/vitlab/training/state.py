"""Everything that changes while a run goes on, and its way into a checkpoint and back."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitlab.models.create import Model
from vitlab.training.averaging import WeightAverage
from vitlab.training.checkpoint import Checkpoint, flatten, pick
from vitlab.training.parallel import placed


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
        return self.model if self.average is None else self.average.model

    def checkpoint(self) -> Checkpoint:
        """The whole state as tensors and JSON."""
        tensors = flatten("model", self.model.state_dict())
        if self.average is not None:
            tensors |= flatten("average", self.average.model.state_dict())
        moments = self.optimiser.state_dict()["state"]
        for index, entry in moments.items():
            tensors |= flatten(f"optimiser.{index}", entry)
        plain = ("step", "tally", "seconds", "seen", "bad", "journal")
        return Checkpoint(tensors, {key: getattr(self, key) for key in plain})

    def restore(self, checkpoint: Checkpoint) -> None:
        """Become what `checkpoint()` saw, bit for bit."""
        _load(self.model, pick("model", checkpoint.tensors))
        if self.average is not None:
            _load(self.average.model, pick("average", checkpoint.tensors))
        weights = [each for group in self.optimiser.param_groups for each in group["params"]]
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in pick("optimiser", checkpoint.tensors).items():
            index, key = name.split(".", 1)
            moments.setdefault(int(index), {})[key] = placed(tensor, weights[int(index)])
        groups: Any = self.optimiser.state_dict()["param_groups"]
        self.optimiser.load_state_dict({"state": moments, "param_groups": groups})
        for key, value in checkpoint.state.items():
            setattr(self, key, value)


def _load(model: Model, tensors: dict[str, Tensor]) -> None:
    """Give a model its weights, each process its slice where the model is sharded."""
    own = model.state_dict()
    model.load_state_dict({k: placed(t, own[k]) if k in own else t for k, t in tensors.items()})
