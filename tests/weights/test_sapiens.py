"""Sapiens by mmpretrain's names: a convolution with padding, which no tensor shows."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.oracles import peers
from torch import Tensor

import vitlab
from vitlab.errors import WeightsError
from vitlab.weights.load import load_check

WORDS = {
    r"^blocks\.": "layers.", r"\.norm([12])\.": r".ln\1.", r"^norm\.": "ln1.",
    r"\.mlp\.fc1\.": ".ffn.layers.0.0.", r"\.mlp\.fc2\.": ".ffn.layers.1.",
    r"^patch_embed\.proj\.": "patch_embed.projection.",
}  # fmt: skip


def file_of(folder: Path, model: Any) -> Path:
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        for pattern, word in WORDS.items():
            name = re.sub(pattern, word, name)
        state[name] = tensor
    torch.save({"state_dict": state}, folder / "pretrain.pth")
    return folder / "pretrain.pth"


def vit(size: int, width: int) -> Any:
    peers.timm()
    from timm.models.vision_transformer import VisionTransformer

    torch.manual_seed(0)
    return VisionTransformer(
        img_size=size, patch_size=16, embed_dim=width, depth=1, num_heads=2, mlp_ratio=1,
        num_classes=0,
    ).eval()  # fmt: skip


@torch.inference_mode()
def test_positions_for_1024_pixels_are_sapiens(tmp_path: Path) -> None:
    theirs = vit(1024, 8)
    theirs.patch_embed.proj.padding = (2, 2)
    ours = vitlab.load(file_of(tmp_path, theirs), heads=2)
    assert (ours.config.stem_padding, ours.config.image_size) == (2, 1024)
    images = torch.randn(1, 3, 1024, 1024, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(
        ours.encode(images), theirs.forward_features(images), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize(("width", "origin"), [(8, "family"), (1024, "assumed")])
def test_other_sizes_have_no_padding_or_leave_it_open(
    width: int, origin: str, tmp_path: Path
) -> None:
    found = load_check(file_of(tmp_path, vit(32, width)), heads=2)
    assert found.config["stem_padding"] == 0
    assert found.origins["stem_padding"] == origin
    assert ("stem_padding" in " ".join(found.notes)) == (origin == "assumed")


@pytest.mark.parametrize("to", ["timm", "transformers", "google"])
def test_other_formats_refuse_to_write_padding(to: str, tmp_path: Path) -> None:
    """Nothing in their tensors would show it."""
    model = vitlab.create("ViT(width=24,depth=1,heads=2,mlp=48)/4", 2, 16, stem_padding=1)
    with pytest.raises(WeightsError):
        vitlab.save(model, tmp_path / to, to=to)
