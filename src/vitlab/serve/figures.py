"""What the engine counts: numbers for monitoring, by model where that says more."""

from bisect import bisect_left
from dataclasses import dataclass, field

SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


@dataclass
class Histogram:
    """How often a number fell between bounds.

    Attributes:
        bounds: upper ends of the buckets, each included
        counts: of each bucket, and of the numbers above all bounds
        total: sum of the numbers
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        """Begin with empty buckets."""
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, number: float) -> None:
        """Count a number."""
        self.counts[bisect_left(self.bounds, number)] += 1
        self.total += number

    def copy(self) -> "Histogram":
        """Return the numbers so far."""
        return Histogram(self.bounds, list(self.counts), self.total)


@dataclass
class OfModel:
    """What one served model has done.

    Attributes:
        images: answered
        failed: that could not be decoded
        shed: refused because the queue was full
        late: given up after the time limit
        seconds: from a request to its answer
    """

    images: int = 0
    failed: int = 0
    shed: int = 0
    late: int = 0
    seconds: Histogram = field(default_factory=lambda: Histogram(SECONDS))

    def copy(self) -> "OfModel":
        """Return the numbers so far."""
        return OfModel(self.images, self.failed, self.shed, self.late, self.seconds.copy())


@dataclass(frozen=True)
class Figures:
    """What an engine does now, and has done since it was made.

    Attributes:
        waiting: images that are being decoded or wait for that or for their batch
        computing: images in the model now
        decoded: images that were decoded
        failed: images that could not be decoded
        broken: images of batches that failed
        shed: images refused because they could not be answered in time
        late: images given up after the time limit
        restarts: decoder processes that ended and were replaced
        batch_sizes: images of each batch
        batch_seconds: seconds of each batch
        models: by name, of the models served now
    """

    waiting: int
    computing: int
    decoded: int
    failed: int
    broken: int
    shed: int
    late: int
    restarts: int
    batch_sizes: Histogram
    batch_seconds: Histogram
    models: dict[str, OfModel]
