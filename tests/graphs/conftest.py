"""Graphs are traced once: PyTorch's exporter takes seconds for the smallest model."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from filelock import FileLock

import vitlab
from vitlab.evaluation.unlike import fit_unlike
from vitlab.graphs import onnx_file
from vitlab.graphs.complete import Traceable
from vitlab.models.model import Model
from vitlab.weights.identity import fingerprint

CLASSES = ("cat", "dog", "Känguru 🦘")


def model_of(name: str = "ViT(width=32,depth=2,heads=2,mlp=64)/8", **choices: Any) -> Model:
    chosen = {"image_size": 32, "zero_head": False, "interpolation": "bicubic", "crop": 0.9}
    generator = torch.Generator().manual_seed(1)
    model = vitlab.create(name, 3, generator=generator, **(chosen | {"labels": CLASSES} | choices))
    with torch.no_grad():
        for weight in model.parameters():  # so that images differ in their classes
            weight += 0.2 * torch.randn(weight.shape, generator=generator)
    model.provenance |= {"temperature": 1.3, "recipe": "vit", "license": "mit"}
    model.provenance |= {"source": "/home/me/secret/weights.npz"}
    return model.eval()


@pytest.fixture(scope="session", autouse=True)
def _traced_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hand out copies of one graph for one model in one form; every file is still checked.

    Workers of pytest-xdist share them.
    """
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if folder.name.startswith("popen-") else folder) / "graphs"
    folder.mkdir(exist_ok=True)
    trace = onnx_file.traced

    def traced(model: Model, form: Traceable) -> tuple[Any, list[str]]:
        several, unlike = model.provenance.get("multi_label"), model.unlike
        parts = form.input, form.outputs + form.inner, str(form.free), tuple(form.example.shape)
        key = repr((fingerprint(model), model.temperature, several, unlike is None, *parts))
        file: Path = folder / hashlib.sha256(key.encode()).hexdigest()
        with FileLock(f"{file}.lock"):
            if not file.exists():
                proto, blocks = trace(model, form)
                file.with_suffix(".json").write_text(json.dumps(blocks))
                file.write_bytes(proto.SerializeToString())
        return onnx.load(file), json.loads(file.with_suffix(".json").read_text())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_file, "traced", traced)
        yield


@pytest.fixture(scope="session")
def model() -> Model:
    """The model of most tests here, which knows how far images are from those of one gray each."""
    made = model_of()
    levels = np.random.default_rng(0).integers(0, 256, (90, 1, 1, 3), np.uint8)
    with torch.inference_mode():
        ready = vitlab.preprocess(made)([*np.broadcast_to(levels, (90, 32, 32, 3))])
        inner = made.inner(ready, 1).numpy()
    made.unlike = fit_unlike(inner, np.arange(90) % 3, np.arange(90) // 3 % 5, 1)
    return made
