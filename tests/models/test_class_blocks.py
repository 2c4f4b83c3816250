"""Class attention and talking heads against CaiT in timm."""

from typing import Any

import pytest
import torch
from tests.oracles import peers
from torch import Tensor

import vitlab
from vitlab.errors import OptionError
from vitlab.models.packed import Packed
from vitlab.models.vit import VisionTransformer
from vitlab.optim.optimizers import decayed

NAME = "ViT(width=24,depth=2,heads=3,mlp=48)/4"
CAIT: dict[str, Any] = {"class_blocks": 2, "talking_heads": True, "layer_scale": 1e-5}
CLOSE = {"rtol": 0, "atol": 1e-5}


def a_model(**choices: Any) -> VisionTransformer:
    generator = torch.Generator().manual_seed(0)
    model = vitlab.create(NAME, 5, 16, generator=generator, **CAIT | choices)
    assert isinstance(model, VisionTransformer)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return model.eval()


def images() -> Tensor:
    return torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[VisionTransformer, Any]:
    peers.timm()
    from timm.models.cait import Cait

    torch.manual_seed(0)
    theirs = Cait(
        img_size=16, patch_size=4, num_classes=5, embed_dim=24, depth=2, num_heads=3, mlp_ratio=2,
        mlp_ratio_token_only=2,
    ).eval()  # fmt: skip
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    file = tmp_path_factory.mktemp("cait") / "cait.pth"
    torch.save(theirs.state_dict(), file)
    ours = vitlab.load(file, mean=0.5, std=0.5)
    assert isinstance(ours, VisionTransformer)
    return ours, theirs


@torch.inference_mode()
def test_outputs_are_those_of_cait(pair: tuple[VisionTransformer, Any]) -> None:
    ours, theirs = pair
    want = theirs.forward_features(images())
    torch.testing.assert_close(ours.encode(images()), want, **CLOSE)
    torch.testing.assert_close(ours.features(images()), want[:, 0], **CLOSE)
    torch.testing.assert_close(ours(images()), theirs(images()), **CLOSE)
    theirs_inside = theirs.forward_intermediates(
        images(), output_fmt="NLC", intermediates_only=True
    )
    for number, tokens in enumerate(ours.intermediates(images(), [1, 2])):
        torch.testing.assert_close(tokens[:, 1:], theirs_inside[number], **CLOSE)
        assert torch.equal(tokens[:, :1], ours.class_layers.token.expand(2, -1, -1))


@torch.inference_mode()
def test_the_mean_of_the_patches_can_be_pooled(pair: tuple[VisionTransformer, Any]) -> None:
    ours, theirs = pair
    mean = vitlab.create(NAME, 5, 16, **CAIT, pool="mean", class_token=True).eval()
    mean.load_state_dict(ours.state_dict())
    want = theirs.forward_features(images())[:, 1:].mean(1)
    torch.testing.assert_close(mean.features(images()), want, **CLOSE)


@torch.inference_mode()
def test_attention_maps_are_over_all_tokens() -> None:
    """Patches attend in the blocks, the class token after them; the others to themselves."""
    model = a_model()
    maps = model.attention_maps(images())
    assert [tuple(each.shape) for each in maps] == [(2, 3, 17, 17)] * 4
    for each in maps:
        torch.testing.assert_close(each.sum(-1), torch.ones(2, 3, 17))
    assert torch.equal(maps[1][:, :, 0, 0], torch.ones(2, 3))
    assert torch.equal(maps[2][0, 0, 1:, 1:], torch.eye(16))
    body = model.class_layers.blocks[0].attention
    tokens = body.norm(model.class_layers.before(model.intermediates(images(), [2])[0][:, 1:]))
    v = body.body.kv(tokens)[..., 24:].unflatten(-1, (3, 8)).transpose(1, 2)
    got = (maps[2][:, :, :1] @ v).transpose(1, 2).flatten(2)
    torch.testing.assert_close(body.body.project(got), body.body(tokens), **CLOSE)
    assert vitlab.inspect.rollout(model, images()).shape == (2, 4, 4)


def test_costs_are_those_that_pytorch_counts() -> None:
    from models.counting import counted_macs

    for choices in ({}, {"talking_heads": False}):
        model = a_model(**choices).requires_grad_(False)
        parts = vitlab.measure.cost(model).parts
        norms = 16 * 24 * 5 + 2 * 24 * (17 + 1)  # two a block and the last; two a class block
        assert sum(part.macs for part in parts) - norms == counted_macs(model, 3, (16, 16))
        assert sum(part.params for part in parts) == sum(p.numel() for p in model.parameters())


def test_every_parameter_learns_and_belongs_to_a_layer() -> None:
    model = a_model()
    model(images()).square().sum().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().max() > 0, name
    assert model.layer_of("class_layers.blocks.0.mlp.norm.weight") == model.layers
    kept = {name for name, weight in model.named_parameters() if name not in decayed(model)}
    assert "class_layers.token" in kept
    fresh = vitlab.create(NAME, 5, 16, **CAIT)
    assert 0 < float(fresh.class_layers.token.detach().std()) < 0.04
    scale = fresh.class_layers.blocks[1].mlp.scale.detach()
    torch.testing.assert_close(scale, torch.full((24,), 1e-5))


@torch.inference_mode()
def test_layers_of_packed_images_have_no_common_sequence() -> None:
    model, packed = a_model(), Packed.of([*images()], 4)
    with pytest.raises(OptionError, match="class_blocks keep packed images apart"):
        model.intermediates(packed, [1])
