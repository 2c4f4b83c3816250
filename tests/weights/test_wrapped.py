"""Models in the wrappers of other libraries are saved as what is inside of them."""

from pathlib import Path

import pytest
import torch
from torch import nn

import vitlab
from made_models import equal
from vitlab.errors import WeightsError
from vitlab.models.model import Model


@pytest.fixture
def model() -> Model:
    generator = torch.Generator().manual_seed(0)
    return vitlab.create("ViT-Ti1/16", classes=3, image_size=32, generator=generator)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile
def test_wrappers_are_taken_off(model: Model, tmp_path: Path) -> None:
    wrapped = torch.compile(nn.DataParallel(model))
    assert equal(vitlab.load(vitlab.save(wrapped, tmp_path / "m")), model)


def test_adapters_are_merged_first(model: Model, tmp_path: Path) -> None:
    import peft

    config = peft.LoraConfig(r=2, target_modules=["qkv"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, config)
    with pytest.raises(WeightsError, match=r"pass model\.merge_and_unload"):
        vitlab.save(adapted, tmp_path / "a")
    with pytest.raises(WeightsError, match="merge them first"):
        vitlab.save(model, tmp_path / "a")  # peft put its layers into it
    merged = adapted.merge_and_unload()
    images = torch.zeros(1, 3, 32, 32)
    assert torch.equal(
        vitlab.load(vitlab.save(merged, tmp_path / "a"))(images), merged.eval()(images)
    )


def test_what_is_no_model_of_ours(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="a Linear is not a model of ViTLab"):
        vitlab.save(nn.Linear(2, 2), tmp_path / "a")
