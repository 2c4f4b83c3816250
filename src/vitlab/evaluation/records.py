"""Typed records: what `evaluate` and `embed` return, with keys that an editor completes."""

from typing import Any


class AttributeDict(dict[str, Any]):
    """A dictionary whose values are attributes too: `found.accuracy` is `found["accuracy"]`."""

    def __getattr__(self, name: str) -> Any:
        """Return a value.

        Raises:
            AttributeError: there is no such key; the message names those there are.
        """
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no {name!r}: there are {', '.join(self)}") from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]


class EvaluationRecord(AttributeDict):
    """The figures of `vitlab.evaluate`, which says what they are; those asked for are there."""

    accuracy: float
    top5: float
    nll: float
    ece: float
    balanced_accuracy: float
    macro_precision: float
    macro_recall: float
    macro_f1: float
    micro_f1: float
    mcc: float
    auroc: float | None
    map: float | None
    bce: float
    intervals: dict[str, Any]
    images: int
    damaged: int
    data: str
    split: str
    model: str
    params: int
    macs: int
    precision: str
    engine: str
    images_per_second: float
    peak_memory: int
    seconds: float
    temperature: float
    classes: list[dict[str, Any]]
    confused: list[dict[str, Any]]
    notes: list[str]


class EmbeddingRecord(AttributeDict):
    """What `vitlab.embed` has written; in processes but the first of torchrun's it is empty."""

    out: str
    images: int
    damaged: int
    shape: list[int]
    model: str
    bytes: int
    seconds: float
    images_per_second: float
    notes: list[str]
    precision: str
    engine: str
    parts: int
    left: int
    own_parts: int
    own_images: int
