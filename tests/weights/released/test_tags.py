"""Every set of weights that timm publishes, as its repositories hold them; a campaign."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from oracles import peers
from vitlab.errors import UserError
from weights.released.table import write_tensors
from weights.released.test_released import doubts, read
from weights.released.test_table import POOLS, facts

FAMILIES = ("vit_", "deit", "beit", "eva", "flexivit", "samvit", "aimv2", "naflexvit")
# Their positions are resized to each image, so they are read with its aspect ratio.
NATIVE = {"naflexvit_base_patch16_siglip.v2_webli", "naflexvit_so400m_patch16_siglip.v2_webli"}


def wanted(model: nn.Module, content: dict[str, Any]) -> dict[str, Any]:
    """What timm computes with, by its module, and by its record of the weights."""
    about = content["pretrained_cfg"]
    fields = facts(model) | {
        "mean": tuple(about["mean"]),
        "std": tuple(about["std"]),
        "interpolation": about["interpolation"],
        "crop": about["crop_pct"],
        "fit": "squash" if about["crop_mode"] == "squash" else "crop",
        "classes": about["num_classes"],
    }
    return fields | {"pool": POOLS.get(str(content.get("global_pool")), fields.get("pool"))}


@pytest.mark.campaign
@pytest.mark.parametrize("beside", [True, False], ids=["folder", "tensors alone"])
def test_every_published_tag_is_read_right_or_refused(beside: bool, tmp_path: Path) -> None:
    """Without config.json, what is not right must be among the fields that the warning names."""
    timm = peers.timm()
    tags = [tag for tag in timm.list_pretrained() if tag.startswith(FAMILIES)]
    refused, wrong = [], {}
    for number, tag in enumerate(tags):
        with torch.device("meta"):
            model = timm.create_model(tag)
        folder = tmp_path / str(number)
        folder.mkdir()
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        write_tensors(shapes, folder / "model.safetensors")
        timm.models._hub.save_config_for_hf(model, folder / "config.json")
        content = json.loads((folder / "config.json").read_text())
        content.pop("model_args", None)  # which most repositories do not have
        (folder / "config.json").write_text(json.dumps(content))
        if not beside:
            (folder / "config.json").unlink()
        try:
            reading = read(folder)
        except UserError as error:
            assert "\n" not in str(error)
            refused.append(tag)
            continue
        allowed = doubts(reading) | ({"pool"} if "dist_token" in shapes else set())
        allowed |= {"fit", "interpolation"} if tag in NATIVE else set()
        fields = {k: v for k, v in wanted(model, content).items() if k not in allowed}
        found = {k: (getattr(reading.config, k), v) for k, v in fields.items()}
        if differ := {k: both for k, both in found.items() if both[0] != both[1]}:
            wrong[tag] = differ
    assert not wrong
    assert len(refused) < len(tags) / 8, refused
