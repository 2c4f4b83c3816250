"""Graphs are traced once: PyTorch's exporter takes seconds for the smallest model."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from vitlab.graphs import onnx_file
from vitlab.graphs.complete import Traceable
from vitlab.models.model import Model
from vitlab.weights.identity import fingerprint


@pytest.fixture(scope="module", autouse=True)
def _traced_once() -> Iterator[None]:
    """Hand out copies of one graph for one model in one form; every file is still checked."""
    made: dict[tuple[object, ...], Any] = {}
    trace = onnx_file.traced

    def traced(model: Model, form: Traceable) -> Any:
        several = model.provenance.get("multi_label")
        parts = form.input, form.outputs, str(form.free)
        key = (fingerprint(model), model.temperature, several, *parts)
        if key not in made:
            made[key] = trace(model, form)
        return copy.deepcopy(made[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_file, "traced", traced)
        yield
