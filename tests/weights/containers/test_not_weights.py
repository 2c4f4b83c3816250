"""Files that are not weights: each told what it is and what to do, in one line."""

import gzip
import io
import json
import pickle
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import vitlab
from vitlab.errors import WeightsError
from vitlab.weights.containers.open import open_source


def zipped(**files: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), content)
    return stream.getvalue()


def tarred() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("a.pth"), io.BytesIO())
    return stream.getvalue()


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def checkpoint() -> bytes:
    stream = io.BytesIO()
    torch.save({"x": torch.zeros(400)}, stream)
    return stream.getvalue()


def array() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    return stream.getvalue()


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 346\n"
ONNX = b"\x08\x08\x12\x07pytorch\x1a\x052.1.0:" + bytes(50)
FILES: dict[str, tuple[bytes, str]] = {
    "pointer.safetensors": (POINTER, "is a Git LFS pointer, .* run git lfs pull"),
    "page.pth": (b"<!DOCTYPE html><html><body>404", "is a web page, .* download it again"),
    "nothing.pth": (b"", "is empty: download it again"),
    "config.pth": (b'{"model_type": "vit"}', "is a JSON file, not weights"),
    "model.gguf": (b"GGUF\x03\x00\x00\x00" + bytes(40), "is a GGUF file, made for llama.cpp"),
    "flax.msgpack": (b"\x81\xa6params\x80", "is a Flax model .MessagePack.: give the safetensors"),
    "model.onnx": (ONNX, "is an ONNX model: give the weights"),
    "onnx.pth": (ONNX, "is an ONNX model"),
    "model.h5": (b"\x89HDF\r\n\x1a\n" + bytes(40), r"is a model for Keras \(HDF5\): convert it"),
    "model.keras": (
        zipped(metadata_dot_json=b"{}", model_dot_weights_dot_h5=b"x"),
        r"is a model for Keras \(HDF5\): convert it to safetensors",
    ),
    "model.tflite": (b"\x1c\x00\x00\x00TFL3" + bytes(20), "is a TensorFlow Lite model"),
    "model.ckpt.index": (b"\x00\x00\x01\x02", "is a TensorFlow checkpoint: convert it"),
    "saved_model.pb": (b"\x08\x01\x12\x90", "is a TensorFlow SavedModel"),
    "weights.zip": (zipped(a_dot_pth=checkpoint()), "is a zip archive of a.pth: unpack it"),
    "weights.tar": (tarred(), "is a tar archive: unpack it"),
    "weights.pth.gz": (gzip.compress(checkpoint()), "is compressed with gzip: unpack it first"),
    "array.npy": (array(), "is a single NumPy array: .* np.savez"),
    "cut.pth": (cut(checkpoint()), "is cut short: .* download it again"),
    "notes.txt": (b"hello\nworld", r"is a text file, not weights \('hello'\)"),
    "picture.pth": (b"\x89PNG\r\n\x1a\n", "is an image"),
    "noise.bin": (bytes(range(1, 200)), "is not a weights file"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_not_weights(name: str, tmp_path: Path) -> None:
    content, message = FILES[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(WeightsError, match=message) as caught:
        vitlab.load(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / name} ")


def test_a_download_that_stopped(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(400), "y": torch.zeros(10)}, tmp_path / "m.safetensors")
    whole = (tmp_path / "m.safetensors").read_bytes()
    for length, message in (
        (60, "is cut short: its header alone has"),
        (800, "not as long as its header"),
    ):
        (tmp_path / "m.safetensors").write_bytes(whole[:length])
        with pytest.raises(WeightsError, match=message):
            open_source(tmp_path / "m.safetensors")


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2).half()
        self.register_buffer("input_resolution", torch.tensor(224))

    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_torchscript_archive_and_the_advice_for_it(tmp_path: Path) -> None:
    file, trap = tmp_path / "m.pt", tmp_path / "sprung"
    torch.jit.save(torch.jit.trace(Scripted(), torch.zeros(1)), file)
    with pytest.raises(WeightsError, match="is a TorchScript archive: give the safe") as caught:
        open_source(file)
    assert len(str(caught.value).removeprefix(str(file))) < 200
    assert "save torch.jit.load(FILE).state_dict() with torch.save" in str(caught.value)
    torch.save(torch.jit.load(file).state_dict(), tmp_path / "s.pth")
    source = open_source(tmp_path / "s.pth")
    assert set(source.shapes) == {"layer.weight", "layer.bias", "input_resolution"}
    hostile = b"\x80\x02cposix\nsystem\nX" + len(f"touch {trap}").to_bytes(4, "little")
    hostile += f"touch {trap}".encode() + b"\x85R."
    file.write_bytes(zipped(m__data_dot_pkl=hostile, m__constants_dot_pkl=hostile))
    with pytest.raises(WeightsError, match="is a TorchScript archive"):
        open_source(file)
    assert not trap.exists()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["saved_model.pb", "variables/variables.index"], "contains a TensorFlow SavedModel"),
        (["checkpoint", "m.ckpt-5.index", "m.ckpt-5.data-00000-of-00001"], "TensorFlow checkpoint"),
        (["_METADATA", "manifest.ocdbt", "d/abc"], "contains an Orbax checkpoint of JAX: resto"),
        (["config.json", "tf_model.h5"], r"contains a model for Keras \(HDF5\)"),
        ([".metadata", "__0_0.distcp"], "contains a distributed checkpoint of PyTorch: make"),
        (["flax_model.msgpack"], "contains a Flax model"),
        (["m.onnx"], "contains an ONNX model"),
        (["m.gguf"], "contains a GGUF file"),
        (["config.json"], "has a config.json, but model.safetensors is missing"),
        (["README.md"], "contains no model: give a finished run"),
    ],
)
def test_folders_that_are_not_weights(files: list[str], message: str, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps({}))
    with pytest.raises(WeightsError, match=message):
        open_source(tmp_path)


def test_no_line_advises_to_unpickle(tmp_path: Path) -> None:
    """Whatever PyTorch's own reader would advise."""
    (tmp_path / "c.pth").write_bytes(pickle.dumps({"x": io.BytesIO}, protocol=2))
    with pytest.raises(WeightsError) as caught:
        open_source(tmp_path / "c.pth")
    for word in ("weights_only", "allow_pickle", "trust", "add_safe_globals", "\n"):
        assert word not in str(caught.value)
