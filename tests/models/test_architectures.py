"""Every choice of architecture: properties that hold for any of them."""

import copy
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
from vitlab.models.positions.resampling import resample

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("ViT-Ti2/8", {}),
    "parallel": ("ViT-Ti2x3/8", {"layer_scale": 0.1, "qk_norm": True}),
    "linear stem, BN, GELU": ("ViT-Ti2/8", {"stem_norm": "batch", "stem_act": "gelu"}),
    "linear stem, LN": ("ViT-Ti2/8", {"stem_norm": "layer"}),
    "hMLP, BN": ("ViT-Ti2/16", {"stem": "hmlp", "stem_norm": "batch"}),
    "hMLP, LN": ("ViT-Ti2/8", {"stem": "hmlp", "stem_norm": "layer"}),
    "conv, BN": ("ViT-Ti2/16", {"stem": "conv", "stem_norm": "batch"}),
    "conv, LN": ("ViT-Ti2/4", {"stem": "conv", "stem_norm": "layer"}),
    "conv": ("ViT-Ti2/8", {"stem": "conv"}),
    "local": ("ViT-Ti2/16", {"stem": "local"}),
    "hybrid": ("R(1-2)+ViT-Ti2/8", {}),
    "hybrid of a root": ("R+ViT-Ti2/8", {}),
    "no positions, mean": ("ViT-Ti2/8", {"positions": "none", "pool": "mean"}),
    "1d, every": ("ViT-Ti2/8", {"positions_at": "every", "registers": 2}),
    "1d, shared": ("ViT-Ti2/8", {"positions_at": "shared"}),
    "2d": ("ViT-Ti2/8", {"positions": "2d", "registers": 1}),
    "2d, every": ("ViT-Ti2/8", {"positions": "2d", "positions_at": "every"}),
    "2d, shared": ("ViT-Ti2/8", {"positions": "2d", "positions_at": "shared", "pool": "mean"}),
    "relative": ("ViT-Ti2x2/8", {"positions": "relative", "registers": 3}),
    "relative, shared": ("ViT-Ti2/8", {"positions": "relative", "positions_at": "shared"}),
    "rope": ("ViT-Ti2/8", {"positions": "rope", "registers": 4, "qk_norm": True}),
    "BEiT": (
        "ViT-Ti2/8",
        {"positions": "bias", "pool": "mean", "class_token": True, "norm_at": "pooled"},
    ),
    "bias, shared": ("ViT-Ti2x2/8", {"positions": "bias", "positions_at": "shared"}),
    "bias and 1d": ("ViT-Ti2/8", {"positions": "1d+bias"}),
    "EVA-02": (
        "ViT-Ti2/8",
        {
            "positions": "1d+rope",
            "rope_kind": "grid",
            "rope_grid": 3,
            "rope_base": 1e4,
            "ffn": "swiglu",
            "norm_inner_mlp": True,
            "norm_inner_attention": True,
        },
    ),
    "EVA-02-CLIP, enormous": ("ViT-Ti2x2/8", {"norm_order": "after", "layer_scale": 0.1}),
    "Perception Encoder": (
        "ViT-Ti2/8",
        {
            "positions": "1d+rope",
            "rope_kind": "grid",
            "rope_grid": 7,
            "rope_offset": 1.0,
            "pre_norm": True,
            "pool": "attention",
            "pool_heads": 8,
            "pool_mlp": 50,
            "pool_prefix": True,
            "class_token": True,
        },
    ),
    "RoPE-ViT, axial": ("ViT-Ti2/8", {"positions": "rope", "rope_kind": "grid", "registers": 2}),
    "rope, parallel": ("ViT-Ti2x2/8", {"positions": "rope"}),
    "AIMv2": (
        "ViT-Ti2/8",
        {
            "norm": "rms",
            "stem_norm": "layer",
            "pool": "mean",
            "ffn": "swiglu",
            "bias": False,
            "qkv_bias": False,
            "norm_eps": 1e-5,
        },
    ),
    "BEiT-3": (
        "ViT-Ti2x2/8",
        {
            "norm_inner_attention": True,
            "norm_inner_mlp": True,
            "pool": "mean",
            "class_token": True,
            "norm_at": "pooled",
        },
    ),
    "ViT-5": ("ViT-Ti2x2/8", {"norm": "rms", "qk_norm": True, "norm_inner_mlp": True}),
    "mean of all": ("ViT-Ti2/8", {"pool": "mean", "registers": 2, "pool_prefix": True}),
    "CLIP": ("ViT-Ti2/8", {"pre_norm": True, "stem_bias": False, "gelu": "quick"}),
    "token and mean": ("ViT-Ti2/8", {"pool": "both", "registers": 2, "gelu": "tanh"}),
    "prefix": ("ViT-Ti2/8", {"pool": "prefix", "registers": 1, "class_token": True}),
    "no last norm": ("ViT-Ti2/8", {"norm_at": "none"}),
    "swiglu": ("ViT-Ti2x2/8", {"ffn": "swiglu", "bias": False, "qkv_bias": False, "mlp": 100}),
    "attention pooling": ("ViT-Ti2/8", {"pool": "attention", "pre_logits": 24}),
    "slots": ("ViT-Ti2/8", {"pool": "attention", "queries": 4}),
    "axial": ("Axial-ViT-Ti2/8", {}),
    "axial, parallel": ("Axial-ViT-Ti2x2/8", {"positions": "1d", "positions_at": "every"}),
    "axial hybrid": ("Axial-R+ViT-Ti2/8", {"pool": "attention"}),
    "BiT": ("BiT-R(1-2)x1", {}),
    "BiT, wide": ("BiT-R(1-1)x2", {"channels": 1}),
    "Axial ResNet": ("Axial-ResNet-(1-2)", {}),
}
FUSED_OTHERWISE = (  # one of each kind of change that fusing makes to the graph
    "plain", "parallel", "linear stem, BN, GELU", "conv, BN", "rope, parallel", "swiglu",
    "attention pooling", "axial, parallel", "BiT",
)  # fmt: skip
OF_EACH_PART = (  # every part is in one of them
    *FUSED_OTHERWISE,
    "hMLP, BN", "local", "hybrid", "1d, every", "2d, shared", "relative", "BEiT", "EVA-02",
    "EVA-02-CLIP, enormous", "Perception Encoder", "mean of all", "prefix", "Axial ResNet",
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
    model = a_model(case)
    fused_equals_unfused(model, copy.deepcopy(model))
    config, images = model.config, some_images(model)
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


def fused_equals_unfused(model: Any, exact: Any) -> None:
    """Check the forward passes, and that the form is not saved; of another in float64."""
    images = some_images(model)
    with torch.inference_mode():
        exact = exact.double()
        close(vitlab.fuse(exact)(images.double()), exact(images.double()), 1e-9)
        fused = vitlab.fuse(model)
        close(fused(images), model(images))
        close(fused.features(images), model.features(images))
        close(fused.encode(images), model.encode(images))
        if isinstance(model, vitlab.VisionTransformer):
            for ours, theirs in zip(
                fused.attention_maps(images), model.attention_maps(images), strict=True
            ):
                assert (ours - theirs).abs().max() < 1e-5
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


@pytest.mark.parametrize("case", PARTS)
def test_parameters_and_multiply_adds_are_those_of_the_modules(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against PyTorch's counter, which misses the fused kernel: with plain products."""
    from torch.utils.flop_counter import FlopCounterMode

    from vitlab.models import head
    from vitlab.models.encoder import attention

    def plain(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        return attention.attention_weights(q, k, bias) @ v

    monkeypatch.setattr(attention, "attend", plain)
    monkeypatch.setattr(head.F, "scaled_dot_product_attention", plain)
    model = a_model(case)
    price = vitlab.measure.cost(model)
    assert price.params == sum(weight.numel() for weight in model.parameters())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(some_images(model, 1))
    norms = sum(part.macs for part in price.parts if part.name == "norms")
    assert 2 * (price.macs - norms) == counter.get_total_flops()


COMPILED = ("plain", "rope, parallel", "axial, parallel", "BiT")  # the others take a minute


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            *each.values,
            marks=each.marks or ([] if each.values[0] in COMPILED else pytest.mark.slow),
        )
        for each in PARTS
    ],
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
        if case in FUSED_OTHERWISE:
            fused = torch.compile(vitlab.fuse(model), fullgraph=True, backend="eager")
            close(fused(images), model(images))


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
        images, extra = some_images(model), torch.randn(3, 7, 192)
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
            a_model(case).encode(some_images(a_model(case)), extra=torch.randn(3, 7, 192))
    with pytest.raises(ValueError, match=r"extra must be \(B, M, 192\)"):
        a_model("plain").encode(some_images(a_model("plain")), extra=torch.randn(3, 7, 10))


def test_registers_take_no_positions() -> None:
    model = a_model("1d, every")
    assert model.positions[0].table.shape == (1, 1 + 4 * 8, 192)
    tokens = torch.zeros(1, 35, 192)
    placed = model.positions[0].place(tokens)
    assert not placed[:, 1:3].any()
    torch.testing.assert_close(placed[:, 3:], model.positions[0].table[:, 1:])
    torch.testing.assert_close(placed[:, :1], model.positions[0].table[:, :1])


def test_relative_positions_are_a_loop_over_offsets() -> None:
    model = a_model("relative")
    table = model.positions[0].table.detach()
    q = torch.randn(2, 3, 36, 64)
    with torch.inference_mode():
        bias = model.positions[0].bias(q)
    for i, j in ((0, 0), (0, 35), (35, 0), (7, 20), (20, 7)):
        want = (q[:, :, i] * table[i - j + 35]).sum(-1) / 8
        torch.testing.assert_close(bias[:, :, i, j], want, atol=1e-5, rtol=0)


def test_layer_scale_starts_where_asked() -> None:
    model = vitlab.create("ViT-Ti2x2/8", 2, 16, layer_scale=1e-4)
    scales = [b.scale for block in model.blocks for b in (*block.attention, *block.mlp)]
    assert len(scales) == 8
    assert all((scale == 1e-4).all() for scale in scales)


@pytest.mark.parametrize("resampling", ["bilinear", "bicubic", "antialiased"])
def test_positions_resize_as_interpolation_does(resampling: Any) -> None:
    table = torch.randn(1, 2 + 4 * 6, 5)
    assert torch.equal(resample(table, (4, 6), (4, 6), resampling), table)
    got = resample(table, (4, 6), (2, 3), resampling)
    grid = table[:, 2:].unflatten(1, (4, 6)).permute(0, 3, 1, 2)
    options = {
        "bilinear": {"mode": "bilinear", "align_corners": True},
        "bicubic": {"mode": "bicubic"},
        "antialiased": {"mode": "bicubic", "antialias": True},
    }
    want = torch.nn.functional.interpolate(grid, (2, 3), **options[resampling])
    torch.testing.assert_close(got[0, 2:], want[0].flatten(1).T)
    assert torch.equal(got[:, :2], table[:, :2])
    constant = resample(torch.ones(1, 24, 3), (4, 6), (7, 5), resampling)
    torch.testing.assert_close(constant, torch.ones(1, 35, 3))


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
    price = vitlab.measure.cost(config)
    assert price.params == sum(weight.numel() for weight in model.parameters())
    norms = sum(part.macs for part in price.parts if part.name == "norms")
    assert price.macs - norms == counted_macs(model, config.channels, config.size)
    own = ("pre_norm", "norm", "head.norm")
    found = [
        module.normalized_shape[0]
        for name, module in model.named_modules()
        if isinstance(module, nn.LayerNorm | nn.RMSNorm)
        and (name in own or (name.startswith("blocks.") and name.endswith(".norm")))
    ]
    assert norms == sum(found) * config.length
    assert ViTConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    stated = shape_of(config.name)
    assert all(getattr(config, key) == value for key, value in stated.items() if key in SHAPE)


def random_configurations(count: int) -> None:
    """Check so many."""
    given(config=configurations())(
        settings(deadline=None, max_examples=count, suppress_health_check=[HealthCheck.too_slow])(
            sound
        )
    )()


def test_random_configurations() -> None:
    random_configurations(15)


@pytest.mark.campaign
def test_a_thousand_configurations() -> None:
    random_configurations(1000)


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
