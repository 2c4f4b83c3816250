"""The list of formats: each has two doors, and what is in the list is everywhere."""

import io
import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import vitlab
from vitlab.errors import DiskError, HubError, OptionError, UserError, WeightsError
from vitlab.weights.identity import fingerprint
from vitlab.weights.load import load_check

NAME = "ViT(width=16,depth=1,heads=2,mlp=32)/8"


def tiny(**choices: Any) -> Any:
    generator = torch.Generator().manual_seed(0)
    return vitlab.create(NAME, 3, 16, generator=generator, **choices)


def test_load_check_of_a_delta(tmp_path: Path) -> None:
    base = tiny()
    model = tiny()
    with torch.no_grad():
        model.head.classify.bias += 1
    found = load_check(vitlab.delta(model, base).save(tmp_path / "d.safetensors"))
    assert (found.format, found.model) == (f"delta from {NAME}", NAME)
    assert [each.ours for each in found.tensors] == [("head.classify.bias",)]
    assert json.dumps(found.as_dict())
    loaded = vitlab.load(tmp_path / "d.safetensors", base=base, mean=0.25)
    assert loaded.config.mean == (0.25, 0.25, 0.25)
    with pytest.raises(OptionError, match="unknown model option 'meen': did you mean mean"):
        vitlab.load(tmp_path / "d.safetensors", base=base, meen=0.25)
    change = vitlab.delta(base, base)
    change.tensors["more"] = torch.zeros(1)
    with pytest.raises(WeightsError, match="the delta's tensor 'more' is not part of ViT"):
        change.apply(base)


# Computed by the code before the first release: deltas name their base by these numbers.
FINGERPRINTS: dict[tuple[str, tuple[tuple[str, float], ...]], str] = {
    ("ViT(width=8,depth=1,heads=2,mlp=16)/8", (("mean", 0.25), ("layer_scale", 0.5))): (
        "1af527af8a033d24b41d78c81e08367e312426d2e23b9cbbacdb8ded4db5ec1f"
    ),
    ("BiT-R(1-1)x1", ()): "0506f09e972f836f4092e03ff0c8fb0d7033ba8a0c0cab398678050817720874",
}


@pytest.mark.parametrize(("name", "choices"), FINGERPRINTS)
def test_fingerprints_stay(name: str, choices: tuple[tuple[str, float], ...]) -> None:
    model = vitlab.create(name, 2, 16, **dict(choices))
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) % 7)
    assert fingerprint(model) == FINGERPRINTS[name, choices]


def test_errors_are_typed(tmp_path: Path) -> None:
    """A caller can tell a typo from a damaged file, a missing repository and a full disk."""
    folder = vitlab.save(tiny(), tmp_path / "m")
    cases: list[tuple[type[UserError], Any]] = [
        (WeightsError, lambda: vitlab.load(tmp_path / "nothing")),
        (OptionError, lambda: vitlab.load(folder, heds=2)),
        (WeightsError, lambda: vitlab.load(folder, heads=3)),
        (HubError, lambda: vitlab.load("hf://nobody/nothing")),
        (HubError, lambda: vitlab.push(tiny(), "no-user")),
        (WeightsError, lambda: vitlab.push(vitlab.fuse(tiny()), "me/pets")),
        (WeightsError, lambda: vitlab.delta(tiny(), tiny()).apply(tiny(layer_scale=1.0))),
        (DiskError, lambda: vitlab.save(tiny(), folder / "config.json" / "inside")),
    ]
    for kind, call in cases:
        with pytest.raises(UserError) as caught:
            call()
        assert type(caught.value) is kind, caught.value
        assert "\n" not in str(caught.value)


def test_the_advice_of_messages_works(tmp_path: Path) -> None:
    pooled = tiny(pool="attention")
    with pytest.raises(WeightsError, match="save with classes=0"):
        vitlab.save(pooled, tmp_path / "m", to="transformers")
    headless = vitlab.load(vitlab.save(pooled, tmp_path / "own"), classes=0)
    assert vitlab.load(vitlab.save(headless, tmp_path / "m", to="transformers")).config.classes == 0
    tensors = load_file(vitlab.save(tiny(), tmp_path / "t", to="timm") / "model.safetensors")
    del tensors["pos_embed"]
    save_file(tensors, tmp_path / "none.safetensors")
    with pytest.raises(WeightsError, match="give --positions none, or --name"):
        vitlab.load(tmp_path / "none.safetensors", image_size=16, heads=2)
    loaded = vitlab.load(tmp_path / "none.safetensors", image_size=16, heads=2, positions="none")
    assert loaded.config.positions == "none"
    tensors = load_file(tmp_path / "own" / "model.safetensors")
    tensors["norm.weight"] = tensors["norm.weight"][None]  # Google's norms have more ones
    save_file(tensors, tmp_path / "own" / "model.safetensors")
    with pytest.raises(WeightsError, match=r"norm.weight has shape \(1, 16\), not \(16,\)"):
        vitlab.load(tmp_path / "own")


def test_an_array_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    content = io.BytesIO()
    np.save(content, np.zeros(3, np.float32))
    with zipfile.ZipFile(tmp_path / "m.npz", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            archive.writestr("a.npy", content.getvalue())
    with pytest.raises(WeightsError, match="tensor a occurs twice"):
        vitlab.load(tmp_path / "m.npz")


def test_more_tensors_than_any_model_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {str(number): torch.zeros(1) for number in range(5)}
    save_file(tensors, tmp_path / "m.safetensors")
    torch.save(tensors, tmp_path / "m.pth")
    monkeypatch.setattr("vitlab.weights.containers.open.MOST", 4)
    for name in ("m.safetensors", "m.pth"):
        with pytest.raises(WeightsError, match="has 5 tensors; the limit is 4"):
            vitlab.load(tmp_path / name)
