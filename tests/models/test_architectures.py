"""Every choice of architecture: properties that hold for any of them."""

import json
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import vitlab
from models.counting import counted_macs
from vitlab.errors import OptionError
from vitlab.models.config import ResNetConfig, ViTConfig, config_of
from vitlab.models.create import build
from vitlab.models.names import shape_of


def vit(patch: int = 8, front: str = "", **choices: Any) -> tuple[str, dict[str, Any]]:
    """A small model's name, and its choices."""
    return f"{front}ViT(width=96,depth=2,heads=3,mlp=96)/{patch}", choices


INNER = {"norm_inner_mlp": True, "norm_inner_attention": True}
GRID = {"positions": "1d+rope", "rope_kind": "grid"}
MEAN = {"pool": "mean", "class_token": True}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": vit(),
    "parallel": vit(branches=3, layer_scale=0.1, qk_norm=True),
    "linear stem, BN, GELU": vit(stem_norm="batch", stem_act="gelu"),
    "linear stem, LN": vit(stem_norm="layer"),
    "hMLP, BN": vit(16, stem="hmlp", stem_norm="batch"),
    "hMLP, LN": vit(stem="hmlp", stem_norm="layer"),
    "conv, BN": vit(16, stem="conv", stem_norm="batch"),
    "conv, LN": vit(4, stem="conv", stem_norm="layer"),
    "conv": vit(stem="conv"),
    "local": vit(16, stem="local"),
    "hybrid": vit(8, "R(1-2)+"),
    "hybrid of a root": vit(8, "R+"),
    "no positions, mean": vit(positions="none", pool="mean"),
    "1d, every": vit(positions_at="every", registers=2),
    "1d, shared": vit(positions_at="shared"),
    "2d": vit(positions="2d", registers=1),
    "2d, every": vit(positions="2d", positions_at="every"),
    "2d, shared": vit(positions="2d", positions_at="shared", pool="mean"),
    "relative": vit(branches=2, positions="relative", registers=3),
    "relative, shared": vit(positions="relative", positions_at="shared"),
    "rope": vit(positions="rope", registers=4, qk_norm=True),
    "BEiT": vit(positions="bias", norm_at="pooled", **MEAN),
    "bias, shared": vit(branches=2, positions="bias", positions_at="shared"),
    "bias and 1d": vit(positions="1d+bias"),
    "EVA-02": vit(rope_grid=3, rope_base=1e4, ffn="swiglu", **GRID, **INNER),
    "EVA-02-CLIP, enormous": vit(branches=2, norm_order="after", layer_scale=0.1),
    "Perception Encoder": vit(
        rope_grid=7, rope_offset=1.0, pre_norm=True, pool="attention", pool_heads=8, pool_mlp=50,
        pool_prefix=True, class_token=True, **GRID,
    ),
    "RoPE-ViT, axial": vit(positions="rope", rope_kind="grid", registers=2),
    "rope, parallel": vit(branches=2, positions="rope"),
    "AIMv2": vit(
        norm="rms", stem_norm="layer", pool="mean", ffn="swiglu", bias=False, qkv_bias=False,
        norm_eps=1e-5,
    ),
    "BEiT-3": vit(branches=2, norm_at="pooled", **MEAN, **INNER),
    "ViT-5": vit(branches=2, norm="rms", qk_norm=True, norm_inner_mlp=True),
    "mean of all": vit(pool="mean", registers=2, pool_prefix=True),
    "CLIP": vit(pre_norm=True, stem_bias=False, gelu="quick"),
    "token and mean": vit(pool="both", registers=2, gelu="tanh"),
    "prefix": vit(pool="prefix", registers=1, class_token=True),
    "no last norm": vit(norm_at="none"),
    "swiglu": vit(branches=2, ffn="swiglu", bias=False, qkv_bias=False, mlp=100),
    "attention pooling": vit(pool="attention", pre_logits=24),
    "slots": vit(pool="attention", queries=4),
    "axial": vit(8, "Axial-"),
    "axial, parallel": vit(8, "Axial-", branches=2, positions="1d", positions_at="every"),
    "axial hybrid": vit(8, "Axial-R+", pool="attention"),
    "BiT": ("BiT-R(1-2)x1", {}),
    "BiT, wide": ("BiT-R(1-1)x2", {"channels": 1}),
    "Axial ResNet": ("Axial-ResNet-(1-2)", {}),
}  # fmt: skip
FUSED_OTHERWISE = (  # one of each kind of change that fusing makes to the graph
    "plain", "parallel", "linear stem, BN, GELU", "conv, BN", "rope, parallel", "swiglu",
    "attention pooling", "axial, parallel", "BiT",
)  # fmt: skip
OF_EACH_PART = (  # every part is in one of them
    *FUSED_OTHERWISE,
    "hMLP, BN", "local", "hybrid", "1d, every", "2d, shared", "relative", "BEiT", "EVA-02",
    "EVA-02-CLIP, enormous", "Perception Encoder", "mean of all", "prefix", "Axial ResNet",
)  # fmt: skip
COUNTED = (  # whose parts are not of the plain model
    "local", "hybrid", "relative", "2d, shared", "attention pooling", "axial, parallel", "EVA-02",
    "Perception Encoder", "hMLP, BN", "conv, BN", "BiT", "Axial ResNet",
)  # fmt: skip
PARTS = [  # the others are for the campaign
    pytest.param(case, marks=[] if case in OF_EACH_PART else pytest.mark.campaign) for case in CASES
]
SIZE = (32, 64)
NORMS = ["none", "batch", "layer"]
SHAPE = ("width", "depth", "heads", "mlp", "branches", "patch", "stem", "stages", "attention")


def a_model(case: str, **choices: Any) -> Any:
    """A model with every tensor random, so that no zero or one hides a mistake."""
    name, own = CASES[case]
    generator = torch.Generator().manual_seed(1)
    model = vitlab.create(name, 5, SIZE, generator=generator, **own | choices)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.02 * torch.randn(tensor.shape, generator=generator))
    return model.eval()


def some_images(model: Any, count: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(count, model.config.channels, *SIZE, generator=generator)


def close(got: Tensor, want: Tensor, relative: float = 1e-5) -> None:
    assert (got - want).abs().max() <= relative * want.abs().max()


@pytest.mark.parametrize("case", CASES)
def test_shapes_gradients_and_the_fused_form(case: str) -> None:
    model = a_model(case).double()
    config, images = model.config, some_images(model).double()
    fused_equals_unfused(model, images)
    slots = (4,) if case == "slots" else ()
    assert model(images).shape == (3, *slots, 5)
    assert model.features(images).shape == (3, *slots, config.features)
    rows, columns = config.grid
    prefix = config.prefix if isinstance(config, ViTConfig) else 0
    assert model.encode(images).shape[1] == prefix + rows * columns
    model.train()
    model(images).square().sum().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert torch.isfinite(weight.grad).all(), name


def fused_equals_unfused(model: Any, images: Tensor) -> None:
    """Check the forward passes, and that the form is not saved."""
    with torch.inference_mode():
        fused = vitlab.fuse(model)
        close(fused(images), model(images), 1e-9)
        close(fused.features(images), model.features(images), 1e-9)
        close(fused.encode(images), model.encode(images), 1e-9)
        if isinstance(model, vitlab.VisionTransformer):
            maps = fused.attention_maps(images), model.attention_maps(images)
            for ours, theirs in zip(*maps, strict=True):
                close(ours, theirs, 1e-9)
    if model.config.kind == "vit" and model.config.norm_order == "after":
        assert fused.state_dict().keys() == model.state_dict().keys()  # nothing to fold
        return
    with pytest.raises(ValueError, match="cannot save a fused model"):
        vitlab.save(fused, "somewhere")


@pytest.mark.parametrize("case", PARTS)
def test_saved_and_loaded_bit_for_bit(case: str, tmp_path: Any) -> None:
    model = a_model(case)
    loaded = vitlab.load(vitlab.save(model, tmp_path / "m"))
    images = some_images(model)
    assert loaded.config == model.config
    with torch.inference_mode():
        assert torch.equal(loaded(images), model(images))


def counted(model: Any) -> int:
    """Multiply-adds of norms; parameters and all others are those that PyTorch counts."""
    config = model.config
    price = vitlab.measure.cost(config)
    assert price.params == sum(weight.numel() for weight in model.parameters())
    norms = sum(part.macs for part in price.parts if part.name == "norms")
    assert price.macs - norms == counted_macs(model, config.channels, config.size)
    return norms


@pytest.mark.parametrize("case", COUNTED)
def test_parameters_and_multiply_adds_are_those_of_the_modules(case: str) -> None:
    name, choices = CASES[case]
    with torch.device("meta"):
        counted(vitlab.create(name, 5, SIZE, **choices))


@pytest.mark.parametrize(
    "case", ["axial, parallel", *(pytest.param(e, marks=pytest.mark.slow) for e in FUSED_OTHERWISE)]
)
def test_compiles_without_graph_breaks(case: str) -> None:
    """Of one block, except where the second takes positions in another way than the first."""
    name, choices = CASES[case]
    alike = "ViT" in name and "positions_at" not in choices
    model = a_model(case, **{"depth": 1} if alike else {})
    images = some_images(model, 2)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    with torch.no_grad():
        close(compiled(images), model(images), 1e-6)


def test_a_stem_of_hmlp_commutes_with_masking_and_convolutions_do_not() -> None:
    for case, commutes in (("hMLP, LN", True), ("hMLP, BN", True), ("conv, LN", False)):
        model = a_model(case)
        patch = model.config.patch
        images = some_images(model)
        masked = images.clone()
        masked[:, :, :patch, patch : 2 * patch] = 7.0  # the second patch
        with torch.inference_mode():
            change = (model.stem(masked) - model.stem(images)).abs().amax((0, 2))
        others = torch.cat([change[:1], change[2:]])
        assert change[1] > 0.1
        assert bool(others.max() == 0) is commutes, case


def test_without_positions_patches_may_change_places() -> None:
    model = a_model("no positions, mean")
    images = some_images(model)
    with torch.inference_mode():
        close(model(images.roll((8, 16), (2, 3))), model(images))
        placed = a_model("rope")
        assert (placed(images.roll(16, 3)) - placed(images)).abs().max() > 1e-3


def test_axial_tokens_attend_along_their_row_then_their_column() -> None:
    model = a_model("axial, parallel")
    rows, columns = model.config.grid
    maps = model.attention_maps(some_images(model))
    assert len(maps) == 2 * model.config.depth
    place = torch.arange(rows * columns)
    same_row = place[:, None] // columns == place // columns
    same_column = place[:, None] % columns == place % columns
    for number, weights in enumerate(maps):
        allowed = same_row if number % 2 == 0 else same_column
        assert weights.shape == (3, 6, rows * columns, rows * columns)
        assert not weights[:, :, ~allowed].any()
        assert (weights[:, :, allowed] > 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 6, rows * columns))


def test_further_tokens_join_the_sequence() -> None:
    for case in ("plain", "rope", "2d", "1d, every", "attention pooling"):
        model = a_model(case)
        images, extra = some_images(model), torch.randn(3, 7, 96)
        with torch.inference_mode():
            out = model.encode(images, extra=extra)
            alone = model.encode(images)
        assert out.shape[1] == alone.shape[1] + 7
        assert (out[:, : alone.shape[1]] - alone).abs().max() > 1e-4  # the patches look at them
        order = torch.randperm(7)  # they have no places
        with torch.inference_mode():
            other = model.encode(images, extra=extra[:, order])
        close(other[:, : alone.shape[1]], out[:, : alone.shape[1]])
        close(other[:, alone.shape[1] :], out[:, alone.shape[1] :][:, order])
    for case, what in (("axial", "attention=axial"), ("BEiT", "positions=bias")):
        with pytest.raises(OptionError, match=f"{what} cannot place extra tokens"):
            a_model(case).encode(some_images(a_model(case)), extra=torch.randn(3, 7, 96))
    with pytest.raises(ValueError, match=r"extra must be \(B, M, 96\)"):
        a_model("plain").encode(some_images(a_model("plain")), extra=torch.randn(3, 7, 10))


def test_registers_take_no_positions() -> None:
    model = a_model("1d, every")
    assert model.positions[0].table.shape == (1, 1 + 4 * 8, 96)
    tokens = torch.zeros(1, 35, 96)
    placed = model.positions[0].place(tokens)
    assert not placed[:, 1:3].any()
    torch.testing.assert_close(placed[:, 3:], model.positions[0].table[:, 1:])
    torch.testing.assert_close(placed[:, :1], model.positions[0].table[:, :1])


def test_relative_positions_are_a_loop_over_offsets() -> None:
    model = a_model("relative")
    table = model.positions[0].table.detach()
    q = torch.randn(2, 3, 36, 32)
    with torch.inference_mode():
        bias = model.positions[0].bias(q)
    for i, j in ((0, 0), (0, 35), (35, 0), (7, 20), (20, 7)):
        want = (q[:, :, i] * table[i - j + 35]).sum(-1) / 32**0.5
        torch.testing.assert_close(bias[:, :, i, j], want, atol=1e-5, rtol=0)


STEMS: dict[str, dict[str, Any]] = {  # what each may be drawn with
    "linear": {"patch": [4, 7, 8], "stem_norm": NORMS, "stem_act": ["none", "gelu"]},
    "hmlp": {"patch": [8, 16], "stem_norm": NORMS},
    "conv": {"patch": [2, 4, 8], "stem_norm": NORMS},
    "local": {"patch": [4, 8]},
    "resnet": {"patch": [8, 16], "stages": [(), (1,), (1, 1)], "resnet": ["google", "timm"]},
}
POSITIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "1d": {"positions_at": ["stem", "every", "shared"]},
    "2d": {"positions_at": ["stem", "every", "shared"]},
    "relative": {"positions_at": ["stem", "every", "shared"]},
    "bias": {"positions_at": ["stem", "shared"], "registers": [0]},
    "rope": {"rope_base": [100.0, 10000.0], "rope_kind": ["image", "grid"]},
    "1d+rope": {"rope_kind": ["grid"], "rope_grid": [0, 4], "rope_offset": [0.0, 1.0]},
    "1d+bias": {"positions_at": ["stem", "shared"], "registers": [0]},
}
POOLS: dict[str, dict[str, Any]] = {
    "token": {"norm_at": ["tokens", "pooled", "none"]},
    "mean": {
        "norm_at": ["tokens", "pooled", "none"], "class_token": [None, True],
        "pool_prefix": [False, True],
    },
    "both": {"norm_at": ["tokens", "none"]},
    "prefix": {"class_token": [True]},
    "attention": {
        "queries": [1, 3], "class_token": [None, True], "pool_prefix": [False, True],
        "pool_heads": [0, 2, 8], "pool_mlp": [0, 7],
    },
}  # fmt: skip
FREE: dict[str, Any] = {
    "width": [32, 64], "depth": [1, 2], "heads": [1, 2, 4], "mlp": [1, 24, 40],
    "branches": [1, 2, 3], "channels": [1, 3], "registers": [0, 1, 2], "layer_scale": [0.0, 0.1],
    "pre_logits": [0, 9], "pre_norm": [False, True], "qkv_bias": [False, True],
    "bias": [False, True], "qk_norm": [False, True], "ffn": ["mlp", "swiglu"],
    "gelu": ["exact", "tanh", "quick"], "norm_eps": [1e-6, 0.1], "norm": ["layer", "rms"],
    "norm_order": ["before", "after"], "norm_inner_attention": [False, True],
    "norm_inner_mlp": [False, True],
}  # fmt: skip


@st.composite
def configurations(draw: st.DrawFn) -> ViTConfig:
    """Any valid one: nothing that is drawn is refused."""
    fields: dict[str, Any] = {}
    ranges = dict(FREE)
    for key, kinds in (("stem", STEMS), ("positions", POSITIONS), ("pool", POOLS)):
        fields[key] = draw(st.sampled_from(list(kinds)))
        ranges |= kinds[fields[key]]
    if fields["positions"] in ("none", "1d", "2d") and fields["pool"] in ("mean", "attention"):
        fields["attention"] = draw(st.sampled_from(["global", "axial"]))
        if fields["attention"] == "axial":
            ranges |= {"registers": [0], "class_token": [None]}
    fields |= {key: draw(st.sampled_from(values)) for key, values in ranges.items()}
    rows, columns = draw(st.sampled_from([(1, 1), (2, 2), (1, 3), (2, 3)]))
    size = (rows * fields["patch"], columns * fields["patch"])
    return ViTConfig(image_size=size, classes=3, **fields)


def sound(config: ViTConfig) -> None:
    """Any builds, runs, fuses, costs what PyTorch counts, and survives its file and its name."""
    model = build(config).eval()
    images = torch.randn(2, config.channels, *config.size)
    with torch.inference_mode():
        out = model(images)
        assert out.shape == ((2, config.queries, 3) if config.queries > 1 else (2, 3))
        close(vitlab.fuse(model)(images), out, 1e-4)
    own = ("pre_norm", "norm", "head.norm")
    found = [
        module.normalized_shape[0]
        for name, module in model.named_modules()
        if isinstance(module, nn.LayerNorm | nn.RMSNorm)
        and (name in own or (name.startswith("blocks.") and name.endswith(".norm")))
    ]
    assert counted(model) == sum(found) * config.length
    assert ViTConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    stated = shape_of(config.name)
    assert all(getattr(config, key) == value for key, value in stated.items() if key in SHAPE)


@pytest.mark.parametrize("count", [10, pytest.param(1000, marks=pytest.mark.campaign)])
def test_random_configurations(count: int) -> None:
    usual = settings(deadline=None, max_examples=count, suppress_health_check=list(HealthCheck))
    given(config=configurations())(usual(sound))()


def test_odd_resnets_have_names_too() -> None:
    for name in ("R(1-2)+ViT-S/8", "BiT-R(1-1)x2", "R+ViT-Ti/8", "R50+ViT-L/64", "Axial-R+ViT-B/8"):
        assert config_of(name, image_size=64).name == name


def test_impossible_resnets() -> None:
    with pytest.raises(ValueError, match="widen=2 applies only with attention=none"):
        ResNetConfig(attention="axial", widen=2)
    with pytest.raises(ValueError, match="stages must have at least one stage"):
        ResNetConfig(stages=())
    with pytest.raises(ValueError, match="unknown BiT-R50x1 option 'heads'"):
        vitlab.create("BiT-R50x1", heads=3)
    with pytest.raises(ValueError, match="did you mean BiT-R50x1"):
        vitlab.create("BiT-R51x1")
