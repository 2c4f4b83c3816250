"""The multiply-adds of a training step, beside what the model's own layers say."""

from pathlib import Path

import pytest
import torch

from vitlab.models.cost import cost
from vitlab.models.create import build
from vitlab.recipes.named import recipe
from vitlab.recipes.recipe import Recipe
from vitlab.studies.base import small
from vitlab.studies.step_cost import step_macs
from vitlab.weights.save import save

MODEL = "ViT(width=64,depth=4,heads=2,mlp=128)/2"


def supervised(**choices: object) -> Recipe:
    return small("digits").changed(pool="mean", image_size=16, **choices)


def forward(chosen: Recipe) -> int:
    """Return the model's own count, less that of norms, which are no products."""
    parts = cost(chosen.model.config(classes=10, channels=1)).parts
    return sum(part.macs for part in parts if part.name != "norms")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_supervised_step(precision: str) -> None:
    chosen = supervised(precision=precision)
    config = chosen.model.config(classes=10, channels=1)
    stem = 64 * 2 * 2 * 64  # whose images need no gradient
    assert step_macs(chosen) == 3 * forward(chosen) - stem
    assert step_macs(chosen) == pytest.approx(3 * cost(config).macs, rel=0.02)


def test_frozen_weights_cost_a_forward_pass(tmp_path: Path) -> None:
    chosen = supervised()
    config = chosen.model.config(classes=10, channels=1)
    save(build(config, torch.Generator().manual_seed(0)), tmp_path / "model")
    given = {"weights": str(tmp_path / "model"), "tune": "head"}
    head = 10 * 64
    assert step_macs(chosen.changed(**given)) == forward(chosen) + head


def test_accumulated_and_large_batches_count_an_image_as_much() -> None:
    chosen = supervised()
    assert step_macs(chosen.changed(batch=512, micro_batch=64)) == step_macs(chosen)


def test_tasks() -> None:
    """MAE's encoder sees a quarter of the patches; DINO's two networks see several crops."""
    common = {"model": MODEL, "image_size": 16, "mean": (0.5,), "std": (0.5,)}
    macs = 3 * forward(supervised())
    decoder = {"decoder_width": 4, "decoder_depth": 1, "decoder_heads": 1}
    assert step_macs(recipe("masked-patch", "digits", **common)) == pytest.approx(macs, rel=0.2)
    assert 0.15 < step_macs(recipe("mae", "digits", **common, **decoder)) / macs < 0.4
    small_head = {
        "prototypes": 16,
        "head_width": 8,
        "bottleneck": 4,
        "local_crops": 0,
        "pool": "mean",
    }
    dino = step_macs(recipe("dino", "digits", **common, **small_head)) / macs
    assert dino == pytest.approx(2 + 2 / 3, rel=0.05)  # two crops; the teacher has no gradient


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_attention_counts_the_same_however_it_is_computed(precision: str) -> None:
    """Of a model that is nearly all attention: many tokens, one block."""
    chosen = supervised(model="ViT(width=8,depth=1,heads=2,mlp=8)/1", precision=precision)
    assert step_macs(chosen) == 3 * forward(chosen) - 256 * 8  # whose images need no gradient
    assert forward(chosen) < 1.2 * 2 * 257 * 257 * 8
