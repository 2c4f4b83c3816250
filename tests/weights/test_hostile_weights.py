"""Other people's weights, damaged in every way: one line or the right model, nothing unbounded."""

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import vitlab
from conftest import photo_folder
from made_models import equal
from vitlab.data.open import open_images
from vitlab.data.open_splits import split_opened
from vitlab.models.config import ViTConfig
from vitlab.weights.containers import pickles
from vitlab.weights.save import own_folder, save_provenance
from vitlab.weights.source import all_finite
from vitlab.weights.stated import Stated

FLIPS = int(os.environ.get("VITLAB_FLIPS", "80"))


def tiny() -> Any:
    generator = torch.Generator().manual_seed(3)
    name = "ViT(width=8,depth=1,heads=2,mlp=8)/4"
    return vitlab.create(name, 3, 8, generator=generator, labels=("ant", "bee", "cow"))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return vitlab.save(tiny(), tmp_path / "saved")


def refused(place: object, **given: Any) -> str:
    with pytest.raises(vitlab.UserError) as error:
        vitlab.load(place, **given)  # type: ignore[arg-type]
    assert str(error.value).isprintable()
    return str(error.value)


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << (bit % 8)
    return bytes(changed)


def same(model: Any, other: Any) -> bool:
    """Whether two models give the same probabilities, to the bit, and call classes alike."""
    about = (model.config, model.temperature) == (other.config, other.temperature)
    return about and equal(model, other)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_no_flipped_bit_loads_as_another_model(saved: Path, name: str) -> None:
    """`VITLAB_FLIPS=10000 pytest …` tries as many."""
    file, original = saved / name, vitlab.load(saved)
    content = file.read_bytes()
    generator = np.random.default_rng(0)
    found = 0
    for bit in generator.choice(8 * len(content), min(FLIPS, 8 * len(content)), replace=False):
        file.write_bytes(flipped(content, int(bit)))
        try:
            assert same(vitlab.load(saved), original), f"bit {bit}"
        except vitlab.UserError as error:
            found += 1
            assert str(saved) in str(error)
    assert found >= FLIPS * 0.7


def test_weights_that_were_changed_load_after_following_the_advice(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {name: tensor + 1 for name, tensor in tiny().state_dict().items()}
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)  # which all read
    assert same(vitlab.load(saved), tiny())
    save_file(tensors, saved / "model.safetensors")
    message = refused(saved)
    assert f"{saved}: tensor {next(iter(tensors))!r} does not match its checksum" in message
    assert "remove tensors and sha256 from its config.json if it was changed on" in message
    config = json.loads((saved / "config.json").read_text())
    del config["tensors"]
    (saved / "config.json").write_text(json.dumps(config))
    assert "config.json does not match its checksum: copy it again, or remove sha256" in refused(
        saved
    )
    del config["sha256"]
    (saved / "config.json").write_text(json.dumps(config))
    model = vitlab.load(saved)
    assert all(torch.equal(own, tensors[name]) for name, own in model.state_dict().items())
    again = vitlab.save(model, saved.parent / "again")
    assert {"tensors", "sha256"} <= json.loads((again / "config.json").read_text()).keys()
    assert same(vitlab.load(again), model)


def test_a_new_provenance_has_a_new_checksum(saved: Path) -> None:
    model = vitlab.load(saved)
    model.provenance["temperature"] = 2.0
    save_provenance(model, own_folder(saved))
    assert vitlab.load(saved).temperature == 2
    text = (saved / "config.json").read_text()
    (saved / "config.json").write_text(text.replace('"temperature": 2.0', '"temperature": 3.0'))
    assert "does not match its checksum" in refused(saved)


def test_shards_and_all_types_of_numbers_have_checksums(tmp_path: Path) -> None:
    model = tiny().to(torch.bfloat16)
    folder = vitlab.save(model, tmp_path / "shards", shard_bytes=500)
    assert len(list(folder.glob("*.safetensors"))) > 1
    assert same(vitlab.load(folder), vitlab.load(vitlab.save(model, tmp_path / "one")))
    file = sorted(folder.glob("*.safetensors"))[1]
    file.write_bytes(flipped(file.read_bytes(), 8 * file.stat().st_size - 3))
    assert "does not match its checksum" in refused(folder)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_numbers_are_finite_though_their_sum_is_not(dtype: torch.dtype) -> None:
    large = torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)
    assert all_finite(large)
    assert all_finite(large[:0])
    for wrong in (float("nan"), float("inf"), -float("inf")):
        assert not all_finite(large.index_fill(0, torch.tensor([7]), wrong))
    both = torch.tensor([float("inf"), -float("inf"), 1.0], dtype=dtype)
    assert not all_finite(both)


LARGE: dict[str, Any] = {
    "depth": [10**9, 2001], "branches": [10**6], "channels": [5000], "classes": [10**12],
    "width": [10**6], "heads": [10**9], "mlp": [10**12], "image_size": [10**9, 2**14],
    "patch": [10**9], "registers": [10**9], "queries": [10**9], "pool_mlp": [10**13],
    "pre_logits": [10**12], "mean": [[float("nan")], [1e400], "0.5"], "std": [[0.0]],
    "labels": ["ant", [1, 2, 3], [["a"], "b", "c"]], "stages": [[10**9], [1] * 20],
    "tokens": [10**9], "norm_eps": [float("inf")],
}  # fmt: skip
CASES = [(name, value) for name, values in LARGE.items() for value in values]


def test_hostile_configurations(saved: Path) -> None:
    """Refused before anything is built, so that each takes milliseconds."""
    file = saved / "config.json"
    content = json.loads(file.read_text())
    del content["sha256"], content["tensors"]
    for field, value in CASES:
        model = content["model"] | {field: value}
        model |= {"classes": 1} if field == "labels" and isinstance(value, str) else {}
        model |= {"stages": {"stem": "resnet"}, "tokens": {"fit": "native"}}.get(field, {})
        file.write_text(json.dumps(content | {"model": model}))
        assert len(refused(saved)) < 600, (field, value)
    for field, value in {"stages": (10**9,), "widen": 10**6, "classes": 10**12}.items():
        with pytest.raises(vitlab.UserError):
            vitlab.create("BiT-R50x1", **{field: value})


def test_the_largest_published_models_are_allowed() -> None:
    ViTConfig(width=6144, depth=48, heads=48, mlp=24576, patch=14, classes=30_000)  # ViT-22B
    ViTConfig(depth=1000, width=192, heads=3, image_size=4096, channels=500)


def test_pipes_and_devices_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.pth")
    os.mkfifo(tmp_path / "names.txt")
    assert refused(tmp_path / "model.pth") == f"{tmp_path / 'model.pth'} is not a regular file"
    assert "/dev/zero is not a regular file" in refused("/dev/zero")
    with pytest.raises(vitlab.UserError, match="not a regular file"):
        Stated(labels=(str(tmp_path / "names.txt"),))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / "model.safetensors")
    refused(tmp_path / "folder")


def bomb(file: Path, name: str, size: int, first: bytes = b"") -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.") if not first else None
        with archive.open(name, "w", force_zip64=True) as stream:
            stream.write(first)
            for _ in range(size >> 20):
                stream.write(bytes(2**20))
    return file


def test_zip_bombs_are_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Recognized by what their lists of files state."""
    monkeypatch.setattr("vitlab.weights.containers.arrays.ALWAYS", 2**20)
    monkeypatch.setattr(zipfile.ZipExtFile, "read", lambda *_: pytest.fail("unpacked"))
    message = refused(bomb(tmp_path / "bomb.pth", "archive/data/0", 2**24))
    assert "that unpacks to 17 MB: not weights; if they are, save them again" in message
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "|u1", "fortran_order": False, "shape": (2**24,)}
    )
    message = refused(bomb(tmp_path / "bomb.npz", "x.npy", 2**24, header.getvalue()))
    assert "that unpacks to 17 MB" in message


def test_archives_with_endless_lists_or_overlapping_files(tmp_path: Path) -> None:
    file = tmp_path / "m.pth"
    torch.save({"a": torch.zeros(100)}, file)
    content = file.read_bytes()
    end = content.rfind(b"PK\5\6")
    (length,) = struct.unpack_from("<L", content, end + 12)
    (start,) = struct.unpack_from("<L", content, end + 16)
    entries = content[start : start + length]

    def with_entries(times: int) -> bytes:
        tail = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, times * length, start, 0)
        return content[:start] + entries * times + tail

    file.write_bytes(with_entries(40))
    assert "is a zip archive whose files overlap" in refused(file)
    file.write_bytes(with_entries(1 + 10 * 2**20 // length))
    assert "whose list of files has" in refused(file)


def test_pickles_of_endless_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickles.Counted, "left", 1000)
    torch.save({"a": torch.zeros(2)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    stored = pickles.read_pickle(tmp_path / "old.pth", zipped=False).root["a"]
    assert stored.read().tolist() == [0, 0]
    deep = b"\x80\x02" + b"]" * 2000 + b"a" * 1999 + b"."
    (tmp_path / "deep.pth").write_bytes(deep)
    assert "a pickle of more than" in refused(tmp_path / "deep.pth")
    with zipfile.ZipFile(tmp_path / "zip.pth", "w") as archive:
        archive.writestr("m/data.pkl", b"\x80\x02" + b"]" * 11 * 2**20)
    assert "its data.pkl, which describes the tensors, has 11,5" in refused(tmp_path / "zip.pth")


def test_a_name_that_several_outputs_have(tmp_path: Path) -> None:
    """ImageNet has two classes "crane" in published models: such a model loads and predicts."""
    model = vitlab.create("ViT(width=8,depth=1,heads=2,mlp=8)/4", 3, 8, labels=("a", "b", "b"))
    assert vitlab.load(vitlab.save(model, tmp_path / "m")).config.labels == ("a", "b", "b")
    photos = str(photo_folder(tmp_path / "photos", {"a": 3, "b": 3}))
    with pytest.raises(vitlab.UserError, match=r"class 'b', the name of several of the model's"):
        split_opened(open_images(photos, classes=model.config.labels))


Tensors = dict[str, torch.Tensor]


def without(tensors: Tensors, *words: str) -> Tensors:
    return {n: t for n, t in tensors.items() if not any(word in n for word in words)}


OTHERWISE: list[tuple[str, Callable[[Tensors], Tensors], str]] = [
    ("timm", lambda t: t | {"patch_embed.proj.weight": t["patch_embed.proj.weight"].flatten(1)},
     "the patches' kernel has shape (192, 192)"),
    ("timm", lambda t: t | {"blocks.0.attn.qkv.weight": torch.ones(576, 192, dtype=torch.bool)},
     "tensor blocks.0.attn.qkv.weight has type torch.bool, not weights"),
    ("timm", lambda t: without(t, "head") | {"head_dist.weight": torch.ones(3, 192)},
     "a distilled model without its first classifier"),
    ("google", lambda t: without(t, "MlpBlock"), "no MLP kernels in the blocks"),
    ("google", lambda t: t | {n: v.flatten(1) for n, v in t.items() if n.endswith("query/kernel")},
     "no attention kernels of shape (width, heads, head width)"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(OTHERWISE)))
def test_tensors_of_another_shape_are_named(number: int, tmp_path: Path) -> None:
    to, change, words = OTHERWISE[number]
    vitlab.save(small(), tmp_path / "m", to=to)  # type: ignore[arg-type]
    if to == "google":
        with np.load(tmp_path / "m" / "model.npz") as stored:
            arrays = {name: torch.from_numpy(stored[name]) for name in stored.files}
        np.savez(tmp_path / "other.npz", **{n: v.numpy() for n, v in change(arrays).items()})
        message = refused(tmp_path / "other.npz")
    else:
        file = tmp_path / "m" / "model.safetensors"
        save_file(change(load_file(file)), tmp_path / "other.safetensors")
        message = refused(tmp_path / "other.safetensors", heads=3)
    assert words in message


SETTINGS = settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=20)
KINDS = ["timm", "transformers", "google", "pth", "vitlab"]


def small() -> Any:
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
            vitlab.save(small(), root / "as_timm", to="timm")
            folder.mkdir()
            tensors = load_file(root / "as_timm" / "model.safetensors")
            torch.save({"model": tensors}, folder / "model.pth")
            found[kind] = (folder / "model.pth", folder / "model.pth")
            continue
        vitlab.save(small(), folder, to=kind)  # type: ignore[arg-type]
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
            shapes = [{n: t.shape for n, t in m.state_dict().items()} for m in (model, small())]
            assert shapes[0] == shapes[1]
            assert kind not in ("google", "pth") or equal(model, small())  # zips have checksums
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
