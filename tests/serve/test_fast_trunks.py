"""A service computes large models with their fast form, and the rest as before."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import vitlab
from models.test_architectures import a_model, some_images
from vitlab.errors import OptionError
from vitlab.inspect.attention import late_attention
from vitlab.models.fast.accelerate import CHANCES
from vitlab.serve.engine import Engine
from vitlab.serve.registry import Registry
from vitlab.serve.trunk import BASE, Trunk, choose_form
from vitlab.weights.deltas import delta

CPU = torch.device("cpu")


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitlab.serve.trunk.WORTH", 0)


def test_a_small_model_computes_itself() -> None:
    trunk = Trunk(a_model("plain"), CPU, "auto")
    assert choose_form(trunk, "auto") is trunk.plain


@pytest.mark.parametrize(
    ("case", "precision", "limit"), [("hybrid", "fp32", 1e-5), ("plain", "bf16", CHANCES)]
)
@torch.inference_mode()
def test_answers_agree(case: str, precision: Any, limit: float, eager: None) -> None:
    model = a_model(case)
    images = some_images(model)
    wanted = model(images).softmax(-1)
    features = model.features(images)
    trunk = Trunk(model, CPU, precision)
    form = choose_form(trunk, precision, "packed")
    assert form is not None
    assert (form is trunk.plain, form.precision) == (False, precision)
    scored = trunk.scored(images, [BASE] * len(images), form)
    got, scores = (torch.stack([each[part] for each in scored]) for part in (0, 1))
    assert (scores.softmax(-1) - wanted).abs().max() <= limit
    assert (got - features).norm() <= (1e-5 if precision == "fp32" else 0.05) * features.norm()


@torch.no_grad()
def test_deltas_and_rollouts_are_of_the_model_itself(eager: None) -> None:
    model = a_model("plain")
    images = some_images(model)
    other = a_model("plain")
    other.head.classify.bias.add_(1.0)
    trunk = Trunk(model, CPU)
    trunk.add("other", delta(other, model))
    got = [scores for _, scores, _ in trunk.scored(images, ["other", BASE, "other"])]
    want = [other(images)[0], model(images)[1], other(images)[2]]
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(got, want, strict=True))
    assert torch.equal(trunk.attention(images[0], BASE), late_attention(model, images[:1])[0])
    assert trunk.is_base(trunk.identity)


def test_what_a_delta_was_made_from_is_told_without_the_sum_over_all_weights() -> None:
    trunk = Trunk(a_model("plain"), CPU)
    wanted = trunk.identity
    trunk = Trunk(a_model("plain"), CPU)
    assert not trunk.is_base(replace(wanted, classes=wanted.classes + 1))
    assert "identity" not in vars(trunk)
    assert trunk.is_base(wanted)
    assert not Trunk(vitlab.fuse(a_model("plain")), CPU).is_base(wanted)


def test_int8_needs_a_cpu_and_a_name_a_model() -> None:
    trunk = Trunk(a_model("plain"), CPU)
    trunk.device = torch.device("cuda")
    with pytest.raises(OptionError, match="precision=int8 is for the CPU: choose --device cpu"):
        choose_form(trunk, "int8")
    with pytest.raises(OptionError, match="precision=int8 is for vitlab serve: choose auto"):
        choose_form(Trunk(a_model("plain"), CPU), "int8")
    with pytest.raises(OptionError, match="no model is served: add one"):
        Registry(CPU, lambda served: 1).find("")


def test_another_precision_is_refused() -> None:
    with pytest.raises(OptionError, match="precision must be auto, fp32 or bf16, not 'int3'"):
        Engine(precision="int3")  # type: ignore[arg-type]
