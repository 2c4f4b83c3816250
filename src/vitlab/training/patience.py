"""Early stopping: the best weights so far, and for how long they have been the best."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass
class Best:
    """The best weights on the validation images: the highest accuracy, ties to the lower loss.

    Attributes:
        step: number of steps they had taken (0: none, or there are no weights yet)
        accuracy: theirs
        loss: theirs, in nats
        since: evaluations since then
        weights: a copy of them, buffers included
    """

    step: int = 0
    accuracy: float = -1.0
    loss: float = 0.0
    since: int = 0
    weights: dict[str, Tensor] = field(default_factory=dict)

    def compare(self, step: int, accuracy: float, loss: float, model: nn.Module) -> None:
        """Compare an evaluation with the best so far; keep the model's weights if it is better."""
        if (accuracy, -loss) <= (self.accuracy, -self.loss):
            self.since += 1
            return
        self.step, self.accuracy, self.loss, self.since = step, accuracy, loss, 0
        self.weights = {name: value.clone() for name, value in model.state_dict().items()}

    @property
    def untrained(self) -> bool:
        """Whether these are the weights before the first step."""
        return bool(self.weights) and not self.step

    def exhausted(self, patience: int) -> bool:
        """Return whether `patience` evaluations (0: no limit) have passed without a gain."""
        return 0 < patience <= self.since

    def restore(self, model: nn.Module) -> None:
        """Load the best weights, if there are any, into a model."""
        if self.weights:
            model.load_state_dict(self.weights)

    def adopt(self, model: nn.Module, step: int, total: int) -> list[str]:
        """Load the best weights, at the end of a run, into a model; return what to say of it.

        Args:
            model: the one that is tested and saved
            step: number of steps taken
            total: number planned
        """
        self.restore(model)
        of = "the classifier as it was fitted" if self.untrained else f"those of step {self.step:,}"
        lines = [f"the best weights are {of}: {self.accuracy:.1%} on the validation images"]
        if step < total:
            early = f"no gain in {self.since} evaluations: ended after step {step:,} of {total:,}"
            lines.insert(0, early)
        return lines

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the weights as JSON values."""
        return {key: getattr(self, key) for key in ("step", "accuracy", "loss", "since")}
