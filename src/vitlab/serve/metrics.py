"""Metrics of a service for Prometheus, in a registry of its own."""

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
)

IMAGES = (1, 2, 4, 8, 16, 32, 64)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
OF_IMAGES = {
    "answered": "Images answered",
    "failed": "Images that could not be decoded",
    "broken": "Images of batches that failed",
    "shed": "Images refused because they could not be answered in time; no model: unread",
    "late": "Images given up after the time limit",
}


class Metrics:
    """Counters and histograms of one service; labels are never of a client's invention."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._images = {
            name: self._counter(f"images_{name}", help_, "model")
            for name, help_ in OF_IMAGES.items()
        }
        self.batch_images = self._histogram("batch_images", "Images per batch", IMAGES)
        self.batch_seconds = self._histogram("batch_seconds", "Seconds per batch", SECONDS)
        self.loads_failed = self._counter("model_loads_failed", "Models that could not be loaded")
        self.request_seconds = self._histogram(
            "request_seconds", "Seconds of a request", SECONDS, "route", "method", "status"
        )

    def count(self, what: str, model: str, images: int) -> None:
        """Count images of a model."""
        self._images[what].labels(model).inc(images)

    def gauge(self, name: str, help_: str, value: Callable[[], float]) -> None:
        """Add a number that goes up and down, read whenever it is asked for."""
        Gauge(f"vitlab_{name}", help_, registry=self.registry).set_function(value)

    def _counter(self, name: str, help_: str, *labels: str) -> Counter:
        return Counter(f"vitlab_{name}", help_, labels, registry=self.registry)

    def _histogram(
        self, name: str, help_: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(f"vitlab_{name}", help_, labels, buckets=buckets, registry=self.registry)
