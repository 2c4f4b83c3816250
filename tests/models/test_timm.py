"""The same weights in timm give the same numbers: parallel, DeiT-III, SigLIP, hybrids."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitlab
from oracles import peers

# timm's words for ours, in this order
WORDS = [
    ("attn_pool.latent", "head.attend.queries"),
    ("attn_pool.mlp.fc1", "head.attend.mlp.expand"),
    ("attn_pool.mlp.fc2", "head.attend.mlp.contract"),
    ("attn_pool.proj.", "head.attend.project."),
    ("attn_pool.", "head.attend."),
    ("cls_token", "token"),
    ("pos_embed", "positions.0.table"),
    ("head.weight", "head.classify.weight"),
    ("head.bias", "head.classify.bias"),
]
BRANCH = [
    (".attns.", ".attention."), (".ffns.", ".mlp."), (".norm1.", ".attention.0.norm."),
    (".norm2.", ".mlp.0.norm."), (".ls1.gamma", ".attention.0.scale"),
    (".ls2.gamma", ".mlp.0.scale"), (".ls.gamma", ".scale"),
]  # fmt: skip


def ours(key: str) -> str:
    """The name in our model of a tensor in timm's."""
    if not key.startswith("blocks."):
        for theirs, own in WORDS:
            if key.startswith(theirs):
                return own + key[len(theirs) :]
        return key
    for theirs, own in BRANCH:
        key = key.replace(theirs, own)
    _, block, *rest = key.split(".")
    if rest[0] == "attn":  # one branch: the body follows at once
        rest[:1] = ["attention", "0", "attn"]
    elif rest[0] == "mlp" and rest[1] in ("fc1", "fc2"):
        rest[:1] = ["mlp", "0", "mlp"]
    inner = {"qkv": "qkv", "proj": "project", "fc1": "expand", "fc2": "contract"}
    if rest[2] in ("attn", "mlp"):
        rest[2:4] = ["body", inner[rest[3]]]
    return ".".join(["blocks", block, *rest])


def fill(model: Any, other: nn.Module, stem: dict[str, str]) -> None:
    """Random numbers into timm's model, and the same into ours."""
    generator = torch.Generator().manual_seed(4)
    state: dict[str, Tensor] = {}
    with torch.no_grad():
        for key, tensor in other.state_dict().items():
            tensor.add_(0.02 * torch.randn(tensor.shape, generator=generator))
            front = next((f for f in stem if key.startswith(f)), None)
            state[stem[front] + key[len(front) :] if front else ours(key)] = tensor
    places = model.positions[0].table.shape[1]
    if state["positions.0.table"].shape[1] == places - 1:  # DeiT's class token has none
        state["positions.0.table"] = nn.functional.pad(state["positions.0.table"], (0, 0, 1, 0))
    model.load_state_dict(state)
    model.eval()
    other.eval()


LINEAR = {"patch_embed.proj.": "stem.layers.0."}
SAME: dict[str, tuple[str, dict[str, Any]]] = {
    "vit_small_patch16_18x2_224": ("ViT-S2x2/16", {"layer_scale": 1e-5}),
    "vit_base_patch16_18x2_224": ("ViT-B2x2/16", {"layer_scale": 1e-5}),
    "vit_tiny_patch16_224": ("ViT-Ti2/16", {}),
    "deit3_small_patch16_224": ("ViT-S2/16", {"layer_scale": 1e-5}),
    "vit_base_patch16_siglip_224": ("ViT-B2/16", {"pool": "attention"}),
}


@pytest.mark.parametrize("name", SAME)
def test_logits_features_and_tokens(name: str) -> None:
    timm = peers.timm()
    own, choices = SAME[name]
    other = timm.create_model(name, img_size=(48, 64), num_classes=7, depth=2)
    model = vitlab.create(own, 7, (48, 64), **choices)
    fill(model, other, LINEAR)
    images = torch.randn(3, 3, 48, 64, generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        close = {"rtol": 0, "atol": 1e-5}
        torch.testing.assert_close(model(images), other(images), **close)
        torch.testing.assert_close(model.encode(images), other.forward_features(images), **close)
        pooled = other.forward_head(other.forward_features(images), pre_logits=True)
        torch.testing.assert_close(model.features(images), pooled, **close)
        torch.testing.assert_close(vitlab.fuse(model)(images), other(images), **close)


def test_the_full_parallel_model_is_timms() -> None:
    """All 18 pairs of branches, at a size that stays quick."""
    timm = peers.timm()
    other = timm.create_model("vit_small_patch16_18x2_224", img_size=32, num_classes=7)
    model = vitlab.create("ViT-S18x2/16", 7, 32, layer_scale=1e-5)
    fill(model, other, LINEAR)
    images = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        want = other.double()(images.double())
        torch.testing.assert_close(model.double()(images.double()), want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "own"),
    [("vit_small_r26_s32_224", "R26+ViT-S2/32"), ("vit_base_r50_s16_224", "R50+ViT-B2/16")],
)
def test_hybrids(name: str, own: str) -> None:
    """Whole models; their two epsilons differ (see test_resnet.py), so kernels are large here."""
    from models.test_resnet import hybrid_names

    timm = peers.timm()
    other = timm.create_model(name, img_size=64, num_classes=7, depth=2)
    model = vitlab.create(own, 7, 64)
    names = hybrid_names(model.config.stages)
    body = {f"patch_embed.backbone.{k}.": f"stem.body.{v}." for k, v in names.items()}
    fill(model, other, body | {"patch_embed.proj.": "stem.project."})
    with torch.no_grad():
        for mine, part in ((model, model.stem.body), (other, other.patch_embed.backbone)):
            for weight in part.parameters():
                if weight.ndim == 4:
                    weight.mul_(1e6)
            for module in mine.modules():
                if isinstance(module, nn.GroupNorm):
                    module.eps = 1e-5
        images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(3))
        want = other.double()(images.double())
        torch.testing.assert_close(model.double()(images.double()), want, rtol=0, atol=1e-5)
