"""What each part says about itself, the norms of a stem, and biases that start near the patch."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitlab
from oracles import peers
from vitlab.errors import OptionError
from vitlab.models import registry
from vitlab.models.config import ResNetConfig, ViTConfig, config_of, map_features, map_stride
from vitlab.models.cost import cost
from vitlab.models.create import build, resize_tensors, with_new_head
from vitlab.models.layers import evaluating
from vitlab.models.positions.bias import NEIGHBORS, Bias, resample_offsets
from vitlab.models.registry import Component, kind_named, used_options
from vitlab.optim.optimizers import decayed
from vitlab.recipes.model_part import model_part

SHAPE = "ViT(width=32,depth=2,heads=4,mlp=24)/8"


def meta(**choices: Any) -> Any:
    with torch.device("meta"):
        return vitlab.create(SHAPE, 3, 16, **choices)


@pytest.mark.parametrize(
    "choices",
    [
        {"qk_norm": True, "pre_norm": True},
        {"stem": "hmlp", "stem_norm": "layer", "norm_at": "pooled"},
        {"stem": "local", "pool": "attention"},
    ],
)
def test_every_layer_norm_has_the_chosen_epsilon(choices: dict[str, Any]) -> None:
    norms = [m for m in meta(norm_eps=0.03, **choices).modules() if isinstance(m, nn.LayerNorm)]
    assert len(norms) > 4
    assert {norm.eps for norm in norms} == {0.03}


@pytest.mark.parametrize(
    ("choices", "names"),
    [
        ({"registers": 1}, {"token", "registers", "positions.0.table"}),
        ({"positions": "2d"}, {"token", "positions.0.rows", "positions.0.columns"}),
        ({"positions": "relative", "pool": "mean"}, {"positions.0.table", "positions.1.table"}),
        ({"positions": "bias", "positions_at": "shared", "pool": "mean"}, {"positions.0.table"}),
        ({"positions": "none", "stem": "local", "pool": "mean"}, {"stem.places"}),
        ({"positions": "rope", "pool": "attention"}, {"head.attend.queries"}),
        ({"positions": "1d+rope", "pool": "mean"}, {"positions.0.added.table"}),
    ],
)
def test_what_is_added_to_tokens_is_not_decayed(choices: dict[str, Any], names: set[str]) -> None:
    model = meta(**choices)
    kernels = {name for name, weight in model.named_parameters() if weight.ndim > 1}
    assert kernels - decayed(model) == names
    assert decayed(model) <= kernels


@pytest.mark.parametrize("pool", ["token", "mean", "both", "prefix"])
def test_pools_leave_registers_out_of_the_patches(pool: str) -> None:
    model = vitlab.create(SHAPE, 3, 16, pool=pool, registers=2, class_token=True).eval()
    images = torch.randn(2, 3, 16, 16)
    with torch.inference_mode():
        tokens, got = model.encode(images), model.features(images)
    token, mean = tokens[:, 0], tokens[:, 3:].mean(1)
    want = {
        "token": token,
        "mean": mean,
        "both": torch.cat([token, mean], 1),
        "prefix": torch.cat([token, tokens[:, 1], tokens[:, 2]], 1),
    }
    torch.testing.assert_close(got, want[pool])


def test_the_classifier_starts_as_chosen() -> None:
    for name in (SHAPE, "BiT-R(1)x1"):
        model: Any = vitlab.create(name, 400, 16, head_bias=-10.0)
        classify = getattr(model, "head", model).classify
        assert (classify.bias == -10).all()
        assert classify.weight.std().item() == pytest.approx(0.02, rel=0.05)
        model = vitlab.create(name, 400, 16, zero_head=True)
        assert not getattr(model, "head", model).classify.weight.any()


def test_a_new_number_of_classes() -> None:
    config = ViTConfig(classes=2, labels=("a", "b"), pre_logits=24)
    same, other = config.with_classes(2), config.with_classes(5)
    assert (same.labels, same.zero_head, same.pre_logits) == (("a", "b"), True, 0)
    assert (other.labels, other.classes, other.features) == ((), 5, 768)
    assert ResNetConfig().with_classes(7).classes == 7
    small = replace(config_of(SHAPE, image_size=16, pre_logits=9))
    state = with_new_head(build(small).state_dict(), small.with_classes(5))
    assert state.keys() == build(small.with_classes(5)).state_dict().keys()
    assert state["head.classify.weight"].shape == (5, 32)
    assert not state["head.classify.weight"].any()
    assert not any("head" in name for name in with_new_head(state, small.with_classes(0)))


def test_what_a_recipe_and_a_report_ask_of_a_configuration() -> None:
    assert ViTConfig(pool="attention", queries=4).answers == 4
    assert ResNetConfig().answers == 1
    assert (ViTConfig().blocks, ResNetConfig().blocks) == (12, 0)
    assert config_of("Axial-ViT-B/16").blocks == 24
    sizes = {(): (4, 64), (1,): (4, 256), (1, 1): (8, 512), (3, 4, 6, 3): (32, 2048)}
    for stages, (stride, features) in sizes.items():
        assert (map_stride(stages), map_features(stages, 3)) == (stride, 3 * features)


def test_only_what_depends_on_the_size_is_resized() -> None:
    config = config_of(SHAPE, image_size=16, positions="relative")
    state = build(config).state_dict()
    assert resize_tensors(state, config, replace(config, image_size=(16, 16))) is state
    with pytest.raises(OptionError, match="1-D offsets hold for one grid only: keep image_size=16"):
        resize_tensors(state, config, replace(config, image_size=32))
    resnet = config_of("BiT-R(1)x1", image_size=16)
    body = build(resnet).state_dict()
    assert resize_tensors(body, resnet, replace(resnet, image_size=32)) is body
    axial = config_of("Axial-ResNet-(1)", image_size=16)
    with pytest.raises(OptionError, match="hold for one size only: keep image_size=16"):
        resize_tensors({}, axial, replace(axial, image_size=32))


def test_offsets_of_a_single_place_spread_over_all() -> None:
    table = torch.randn(1 + 3, 2)
    wide = resample_offsets(table, (1, 1), (2, 2))
    assert torch.equal(wide[:9], table[:1].expand(9, 2))
    assert torch.equal(wide[9:], table[1:])


def test_the_mode_of_every_module_comes_back() -> None:
    model = nn.Sequential(nn.Sequential(nn.Dropout(), nn.Dropout()), nn.Dropout())
    model[0][1].eval()
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, True, True, False, True]


def test_a_model_says_what_differs_from_the_defaults() -> None:
    model = vitlab.create("ViT-Ti/16", 10, 32, registers=4, pool="mean")
    assert repr(model) == (
        "ViT-Ti/16(image_size=32, classes=10, pool='mean', registers=4), 5,489,866 parameters"
    )
    assert repr(vitlab.create("BiT-R(1)x1", 1000, 224)).startswith("BiT-R(1)x1(), ")
    many = vitlab.create("dVAE(width=8)/8", mean=(0.123456789,) * 3, std=(0.987654321,) * 3)
    assert "mean=(0.123456789,), " in repr(many)
    assert config_of("Axial-ViT-B/16", pool="attention").chosen() == {"pool": "attention"}


@pytest.mark.parametrize("field", ["stem", "positions"])
def test_the_dictionaries_name_every_stem_and_position_scheme(field: str) -> None:
    """What `--help` reads without importing the classes."""
    assert list(used_options(field)) == sorted(used_options(field))
    for name, uses in used_options(field).items():
        kind = kind_named(field, name)
        assert kind.uses == uses
        assert (kind.field, kind.name) == (field, name)
        assert f"{kind.__module__}:{kind.__qualname__}" == registry.OURS[field][name].home
        with pytest.raises(TypeError, match=f"{re.escape(name)} is already {kind.__qualname__}$"):
            type("Another", (Component,), {"field": field, "name": name})


def test_the_halves_of_swiglu_start_each_by_themselves() -> None:
    model: Any = vitlab.create(SHAPE, 3, 16, ffn="swiglu", mlp=400)
    expand = model.blocks[0].mlp[0].body.expand
    for half in expand.weight.chunk(2):
        bound = (6 / (32 + 400)) ** 0.5
        assert 0.98 * bound < half.abs().max() <= bound
    assert 0 < expand.bias.std() < 2e-6


SMALL = "ViT(width=32,depth=2,heads=8,mlp=32)/4"
SIDE = (-1, 0, 1)


def table(**choices: object) -> Bias:
    given = {"positions": "bias", "pool": "mean"} | choices
    found = vitlab.create(SMALL, 3, 24, **given).positions[-1]
    assert isinstance(found, Bias)
    return found


def attention(positions: Bias) -> Tensor:
    """The attention of equal logits, (h, N, N)."""
    tokens = len(positions.places)
    return positions.bias(torch.zeros(1, 8, tokens, 4))[0].softmax(-1).detach()


@pytest.mark.parametrize("strength", [0.5])
def test_heads_start_as_those_of_convit(strength: float) -> None:
    peers.timm()
    from timm.models.convit import GPSA

    theirs = GPSA(36, num_heads=9, locality_strength=strength)
    with torch.no_grad():
        theirs.local_init()
        theirs.pos_proj.bias.zero_()
        offsets = theirs.get_rel_indices(36)
        wanted = theirs.pos_proj(offsets)[0].permute(2, 0, 1).softmax(-1)  # (9, N, N)
    own = attention(table(bias_locality=strength))
    nine = {(row, column): 3 * (column + 1) + row + 1 for row in SIDE for column in SIDE}
    for number, (row, column) in enumerate(NEIGHBORS):
        # at a corner, far patches keep a thousandth in ours, whose bias has a limit
        assert torch.allclose(own[number], wanted[nine[-row, -column]], atol=2e-3)


def test_an_inner_patch_sees_one_neighbor_in_each_head() -> None:
    seen = attention(table(bias_locality=5.0))[:, 14].argmax(-1)  # row 2, column 2 of six
    assert sorted(seen.tolist()) == [7, 8, 9, 13, 15, 19, 20, 21]


def test_without_it_and_for_the_class_token_biases_start_at_zero() -> None:
    assert not table().table.any()
    rows = table(bias_locality=1.0, pool="token").table
    assert not rows[-3:].any()
    assert (rows[:-3] < 0).any()


def test_all_other_weights_are_those_without_it(tmp_path: Path) -> None:
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    both = [
        vitlab.create(SMALL, 3, 24, generator=each, positions="bias", bias_locality=strength)
        for each, strength in zip(generators, (0.0, 1.0), strict=True)
    ]
    plain, local = (each.state_dict() for each in both)
    differing = {name for name in plain if not torch.equal(plain[name], local[name])}
    assert differing == {"positions.0.table", "positions.1.table"}
    again = vitlab.load(vitlab.save(both[1], tmp_path / "model"))
    assert again.config.bias_locality == 1.0
    assert torch.equal(again.state_dict()["positions.1.table"], local["positions.1.table"])


STEMMED = "ViT(width=16,depth=1,heads=2,mlp=16)/16"


def norms(**choices: Any) -> list[str]:
    model = vitlab.create(STEMMED, 3, 32, **choices)
    kinds = (nn.BatchNorm2d, nn.LayerNorm)
    stem: Any = model.stem
    return [type(each).__name__ for each in stem.modules() if isinstance(each, kinds)]


@pytest.mark.parametrize(
    ("stem", "params", "count"), [("hmlp", 86_726_248, 3), ("conv", 89_465_416, 4)]
)
def test_as_in_the_official_code(stem: str, params: int, count: int) -> None:
    """Parameters of ViT-B/16 with batch norms in the stem, by the official code."""
    config = config_of("ViT-B/16", stem=stem, classes=1000, image_size=224)
    assert isinstance(config, ViTConfig)
    assert config.stem_norm == "batch"
    assert cost(config).params == params + 768  # there, the class token has no position
    assert norms(stem=stem) == ["BatchNorm2d"] * count


def test_what_is_chosen_comes_first_and_saved_models_without_a_norm_have_none() -> None:
    assert ViTConfig.from_dict({"stem": "hmlp"}).stem_norm == "none"
    assert config_of(STEMMED, stem="hmlp", stem_norm="none").as_dict()["stem_norm"] == "none"
    assert norms(stem="hmlp", stem_norm="none") == []
    assert norms(stem="conv", stem_norm="layer") == ["ChannelNorm"] * 4
    assert norms() == []
    assert norms(stem="linear", stem_norm="batch") == ["BatchNorm2d"]
    assert model_part(STEMMED, stem="hmlp").config().stem_norm == "batch"  # type: ignore[attr-defined]
