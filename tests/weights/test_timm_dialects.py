"""Other people's names for the same arithmetic: their own code's numbers, or a reason."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import vitlab
from made_models import close
from oracles import peers
from oracles.towers import ClipTower, VitPytorch
from vitlab.errors import WeightsError
from vitlab.weights.load import load_check
from weights.test_timm_files import randomized

IMAGENET = (0.485, 0.456, 0.406)


class Quick(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        return hidden * torch.sigmoid(1.702 * hidden)


def saved(state: dict[str, Tensor], file: Path) -> Path:
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, file)
    return file


def compared(file: Path, other: nn.Module, size: int, **choices: Any) -> vitlab.ViTConfig:
    """The configuration that a file was read as, once it gives the other code's numbers."""
    model = vitlab.load(file, **choices)
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        close(model(images), other.eval()(images))
    assert isinstance(model.config, vitlab.ViTConfig)
    return model.config


def test_torchvision(tmp_path: Path) -> None:
    peers.prepare_torchvision()
    from torchvision.models import VisionTransformer

    for older in (False, True):
        other = randomized(
            VisionTransformer(
                image_size=32, patch_size=16, num_layers=2, num_heads=4, hidden_dim=256,
                mlp_dim=64, num_classes=5, representation_size=24 if older else None,
            )
        )  # fmt: skip
        state = other.state_dict()
        if older:
            words = ((r"mlp\.0\.", "mlp.linear_1."), (r"mlp\.3\.", "mlp.linear_2."))
            state = {_named(name, words): tensor for name, tensor in state.items()}
        file = saved(state, tmp_path / "vit_b_16.safetensors")
        config = compared(file, other, 32)
        assert load_check(file).origins["heads"] == "family"  # of this width, there are no others
        assert (config.norm_eps, config.mean, config.pre_logits) == (1e-6, IMAGENET, 24 * older)


def _named(name: str, words: tuple[tuple[str, str], ...]) -> str:
    for pattern, word in words:
        name = re.sub(pattern, word, name)
    return name


@pytest.mark.parametrize(("own", "gelu"), [(True, "quick"), (False, "exact")])
def test_open_clip_and_openai(own: bool, gelu: str, tmp_path: Path) -> None:
    """With the text model beside it; OpenAI's files hold three numbers that tell them."""
    act = Quick() if own else nn.GELU()
    other = randomized(ClipTower(128, 2, 16, 48, 7, act))
    state = {f"visual.{name}": tensor for name, tensor in other.state_dict().items()}
    state |= {"text_projection": torch.zeros(4, 4), "logit_scale": torch.ones([])}
    if own:
        state |= {"input_resolution": torch.tensor(48), "vocab_size": torch.tensor(9)}
    file = saved(state, tmp_path / "clip.safetensors")
    config = compared(file, other, 48)
    assert (config.gelu, config.heads, config.classes) == (gelu, 2, 7)
    assert load_check(file).origins["gelu"] == ("family" if own else "assumed")


def test_vit_pytorch(tmp_path: Path) -> None:
    other = randomized(VitPytorch(128, 2, 8, 32, 5))
    config = compared(saved(other.state_dict(), tmp_path / "vit.safetensors"), other, 32)
    assert (config.heads, config.norm_at, config.norm_eps) == (2, "pooled", 1e-5)
    state = dict(other.state_dict()) | {"to_patch_embedding.2.weight": torch.ones(128)}
    with pytest.raises(WeightsError, match="norms of each patch's pixels"):
        vitlab.load(saved(state, tmp_path / "newer.safetensors"))


def mmpretrain(state: dict[str, Tensor]) -> dict[str, Tensor]:
    words = (
        (r"^head\.", "head.layers.head."), (r"^(?!head)", "backbone."),
        (r"patch_embed\.proj\.", "patch_embed.projection."), (r"blocks\.", "layers."),
        (r"\.norm([12])\.", r".ln\1."), (r"backbone\.norm\.", "backbone.ln1."),
        (r"\.mlp\.fc1\.", ".ffn.layers.0.0."), (r"\.mlp\.fc2\.", ".ffn.layers.1."),
    )  # fmt: skip
    return {_named(name, words): tensor for name, tensor in state.items()}


def old_timm(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """With the tanh layer that timm's first files of ImageNet-21k had."""
    return state | {"pre_logits.fc.weight": torch.eye(192), "pre_logits.fc.bias": torch.zeros(192)}


def moved_head(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {_named(name, ((r"^head\.", "head.1."),)): tensor for name, tensor in state.items()}


def ibot(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return state | {"masked_embed": torch.zeros(1, 192)}


@pytest.mark.parametrize("rename", [mmpretrain, old_timm, moved_head, ibot])
def test_names_alone(rename: Callable[[dict[str, Tensor]], Any], tmp_path: Path) -> None:
    other = peers.timm().create_model("deit_tiny_patch16_224", depth=1, img_size=32, num_classes=3)
    file = saved(rename(dict(randomized(other).state_dict())), tmp_path / "m.safetensors")
    model = vitlab.load(file)
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        tokens = other.forward_features(images)
        features = other.forward_head(tokens, pre_logits=True)
        close(model.encode(images), tokens)
        if rename is old_timm:
            close(model(images), other.head(features.tanh()))
        else:
            close(model(images), other(images))


def test_moco_v3_small_has_twelve_heads(tmp_path: Path) -> None:
    """Its fixed positions tell it from DeiT's model of the same shapes."""
    timm = peers.timm()
    other = randomized(
        timm.create_model(
            "deit_small_patch16_224", depth=1, num_heads=12, img_size=48, num_classes=3
        )
    )
    omega = 10_000 ** (-torch.arange(96) / 96)
    slow = torch.arange(3).repeat_interleave(3)[:, None] * omega
    fast = torch.arange(3).repeat(3)[:, None] * omega
    table = torch.cat([slow.sin(), slow.cos(), fast.sin(), fast.cos()], 1)
    with torch.no_grad():
        other.pos_embed[0] = torch.cat([torch.zeros(1, 384), table])  # type: ignore[operator]
    state = {f"module.{name}": tensor for name, tensor in other.state_dict().items()}
    file = tmp_path / "linear.pth.tar"
    torch.save({"epoch": 3, "arch": "vit_small", "state_dict": state}, file)
    assert compared(file, other, 48).heads == 12
    assert load_check(file).origins["heads"] == "family"
    inside = {
        f"module.base_encoder.{n}": t for n, t in other.state_dict().items() if "head" not in n
    }
    momentum = {n.replace("base", "momentum"): torch.zeros_like(t) for n, t in inside.items()}
    inside |= {"module.base_encoder.head.0.weight": torch.ones(2, 384)}
    inside |= {"module.base_encoder.head.1.running_mean": torch.ones(2)}
    torch.save({"state_dict": inside | momentum}, file)
    other.reset_classifier(0)  # type: ignore[operator]
    assert compared(file, other, 48).heads == 12


def sapiens(folder: Path, size: int, width: int) -> tuple[Path, Any]:
    """Its names are mmpretrain's; its convolution has padding, which no tensor shows."""
    shape = {"img_size": size, "embed_dim": width, "depth": 1, "num_heads": 2, "mlp_ratio": 1}
    model = peers.timm().create_model("vit_tiny_patch16_224", num_classes=0, **shape).eval()
    state = {n.removeprefix("backbone."): t for n, t in mmpretrain(model.state_dict()).items()}
    torch.save({"state_dict": state}, folder / "pretrain.pth")
    return folder / "pretrain.pth", model


def test_sapiens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="zeros around the image, as Sapiens"):
        vitlab.load(sapiens(tmp_path, 1024, 8)[0], heads=2)
    assert vitlab.load(sapiens(tmp_path, 32, 8)[0], heads=2).config.image_size == 32
