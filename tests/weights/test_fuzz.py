"""Other people's files, damaged in every way: one line or the right model, never a traceback."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import vitlab

SETTINGS = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=20
)
KINDS = ["timm", "transformers", "google", "pth", "vitlab"]


def tiny() -> Any:
    generator = torch.Generator().manual_seed(3)
    return vitlab.create("ViT-Ti1/8", 3, 16, generator=generator, gelu="tanh")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """A folder and its file of tensors in each format."""
    root = tmp_path_factory.mktemp("originals")
    found = {}
    for kind in KINDS:
        folder = root / kind
        if kind == "pth":
            vitlab.save(tiny(), root / "as_timm", to="timm")
            folder.mkdir()
            tensors = load_file(root / "as_timm" / "model.safetensors")
            torch.save({"model": tensors}, folder / "model.pth")
            found[kind] = (folder / "model.pth", folder / "model.pth")
            continue
        vitlab.save(tiny(), folder, to=kind)  # type: ignore[arg-type]
        name = "model.npz" if kind == "google" else "model.safetensors"
        found[kind] = (folder, folder / name)
    return found


def load(place: Path) -> Any:
    """A model, or None where it was refused in one line."""
    try:
        return vitlab.load(place, image_size=16)
    except vitlab.UserError as error:
        assert "\n" not in str(error)
        assert str(error)
        return None


def shapes(model: Any) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


@SETTINGS
@given(data=st.data())
@pytest.mark.parametrize("kind", KINDS)
def test_flipped_and_cut(
    kind: str, data: st.DataObject, originals: dict[str, tuple[Path, Path]]
) -> None:
    """Structure is refused; numbers may change in formats without checksums, shapes never."""
    place, file = originals[kind]
    content = file.read_bytes()
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.sampled_from([0, max(0, len(content) - 3000), 0]))
        position = start + data.draw(st.integers(0, min(len(content) - start - 1, 3000)))
        changed[position] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        changed = changed[: data.draw(st.integers(0, len(content) - 1))]
    try:
        file.write_bytes(changed)
        model = load(place)
        if model is not None:
            assert shapes(model) == shapes(tiny())
            if kind in ("google", "pth"):  # zips have checksums
                for name, tensor in tiny().state_dict().items():
                    assert torch.equal(model.state_dict()[name], tensor), name
    finally:
        file.write_bytes(content)


REGISTERS = {"registers": 2, "layer_scale": 0.1}
PREFIX = {"pool": "prefix", "registers": 1, "class_token": True}
BEIT = {"positions": "bias", "pool": "mean", "class_token": True, "norm_at": "pooled"}


@pytest.mark.parametrize(
    ("to", "choices"),
    [("vitlab", {}), ("timm", {}), ("timm", REGISTERS), ("timm", PREFIX), ("transformers", {}),
     ("transformers", REGISTERS | {"pool": "both"}), ("transformers", PREFIX),
     ("transformers", BEIT | {"layer_scale": 0.1})],
)  # fmt: skip
def test_no_part_goes_unmissed(to: Any, choices: dict[str, Any], tmp_path: Path) -> None:
    """Whichever is dropped; a model without both parts of its head is another matter."""
    file = vitlab.save(vitlab.create("ViT-Ti1/8", 3, 32, **choices), tmp_path, to=to)
    file = file / "model.safetensors"
    tensors = load_file(file)
    for name in tensors:
        save_file({n: t for n, t in tensors.items() if n != name}, file)
        assert load(tmp_path) is None or "mask_token" in name, name


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 300), st.floats(), st.text(max_size=5),
    st.lists(st.integers(-1, 40), max_size=3), st.dictionaries(st.text(max_size=3), st.integers()),
)  # fmt: skip


@SETTINGS
@given(data=st.data())
@pytest.mark.parametrize("kind", ["timm", "transformers", "vitlab"])
def test_configurations_that_lie(
    kind: str, data: st.DataObject, originals: dict[str, tuple[Path, Path]]
) -> None:
    """Any value of any kind for any key."""
    folder = originals[kind][0]
    file = folder / data.draw(
        st.sampled_from(["config.json"] + ["preprocessor_config.json"] * (kind == "transformers"))
    )
    content = file.read_text()
    told = json.loads(content)
    inner = data.draw(
        st.sampled_from([told, *(value for value in told.values() if isinstance(value, dict))])
    )
    inner[data.draw(st.sampled_from([*inner, "vision_config", "label_names"]))] = data.draw(VALUES)
    none = data.draw(st.none() | st.binary(max_size=300))  # or no configuration at all
    try:
        file.write_bytes(json.dumps(told).encode() if none is None else none)
        load(folder)
    finally:
        file.write_text(content)


class Trap:
    """A pickle that would write a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.file, "sprung"))


def test_booby_traps_do_not_spring(tmp_path: Path) -> None:
    trap = tmp_path / "sprung.txt"
    files = []
    with (tmp_path / "plain.pth").open("wb") as stream:
        pickle.dump({"model": {"patch_embed.proj.weight": Trap(trap)}}, stream)
    torch.save({"state_dict": Trap(trap)}, tmp_path / "zipped.pt")
    np.savez(tmp_path / "arrays.npz", **{"embedding/kernel": np.array([Trap(trap)], dtype=object)})
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "zipped.pt").read_bytes())
    files = ["plain.pth", "zipped.pt", "arrays.npz", "model.safetensors"]
    for name in files:
        with pytest.raises(ValueError, match=name):
            vitlab.load(tmp_path / name)
    assert not trap.exists()
