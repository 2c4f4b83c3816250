"""RADIO in the layouts of its releases, with random numbers, against transformers' own."""

import json
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.oracles import peers
from torch import Tensor

import vitlab
from vitlab.errors import OptionError, WeightsError
from vitlab.weights.check import load_check

CLOSE = {"rtol": 0, "atol": 1e-5}


def radio(**changed: Any) -> Any:
    transformers = peers.transformers()
    torch.manual_seed(0)
    config = transformers.RadioConfig(**{
        "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "mlp_ratio": 2.0,
        "patch_size": 4, "max_img_size": 32, "num_cls_tokens": 3, "num_registers": 2,
        "summary_idxs": [0, 2], "norm_mean": [0.5, 0.4, 0.3], "norm_std": [0.2, 0.25, 0.5],
    } | changed)  # fmt: skip
    model = transformers.RadioModel(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model.eval()


def pixels(*size: int) -> Tensor:
    return torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(1))


def compare(ours: Any, theirs: Any, *size: int) -> None:
    """Ours takes normalized pixels; theirs normalizes."""
    images = pixels(*size)
    mean, std = (torch.tensor(each)[:, None, None] for each in (ours.config.mean, ours.config.std))
    want = theirs(images)
    normalized = (images - mean) / std
    torch.testing.assert_close(ours.features(normalized), want.summary, **CLOSE)
    torch.testing.assert_close(
        ours.encode(normalized), want.last_hidden_state, rtol=1e-5, atol=1e-5
    )


def of_nvidia(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of transformers' model under the names of NVIDIA's code."""
    words = {
        r"^embeddings\.patch_projection": "patch_generator.embedder",
        r"^embeddings\.cls_register_token": "patch_generator.cls_token.token",
        r"^embeddings\.position_embedding": "patch_generator.pos_embed",
        r"^encoder\.layer\.": "blocks.", r"attention\.o_proj": "attn.proj",
        r"layer_scale(\d)\.lambda1": r"ls\1.grandma",
    }  # fmt: skip
    result: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if "_proj." in name and "o_proj" not in name:
            continue
        for pattern, word in words.items():
            name = re.sub(pattern, word, name)
        result[name] = tensor
    for number in range(2):
        for part in ("weight", "bias"):
            own = f"encoder.layer.{number}.attention"
            qkv = [state[f"{own}.{each}_proj.{part}"] for each in "qkv"]
            result[f"blocks.{number}.attn.qkv.{part}"] = torch.cat(qkv)
    return result


@torch.inference_mode()
@pytest.mark.parametrize("gated", [False, True])
def test_transformers_folder_gives_transformers_summary(gated: bool, tmp_path: Path) -> None:
    theirs = radio(use_swiglu_ffn=gated, layer_norm_eps=1e-3)
    theirs.save_pretrained(tmp_path)
    ours = vitlab.load(tmp_path, image_size=32)
    assert (ours.config.heads, ours.config.norm_eps, ours.config.registers) == (3, 1e-3, 5)
    assert (ours.config.pool_tokens, ours.config.features) == ((0, 2), 48)
    compare(ours, theirs, 32, 32)


@torch.inference_mode()
def test_transformers_own_names_are_read_too(tmp_path: Path) -> None:
    """Those of its modules, which its own files do not have."""
    theirs = radio()
    save_file(dict(theirs.state_dict()), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(theirs.config.to_dict()))
    compare(vitlab.load(tmp_path, image_size=32), theirs, 32, 32)


@torch.inference_mode()
@pytest.mark.parametrize("size", [(16, 16), (16, 28), (40, 24)])
def test_positions_are_resized_to_the_longer_side_and_cropped(
    size: tuple[int, int], tmp_path: Path
) -> None:
    theirs = radio()
    theirs.save_pretrained(tmp_path)
    compare(vitlab.load(tmp_path, image_size=size), theirs, *size)
    compare(vitlab.load(tmp_path, image_size=32), theirs, *size)  # on the fly


def test_positions_that_were_cropped_cannot_be_resized(tmp_path: Path) -> None:
    radio().save_pretrained(tmp_path)
    wide = vitlab.load(tmp_path, image_size=(16, 28))
    with pytest.raises(OptionError, match="positions cropped to 4x7 patches cannot be resized"):
        wide.resize(32)


@torch.inference_mode()
def test_nvidias_folder_says_which_tokens_the_summary_has(tmp_path: Path) -> None:
    theirs = radio()
    state = {
        f"radio_model.{'' if 'conditioner' in name or 'summary' in name else 'model.'}{name}": t
        for name, t in of_nvidia(theirs.state_dict()).items()
    }
    save_file(state, tmp_path / "model.safetensors")
    content = {"architectures": ["RADIOModel"], "preferred_resolution": [16, 24],
               "auto_map": {"AutoModel": "hf_model.RADIOModel"}}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(WeightsError, match="how many heads a width of 24 has: give --heads"):
        vitlab.load(tmp_path)
    ours = vitlab.load(tmp_path, heads=3)
    assert ours.config.image_size == (16, 24)
    compare(ours, theirs, 16, 24)
    found = load_check(tmp_path, heads=3)
    assert found.origins["pool_tokens"] == "file"
    assert "the model takes 16x24 pixels" in found.notes[-1]


@torch.inference_mode()
@pytest.mark.parametrize("teachers", [True, False])
def test_a_checkpoints_arguments_say_which_tokens_the_summary_has(
    teachers: bool, tmp_path: Path
) -> None:
    """Two teachers of one name share a class token; one without a summary has none of it."""
    theirs = radio()
    state = of_nvidia(theirs.state_dict())
    del state["summary_idxs"]
    state = {n if "conditioner" in n else f"base_model.{n}": t for n, t in state.items()}
    state |= {"_heads.0.mlp.weight": torch.zeros(1)}
    named = [{"name": "clip"}, {"name": "x", "use_summary": False}, {"name": "dino"}]
    args = Namespace(teachers=[*named, {"name": "clip"}]) if teachers else Namespace(lr=1.0)
    torch.save({"state_dict": state, "args": args}, tmp_path / "radio.pth.tar")
    ours = vitlab.load(tmp_path / "radio.pth.tar", image_size=32, heads=3)
    found = load_check(tmp_path / "radio.pth.tar", heads=3)
    if teachers:
        compare(ours, theirs, 32, 32)
        assert found.left_out["_heads.0.mlp.weight"] == "of adaptors to other models"
    else:
        assert (ours.config.pool_tokens, found.origins["pool_tokens"]) == ((), "assumed")


def test_what_it_cannot_represent_is_refused(tmp_path: Path) -> None:
    theirs = radio()
    theirs.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text())
    for key, value, message in (
        ("hidden_act", "relu", "unsupported hidden_act='relu'"),
        ("no_such", 1, r"unknown key no_such \(value 1\) of radio"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(content | {key: value}))
        with pytest.raises(WeightsError, match=message):
            vitlab.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(content))
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"do_normalize": True}))
    with pytest.raises(WeightsError, match="unsupported do_normalize=True"):
        vitlab.load(tmp_path)
    state = of_nvidia(theirs.state_dict()) | {"feature_normalizer.mean": torch.zeros(24)}
    save_file(state, tmp_path / "norm.safetensors")
    with pytest.raises(WeightsError, match=r"unexpected tensor feature_normalizer\.mean"):
        vitlab.load(tmp_path / "norm.safetensors", heads=3)


def test_tokens_of_the_pool_are_checked() -> None:
    name, some = "ViT(width=24,depth=1,heads=2,mlp=48)/4", {"pool": "prefix", "registers": 3}
    with pytest.raises(OptionError, match=r"pool_tokens=\(0, 3\) has a number above 2"):
        vitlab.create(name, 2, 16, **some, pool_tokens=(0, 3))
    with pytest.raises(OptionError, match=r"pool_tokens=\(0,\) applies only with pool=prefix"):
        vitlab.create(name, 2, 16, pool_tokens=(0,))
    assert vitlab.create(name, 2, 16, **some, pool_tokens=(2, 0)).config.features == 48
