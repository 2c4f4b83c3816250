"""Metrics of a service for Prometheus, in a registry of its own."""

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector

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
        self._own: dict[str, Any] = {"namespace": "vitlab", "registry": self.registry}
        ProcessCollector(registry=self.registry)
        self._images = {
            name: Counter(f"images_{name}", help_, ("model",), **self._own)
            for name, help_ in OF_IMAGES.items()
        }
        self.batch_images = Histogram(
            "batch_images", "Images per batch", buckets=IMAGES, **self._own
        )
        self.batch_seconds = Histogram(
            "batch_seconds", "Seconds per batch", buckets=SECONDS, **self._own
        )
        self.loads_failed = Counter(
            "model_loads_failed", "Models that could not be loaded", **self._own
        )
        labels = ("route", "method", "status")
        self.request_seconds = Histogram(
            "request_seconds", "Seconds of a request", labels, buckets=SECONDS, **self._own
        )

    def count(self, what: str, model: str, images: int) -> None:
        """Count images of a model."""
        self._images[what].labels(model).inc(images)

    def gauge(self, name: str, help_: str, value: Callable[[], float]) -> None:
        """Add a number that goes up and down, read whenever it is asked for."""
        Gauge(name, help_, **self._own).set_function(value)
