"""Early stopping: the best weights so far, and how long they have been the best."""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass
class Best:
    """The best weights by the validation images: the most accurate, of equals the less surprised.

    Attributes:
        step: when they were looked at (0: never yet)
        accuracy: theirs
        loss: theirs, in nats
        since: looks taken since without a gain
        weights: a copy of them, buffers included
    """

    step: int = 0
    accuracy: float = -1.0
    loss: float = 0.0
    since: int = 0
    weights: dict[str, Tensor] = field(default_factory=dict)

    def look(self, step: int, accuracy: float, loss: float, model: nn.Module) -> None:
        """Take note of a look at the validation images."""
        if (accuracy, -loss) <= (self.accuracy, -self.loss):
            self.since += 1
            return
        self.step, self.accuracy, self.loss, self.since = step, accuracy, loss, 0
        self.weights = {name: value.clone() for name, value in model.state_dict().items()}

    def worn_out(self, patience: int) -> bool:
        """Whether patience (0: without end) is at its end."""
        return 0 < patience <= self.since

    def give_to(self, model: nn.Module) -> None:
        """Make a model what it was when it was best."""
        if self.weights:
            model.load_state_dict(self.weights)

    def plain(self) -> dict[str, Any]:
        """All but the weights, as JSON can hold it."""
        return {key: getattr(self, key) for key in ("step", "accuracy", "loss", "since")}
