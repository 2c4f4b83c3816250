"""A loss of the user's own, shared by processes, is that of the whole batch."""

from functools import partial
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F

import vitlab
from conftest import BRIEF, photo_folder
from distributed.ranks import on_ranks
from vitlab.errors import OptionError

MODEL = "ViT(width=16,depth=1,heads=2,mlp=32)/4"


def loss(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores, targets)


def darker(images: Tensor, generator: torch.Generator) -> Tensor:
    return images // 2


def failing(scores: Tensor, targets: Tensor) -> Tensor:
    return scores


def work(data: Path, out: Path) -> dict[str, Tensor]:
    recipe = vitlab.recipe(
        "small", str(data), model=MODEL, warmup=0.0, steps=2, batch=7, optimizer="sgd", lr=0.1
    )
    vitlab.train(
        recipe, out, transform=darker, loss=loss, host=vitlab.Host(workers=0, effort=BRIEF)
    )
    return load_file(out / "model" / "model.safetensors")


def shared(data: Path, out: Path) -> str:
    work(data, out)
    try:
        recipe = vitlab.recipe("small", str(data), model=MODEL, steps=1, batch=7)
        vitlab.train(
            recipe, out.parent / "bad", loss=failing, host=vitlab.Host(workers=0, effort=BRIEF)
        )
    except OptionError as error:
        return str(error)
    return ""


def test_unequal_shares_of_a_batch_are_weighted_by_their_images(tmp_path: Path) -> None:
    data = photo_folder(tmp_path / "photos", {"blue": 8, "red": 8}, 16, 16)
    one = work(data, tmp_path / "one")
    said = on_ranks(2, partial(shared, data, tmp_path / "two"), tmp_path / "said")
    two = load_file(tmp_path / "two" / "model" / "model.safetensors")
    assert all(torch.allclose(tensor, two[name], atol=1e-6) for name, tensor in one.items())
    assert all("loss must return one number for each image" in each["value"] for each in said)
    assert not (tmp_path / "bad").exists()
