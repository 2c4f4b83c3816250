"""A GPU without float64, as Apple's is: a GPU that is not there, and refuses it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitlab
from conftest import photo_folder
from on_gpu.a_gpu_there import a_gpu
from on_gpu.stand_in import StandIn
from on_gpu.test_steps_on_gpu import CHOICES, ON_GPU, QUICK, SMALL
from vitlab import device as devices
from vitlab.data.augment import augment as augmenting
from vitlab.errors import DeviceError
from vitlab.evaluation.probes.heads import Blocks, logistic
from vitlab.models.stems.kernels import resample_kernels


@pytest.fixture
def apple(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    for place in (devices, augmenting):
        monkeypatch.setattr(place, "WITHOUT_FLOAT64", ("cuda",))
    with a_gpu() as gpu:
        gpu.float64 = False
        with pytest.raises(TypeError, match="float64"):
            torch.ones(1, device="cuda").double()
        yield gpu


@pytest.fixture
def model() -> vitlab.VisionTransformer:
    torch.manual_seed(0)
    made = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", 10, 8, channels=1)
    torch.nn.init.normal_(made.head.classify.weight, std=0.1)
    return made.eval()


@pytest.mark.parametrize("choice", ["bf16, RandAugment", "pieces, 3-Augment", "SAM, bicubic"])
def test_it_trains(apple: StandIn, choice: str, tmp_path: Path) -> None:
    recipe = vitlab.recipe("digits", **QUICK | CHOICES[choice])
    assert vitlab.train(recipe, tmp_path / "run", host=ON_GPU).metrics["images"] == 359


def test_it_learns_without_labels(apple: StandIn, tmp_path: Path) -> None:
    photos = str(photo_folder(tmp_path / "photos", {"a": 8, "b": 8}))
    own = {"prototypes": 32, "local_size": 8, "local_crops": 1}
    vitlab.train(vitlab.recipe("dino", photos, **SMALL | own), tmp_path / "run", host=ON_GPU)


def test_what_is_stored_in_float64_cannot_be_trained(apple: StandIn, tmp_path: Path) -> None:
    photos = str(photo_folder(tmp_path / "photos", {"a": 8, "b": 8}))
    recipe = vitlab.recipe("tokenizer", photos, image_size=16, batch=8, steps=1)
    with pytest.raises(DeviceError, match="needs float64, which cuda lacks: use --device cpu"):
        vitlab.train(recipe, tmp_path / "run", host=ON_GPU)


def test_predictions_and_features_are_those_of_the_cpu(
    apple: StandIn, model: vitlab.VisionTransformer, tmp_path: Path
) -> None:
    found = [vitlab.evaluate(model, "digits", device=each) for each in ("cpu", "cuda")]
    for key in ("accuracy", "nll", "ece"):
        assert found[1][key] == pytest.approx(found[0][key], abs=1e-5)
    vitlab.embed(model, "digits", tmp_path / "x.parquet", device="cuda")


def test_a_probe_is_fitted_on_the_host(apple: StandIn) -> None:
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    y = np.repeat(np.arange(3), 20)
    found = [logistic(Blocks(x, torch.device(each)), y, 3, 1.0) for each in ("cpu", "cuda")]
    assert np.array_equal(found[0].weights, found[1].weights)


def test_other_sizes_and_a_look_inside(apple: StandIn) -> None:
    torch.manual_seed(0)
    model = vitlab.create("ViT(width=16,depth=2,heads=2,mlp=32)/4", 3, 16, positions="bias")
    images = torch.randn(4, 3, 16, 16)
    looks: list[Callable[[vitlab.VisionTransformer, Tensor], Any]] = [
        lambda model, images: model.resize(24)(torch.ones(1, 3, 24, 24).to(images)).detach(),
        lambda model, images: resample_kernels(next(model.stem.parameters()).detach(), 6),
        vitlab.inspect.attention_distance,
        lambda model, images: vitlab.inspect.similar_patches(model, images, 1),
        vitlab.inspect.feature_colors,
    ]
    want = [torch.as_tensor(look(model, images)) for look in looks]
    model = model.to("cuda")
    for look, expected in zip(looks, want, strict=True):
        got = torch.as_tensor(look(model, images.to("cuda"))).cpu()
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4, check_dtype=False)
