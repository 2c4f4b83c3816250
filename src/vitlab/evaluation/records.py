"""Typed records: what runs, `evaluate` and `embed` return, with keys that an editor completes."""

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.images import Images
from vitlab.models.cost import cost
from vitlab.models.model import Model


class AttributeDict(dict[str, Any]):
    """A dictionary whose values are attributes too: `found.accuracy` is `found["accuracy"]`."""

    if not TYPE_CHECKING:  # to type checkers there are the attributes that a class lists

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
    map: float | None
    top5: float
    nll: float
    bce: float
    brier: float
    ece: float
    calibration_error: float
    balanced_accuracy: float
    balanced_top5: float
    balanced_nll: float
    micro_f1: float
    macro_precision: float
    macro_recall: float
    macro_f1: float
    exact_match: float
    mcc: float
    kappa: float
    auroc: float | None
    aurc: float
    coverage_at_5: float
    miou: float | None
    pixel_accuracy: float | None
    boundary_iou: float | None
    ap50: float | None
    ap: float | None
    objects: int
    r2: float | None
    mae: float
    rmse: float
    coverage_50: float
    coverage_90: float
    targets: list[dict[str, Any]]
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
    thresholds: float | dict[str, float]
    calibration: dict[str, Any]
    chosen_thresholds: dict[str, Any]
    label_errors: dict[str, Any]
    learned_from: int
    protocol: str
    file: str


class RunRecord(EvaluationRecord):
    """The figures of a run, the keys of the command's JSON: of a test, and what the run cost.

    A run without labels has `task`, `held_out` and the figures of its task.
    """

    run: str
    report: str
    device: str
    skipped_steps: int
    rollbacks: int
    majority: float
    trained_on: int
    accuracy_without: float
    head: dict[str, Any]
    tried: list[dict[str, Any]]
    task: str
    held_out: int
    test_images: int
    loss: float
    probe: float
    knn: float
    sweep: dict[str, Any]


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


class EmbeddedImages(AttributeDict):
    """The columns of `vitlab.embed` in memory: an entry per image, in the order of the data."""

    path: list[str]
    label: list[Any]
    split: list[str]
    features: NDArray[np.floating]


def cost_figures(model: Model) -> dict[str, Any]:
    """Return a model's name, parameters and multiply-adds, by the keys of the commands' JSON."""
    price = cost(model)
    return {"model": model.config.name, "params": price.params, "macs": price.macs}


def recorded(
    model: Model, began: float, figures: Mapping[str, Any], notes: Iterable[str], bad: Iterable[str]
) -> EvaluationRecord:
    """Return figures as `vitlab evaluate` gives them: with the model, its cost, time and notes.

    Args:
        model: that was measured
        began: when, by `time.monotonic()`
        figures: with `data`
        notes: lines for the user
        bad: messages about images that were skipped
    """
    rest = {"seconds": time.monotonic() - began, "notes": [*notes, *(f"skipped: {e}" for e in bad)]}
    return EvaluationRecord({**figures, **cost_figures(model), **rest})


def answered(
    model: Model, key: str, source: Images, found: Mapping[int, dict[str, Any]]
) -> dict[str, Any]:
    """Return what a command says of images one by one, by their numbers; damaged: an `error`."""
    rows = [{"image": source.name(number)} | found[number] for number in range(len(source))]
    damaged = sum("error" in row for row in rows)
    about = {"model": model.config.name, "images": len(rows) - damaged, "damaged": damaged}
    return about | {key: rows}


def unicode(value: Any) -> Any:
    """Spell out, as Python does, the bytes of names that are not UTF-8, which Parquet requires.

    So also those in a list; what is no text stays as it is.
    """
    if isinstance(value, list):
        return [unicode(each) for each in value]
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value
