"""Every argument of timm's constructors: what it changes in timm it changes here, or is refused."""

import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitlab
from made_models import close
from oracles import peers
from vitlab.errors import UserError
from weights.test_timm_files import randomized, written

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
    assert len(read) > 10
