"""The int8 form of the service computes what the exported file does."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from conftest import QUICK, call, fewer_digits
from graphs.test_check import checked
from vitlab.errors import OptionError
from vitlab.evaluation.unlike import fit_unlike
from vitlab.graphs import int8_form as room
from vitlab.graphs.agreement import opened
from vitlab.models.unlike import layer_of
from vitlab.serve.trunk import BASE, Trunk, choose_form

CPU = torch.device("cpu")


@pytest.fixture
def run(digits_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(digits_run, tmp_path / "run"))


@pytest.mark.slow
def test_served_as_exported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    # sure enough of its answers that those of int8 are the same
    words = ["--epochs", "6", "--batch", "64", "--lr", "1e-2", "--report", "no"]
    assert call(capsys, "train", "digits", "--out", str(run), *QUICK[:2], *words)[0] == 0
    model = vitlab.load(run)
    layer = layer_of(model.last_layer)
    rows = np.random.default_rng(0).normal(size=(60, model.config.width)).astype(np.float32)
    model.unlike = fit_unlike(rows, np.arange(60) % 3, np.arange(60) // 3 % 5, layer)
    vitlab.save(model, run / "model")
    folder = tmp_path / "int8"
    with fewer_digits():
        told = vitlab.export(model, folder, bare=True, precision="int8", data="digits")
    assert "scales" not in told
    kept = json.loads((run / "model" / "int8.json").read_text())
    assert kept["images"] == told["images"]
    assert "agreement" not in {**kept, **told}  # of too few images that it has not learned from
    images = torch.randn(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    (wanted,) = opened(folder / "model.onnx").run(["logits"], {"images": images.numpy()})
    exact = ("--set", "session.x64quantprecision=1")  # it may overflow without VNNI
    status, out = checked(capsys, monkeypatch, folder, *exact)
    assert status == 0, out
    monkeypatch.setattr(room, "pass_seconds", lambda form, _: 1.0 + (form.computes != "int8"))
    trunk = Trunk(vitlab.load(run), CPU, "int8")
    form = choose_form(trunk, "int8", int8_form=room.int8_form)
    assert form is not None
    assert (form.precision, form.network.engine) == ("int8", "onnxruntime")
    with torch.inference_mode():
        scored = trunk.scored([*images], [BASE] * 6, form)
        found = torch.stack([scores for _, scores, _ in scored])
        inner = torch.stack([each for _, _, each in scored if each is not None])
        apart = (inner - model.inner(images, layer)).norm() / inner.norm()
    assert 1e-4 < apart < 0.1  # of int8 blocks, in the same pass
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)
    assert (found - model(images)).abs().max() > 1e-3  # it is int8
    monkeypatch.setattr(room, "pass_seconds", lambda form, _: 1.0 + (form.computes == "int8"))
    form = choose_form(Trunk(vitlab.load(run), CPU), "int8", int8_form=room.int8_form)
    assert form is not None
    assert form.precision == "fp32"
    assert "is computed in fp32: int8 would take 2.0 times as long here" in caplog.text


def test_without_scales_of_these_weights_it_is_refused(run: Path, digits_run: Path) -> None:
    words = "precision=int8 needs int8.json beside the weights: vitlab export .*--precision int8"
    (run / "model" / "int8.json").unlink(missing_ok=True)
    with pytest.raises(OptionError, match=words):
        choose_form(Trunk(vitlab.load(run), CPU), "int8", int8_form=room.int8_form)
    kept: dict[str, Any] = {"fingerprint": "another", "scales": []}
    (run / "model" / "int8.json").write_text(json.dumps(kept))
    with pytest.raises(OptionError, match=words):
        choose_form(Trunk(vitlab.load(run), CPU), "int8", int8_form=room.int8_form)
