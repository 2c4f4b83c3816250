"""Types of numbers: a model of each is written in each format so that it is read back, or not."""

from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from made_models import noisy, tiny
from vitlab.errors import WeightsError
from vitlab.weights.formats.catalog import PEFT, export_names

TYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
FORMATS = [name for name in export_names() if name != PEFT]  # which writes products, no numbers
OTHERS = ("vitlab", "google")  # the formats that have others than plain Vision Transformers
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT": ("ViT(width=16,depth=2,heads=2,mlp=32)/8", {"gelu": "tanh", "fit": "squash"}),
    "hybrid": ("R(1-1)+ViT(width=16,depth=1,heads=2,mlp=32)/16", {"gelu": "tanh"}),
    "ResNet": ("BiT-R(1-1)x1", {}),
}


def same_numbers(one: Any, other: Any) -> bool:
    """Whether each of the one's tensors has the numbers of the other's, in whatever type."""
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(
        torch.equal(each.double(), theirs[name].double()) for name, each in mine.items()
    )


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("case", "to"),
    [(case, to) for case in MODELS for to in (FORMATS if case == "ViT" else OTHERS)],
)
def test_it_is_read_back_equal_or_refused(case: str, to: str, dtype: Any, tmp_path: Path) -> None:
    name, choices = MODELS[case]
    model = noisy(tiny(0, name, **choices).to(dtype))  # numbers that only this type has
    try:
        vitlab.save(model, tmp_path / "m", to=to)
    except WeightsError as error:
        assert dtype is torch.float64
        assert "float64" in str(error)
        assert not (tmp_path / "m").exists()
    else:
        assert same_numbers(vitlab.load(tmp_path / "m", image_size=16), model)
        assert dtype is not torch.float64 or to == "vitlab"


@pytest.mark.parametrize("to", FORMATS)
def test_numbers_of_float32_may_be_in_float64(to: str, tmp_path: Path) -> None:
    name, choices = MODELS["ViT"]
    model = noisy(tiny(0, name, **choices)).double()
    vitlab.save(model, tmp_path / "m", to=to)
    assert same_numbers(vitlab.load(tmp_path / "m"), model)


def test_types_may_differ_within_a_model(tmp_path: Path) -> None:
    name, choices = MODELS["ViT"]
    model = noisy(tiny(0, name, **choices))
    model.blocks.bfloat16()
    for to in FORMATS:
        vitlab.save(model, tmp_path / to, to=to)
        assert same_numbers(vitlab.load(tmp_path / to), model)
