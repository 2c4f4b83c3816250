"""V-JEPA 2's encoder for images, with random numbers, against transformers' own."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.oracles import peers
from torch import Tensor

import vitlab
from vitlab.errors import OptionError, WeightsError
from vitlab.weights.check import load_check

CLOSE = {"rtol": 0, "atol": 1e-5}


def vjepa2(**changed: Any) -> Any:
    """Heads 16 wide: 4 channels each for time, rows and columns, and 4 that stand still."""
    transformers = peers.transformers()
    torch.manual_seed(0)
    config = transformers.VJEPA2Config(**{
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "mlp_ratio": 2.0,
        "patch_size": 4, "crop_size": 24, "tubelet_size": 2, "frames_per_clip": 4,
        "pred_hidden_size": 8, "pred_num_attention_heads": 2, "pred_num_hidden_layers": 1,
    } | changed)  # fmt: skip
    model = transformers.VJEPA2Model(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return model.eval()


def images(side: int = 24) -> Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(1))


def compare(ours: Any, theirs: Any, side: int = 24) -> None:
    """A video of one frame, which is repeated."""
    want = theirs(images(side)[:, None], skip_predictor=True).last_hidden_state
    torch.testing.assert_close(ours.encode(images(side)), want, **CLOSE)


@torch.inference_mode()
@pytest.mark.parametrize("changed", [
    {}, {"layer_norm_eps": 1e-3, "qkv_bias": False, "tubelet_size": 4}, {"hidden_size": 40},
])  # fmt: skip
def test_an_image_is_a_clip_that_stands_still(changed: dict[str, Any], tmp_path: Path) -> None:
    theirs = vjepa2(**changed)
    theirs.save_pretrained(tmp_path)
    ours = vitlab.load(tmp_path)
    assert (ours.config.rope_kind, ours.config.image_size) == ("video", 24)
    compare(ours, theirs)
    found = load_check(tmp_path)
    assert found.notes == (
        "what V-JEPA 2 computes over time is left out: the model takes one image, not a video",
    )


@torch.inference_mode()
def test_rows_and_columns_are_counted_at_any_size(tmp_path: Path) -> None:
    theirs = vjepa2(crop_size=32)
    theirs.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(content | {"crop_size": 24}))
    compare(vitlab.load(tmp_path, image_size=32), theirs, 32)
    compare(vitlab.load(tmp_path), theirs, 32)  # on the fly
    compare(vitlab.load(tmp_path).resize(32), theirs, 32)
    fused = vitlab.fuse(vitlab.load(tmp_path, image_size=32))
    torch.testing.assert_close(
        fused.encode(images(32)),
        theirs(images(32)[:, None], skip_predictor=True).last_hidden_state,
        rtol=0,
        atol=1e-4,
    )


def of_meta(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The encoder under the names of Meta's code."""
    words = {
        r"^encoder\.embeddings\.patch_embeddings": "patch_embed", r"^encoder\.layernorm": "norm",
        r"^encoder\.layer\.": "blocks.", r"attention\.proj": "attn.proj",
    }  # fmt: skip
    result: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if not name.startswith("encoder.") or re.search("query|key|value", name):
            continue
        for pattern, word in words.items():
            name = re.sub(pattern, word, name)
        result[f"module.backbone.{name}"] = tensor
    for number in range(2):
        for part in ("weight", "bias"):
            own = f"encoder.layer.{number}.attention"
            qkv = [state[f"{own}.{each}.{part}"] for each in ("query", "key", "value")]
            result[f"module.backbone.blocks.{number}.attn.qkv.{part}"] = torch.cat(qkv)
    return result


@torch.inference_mode()
def test_metas_file_asks_what_no_tensor_shows(tmp_path: Path) -> None:
    theirs = vjepa2()
    torch.save({"encoder": of_meta(theirs.state_dict()), "epoch": 3}, tmp_path / "vitl.pt")
    with pytest.raises(WeightsError, match="if it is, give --positions rope"):
        vitlab.load(tmp_path / "vitl.pt")
    with pytest.raises(WeightsError, match="how many heads a width of 32 has: give --heads"):
        vitlab.load(tmp_path / "vitl.pt", positions="rope")
    told: dict[str, Any] = {"positions": "rope", "heads": 2, "image_size": 24}
    ours = vitlab.load(tmp_path / "vitl.pt", **told)
    compare(ours, theirs)
    assert load_check(tmp_path / "vitl.pt", **told).origins["heads"] == "option"


def test_what_it_cannot_represent_is_refused(tmp_path: Path) -> None:
    vjepa2().save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    for key, value, message in (
        ("hidden_act", "relu", "unsupported hidden_act='relu'"),
        ("no_such", 1, r"unknown key no_such \(value 1\) of vjepa2"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(content | {key: value}))
        with pytest.raises(WeightsError, match=message):
            vitlab.load(tmp_path)
    name = "ViT(width=8,depth=1,heads=2,mlp=8)/4"
    with pytest.raises(OptionError, match="rope_kind=video needs heads at least 6 wide, not 4"):
        vitlab.create(name, 2, 16, positions="rope", rope_kind="video")


def test_other_formats_refuse_to_write_what_they_cannot_represent(tmp_path: Path) -> None:
    """Neither rotary positions in thirds nor a pool of some tokens shows in any tensor."""
    name, rope = "ViT(width=32,depth=1,heads=2,mlp=32)/4", {"positions": "rope", "layer_scale": 1.0}
    some = {"pool": "prefix", "registers": 2, "pool_tokens": (1,)}
    for choices in (rope | {"rope_kind": "video", "qkv_bias": False}, some):
        model = vitlab.create(name, 2, 16, norm_eps=1e-5, **choices)
        for to in ("timm", "transformers", "google"):
            with pytest.raises(WeightsError):
                vitlab.save(model, tmp_path / to, to=to)
