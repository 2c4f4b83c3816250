"""The same weights in Hugging Face's ViT give the same numbers."""

import pytest
import torch
from torch import Tensor, nn

import vitlab
from vitlab.models.vit import VisionTransformer

transformers = pytest.importorskip("transformers")

SHAPES = {
    "ViT-Ti/16": (64, 64),
    "ViT-Ti/4": (32, 32),
    "ViT(width=96,depth=6,heads=3,mlp=384)/2": (8, 8),
    "ViT(width=64,depth=3,heads=8,mlp=100)/8": (24, 56),
    "ViT-S/16": (48, 32),
}


def theirs(model: VisionTransformer) -> nn.Module:
    """A transformers ViT with the weights of ours, renamed and split here, by hand."""
    config = model.config
    other = transformers.ViTForImageClassification(
        transformers.ViTConfig(
            hidden_size=config.width,
            num_hidden_layers=config.depth,
            num_attention_heads=config.heads,
            intermediate_size=config.mlp,
            patch_size=config.patch,
            image_size=config.size,
            num_channels=config.channels,
            num_labels=config.classes,
            layer_norm_eps=config.norm_eps,
            qkv_bias=config.qkv_bias,
            hidden_act={"exact": "gelu", "tanh": "gelu_pytorch_tanh"}[config.gelu],
            attn_implementation="eager",
        )
    )
    other.to(model.norm.weight.dtype).load_state_dict(_renamed(model, set(other.state_dict())))
    return other.eval()


def _renamed(model: VisionTransformer, wanted: set[str]) -> dict[str, Tensor]:
    own = model.state_dict()
    layers = "vit.layers" if any("vit.layers." in key for key in wanted) else "vit.encoder.layer"
    names = {
        "vit.embeddings.cls_token": "token",
        "vit.embeddings.position_embeddings": "positions.0.table",
        "vit.embeddings.patch_embeddings.projection": "stem.layers.0",
        "vit.layernorm": "norm",
        "classifier": "head.classify",
    }
    for i in range(model.config.depth):
        names |= {
            f"{layers}.{i}.layernorm_before": f"blocks.{i}.attention.0.norm",
            f"{layers}.{i}.layernorm_after": f"blocks.{i}.mlp.0.norm",
        }
    result = {}
    for theirs_, ours in names.items():
        for end in ("", ".weight", ".bias"):
            if ours + end in own:
                result[theirs_ + end] = own[ours + end]
    for key in wanted - set(result):
        result[key] = _inside_block(key, own)
    return result


def _inside_block(key: str, own: dict[str, Tensor]) -> Tensor:
    """Attention and MLP tensors, by the words in their names (which differ between releases)."""
    layer = next(part for part in key.split(".") if part.isdigit())
    kind = key.rsplit(".", 1)[1]
    block = f"blocks.{layer}"
    for number, words in enumerate((("query", "q_proj"), ("key", "k_proj"), ("value", "v_proj"))):
        if any(word in key for word in words):
            return own[f"{block}.attention.0.body.qkv.{kind}"].chunk(3)[number]
    if "attention" in key:
        return own[f"{block}.attention.0.body.project.{kind}"]
    first = "intermediate" in key or "fc1" in key
    return own[f"{block}.mlp.0.body.{'expand' if first else 'contract'}.{kind}"]


def random_model(name: str, size: tuple[int, int], **choices: object) -> VisionTransformer:
    """A model with every tensor random, so that no zero or one hides a mistake."""
    generator = torch.Generator().manual_seed(7)
    model = vitlab.create(name, 11, size, generator=generator, **choices)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.05 * torch.randn(weight.shape, generator=generator))
    return model.eval()


@pytest.mark.parametrize("gelu", ["exact", "tanh"])
@pytest.mark.parametrize("name", SHAPES)
def test_logits_tokens_and_attention_agree(name: str, gelu: str) -> None:
    model = random_model(name, SHAPES[name], gelu=gelu, qkv_bias=name != "ViT-S/16")
    images = torch.randn(3, 3, *SHAPES[name], generator=torch.Generator().manual_seed(3))
    with torch.inference_mode():
        other = theirs(model)(images, output_hidden_states=True, output_attentions=True)
        close = {"rtol": 0, "atol": 1e-5}
        torch.testing.assert_close(model(images), other.logits, **close)
        last = other.hidden_states[-1]
        encoded = model.encode(images)
        normed = model.norm(last) if not torch.allclose(last, encoded, atol=1e-4) else last
        torch.testing.assert_close(encoded, normed, **close)
        torch.testing.assert_close(model.features(images), encoded[:, 0], rtol=0, atol=0)
        maps = model.attention_maps(images)
        assert len(maps) == len(other.attentions) == model.config.depth
        for ours, weights in zip(maps, other.attentions, strict=True):
            torch.testing.assert_close(ours, weights, **close)


def test_hidden_states_agree_layer_by_layer() -> None:
    """In double precision, as hidden states are not normalized and grow."""
    model = random_model("ViT-Ti/16", (64, 32)).double()
    generator = torch.Generator().manual_seed(5)
    images = torch.randn(2, 3, 64, 32, dtype=torch.float64, generator=generator)
    states = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda module, args: states.append(args[0]))
    with torch.inference_mode():
        model(images)
        other = theirs(model)(images, output_hidden_states=True).hidden_states
    assert len(states) == 12
    for ours, hidden in zip(states, other, strict=False):  # theirs have one more, at the end
        torch.testing.assert_close(ours, hidden, rtol=0, atol=2e-6)  # their softmax is float32
