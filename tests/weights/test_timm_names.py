"""Every Vision Transformer that timm names, its arguments and words: each counts, or is refused."""

import argparse
import functools
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import vitlab
from made_models import close
from oracles import peers
from vitlab.errors import UserError, WeightsError
from vitlab.weights.assembly import empty
from vitlab.weights.formats.format_api import Hints
from vitlab.weights.formats.timm import timm_format as format_
from vitlab.weights.formats.timm.architectures import UNSUPPORTED, VARY, implied, known
from vitlab.weights.load import load_check
from vitlab.weights.matching import check
from vitlab.weights.source import StoredTensors
from weights.test_timm_files import randomized, written


@functools.cache
def names() -> list[str]:
    timm = peers.timm()
    rooms = ("vision_transformer", "vision_transformer_hybrid", "vision_transformer_relpos")
    rooms += ("vision_transformer_sam", "deit", "beit", "eva")
    return sorted({name for room in rooms for name in timm.list_models(module=room)})


def reached(name: str) -> bool:
    return not any(re.fullmatch(pattern, name) for pattern in UNSUPPORTED)


@functools.cache
def shapes_of(name: str, **choices: Any) -> tuple[nn.Module, dict[str, tuple[int, ...]]]:
    with torch.device("meta"):
        model = peers.timm().create_model(name, **choices)
    return model, {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}


SOME, ALL = slice(None, None, 40), slice(None)
EVERY = pytest.param(ALL, marks=pytest.mark.campaign)


@pytest.mark.parametrize("which", [SOME, EVERY])
def test_names_are_understood_tensor_by_tensor(which: slice) -> None:
    """Names, shapes, GELU, epsilon and heads, for models of every size, without memory."""
    timm = peers.timm()
    for name in list(filter(reached, names()))[which]:
        model, shapes = shapes_of(name)
        source = StoredTensors(
            Path("a.safetensors"), "safetensors", shapes, lambda n: torch.empty(0)
        )
        reading = format_.reads(source, Hints(name), empty)
        assert reading is not None, name
        config = reading.config
        told = timm.get_pretrained_cfg(name)  # preprocessing of timm's first weights of that name
        if told and timm.list_pretrained(f"{name}.*") and name not in VARY:
            assert (config.mean, config.std) == (tuple(told.mean), tuple(told.std)), name
            how = (config.interpolation, config.crop)
            assert how == (told.interpolation, told.crop_pct), name
        check(reading, source, empty(config))
        assert isinstance(config, vitlab.ViTConfig)
        block = model.blocks[0].attns[0] if config.branches > 1 else model.blocks[0]
        assert block.attn.num_heads == config.heads, name
        kind = timm.layers.RmsNorm if config.norm == "rms" else nn.LayerNorm
        norms = {m.eps for m in model.modules() if isinstance(m, kind)}
        assert norms == {config.norm_eps}, name
        turned = getattr(model, "rope", None) is not None
        assert turned == ("rope" in config.positions), name
        acts = {type(m).__name__ for m in model.blocks.modules() if "GELU" in type(m).__name__}
        flavor = {"exact": "GELU", "tanh": "GELUTanh", "quick": "QuickGELU"}[config.gelu]
        assert acts == (set() if config.ffn == "swiglu" else {flavor}), name
        pool = {"token": "token", "avg": "mean", "map": "attention"}[model.global_pool]
        assert pool == config.pool or config.pool == "prefix", name
        rows, columns = model.patch_embed.img_size
        patch = config.patch
        assert config.size == (rows // patch * patch, columns // patch * patch), name


def heads_of(model: nn.Module) -> int | None:
    counts = {m.num_heads for m in model.modules() if hasattr(m, "num_heads")}
    return counts.pop() if len(counts) == 1 else None


@pytest.mark.parametrize("which", [SOME, EVERY])
def test_every_architecture_is_known_and_those_beyond_the_model_say_so(which: slice) -> None:
    """The name alone decides, also of those that are refused; timm keeps heads at other widths."""
    for name in names()[which]:
        if name.endswith("_sam"):  # a deprecated alias without a model
            continue
        assert known(name), name
        model, shapes = shapes_of(name)
        heads = heads_of(model.blocks)
        assert heads is None or implied(name)["heads"] == heads, name
        pool = {"token": "token", "avg": "mean", "map": "attention"}[model.global_pool]
        assert implied(name)["pool"] == pool, name
        if not reached(name):
            source = StoredTensors(
                Path("m.safetensors"), "safetensors", shapes, lambda n: torch.empty(0)
            )
            try:
                assert format_.reads(source, Hints(name), empty) is None, name  # not even a patch
            except vitlab.UserError as error:
                assert "unsupported model " in str(error)


def test_other_words_are_not_an_architecture() -> None:
    words = "vit_small vit_b vit_base_patch16 vit_finetuned deit_small_patch16_LS"
    assert not any(map(known, words.split()))


HALF, IMAGENET = (0.5, 0.5, 0.5), (0.485, 0.456, 0.406)


def tiny(name: str = "vit_tiny_patch16_224", **choices: Any) -> nn.Module:
    chosen = {"depth": 1, "img_size": 32, "num_classes": 3} | choices
    return randomized(peers.timm().create_model(name, **chosen))


def folder(model: nn.Module, place: Path, **content: Any) -> Path:
    """A repository of timm with anything in its config.json."""
    place.mkdir(exist_ok=True)
    written(model, place / "model.safetensors")
    shape = [3, 32, 32]
    usual = {"architecture": "vit_tiny_patch16_224", "pretrained_cfg": {"input_size": shape}}
    (place / "config.json").write_text(json.dumps(usual | content))
    return place


def test_training_checkpoints_of_timm(tmp_path: Path) -> None:
    """`arch` names the model; `args` say what differed from it."""
    model = tiny(global_pool="avg")
    args = argparse.Namespace(
        model="vit_tiny_patch16_224", mean=[0.1, 0.2, 0.3], std=None, crop_pct=None,
        interpolation="bilinear", gp="avg", img_size=32, model_kwargs={"act_layer": "gelu"},
    )  # fmt: skip
    content = {"arch": "vit_tiny_patch16_224", "epoch": 3, "args": args}
    torch.save(content | {"state_dict": model.state_dict()}, tmp_path / "last.pth.tar")
    config = vitlab.load(tmp_path / "last.pth.tar").config
    assert (config.mean, config.std) == ((0.1, 0.2, 0.3), HALF)
    assert (config.interpolation, config.pool) == ("bilinear", "mean")
    # DeiT's and MAE's code trains timm's models on ImageNet's normalization
    torch.save({"model": model.state_dict(), "args": args}, tmp_path / "deit.pth")
    assert vitlab.load(tmp_path / "deit.pth").config.mean == IMAGENET
    args.model_kwargs = {"act_layer": "relu"}
    torch.save(content | {"state_dict": model.state_dict()}, tmp_path / "last.pth.tar")
    with pytest.raises(WeightsError, match="unsupported model_args act_layer='relu'"):
        vitlab.load(tmp_path / "last.pth.tar")


def test_an_option_settles_an_argument(tmp_path: Path) -> None:
    place = folder(tiny(), tmp_path / "m", model_args={"act_layer": "relu"})
    assert vitlab.load(place, gelu="quick").config.gelu == "quick"
    place = folder(tiny(), tmp_path / "n", pretrained_cfg={"interpolation": "lanczos"})
    with pytest.raises(WeightsError, match="interpolation='lanczos' of timm: give --interpolation"):
        vitlab.load(place)
    assert vitlab.load(place, interpolation="bicubic").config.interpolation == "bicubic"


def test_labels_and_defaults_of_config_json(tmp_path: Path) -> None:
    """Labels may be a table by number; what is not stated is timm's default, not a guess."""
    labels = {"0": "cat", "1": "dog", "2": "owl"}
    place = folder(tiny(), tmp_path / "m", label_names=labels, label_descriptions={"cat": "Cat"})
    config = vitlab.load(place).config
    assert (config.labels, config.mean, config.crop) == (("cat", "dog", "owl"), IMAGENET, 0.875)
    assert not load_check(place).notes
    for stated in ({"crop_mode": "border"}, {"label_offset": 1}, {"unheard_of": 2},
                   {"num_classes": 7}):  # fmt: skip
        with pytest.raises(WeightsError, match=next(iter(stated))):
            vitlab.load(folder(tiny(), tmp_path / "m", pretrained_cfg=stated))


UNNAMED: dict[str, tuple[dict[str, Any], str]] = {
    "vit_relpos_small_patch16_224": ({}, "positions from an MLP"),
    "vit_dwee_patch16_reg1_gap_256": ({}, "differential attention"),
    "vit_huge_patch16_radio_v3": ({"embed_dim": 160}, "as in C-RADIO"),
}


@pytest.mark.parametrize("name", UNNAMED)
def test_families_beyond_the_model_by_content(name: str, tmp_path: Path) -> None:
    """Without a name, so that only the tensors can tell."""
    choices, message = UNNAMED[name]
    file = written(tiny(name, **choices), tmp_path / "model_weights.safetensors")
    with pytest.raises(WeightsError, match=message):
        vitlab.load(file)


HEADS: dict[str, tuple[dict[str, Any], int, str]] = {
    "vit_huge_plus_patch16_dinov3": ({}, 20, "family"),
    "vit_giantopt_patch16_siglip_256": ({"num_classes": 0}, 16, "assumed"),
    "vit_giant_patch14_dinov2": ({"img_size": 28}, 24, "family"),
    "vit_base_patch32_clip_quickgelu_224": ({"img_size": 64}, 12, "assumed"),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_by_content(name: str, tmp_path: Path) -> None:
    choices, heads, origin = HEADS[name]
    with torch.device("meta"):
        model = peers.timm().create_model(name, **{"depth": 1, "img_size": 32} | choices)
    state = {key: torch.zeros(1).expand(t.shape) for key, t in model.state_dict().items()}
    torch.save(state, tmp_path / "m.pth")  # which take no space
    found = load_check(tmp_path / "m.pth", image_size=choices.get("img_size", 32))
    assert (found.config["heads"], found.origins["heads"]) == (heads, origin)
    assert found.notes if origin == "assumed" else True


def test_weights_of_one_name_may_be_normalized_otherwise(tmp_path: Path) -> None:
    """OpenAI's and LAION's: a name alone does not tell which of the two it is."""
    varying = "vit_large_patch14_clip_224"
    with torch.device("meta"):
        model = peers.timm().create_model(varying, depth=1, img_size=28)
    state = {key: torch.zeros(1).expand(t.shape) for key, t in model.state_dict().items()}
    torch.save(state, tmp_path / "m.pth")
    for name, origin in ((varying, "assumed"), ("vit_large_patch14_clip_quickgelu_224", "name")):
        found = load_check(tmp_path / "m.pth", name=name, image_size=28)
        assert {found.origins[key] for key in ("mean", "std")} == {origin}
        assert found.origins["crop"] == "name"


def open_clip(place: Path, prefix: str, model: nn.Module, **vision: Any) -> Path:
    """A repository of open_clip with one of timm's models."""
    place.mkdir()
    state = {f"{prefix}{name}": t.contiguous() for name, t in model.state_dict().items()}
    save_file(state, place / "open_clip_model.safetensors")
    prepared = {"mean": HALF, "std": HALF, "interpolation": "bicubic", "resize_mode": "squash"}
    content = {"model_cfg": {"embed_dim": 9, "vision_cfg": vision}, "preprocess_cfg": prepared}
    (place / "open_clip_config.json").write_text(json.dumps(content))
    return place


def test_open_clips_repositories(tmp_path: Path) -> None:
    name = "vit_base_patch32_siglip_256"
    model = tiny(name, img_size=64, num_classes=0)
    vision = {"image_size": 64, "timm_model_name": name, "timm_pool": "map", "timm_proj": "none"}
    place = open_clip(tmp_path / "a", "visual.trunk.", model, **vision)
    loaded, images = vitlab.load(place), torch.randn(2, 3, 64, 64)
    assert (loaded.config.gelu, loaded.config.fit, loaded.config.mean) == ("tanh", "squash", HALF)
    assert not load_check(place).notes
    with torch.inference_mode():
        close(loaded(images), model(images))
    place = open_clip(tmp_path / "b", "visual.trunk.", model, **vision, input_patchnorm=True)
    with pytest.raises(WeightsError, match="unsupported vision_cfg input_patchnorm=True"):
        vitlab.load(place)


def test_blocks_without_an_mlp_are_named(tmp_path: Path) -> None:
    """Whether an MLP is gated is asked of files that have none, too."""
    state = tiny("eva02_base_patch16_clip_224", embed_dim=96, num_heads=3).state_dict()
    bare = {name: tensor for name, tensor in state.items() if ".mlp." not in name}
    bare["blocks.0.attn.q_bias"] = torch.zeros(96)
    torch.save(bare, tmp_path / "bare.pth")
    with pytest.raises(WeightsError, match="unsupported encoder blocks"):
        vitlab.load(tmp_path / "bare.pth")


SMALL = {"depth": 1, "embed_dim": 32, "num_heads": 2, "img_size": 32, "num_classes": 3}
ARCHITECTURES = {
    "vit_tiny_patch16_224": {**SMALL},
    "beit_base_patch16_224": {**SMALL, "mlp_ratio": 2.0},
    "vit_small_patch16_rope_224": {**SMALL},
    "eva02_tiny_patch14_224": {**SMALL, "patch_size": 16},
}
# Other values than the usual ones, where a type does not suggest them.
OTHERS: dict[str, tuple[Any, ...]] = {
    "global_pool": ("avg", "avgmax", "max", "token", "map", ""),
    "pos_embed": ("none", ""), "act_layer": ("relu", "gelu_tanh", "quick_gelu", "silu"),
    "norm_layer": ("rmsnorm", "layernorm"), "embed_norm_layer": ("layernorm", "rmsnorm"),
    "attn_type": ("rope",), "rope_type": ("cat", "mixed", "dinov3"), "init_values": (0.1, None),
    "fc_norm": (True, False), "use_fc_norm": (True, False), "ref_feat_shape": (3, [2, 4]),
    "use_post_transformer_norm": (True, False), "rope_grid_indexing": ("xy", "ij"),
    "unheard_of": (1,), "use_naflex": (True,),
    "attn_pool_num_heads": (4,), "attn_pool_mlp_ratio": (2.0,), "img_size": ([32, 48], 48),
    "patch_size": (8,), "num_heads": (4, 1), "mlp_ratio": (3.0,), "swiglu_align_to": (8,),
}  # fmt: skip
SKIPPED = {"self", "device", "dtype", "embed_layer", "block_fn", "mlp_layer", "attn_layer"}


def alternatives(parameter: inspect.Parameter) -> tuple[Any, ...]:
    if parameter.name in OTHERS:
        return OTHERS[parameter.name]
    default = parameter.default
    if isinstance(default, bool):
        return (not default,)
    if isinstance(default, int):
        return (default + 1,)
    return (default / 2 + 0.5,) if isinstance(default, float) else ()


def cases(architecture: str) -> list[tuple[str, Any]]:
    module = sys.modules[peers.timm().models.model_entrypoint(architecture).__module__]
    kinds = ("VisionTransformer", "Beit", "Eva")
    kind = next(getattr(module, name) for name in reversed(kinds) if hasattr(module, name))
    parameters = [e for e in inspect.signature(kind).parameters.values() if e.name not in SKIPPED]
    if "_rope_" in architecture:  # EVA-02 has the others of the same constructor
        parameters = [each for each in parameters if each.name.startswith("rope_")]
    return [(each.name, value) for each in parameters for value in alternatives(each)]


def in_timm(architecture: str, arguments: dict[str, Any]) -> nn.Module | None:
    """The model that timm makes, unless it cannot."""
    try:
        return randomized(peers.timm().create_model(architecture, **arguments))
    except Exception:  # whatever a constructor says of values that do not go together
        return None


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_an_argument_counts_or_is_refused(architecture: str, tmp_path: Path) -> None:
    read, name = [], architecture
    for argument, value in cases(architecture):
        arguments = ARCHITECTURES[architecture] | {argument: value}
        other = in_timm(name, arguments)
        if other is None:
            continue
        content = {"architecture": name, "model_args": arguments}
        size = arguments["img_size"]
        shape = [arguments.get("in_chans", 3), *(size if isinstance(size, list) else (size, size))]
        (tmp_path / "config.json").write_text(
            json.dumps(content | {"pretrained_cfg": {"input_size": shape}})
        )
        written(other, tmp_path / "model.safetensors")
        try:
            model = vitlab.load(tmp_path)
        except UserError as error:
            assert "\n" not in str(error)
            continue
        images = torch.randn(2, *shape, generator=torch.Generator().manual_seed(1))
        with torch.inference_mode():
            try:
                close(model(images), other(images))
            except AssertionError as error:
                raise AssertionError(f"{argument}={value!r}: {error}") from None
        read.append(argument)
    assert len(read) > (2 if "_rope_" in architecture else 10)
