"""Windows, decomposed positions and the neck against Segment Anything in timm."""

from typing import Any

import pytest
import torch
from tests.oracles import peers
from torch import Tensor

import vitlab
from vitlab.errors import OptionError
from vitlab.models.config import ViTConfig
from vitlab.models.create import assemble, resized
from vitlab.models.encoder.windows import Windows
from vitlab.models.packed import Packed
from vitlab.models.vit import VisionTransformer
from vitlab.optim.optimizers import decayed

NAME = "ViT(width=24,depth=3,heads=2,mlp=48)/4"
SAM: dict[str, Any] = {
    "positions": "1d+decomposed", "window": 3, "global_blocks": (1,), "neck": 8, "pool": "mean",
    "norm_at": "none",
}  # fmt: skip
EPSILONS = 32  # of rounding, relative to the largest value: the sums of three blocks


def close(got: Tensor, expected: Tensor) -> None:
    limit = EPSILONS * torch.finfo(torch.float32).eps * float(expected.abs().max())
    torch.testing.assert_close(got, expected, rtol=0, atol=limit)


def a_model(size: Any = (28, 20), classes: int = 5, **choices: Any) -> VisionTransformer:
    """Grid 7 x 5: windows of 3 need padding below and to the right."""
    generator = torch.Generator().manual_seed(0)
    model = vitlab.create(NAME, classes, size, generator=generator, **SAM | choices)
    assert isinstance(model, VisionTransformer)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return model.eval()


def images(rows: int = 28, columns: int = 20) -> Tensor:
    return torch.randn(2, 3, rows, columns, generator=torch.Generator().manual_seed(1))


def of_timm(state: dict[str, Tensor], depth: int) -> dict[str, Tensor]:
    """Our tensors of timm's, spelled out for this test alone."""
    ours = {
        "stem.layers.0": "patch_embed.proj", "neck.reduce_norm": "neck.1",
        "neck.mix_norm": "neck.3", "head.classify": "head.fc",
    }  # fmt: skip
    for n in range(depth):
        pairs = {"attention.0.norm": "norm1", "attention.0.body.qkv": "attn.qkv",
                 "attention.0.body.project": "attn.proj", "mlp.0.norm": "norm2",
                 "mlp.0.body.expand": "mlp.fc1", "mlp.0.body.contract": "mlp.fc2"}  # fmt: skip
        ours |= {f"blocks.{n}.{own}": f"blocks.{n}.{their}" for own, their in pairs.items()}
    tensors = {
        f"{own}.{part}": state[f"{their}.{part}"]
        for own, their in ours.items()
        for part in ("weight", "bias")
    }
    for n in range(depth):
        tensors[f"positions.{n}.inner.rows"] = state[f"blocks.{n}.attn.rel_pos_h"]
        tensors[f"positions.{n}.inner.columns"] = state[f"blocks.{n}.attn.rel_pos_w"]
    tensors["positions.0.added.table"] = state["pos_embed"].flatten(1, 2)
    tensors["neck.reduce.weight"] = state["neck.0.weight"].flatten(1)
    tensors["neck.mix.weight"] = state["neck.2.weight"]
    return tensors


@pytest.fixture(scope="module")
def pair() -> tuple[VisionTransformer, Any]:
    peers.timm()
    from timm.models.vision_transformer_sam import VisionTransformerSAM

    torch.manual_seed(0)
    theirs = VisionTransformerSAM(
        img_size=(28, 20), patch_size=4, num_classes=5, embed_dim=24, depth=3, num_heads=2,
        mlp_ratio=2, use_rel_pos=True, window_size=3, global_attn_indexes=(1,), neck_chans=8,
    ).eval()  # fmt: skip
    with torch.no_grad():
        for weight in theirs.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    config = a_model(norm_eps=1e-5, resampling="antialiased").config
    ours = assemble(config, of_timm(theirs.state_dict(), 3))
    assert isinstance(ours, VisionTransformer)
    return ours, theirs


@torch.inference_mode()
def test_outputs_are_those_of_segment_anything(pair: tuple[VisionTransformer, Any]) -> None:
    ours, theirs = pair
    want = theirs.forward_features(images())  # (B, neck, rows, columns)
    got = ours.encode(images())
    close(got.transpose(1, 2).unflatten(2, (7, 5)), want)
    close(ours.features(images()), want.mean((2, 3)))
    close(ours(images()), theirs(images()))


@torch.inference_mode()
def test_intermediates_are_those_of_segment_anything(pair: tuple[VisionTransformer, Any]) -> None:
    ours, theirs = pair
    for norm in (False, True):  # with the norm comes the neck
        want = theirs.forward_intermediates(images(), norm=norm, intermediates_only=True)
        got = ours.intermediates(images(), [1, 2, 3], norm=norm, maps=True)
        for (square, _), expected in zip(got, want, strict=True):
            close(square, expected)
        through = vitlab.adapters.timm(ours).forward_intermediates(images(), norm=norm)[1]
        for square, expected in zip(through, want, strict=True):
            close(square, expected)


@torch.inference_mode()
def test_another_size_resizes_positions_as_segment_anything(
    pair: tuple[VisionTransformer, Any],
) -> None:
    """Both kinds of positions follow the grid; windows keep their side."""
    ours, theirs = pair
    other = ViTConfig.from_dict(ours.config.as_dict() | {"image_size": (36, 24)})
    tensors = resized(ours.state_dict(), ours.config, other)
    assert tensors["positions.1.inner.rows"].shape == (2 * 9 - 1, 12)
    assert torch.equal(
        tensors["positions.0.inner.rows"], ours.state_dict()["positions.0.inner.rows"]
    )
    theirs.patch_embed.strict_img_size = False
    want = theirs(images(36, 24))
    close(assemble(other, tensors)(images(36, 24)), want)
    close(ours(images(36, 24)), want)  # on the fly


@torch.inference_mode()
@pytest.mark.parametrize("choices", [
    {}, {"qkv_bias": False}, {"branches": 2, "layer_scale": 0.5}, {"qk_norm": True},
    {"global_blocks": ()}, {"positions": "decomposed"}, {"positions": "2d", "neck": 0},
])  # fmt: skip
def test_the_fused_form_is_exact_with_padded_windows(choices: dict[str, Any]) -> None:
    model = a_model(**choices)
    torch.testing.assert_close(vitlab.fuse(model)(images()), model(images()), rtol=0, atol=1e-4)


@torch.inference_mode()
def test_attention_maps_are_what_the_forward_pass_pays() -> None:
    """Zero beyond the window; where a window is padded, the padding has a share."""
    model = a_model()
    maps = model.attention_maps(images())
    assert [tuple(each.shape) for each in maps] == [(2, 2, 35, 35)] * 3
    torch.testing.assert_close(maps[1].sum(-1), torch.ones(2, 2, 35))
    assert (maps[0].sum(-1) < 1 + 1e-5).all()
    own = maps[0].reshape(2, 2, 7, 5, 7, 5)
    assert own[:, :, 0, 0, 3:].abs().max() == 0  # another window below
    assert own[:, :, 4, 4, :, :3].abs().max() == 0  # and to the left
    torch.testing.assert_close(own[:, :, 4, 1, 3:6, :3].sum((-1, -2)), torch.ones(2, 2))
    assert (own[:, :, 6, 1, 6, :3].sum(-1) < 1 - 1e-5).all()  # two of its window's rows are padding
    flow = vitlab.inspect.rollout(model, images())
    torch.testing.assert_close(flow.sum((1, 2)), torch.ones(2))


def test_windows_part_the_grid_and_put_it_together_again() -> None:
    windows, grid = Windows(3), (7, 5)
    tokens = torch.randn(2, 35, 4)
    parts = windows.fold(tokens, grid, torch.arange(4.0))
    assert parts.shape == (12, 9, 4)
    assert torch.equal(windows.unfold(parts, grid), tokens)
    assert torch.equal(parts[5, -1], torch.arange(4.0))  # below and to the right of the image
    assert torch.equal(parts[6, 4], tokens[1, 6])
    numbers = windows.fold(torch.arange(35)[None, :, None], grid, torch.tensor([35]))[..., 0]
    assert numbers[1].tolist() == [3, 4, 35, 8, 9, 35, 13, 14, 35]


def test_costs_are_those_that_pytorch_counts() -> None:
    """Less padding: queries, keys and values of zeros are not computed."""
    from models.counting import counted_macs

    model = a_model()
    parts = {part.name: part for part in vitlab.measure.cost(model).parts}
    counted = counted_macs(model, 3, (28, 20))
    norms = parts["norms"].macs
    assert sum(part.macs for part in parts.values()) - norms == counted
    assert sum(part.params for part in parts.values()) == sum(p.numel() for p in model.parameters())


def test_every_parameter_learns_and_belongs_to_a_layer() -> None:
    model = a_model(layer_scale=0.1)
    model(images()).square().sum().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().max() > 0, name
    assert model.layer_of("neck.mix.weight") == model.layers
    assert model.layer_of("positions.1.inner.rows") == 0
    kept = {name for name, weight in model.named_parameters() if name not in decayed(model)}
    assert {"positions.0.added.table", "positions.2.inner.rows", "neck.mix_norm.weight"} <= kept
    assert "neck.mix.weight" not in kept


REFUSED: dict[str, dict[str, Any]] = {
    "neck=8 is for patches alone: set pool=mean, class_token=False": {"pool": "token"},
    "window=3 cannot place a class token, registers or attention=axial": {
        "neck": 0, "registers": 1,
    },
    "global_blocks=(1, 3) has a number above 2": {"global_blocks": (1, 3)},
    "global_blocks=(1,) applies only with window": {"window": 0},
    "positions=rope cannot act within windows": {"positions": "rope"},
    "positions=1d+decomposed has no offset for a class token or registers": {
        "window": 0, "global_blocks": (), "neck": 0, "class_token": True,
    },
    "stem_padding=2 must be less than half of patch=4: 1 at most": {"stem_padding": 2},
    "stem_padding=1 applies only with stem=linear": {"stem_padding": 1, "stem": "conv"},
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_refused(message: str) -> None:
    with pytest.raises(OptionError) as caught:
        a_model(**REFUSED[message])
    assert str(caught.value).startswith(message)


def test_extra_tokens_have_no_window() -> None:
    with pytest.raises(OptionError, match="window=3 cannot place extra tokens"):
        a_model().encode(images(), torch.zeros(2, 1, 24))


@torch.inference_mode()
def test_padding_around_the_image_moves_every_patch() -> None:
    """The grid of mmpretrain's padded convolution, as in Sapiens."""
    model = a_model(stem_padding=1, window=0, global_blocks=(), positions="1d", neck=0)
    layer = model.stem.layers[0]
    bordered = torch.nn.functional.pad(images(), (1, 1, 1, 1))
    want = torch.nn.functional.conv2d(bordered, layer.weight, layer.bias, stride=4)
    assert want.shape[2:] == (7, 5)
    close(model.stem(images()), want.flatten(2).transpose(1, 2))


@torch.inference_mode()
@pytest.mark.parametrize("choices", [{}, {"stem_padding": 1}, {"positions": "2d"}])
def test_packed_images_are_as_one_at_a_time(choices: dict[str, Any]) -> None:
    model = a_model(**choices)
    several = [images()[:1], images(20, 32)[:1], images(20, 32)[1:]]
    packed = Packed.of([each[0] for each in several], 4)
    want = torch.cat([model(each) for each in several])
    close(model(packed), want)
    tokens = [model.encode(each).flatten(0, 1) for each in several]
    close(model.encode(packed)[0], torch.cat(tokens))
