"""Files and folders that are not weights, or not weights of a Vision Transformer."""

import gzip
import io
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from made_files import tarred, zipped
from refusals.files import register

ONNX = b"\x08\x08\x12\x07pytorch\x1a\x052.1.0:" + bytes(50)
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 346\n"
HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(40)


def checkpoint() -> bytes:
    """A file of `torch.save`."""
    stream = io.BytesIO()
    torch.save({"x": torch.zeros(400)}, stream)
    return stream.getvalue()


def array() -> bytes:
    """A file of `np.save`."""
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    return stream.getvalue()


FILES: dict[str, bytes] = {
    "pointer.safetensors": POINTER,
    "page.pth": b"<!DOCTYPE html><html><body>404",
    "nothing.pth": b"",
    "config.pth": b'{"model_type": "vit"}',
    "model.gguf": b"GGUF\x03\x00\x00\x00" + bytes(40),
    "flax.msgpack": b"\x81\xa6params\x80",
    "model.onnx": ONNX,
    "onnx.pth": ONNX,
    "model.h5": HDF5,
    "model.keras": zipped(("metadata.json", b"{}"), ("model.weights.h5", b"x")),
    "model.tflite": b"\x1c\x00\x00\x00TFL3" + bytes(20),
    "model.ckpt.index": b"\x00\x00\x01\x02",
    "saved_model.pb": b"\x08\x01\x12\x90",
    "weights.zip": zipped(("a.pth", checkpoint())),
    "weights.tar": tarred(("a.pth", b"")),
    "weights.pth.gz": gzip.compress(checkpoint()),
    "array.npy": array(),
    "cut.pth": checkpoint()[: len(checkpoint()) // 2],
    "notes.txt": b"hello\nworld",
    "picture.pth": b"\x89PNG\r\n\x1a\n",
    "noise.bin": bytes(range(1, 200)),
    "vit.pdparams": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}",
}
FOLDERS: dict[str, tuple[str, ...]] = {
    "saved-model": ("saved_model.pb", "variables/variables.index"),
    "tensorflow": ("checkpoint", "m.ckpt-5.index", "m.ckpt-5.data-00000-of-00001"),
    "orbax": ("_METADATA", "manifest.ocdbt", "d/abc"),
    "keras": ("config.json", "tf_model.h5"),
    "keras-hub": ("config.json", "model.weights.h5"),
    "distributed": (".metadata", "__0_0.distcp"),
    "flax": ("flax_model.msgpack",),
    "onnx": ("m.onnx",),
    "gguf": ("m.gguf",),
    "config-alone": ("config.json",),
    "readme": ("README.md",),
}


@register
def no_weights(folder: Path) -> None:
    """Files by what they are instead."""
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    tensors = {"x": torch.zeros(400), "y": torch.zeros(10)}
    save_file(tensors, folder / "whole.safetensors")
    whole = (folder / "whole.safetensors").read_bytes()
    for name, length in (("header", 60), ("tensors", 800)):
        (folder / f"{name}.safetensors").write_bytes(whole[:length])
    torch.save(torch.optim.AdamW([torch.ones(4)]).state_dict(), folder / "optimizer.pt")


@register
def no_model(folder: Path) -> None:
    """Folders by what they contain instead."""
    for name, files in FOLDERS.items():
        for file in files:
            (folder / name / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / file).write_text("{}")


@register
def radio(folder: Path) -> None:
    """Weights of RADIO, for a configuration beside them."""
    names = ("patch_generator.embedder.weight", "blocks.0.attn.qkv.weight")
    tensors = {f"radio_model.model.{name}": torch.zeros(4, 12) for name in names}
    save_file(tensors, folder / "model.safetensors")
