"""The answer to one image: its likeliest classes, with their probabilities."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from vitlab.evaluation.answers import Floats


@dataclass(frozen=True)
class ClassifiedImage:
    """The likeliest classes of an image, best first, with their probabilities; or an error.

    `label` and `confidence` are those of the first.

    Attributes:
        image: its name
        classes: the likeliest, with their probabilities
        error: why there are none
        predicted: all classes above their threshold, best first, of a model for several labels per
            image; None of others
        distance: how far it is from the training images, above 1 if it is unlike them; NaN if the
            model does not know
    """

    image: str
    classes: tuple[tuple[str, float], ...] = ()
    error: str = ""
    predicted: tuple[str, ...] | None = None
    distance: float = math.nan

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ClassifiedImage):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[object, ...]:
        """What equal answers share; NaN equals nothing, but what is not known is no difference."""
        far = None if math.isnan(self.distance) else self.distance
        return self.image, self.classes, self.error, self.predicted, far

    @classmethod
    def of(
        cls,
        image: str,
        chances: Floats,
        classes: Sequence[str],
        top: int,
        thresholds: Sequence[float] | None,
        distance: float,
    ) -> Self:
        """Return the answer in the probabilities of an image.

        Args:
            image: its name
            chances: of each class, (classes,)
            classes: their names
            top: how many are named
            thresholds: of each class, of a model for several labels per image
            distance: from the training images
        """
        best = np.argsort(-chances, kind="stable")
        named = tuple((classes[number], float(chances[number])) for number in best[:top])
        above = None
        if thresholds is not None:
            above = tuple(classes[n] for n in best if chances[n] > thresholds[n])
        return cls(image, named, predicted=above, distance=float(distance))

    @property
    def label(self) -> str | None:
        """The likeliest class; None of a damaged image."""
        return self.classes[0][0] if self.classes else None

    @property
    def confidence(self) -> float:
        """The probability of the likeliest class; NaN of a damaged image."""
        return self.classes[0][1] if self.classes else math.nan

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as JSON holds it."""
        if self.error:
            return {"image": self.image, "error": self.error}
        top = [{"class": name, "probability": chance} for name, chance in self.classes]
        several = {} if self.predicted is None else {"predicted": list(self.predicted)}
        far = self.distance
        known = {} if math.isnan(far) else {"unlike": far > 1, "distance": far}
        return {"image": self.image, "top": top} | several | known
