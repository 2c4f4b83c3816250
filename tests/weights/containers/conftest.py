"""A small model under timm's names, as most checkpoints have it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import vitlab


def tiny(**choices: Any) -> Any:
    generator = torch.Generator().manual_seed(5)
    return vitlab.create("ViT-Ti1/8", 3, 16, generator=generator, **choices)


@pytest.fixture(scope="session")
def timm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that timm reads; its tensors are the model's."""
    return vitlab.save(tiny(), tmp_path_factory.mktemp("timm") / "m", to="timm")


@pytest.fixture
def tensors(timm_folder: Path) -> dict[str, Tensor]:
    """Its tensors by timm's names."""
    found = load_file(timm_folder / "model.safetensors")
    return {name: tensor.clone() for name, tensor in found.items()}
