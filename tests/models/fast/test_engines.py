"""Engines outside PyTorch, and the choice among them all."""

import copy
import json
import logging
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitlab
from conftest import environment
from golden.rules import without_progress
from models.test_architectures import a_model, close, some_images
from vitlab.errors import OptionError, PackageError
from vitlab.models.fast import accelerate as room
from vitlab.models.fast import engines, packed_form
from vitlab.models.fast.accelerate import Timed, ranking
from vitlab.models.model import Model

CPU = torch.device("cpu")


def computed_by(engine: Any, model: Model, precision: Any = "fp32") -> Model:
    return vitlab.accelerate(model, device="cpu", precision=precision, engine=engine)


@torch.inference_mode()
def test_openvino_agrees_to_rounding() -> None:
    pytest.importorskip("openvino")
    model = a_model("hybrid")
    fast = computed_by("openvino", model)
    assert (fast.engine, fast.computes) == ("openvino", "fp32")
    for count in (1, 3):
        images = some_images(model, count)
        close(fast(images), model(images))
        close(fast.features(images), model.features(images))
        close(fast.encode(images), model.encode(images))
    assert all(fast.encode.built.values()), "each graph was proven"  # type: ignore[union-attr, operator]


@torch.inference_mode()
def test_whatever_a_graph_does_not_compute_pytorch_does() -> None:
    pytest.importorskip("openvino")
    model = a_model("plain")
    fast, images = computed_by("openvino", model), some_images(model, 2)
    extra = torch.randn(2, 3, model.config.width)
    close(fast.encode(images, extra), model.encode(images, extra))
    close(fast.intermediates(images, [1])[0], model.intermediates(images, [1])[0])
    close(fast.attention_maps(images)[0], model.attention_maps(images)[0])
    assert torch.equal(copy.deepcopy(fast)(images), fast(images))


@pytest.mark.parametrize(
    "engine", ["plain", "packed", "onnxruntime", pytest.param("openvino", marks=pytest.mark.slow)]
)
@torch.inference_mode()
def test_it_travels_to_another_process_and_is_accelerated_there(
    engine: Any, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """With the positions of another size than its own, at both; and no engine says a word."""
    if engine == "openvino":
        pytest.importorskip("openvino")
    caplog.set_level(logging.INFO)
    model = a_model("plain").resize((48, 64))
    images, fast = some_images(model, 2), computed_by(engine, model)
    there = pickle.loads(pickle.dumps(fast))
    assert (there.engine, there.computes, there.training) == (engine, "fp32", False)
    assert torch.equal(there(images), fast(images))
    assert torch.equal(there.encode(images), fast.encode(images))
    for batch in (images, images[:1], torch.randn(2, 3, 48, 64)):
        close(fast(batch), model(batch), 1e-4)
    assert [type(each) for each in there.modules()] == [type(each) for each in fast.modules()]
    if engine in engines.RUNTIMES:
        assert all(there.encode.built.values()), "built there"
        assert copy.deepcopy(fast).encode.built == fast.encode.built, "graphs are shared"  # type: ignore[union-attr]
        words = "".join(f"{each.getMessage()}\n" for each in caplog.records)
        assert without_progress(words + "".join(capfd.readouterr())) == ""
    if engine == "onnxruntime":
        with pytest.raises(OptionError, match="engine=onnxruntime cannot compute"):
            computed_by("onnxruntime", model, "bf16")


@torch.inference_mode()
def test_where_nothing_packs_it_arrives_as_plain_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = a_model("plain"), some_images(a_model("plain"), 2)
    sent = pickle.dumps(computed_by("packed", model))
    monkeypatch.setattr(packed_form, "can_pack", lambda dtype: False)
    there = pickle.loads(sent)
    assert not any(isinstance(each, packed_form.PackedDense) for each in there.modules())
    close(there(images), model(images))


@torch.inference_mode()
def test_what_was_compiled_is_compiled_there(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda run, mode: compiled.append(run) or run)
    monkeypatch.setattr(engines, "can_pack", lambda dtype: False)
    monkeypatch.setattr(engines, "has_compiler", lambda: True)
    model, images = a_model("plain"), some_images(a_model("plain"), 2)
    fast = computed_by("compiled", model)
    assert fast.engine == "compiled"
    for other in (pickle.loads(pickle.dumps(fast)), copy.deepcopy(fast)):
        assert torch.equal(other(images), fast(images))
        assert compiled[-1].__self__ is other


@torch.inference_mode()
def test_a_graph_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is wrong in its patch tokens alone, which only `encode` shows."""

    class Wrong:
        def __init__(self, tokens: engines.Tokens, images: Tensor, dtype: torch.dtype) -> None:
            self.tokens = tokens

        def __call__(self, images: Tensor) -> Tensor:
            found = self.tokens(images).clone()
            found[:, 1:] *= 1.01
            return found

    model, images = a_model("plain"), some_images(a_model("plain"))
    monkeypatch.setitem(engines.BUILDERS, "onnxruntime", Wrong)
    fast = computed_by("onnxruntime", model)
    close(fast(images), model(images))
    close(fast.encode(images), model.encode(images))
    assert [*fast.encode.built.values()][-1] is None  # type: ignore[union-attr, operator]


def test_an_engine_that_raises_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object) -> Any:
        raise RuntimeError("no such kernel")

    for name in engines.RUNTIMES:
        monkeypatch.setitem(engines.BUILDERS, name, broken)
    model = a_model("plain")
    assert {each.engine for each in ranking(model, CPU, "fp32")} == {"plain", "packed"}
    with pytest.raises(OptionError, match="engine=onnxruntime cannot compute"):
        computed_by("onnxruntime", model)


def test_the_fastest_that_agrees_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    model = a_model("plain")

    def ranked(order: list[Timed]) -> None:
        monkeypatch.setattr(room, "ranking", lambda *given: list(order))

    packed, plain = Timed("packed", "fp32", 1.0, 5.0), Timed("plain", "fp32", 1.02, 0.1)
    ranked([packed, plain])
    assert vitlab.accelerate(model, device="cpu").engine == "plain", "2% are no reason"
    ranked([Timed("packed", "fp32", 0.8, 5.0), plain])
    assert vitlab.accelerate(model, device="cpu").engine == "packed"
    assert vitlab.accelerate(model, device="cpu", images=10).engine == "plain", "ready after 5 s"
    assert vitlab.accelerate(model, device="cpu", images=100).engine == "packed"
    monkeypatch.setattr(room, "agree", lambda *given: False)
    assert vitlab.accelerate(model, device="cpu").engine == "plain"


def test_what_was_measured_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(engines, "RUNTIMES", ())
    model = a_model("plain")
    first = ranking(model, CPU, "fp32", 2)
    (file,) = (tmp_path / "engines").iterdir()
    assert len(json.loads(file.read_text())["engines"]) == len(first) == 2
    assert all(each.image > 0 and each.ready > 0 for each in first)
    monkeypatch.setattr(room, "measured", lambda *given: pytest.fail("measured again"))
    assert ranking(model, CPU, "fp32", 2) == first
    file.write_text("{")
    with pytest.raises(pytest.fail.Exception):
        ranking(model, CPU, "fp32", 2)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    model = a_model("plain")
    with pytest.raises(OptionError, match="engine must be one of auto, plain, packed, compiled"):
        computed_by("tensorrt", model)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PackageError, match="engine=openvino"):
        computed_by("openvino", model)


DROPPED = """
import gc, signal, subprocess, threading, vitlab
signal.signal(signal.SIGCHLD, lambda *_: None)
model = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/8", image_size=16, classes=3)
form = [vitlab.accelerate(model, engine="openvino", device="cpu")]
def drop():
    form.clear()
    gc.collect()
other = threading.Thread(target=drop)
other.start()
other.join()
subprocess.run(["true"])
print("alive")
"""


@pytest.mark.slow
def test_another_thread_may_drop_an_openvino_model() -> None:
    """It took the stack for signals of the first thread with it: the next one ended the process."""
    words = [sys.executable, "-c", DROPPED]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_onnxruntime_sends_nothing(tmp_path: Path) -> None:
    """Its telemetry begins with a database in the user's cache."""
    around = environment(HOME=str(tmp_path), XDG_CACHE_HOME=str(tmp_path / "cache"))
    around = {name: value for name, value in around.items() if name != "ORT_DISABLE_TELEMETRY"}
    code = """
from vitlab.packages import silent_onnxruntime
silent_onnxruntime().SessionOptions()
"""
    subprocess.run([sys.executable, "-c", code], env=around, check=True)
    assert not [*tmp_path.rglob("*onnxruntime*")]
