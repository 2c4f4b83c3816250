"""Metrics of a service for Prometheus, in a registry of its own."""

from collections.abc import Callable, Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

IMAGES = (1, 2, 4, 8, 16, 32, 64)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
OF_IMAGES = {
    "failed": "Images that could not be decoded",
    "broken": "Images of batches that failed",
    "shed": "Images refused because they could not be answered in time",
    "late": "Images given up after the time limit",
}
OF_MODEL = OF_IMAGES | {"images": "Images answered"}


class Metrics:
    """Counters and histograms of one service; labels are never of a client's invention."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._of_images = {
            name: self._counter(f"images_{name}", help_) for name, help_ in OF_IMAGES.items()
        }
        self._of_model = {
            name: self._counter(f"model_{name}", help_, "model") for name, help_ in OF_MODEL.items()
        }
        self._model_seconds = self._histogram(
            "model_seconds", "Seconds from a request to its answer", SECONDS, "model"
        )
        self.batch_images = self._histogram("batch_images", "Images per batch", IMAGES)
        self.batch_seconds = self._histogram("batch_seconds", "Seconds per batch", SECONDS)
        self.loads_failed = self._counter("model_loads_failed", "Models that could not be loaded")
        self._unread = self._counter("requests_refused_unread", "Requests refused unread")
        self.body_bytes = self.gauge("body_bytes", "Bytes of bodies of requests in memory")
        labels = ("route", "method", "status")
        self.requests = self._counter("requests", "Requests", *labels)
        self.request_seconds = self._histogram(
            "request_seconds", "Seconds of a request", SECONDS, *labels
        )

    def count(self, what: str, model: str, images: int) -> None:
        """Count images of a model, and of all models."""
        self._of_model[what].labels(model).inc(images)
        if what in self._of_images:
            self._of_images[what].inc(images)

    def answered(self, model: str, images: int, seconds: float) -> None:
        """Count a request that was answered, with so many images that could be used."""
        self.count("images", model, images)
        self._model_seconds.labels(model).observe(seconds)

    def refused_unread(self) -> None:
        """Count a request that was refused unread, as one image of no model."""
        self._unread.inc()
        self._of_images["shed"].inc()

    def forget(self, model: str) -> None:
        """Leave out a model that was removed."""
        for each in (*self._of_model.values(), self._model_seconds):
            each.remove(model)

    def gauge(self, name: str, help_: str, value: Callable[[], float] = lambda: 0) -> Gauge:
        """Add a number that goes up and down, read whenever it is asked for."""
        gauge = Gauge(f"vitlab_{name}", help_, registry=self.registry)
        gauge.set_function(value)
        return gauge

    def counter(self, name: str, help_: str, value: Callable[[], float]) -> None:
        """Add a number that grows, read whenever it is asked for."""
        self.registry.register(_Read(f"vitlab_{name}", help_, value))

    def value(self, name: str, **labels: str) -> float:
        """Return one number by its name after `vitlab_`; 0 if there is none yet."""
        return self.registry.get_sample_value(f"vitlab_{name}", labels) or 0.0

    def text(self) -> bytes:
        """Return everything in Prometheus's text format."""
        return generate_latest(self.registry)

    def _counter(self, name: str, help_: str, *labels: str) -> Counter:
        return Counter(f"vitlab_{name}", help_, labels, registry=self.registry)

    def _histogram(
        self, name: str, help_: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(f"vitlab_{name}", help_, labels, buckets=buckets, registry=self.registry)


class _Read(Collector):
    """A counter that somebody else counts."""

    def __init__(self, name: str, help_: str, value: Callable[[], float]) -> None:
        self._about, self._value = (name, help_), value

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(*self._about, value=self._value())
