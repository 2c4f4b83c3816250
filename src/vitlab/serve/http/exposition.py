"""Figures for Prometheus: those of the engine, and one count per route and status."""

from collections.abc import Iterator

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    generate_latest,
)
from prometheus_client import Histogram as Latency
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from vitlab.serve.engine import Engine
from vitlab.serve.figures import SECONDS, Figures, Histogram
from vitlab.serve.http.exchange import Exchange

TEXT = CONTENT_TYPE_LATEST
GAUGES = {
    "waiting": "Images that wait to be decoded or computed",
    "computing": "Images in a model now",
}
COUNTERS = {
    "decoded": "Images that were decoded",
    "failed": "Images that could not be decoded",
    "broken": "Images of batches that failed",
    "shed": "Images refused because they could not be answered in time",
    "late": "Images given up after the time limit",
    "restarts": "Decoder processes that ended and were replaced",
}
OF_MODEL = {
    "images": "Images answered",
    "failed": "Images that could not be decoded",
    "shed": "Images refused because they could not be answered in time",
    "late": "Images given up after the time limit",
}


class OfEngine:
    """Reads the engine's figures whenever they are asked for."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def collect(self) -> Iterator[Metric]:
        """Yield every figure."""
        figures = self.engine.figures()
        ready = float(self.engine.ready)
        yield GaugeMetricFamily("vitlab_ready", "1 while the service takes requests", value=ready)
        served = len(figures.models)
        yield GaugeMetricFamily("vitlab_models", "Models that are served", value=served)
        for name, help_ in GAUGES.items():
            yield GaugeMetricFamily(f"vitlab_{name}_images", help_, value=getattr(figures, name))
        for name, help_ in COUNTERS.items():
            value = getattr(figures, name)
            what = "decoder_restarts" if name == "restarts" else f"images_{name}"
            yield CounterMetricFamily(f"vitlab_{what}", help_, value=value)
        yield _histogram("vitlab_batch_images", "Images per batch", figures.batch_sizes)
        yield _histogram("vitlab_batch_seconds", "Seconds per batch", figures.batch_seconds)
        yield from _of_models(figures)


def _of_models(figures: Figures) -> Iterator[Metric]:
    for name, help_ in OF_MODEL.items():
        family = CounterMetricFamily(f"vitlab_model_{name}", help_, labels=["model"])
        for model, of in figures.models.items():
            family.add_metric([model], getattr(of, name))
        yield family
    seconds = HistogramMetricFamily(
        "vitlab_model_seconds", "Seconds from a request to its answer", labels=["model"]
    )
    for model, of in figures.models.items():
        seconds.add_metric([model], _buckets(of.seconds), of.seconds.total)
    yield seconds


def _histogram(name: str, help_: str, of: Histogram) -> Metric:
    family = HistogramMetricFamily(name, help_)
    family.add_metric([], _buckets(of), of.total)
    return family


def _buckets(of: Histogram) -> list[tuple[str, float]]:
    """Return how many numbers are at most each bound, as Prometheus has it."""
    total, rows = 0, []
    for bound, count in zip((*map(str, of.bounds), "+Inf"), of.counts, strict=True):
        total += count
        rows.append((bound, float(total)))
    return rows


class Requests:
    """Counts requests by route, method and status, none of which a client can invent."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("route", "method", "status")
        self.count = Counter("vitlab_requests", "Requests", labels, registry=registry)
        self.seconds = Latency(
            "vitlab_request_seconds",
            "Seconds of a request",
            labels,
            buckets=SECONDS,
            registry=registry,
        )
        self.held = Gauge(
            "vitlab_body_bytes", "Bytes of bodies of requests in memory", registry=registry
        )

    def add(self, exchange: Exchange, seconds: float) -> None:
        """Count one at its end."""
        labels = (exchange.route, exchange.method, str(exchange.status))
        self.count.labels(*labels).inc()
        self.seconds.labels(*labels).observe(seconds)


def as_text(registry: CollectorRegistry) -> bytes:
    """Return all figures in Prometheus's text format."""
    return generate_latest(registry)
