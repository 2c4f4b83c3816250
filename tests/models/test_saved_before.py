"""Models saved by an earlier revision load, with the names, fields and outputs they had.

The configurations are as they were written; weights and images are sines, so that no file of
weights is needed; outputs and names are those of the code of that time.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import vitlab
from vitlab.models.config import ModelConfig, ResNetConfig, ViTConfig
from vitlab.models.create import build
from vitlab.weights.identity import RETIRED

OF_ANY: dict[str, Any] = {
    "channels": 1, "classes": 3, "zero_head": False, "head_bias": 0.0, "mean": [0.5],
    "std": [0.5], "interpolation": "bilinear", "crop": 1.0, "fit": "crop", "labels": [],
}  # fmt: skip
OF_VIT: dict[str, Any] = OF_ANY | {
    "width": 16, "depth": 1, "heads": 2, "mlp": 8, "branches": 1, "patch": 4, "stem": "linear",
    "stem_norm": "none", "stem_act": "none", "stem_bias": True, "stages": [], "resnet": "google",
    "positions": "1d", "positions_at": "stem", "resampling": "bilinear", "pre_norm": False,
    "class_token": None, "pool": "token", "norm_at": "tokens", "queries": 1, "pre_logits": 0,
    "registers": 0, "layer_scale": 0.0, "drop_path": 0.0, "drop_path_ramp": False,
    "attention": "global", "dropout": 0.0, "qkv_bias": True, "bias": True, "qk_norm": False,
    "ffn": "mlp", "gelu": "exact", "norm_eps": 1e-06, "rope_base": 100.0,
}  # fmt: skip
SAVED: dict[str, tuple[dict[str, Any], str, list[list[float]]]] = {
    "ViT(width=16,depth=2,heads=2,mlp=8,branches=2)/8": (
        OF_VIT
        | {
            "image_size": [8, 16], "depth": 2, "branches": 2, "patch": 8, "stem": "hmlp",
            "stem_norm": "batch", "positions": "bias", "pool": "both", "layer_scale": 0.1,
            "qk_norm": True,
        },
        "6426b8123fb74b99",
        [
            [-0.1876397934160311, -0.3940294188054381, 0.47770533576166346],
            [-0.18753226696828224, -0.39429642607892157, 0.4780878093408762],
        ],
    ),
    "ViT(width=16,depth=1,heads=2,mlp=8)/4": (
        OF_VIT
        | {
            "image_size": 8, "stem_act": "gelu", "positions": "rope", "norm_at": "pooled",
            "registers": 2, "ffn": "swiglu", **RETIRED,
        },
        "563378e6938fa00e",
        [
            [0.08906815293115944, -0.22620997890180652, -0.13599876472321257],
            [0.09034432520499092, -0.22127095665454075, -0.135269645919636],
        ],
    ),
    "BiT-R(1)x1": (
        OF_ANY | {"image_size": 16, "stages": [1], "widen": 1, "attention": "none"},
        "1456c6422513c794",
        [
            [0.9267161500622342, 0.21997246725164848, -0.4082047547009587],
            [0.9282444055143687, 0.21820298189599127, -0.40622354430642377],
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAVED)
def test_a_model_saved_before(name: str, tmp_path: Path) -> None:
    fields, names, logits = SAVED[name]
    kind: type[ModelConfig] = ResNetConfig if name.startswith("BiT") else ViTConfig
    kept = {key: each for key, each in fields.items() if key not in RETIRED}
    state = build(kind.from_dict(kept)).double().state_dict()
    assert hashlib.sha256("\n".join(sorted(state)).encode()).hexdigest().startswith(names)
    for number, (key, tensor) in enumerate(sorted(state.items())):
        if tensor.is_floating_point():
            line = torch.arange(tensor.numel(), dtype=torch.float64)
            waves = torch.sin(0.7 * line + number).reshape(tensor.shape)
            tensor.copy_(1 + 0.5 * waves if key.endswith("running_var") else 0.3 * waves)
    save_file(state, tmp_path / "model.safetensors")
    content = {"format": "vitlab-1", "name": name, "kind": kind.kind, "model": fields}
    (tmp_path / "config.json").write_text(json.dumps(content | {"provenance": {}}))
    model = vitlab.load(tmp_path)
    assert model.config.name == name
    assert model.config.as_dict() == kind().as_dict() | kept  # later fields have their defaults
    rows, columns = model.config.size
    images = torch.cos(0.3 * torch.arange(2 * rows * columns, dtype=torch.float64))
    with torch.inference_mode():
        got = model.double()(images.reshape(2, 1, rows, columns))
    torch.testing.assert_close(got, torch.tensor(logits, dtype=torch.float64), rtol=0, atol=1e-9)
