"""Every Vision Transformer that timm names: all tensors find their place, or it says why."""

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitlab
from oracles import peers
from vitlab.weights.assembly import empty
from vitlab.weights.formats.format_api import Hints
from vitlab.weights.formats.timm import timm_format as format_
from vitlab.weights.formats.timm.architectures import UNSUPPORTED, VARY, implied, known
from vitlab.weights.matching import check
from vitlab.weights.source import Source


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
        source = Source(Path("a.safetensors"), "safetensors", shapes, lambda n: torch.empty(0))
        reading = format_.reads(source, Hints(name))
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
            source = Source(Path("m.safetensors"), "safetensors", shapes, lambda n: torch.empty(0))
            try:
                assert format_.reads(source, Hints(name)) is None, name  # not even a patch
            except vitlab.UserError as error:
                assert "unsupported model " in str(error)


def test_other_words_are_not_an_architecture() -> None:
    words = "vit_small vit_b vit_base_patch16 vit_finetuned deit_small_patch16_LS"
    assert not any(map(known, words.split()))
