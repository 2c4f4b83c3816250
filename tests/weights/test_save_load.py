"""Models out and back, bit for bit, and what is said of damaged ones."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy import ndimage

import vitlab
from vitlab.errors import OptionError, WeightsError
from vitlab.models.positions.resampling import resample


def tiny(**choices: object) -> vitlab.VisionTransformer:
    return vitlab.create("ViT-Ti/8", 3, 16, depth=1, labels=("a", "b", "ü"), **choices)


def test_round_trip_is_exact(tmp_path: Path) -> None:
    model = tiny(pool="mean", mean=(0.1, 0.2, 0.3), crop=0.9)
    model.provenance = {"data": "here", "seed": 3}
    vitlab.save(model, tmp_path / "m")
    loaded = vitlab.load(tmp_path / "m")
    assert loaded.config == model.config
    assert loaded.provenance == model.provenance
    assert not loaded.training
    assert all(weight.requires_grad for weight in loaded.parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    assert sorted(each.name for each in (tmp_path / "m").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


def test_saving_again_replaces_and_other_things_are_kept(tmp_path: Path) -> None:
    vitlab.save(tiny(), tmp_path / "m")
    second = tiny()
    vitlab.save(second, tmp_path / "m")
    loaded = vitlab.load(tmp_path / "m")
    assert torch.equal(loaded.stem.layers[0].weight, second.stem.layers[0].weight)
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="exists and contains no saved model"):
        vitlab.save(second, tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_another_number_of_classes_starts_a_zero_head(tmp_path: Path) -> None:
    model = tiny()
    vitlab.save(model, tmp_path / "m")
    loaded = vitlab.load(tmp_path / "m", classes=7)
    images = torch.randn(2, 3, 16, 16)
    assert loaded(images).shape == (2, 7)
    assert not loaded(images).any()
    assert loaded.config.labels == ()
    torch.testing.assert_close(loaded.features(images), model.eval().features(images))


@pytest.mark.parametrize("new", [(9, 5), (2, 3), (4, 4)])
def test_positions_resize_as_scipy_zooms(new: tuple[int, int]) -> None:
    """The official code uses scipy.ndimage.zoom with order 1, class token aside."""
    table = torch.randn(1, 1 + 4 * 4, 6)
    got = resample(table, (4, 4), new)
    grid = table[0, 1:].reshape(4, 4, 6).double().numpy()
    want = ndimage.zoom(grid, (new[0] / 4, new[1] / 4, 1), order=1)
    torch.testing.assert_close(
        got[0, 1:].double(), torch.from_numpy(want.reshape(-1, 6)), atol=1e-6, rtol=0
    )
    assert torch.equal(got[:, :1], table[:, :1])


def damage(folder: Path, how: str) -> str:
    """Spoil a saved model; returns what the message must name."""
    file, config = folder / "model.safetensors", folder / "config.json"
    tensors = {name: tensor.clone() for name, tensor in load_file(file).items()}
    content = json.loads(config.read_text())
    match how:
        case "missing":
            del tensors["norm.weight"]
        case "extra":
            tensors["extra.weight"] = torch.zeros(1)
        case "shape":
            tensors["norm.weight"] = torch.zeros(7)
        case "nan":
            tensors["norm.weight"][3] = torch.nan
        case "kind":
            tensors["norm.weight"] = torch.zeros(192, dtype=torch.int64)
        case "truncated":
            file.write_bytes(file.read_bytes()[:-9])
            return "model.safetensors"
        case "header":
            file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:])
            return "model.safetensors"
        case "pickle":
            torch.save(tensors, file)
            return "model.safetensors"
        case "gone":
            file.unlink()
            return "model.safetensors"
        case "json":
            config.write_text("{")
            return "config.json"
        case "format":
            config.write_text(json.dumps(content | {"format": "vitlab-9"}))
            return "vitlab-9"
        case "value":
            content["model"]["heads"] = 7
            config.write_text(json.dumps(content))
            return "heads=7 does not divide width=192"
        case "field":
            content["model"]["color"] = 7
            config.write_text(json.dumps(content))
            return "color"
        case "list":
            config.write_text("[]")
            return "config.json"
    save_file(tensors, file)
    return "extra.weight" if how == "extra" else "norm.weight"


HOW = "missing extra shape nan kind truncated header pickle gone json format value field list"


@pytest.mark.parametrize("how", HOW.split())
def test_damage_is_one_line_that_names_it(tmp_path: Path, how: str) -> None:
    folder = vitlab.save(tiny(), tmp_path / "m")
    names = damage(folder, how)
    with pytest.raises(ValueError) as caught:
        vitlab.load(folder)
    assert names in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_loaded_model_does_not_depend_on_the_file(tmp_path: Path) -> None:
    """Memory-mapped tensors would change with the file, or crash when it is cut."""
    folder = vitlab.save(tiny(), tmp_path / "m")
    model = vitlab.load(folder)
    before = model.stem.layers[0].weight.clone()
    (folder / "model.safetensors").write_bytes(b"")
    assert torch.equal(model.stem.layers[0].weight, before)


def test_slips_are_answered_without_the_hub() -> None:
    with pytest.raises(WeightsError, match=r"names a shape, not weights: vitlab\.create makes it"):
        vitlab.load("ViT-B/16")
    with pytest.raises(OptionError, match="'num_labels': did you mean classes"):
        vitlab.load("google/vit-base-patch16-224", num_labels=3)


def test_where_there_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file or folder"):
        vitlab.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match="contains no model: give a finished run"):
        vitlab.load(tmp_path)
