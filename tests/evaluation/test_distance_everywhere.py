"""Distance from the training images: equal in every form, delta and file that knows it."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import vitlab
from made_models import noisy
from vitlab.evaluation.unlike import fit_unlike
from vitlab.models.fast.engines import RUNTIMES, available
from vitlab.models.model import Model
from vitlab.models.packed import Packed
from vitlab.models.unlike import layer_of
from vitlab.on_device import exact
from vitlab.precision import Precision
from vitlab.weights.sharded import UNLIKE

SHAPE = "ViT(width=24,depth=6,heads=2,mlp=32)/8"
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "token": (SHAPE.replace("depth=6", "depth=2"), {"pool": "token", "registers": 2}),
    "pooled norm": (SHAPE, {"pool": "mean", "norm_at": "pooled"}),
    "axial": (SHAPE, {"attention": "axial", "pool": "mean", "class_token": False}),
    "one block": ("ViT(width=24,depth=1,heads=2,mlp=32)/8", {"pool": "token"}),
    "hybrid": ("R(1)+ViT(width=32,depth=3,heads=2,mlp=48)/8", {}),
    "ResNet": ("BiT-R26x1", {}),
}


def images_of(model: Model, count: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, *model.config.size, generator=generator)


def knowing(name: str = "token", scale: float = 1.0) -> Model:
    """A model that knows the inner features of images of noise."""
    shape, choices = MODELS[name]
    made = vitlab.create(shape, 3, 32, generator=torch.Generator().manual_seed(0), **choices)
    model: Model = noisy(made).eval()
    layer = layer_of(model.last_layer)
    inner = scale * model.inner(images_of(model, 40, 1), layer).detach().numpy()
    model.unlike = fit_unlike(inner, np.arange(40) % 3, np.arange(40) // 3 % 5, layer)
    return model


@torch.inference_mode()
def distances(model: Model, images: Any) -> Tensor:
    _, inner = model.judge(images)
    assert inner is not None
    assert model.unlike is not None
    return model.unlike.distances(exact(inner))


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_one_pass_gives_features_and_the_inner_of_a_layer(name: str) -> None:
    model = knowing(name)
    images, last = images_of(model, 3), model.last_layer
    assert model.unlike is not None
    assert model.unlike.layer == {"token": 1, "axial": 6, "one block": 1, "hybrid": 2,
                                  "pooled norm": 3, "ResNet": 2}[name]  # fmt: skip
    for layer in {1, model.unlike.layer, last}:
        features, inner = model.features_with_inner(images, layer)
        assert torch.equal(features, model.features(images))
        assert torch.equal(inner, model.inner(images, layer))
        (dense,) = model.intermediates(images, [layer], maps=True, norm=name == "ResNet")
        with_token = name not in ("pooled norm", "axial", "ResNet")
        wanted = dense.prefix[:, 0] if with_token else dense.map.flatten(2).mean(2)
        torch.testing.assert_close(inner, wanted)
        assert model.config.layer_width(layer) == inner.shape[1]
    assert model.config.layer_width(last + 1) == model.config.layer_width(0) == 0


@torch.inference_mode()
def test_images_of_different_sizes_have_the_inner_features_that_each_has_alone() -> None:
    model = knowing("pooled norm")
    sizes = ((32, 48), (16, 32), (32, 48), (40, 8))
    images = [torch.randn(3, *size, generator=torch.Generator().manual_seed(0)) for size in sizes]
    features, inner = model.features_with_inner(Packed.of(images, 8), 4)
    for row, image in enumerate(images):
        alone = model.resize((image.shape[1], image.shape[2])).eval()
        own, looked = alone.features_with_inner(image[None], 4)
        torch.testing.assert_close(features[row], own[0], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(inner[row], looked[0], rtol=1e-4, atol=1e-5)
    assert torch.equal(inner, model.inner(Packed.of(images, 8), 4))


@pytest.mark.parametrize("name", MODELS)
def test_every_engine_has_the_distances_of_the_plain_form(name: str) -> None:
    model = knowing(name)
    images, wanted = images_of(model, 5, 2), distances(model, images_of(model, 5, 2))
    assert (wanted > 0).all()
    for engine in available(model, torch.device("cpu"), torch.float32):
        if engine in RUNTIMES and name not in ("token", "one block"):
            continue
        form = vitlab.accelerate(model, device="cpu", precision="fp32", engine=engine)
        assert form.engine == engine
        copies = [form, pickle.loads(pickle.dumps(form))]
        if engine in RUNTIMES:  # which export each of them anew, for seconds
            copies = copies[1:] if name == "token" else copies[:1]
        else:
            copies.append(copy.deepcopy(form))
        for each in copies:
            torch.testing.assert_close(distances(each, images), wanted, rtol=1e-4, atol=0)
            torch.testing.assert_close(distances(each, images[:1]), wanted[:1], rtol=1e-4, atol=0)
        if engine in RUNTIMES:
            assert all(copies[0].encode.built.values())


def test_what_is_chosen_by_itself_gives_distances_as_near_as_probabilities() -> None:
    model = knowing()
    images = images_of(model, 4)
    precisions: tuple[Precision, ...] = ("auto", "fp32")
    for precision in precisions:
        form = vitlab.accelerate(model, device="cpu", precision=precision, engine="packed")
        found, wanted = distances(form, images), distances(model, images)
        assert ((found - wanted).abs() / wanted.clamp(min=1)).max() < 0.02


def test_tasks_on_one_base_have_the_distances_of_the_models_alone() -> None:
    """One has other blocks; two heads share a pass, with one that knows no distance."""
    base = knowing()
    base.unlike = None
    changes: dict[str, Any] = {}
    models: dict[str, Model] = {}
    for number, part in enumerate(("classify", "classify", "classify", "qkv")):
        model = copy.deepcopy(base)
        generator = torch.Generator().manual_seed(number)
        for key, weight in model.named_parameters():
            if part in key:
                weight.data += 0.1 * torch.randn(weight.shape, generator=generator)
        if number != 1:
            model.unlike = knowing(scale=1 + number).unlike
        changes[str(number)], models[str(number)] = vitlab.delta(model, base), model
    images, tasks = images_of(base, 8), ["0", "1", "2", "3"] * 2
    many = vitlab.MultiTask(base, changes)
    for (_, _, inner), image, task in zip(many.judge(images, tasks), images, tasks, strict=True):
        unlike = models[task].unlike
        if unlike is not None:
            assert inner is not None
            found = unlike.distances(exact(inner[None]))
            torch.testing.assert_close(
                found, distances(models[task], image[None]), rtol=1e-4, atol=0
            )


def old_tensors() -> dict[str, Tensor]:
    """What models of today's previous form kept."""
    return {
        "unlike.axes": torch.ones(24, 4), "unlike.centers": torch.ones(4, 4),
        "unlike.spread": torch.ones(4), "unlike.level": torch.tensor([0.0, 1.0]),
    }  # fmt: skip


class Old:
    """Stands for the class that `Model.unlike` had."""

    tensors = old_tensors()


def test_a_model_with_the_old_distance_loads_without_one_and_a_line_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = knowing()
    base = copy.deepcopy(model)
    base.unlike = None
    with torch.no_grad():
        model.get_parameter("head.classify.bias").add_(1)
    model.unlike = Old()  # type: ignore[assignment]
    folder = vitlab.save(model, tmp_path / "model")
    assert sorted(load_file(folder / UNLIKE)) == sorted(old_tensors())
    vitlab.save(base, tmp_path / "base")
    change = vitlab.delta(model, vitlab.load(tmp_path / "base"))
    file = change.save(tmp_path / "delta.safetensors")
    for source in (folder, file):
        caplog.clear()
        assert vitlab.load(source).unlike is None
        lines = [each.message for each in caplog.records if "training images" in each.message]
        assert len(lines) == 1
        assert "is left out" in lines[0]
        assert str(tmp_path) in lines[0]
        assert "\n" not in lines[0]
        (answer,) = vitlab.classify(vitlab.load(source), [np.zeros((32, 32, 3), np.uint8)])
        assert "distance" not in answer.as_dict()


def test_what_is_kept_is_read_back_and_fits_no_other_shape(tmp_path: Path) -> None:
    model = knowing()
    again = vitlab.load(vitlab.save(model, tmp_path / "model"))
    images = images_of(model, 3)
    torch.testing.assert_close(distances(again, images), distances(model, images), rtol=0, atol=0)
