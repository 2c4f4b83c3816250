"""A model on the page: what it can show, and how it says it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.data.labels import kind_of
from vitlab.errors import OptionError
from vitlab.explore import views
from vitlab.explore.first_pass import FirstPass, layer_names, prefix_names
from vitlab.models.config import ViTConfig
from vitlab.models.model import Model

TOP = 5  # classes of a prediction


@dataclass(frozen=True, eq=False)
class Shown:
    """A model on the page.

    Attributes:
        name: as the page calls it
        model: in evaluation mode, on its device
        why_not: of each view, why the model does not have it; empty if it does
    """

    name: str
    model: Model
    why_not: dict[str, str]

    @classmethod
    def of(cls, name: str, model: Model, device: torch.device) -> "Shown":
        """Take over a model.

        Raises:
            WeightsError: the temperature or thresholds saved with it are damaged.
        """
        own = model.to(device).eval().requires_grad_(False)
        shown = cls(name, own, views.why_not(own))
        shown.described()
        return shown

    @property
    def prefix(self) -> int:
        """Tokens before the patches."""
        config = self.model.config
        return config.prefix if isinstance(config, ViTConfig) else 0

    @property
    def several(self) -> bool:
        """Whether an image may have several classes."""
        return kind_of(self.model).several

    def described(self) -> dict[str, Any]:
        """Return what the page is told."""
        config = self.model.config
        return {
            "name": self.name,
            "notation": config.name,
            "classes": list(config.class_names),
            "image_size": list(config.size),
            "patch": config.patch if isinstance(config, ViTConfig) else None,
            "temperature": self.model.temperature,
            "several": self.several,
            "thresholds": list(self.model.thresholds) if self.several else [],
            "views": self.why_not,
        }

    def of_pass(self, seen: FirstPass) -> dict[str, Any]:
        """Return what the page is told about an image's first pass."""
        config, attention = self.model.config, seen.attention
        found = {
            "top": self.top(seen.probabilities),
            "box": list(seen.box),
            "grid": list(seen.grid),
            "prefix": prefix_names(config) if isinstance(config, ViTConfig) else [],
            "layers": layer_names(config) if attention and isinstance(config, ViTConfig) else [],
            "heads": len(attention[0][1]) if attention else 0,
            "tokens": self.prefix + seen.grid[0] * seen.grid[1],
            "depth": len(seen.layers) - 1,
        }
        return found | ({"pool": len(seen.pool[0][1])} if seen.pool else {})

    def top(self, probabilities: NDArray[np.float64]) -> list[dict[str, Any]]:
        """Return the likeliest classes, best first; those that are not numbers are left out."""
        names = self.model.config.class_names
        best = [n for n in np.argsort(-probabilities, kind="stable") if probabilities[n] >= 0]
        return [
            {"class": int(n), "name": names[n], "probability": float(probabilities[n])}
            for n in best[:TOP]
        ]

    def label(self, seen: FirstPass, label: int | None) -> int:
        """Return the class that is asked about, the likeliest without one.

        Raises:
            OptionError: there is no such class.
        """
        if label is None:
            return int(np.argmax(seen.probabilities))
        if not 0 <= label < self.model.config.classes:
            raise OptionError(f"class {label}: choose from 0 to {self.model.config.classes - 1}")
        return label
