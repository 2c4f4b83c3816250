"""What a model keeps of its training images travels with it, and a damaged file is refused."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import vitlab
from vitlab.errors import WeightsError
from vitlab.evaluation.unlike import fit_unlike
from vitlab.models.model import Model
from vitlab.weights.sharded import UNLIKE

NAME = "ViT(width=16,depth=1,heads=2,mlp=32)/8"


def knowing(seed: int = 0) -> Model:
    """A model that knows how far an image is from its training images."""
    generator = torch.Generator().manual_seed(seed)
    model: Model = vitlab.create(NAME, 3, 16, generator=generator)
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(60, 16)).astype(np.float32), np.arange(60) % 3
    model.unlike = fit_unlike(x, y, np.arange(60) // 3 % 5)
    return model


def kept(model: Model) -> dict[str, torch.Tensor]:
    assert model.unlike is not None
    return model.unlike.tensors


def same(one: Model, other: Model) -> bool:
    return all(torch.equal(each, kept(other)[name]) for name, each in kept(one).items())


def test_it_is_saved_and_loaded(tmp_path: Path) -> None:
    model = knowing()
    folder = vitlab.save(model, tmp_path / "model")
    again = vitlab.load(folder)
    assert same(again, model)
    assert same(vitlab.load(vitlab.save(again, tmp_path / "again")), model)
    assert same(model.resize(32), model)
    assert vitlab.load(folder, classes=5).unlike is None  # another classifier
    assert vitlab.load(folder / "model.safetensors").unlike is not None
    vitlab.save(vitlab.create(NAME, 3, 16), folder)  # in its place
    assert not (folder / UNLIKE).exists()
    assert vitlab.load(folder).unlike is None
    model.unlike = fit_unlike(np.eye(12, 8, dtype=np.float32), np.arange(12) % 3, np.arange(12) % 2)
    with pytest.raises(WeightsError, match=r"unlike\.axes \(8, 8\) does not fit ViT"):
        vitlab.load(vitlab.save(model, folder))


def test_a_delta_has_it(tmp_path: Path) -> None:
    base = vitlab.load(vitlab.save(vitlab.create(NAME, 0, 16), tmp_path / "base"))
    model = base.remade(base.config, base.state_dict())
    model = vitlab.load(tmp_path / "base", classes=3)
    model.unlike = knowing().unlike
    change = vitlab.delta(model, base)
    assert same(change.apply(base), model)
    assert same(vitlab.load(change.save(tmp_path / "own.safetensors")), model)


def test_other_formats_leave_it_out_and_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model: Model = vitlab.create(NAME, 3, 16, labels=("a", "b", "c"))
    model.unlike = knowing().unlike
    folder = vitlab.save(model, tmp_path / "timm", to="timm")
    assert "how far an image is from its training images: left out" in caplog.text
    assert vitlab.load(folder).unlike is None


@pytest.mark.parametrize("harm", ["bit", "cut", "nan", "shape", "other", "text"])
def test_a_damaged_file_is_refused_in_one_line(harm: str, tmp_path: Path) -> None:
    folder = vitlab.save(knowing(), tmp_path / "model")
    file = folder / UNLIKE
    tensors, content = load_file(file), file.read_bytes()
    axes = tensors["unlike.axes"]
    match harm:
        case "bit":
            file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "cut":
            file.write_bytes(content[:-9])
        case "nan":
            save_file(tensors | {"unlike.axes": axes * torch.nan}, file)
        case "shape":
            save_file(tensors | {"unlike.axes": axes[:8].clone()}, file)
        case "other":
            other = vitlab.save(knowing(1), tmp_path / "other")
            shutil.copy(other / UNLIKE, file)
        case "text":
            file.write_text("no tensors")
    with pytest.raises(WeightsError) as caught:
        vitlab.load(folder)
    assert "\n" not in str(caught.value)
    assert UNLIKE in str(caught.value)
