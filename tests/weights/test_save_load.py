"""Models out and back, bit for bit, and what is said of damaged ones."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitlab
from vitlab.errors import OptionError, WeightsError


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
        case "header":
            file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:])
        case "pickle":
            torch.save(tensors, file)
        case "gone":
            file.unlink()
    if how in ("truncated", "header", "pickle", "gone"):
        return "model.safetensors"
    save_file(tensors, file)
    told = {
        "json": ("config.json", "{"), "list": ("config.json", "[]"),
        "format": ("vitlab-9", content | {"format": "vitlab-9"}),
        "value": ("heads=7 does not divide width=192",
                  content | {"model": content["model"] | {"heads": 7}}),
        "field": ("color", content | {"model": content["model"] | {"color": 7}}),
    }  # fmt: skip
    if how in told:
        words, new = told[how]
        config.write_text(new if isinstance(new, str) else json.dumps(new))
        return words
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


def test_slips_are_answered_without_the_hub(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"names a shape, not weights: vitlab\.create makes it"):
        vitlab.load("ViT-B/16")
    with pytest.raises(OptionError, match="'num_labels': did you mean classes"):
        vitlab.load("google/vit-base-patch16-224", num_labels=3)
    with pytest.raises(WeightsError, match="no such file or folder"):
        vitlab.load(tmp_path / "nothing")
    with pytest.raises(WeightsError, match="contains no model: give a finished run"):
        vitlab.load(tmp_path)
