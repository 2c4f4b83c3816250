"""What is written for transformers loads there: random configurations, by its own loaders."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vitlab
from oracles import peers
from vitlab.errors import OptionError, WeightsError
from vitlab.models.model import Model

SETTINGS = settings(
    max_examples=12, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
# Starts from what a family has, so that more than refusals are tried.
SCALED, ROPE = {"layer_scale": 0.1}, {"positions": "rope", "classes": 0}
MEAN = {"pool": "mean", "class_token": True}
CLIP = {"pre_norm": True, "stem_bias": False, "gelu": "quick"}
BEIT = MEAN | {"positions": "bias", "norm_at": "pooled"}
FAMILIES: dict[str, dict[str, Any]] = {
    "vit": {}, "pooler": {"classes": 0, "pre_logits": 8}, "msn": {"classes": 0},
    "ijepa": {"pool": "mean"}, "deit": {"pool": "prefix", "registers": 1, "class_token": True},
    "beit": BEIT, "beit, shared": BEIT | SCALED | {"positions_at": "shared", "classes": 0},
    "beit with both": SCALED | {"positions": "1d+bias", "positions_at": "shared"},
    "dinov2": SCALED | {"pool": "both"}, "dinov2, class token": SCALED,
    "dinov2, mean": SCALED | MEAN, "dinov2, no scales": {"pool": "both"},
    "dinov2, gated": SCALED | {"width": 32, "ffn": "swiglu", "mlp": 88, "classes": 0},
    "registers": SCALED | {"classes": 0, "registers": 2},
    "registers, classes": SCALED | {"registers": 2},
    "registers, no scales": MEAN | {"registers": 2},
    "registers, no scales or classes": {"registers": 2, "classes": 0},
    "dinov3, no scales": ROPE | {"rope_base": 50.0},
    "dinov3, rectangular": ROPE | SCALED | {"image_size": (8, 16)},
    "clip": CLIP, "clip without classes": CLIP | {"classes": 0},
    "siglip": {"pool": "attention", "classes": 0},
    "no biases, tanh": {"qkv_bias": False, "gelu": "tanh"},
}  # fmt: skip
OTHER: dict[str, tuple[Any, ...]] = {
    "heads": (1, 2), "mlp": (32, 48), "depth": (1, 2), "channels": (1, 3),
    "image_size": (16, (8, 16)), "classes": (0, 3), "pool": ("token", "mean", "both", "attention"),
    "class_token": (True, False),
    "norm_at": ("tokens", "pooled", "none"), "pre_logits": (0, 5), "registers": (0, 1, 2),
    "layer_scale": (0.0, 0.3), "qkv_bias": (True, False), "bias": (True, False),
    "qk_norm": (True, False), "ffn": ("mlp", "swiglu"), "gelu": ("exact", "tanh", "quick"),
    "norm_eps": (1e-6, 1e-3), "positions": ("none", "1d", "2d", "bias", "rope"),
    "positions_at": ("stem", "every", "shared"), "pre_norm": (True, False),
    "stem_bias": (True, False), "branches": (1, 2), "stem": ("linear", "hmlp"),
    "norm": ("layer", "rms"), "norm_order": ("before", "after"), "queries": (1, 2),
    "norm_inner_mlp": (True, False), "pool_prefix": (True, False), "rope_kind": ("image", "grid"),
    "crop": (0.875, 1.0), "fit": ("crop", "squash"), "interpolation": ("bilinear", "bicubic"),
}  # fmt: skip


def made(choices: dict[str, Any]) -> Model | None:
    """A model with random tensors; None for a combination that is not possible."""
    own = {"width": 16, "depth": 1, "heads": 2, "mlp": 32, "classes": 3, **choices}
    try:
        shape = ",".join(f"{key}={own.pop(key)}" for key in ("width", "depth", "heads", "mlp"))
        model = vitlab.create(f"ViT({shape})/4", **{"image_size": 16, **own})
    except OptionError:
        return None
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if tensor.is_floating_point() and not (
                model.config.pre_norm and name == "head.classify.bias"
            ):
                tensor.add_(0.1 * torch.randn(tensor.shape, generator=generator))
    return model.eval()


def same_in_transformers(model: Model, folder: Path) -> None:
    """Their loaders find every tensor, and their outputs are ours."""
    transformers = peers.transformers()
    content = json.loads((folder / "config.json").read_text())
    kind = getattr(transformers, content["architectures"][0])
    kinds = [kind]
    if kind.__name__.endswith("ForImageClassification"):
        kinds.append(transformers.AutoModelForImageClassification)
    elif not model.config.classes:
        kinds.append(transformers.AutoModel)
    images = torch.randn(2, model.config.channels, *model.config.size)
    for loader in kinds:
        other, report = loader.from_pretrained(folder, output_loading_info=True)
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            assert not report[what], (loader, what, report[what])
        with torch.inference_mode():
            want = other.eval()(images)
            for output in ("logits", "image_embeds", "pooler_output"):
                if getattr(want, output, None) is not None:
                    torch.testing.assert_close(
                        model(images), getattr(want, output), rtol=0, atol=1e-5
                    )
                    break
            else:
                got, last = model.encode(images), want.last_hidden_state
                torch.testing.assert_close(got, last, rtol=0, atol=1e-5)


@SETTINGS
@given(
    start=st.sampled_from(sorted(FAMILIES)),
    changes=st.lists(
        st.sampled_from(sorted(OTHER)).flatmap(
            lambda key: st.tuples(st.just(key), st.sampled_from(OTHER[key]))
        ),
        max_size=3,
    ),
)
def test_transformers_loads_it_or_the_field_is_named(
    start: str, changes: list[tuple[str, Any]], tmp_path: Path
) -> None:
    model = made(FAMILIES[start] | dict(changes))
    if model is None:
        return
    folder = tmp_path / "model"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        vitlab.save(model, folder, to="transformers")
    except WeightsError as error:
        assert "\n" not in str(error)
        assert not folder.exists()
        return
    same_in_transformers(model, folder)


@pytest.mark.parametrize("start", FAMILIES)
def test_every_family_is_written(start: str, tmp_path: Path) -> None:
    model = made(FAMILIES[start])
    assert model is not None
    folder = vitlab.save(model, tmp_path / "model", to="transformers")
    same_in_transformers(model, folder)
    images = torch.randn(2, model.config.channels, *model.config.size)
    with torch.inference_mode():
        torch.testing.assert_close(vitlab.load(folder)(images), model(images), rtol=0, atol=1e-6)


def test_what_the_written_classes_always_have_is_added_exactly(tmp_path: Path) -> None:
    """Scales of one, and zeros for the mean; calibration is told of as in any other form."""
    model = made(FAMILIES["registers, classes"] | {"layer_scale": 0.0})
    assert model is not None
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    back: Any = vitlab.load(vitlab.save(model.half(), tmp_path / "m", to="transformers"))
    assert (back.config.pool, back.config.layer_scale, back.config.registers) == ("both", 1.0, 2)
    classify = back.head.classify.weight
    assert torch.equal(classify[:, :16], before["head.classify.weight"].half().float())
    assert not classify[:, 16:].any()
    assert all(torch.equal(t, torch.ones(16)) for n, t in back.named_parameters() if "scale" in n)
    assert model.state_dict().keys() == before.keys(), "the model itself stays as it is"
