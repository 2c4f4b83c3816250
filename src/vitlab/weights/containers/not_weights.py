"""Recognize what is not weights, or cannot be read safely, and say what to do about it."""

import re
import zipfile
from pathlib import Path

AGAIN = "download it again"
CONVERT = "convert it to safetensors with the library that wrote it"

# Where the bytes are, which they are, what such a file is and what to do.
MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (
        0,
        b"version https://git-lfs.github.com/spec/",
        "is a Git LFS pointer, not the file itself: run git lfs pull in its repository, or "
        "download it from the repository's page",
    ),
    (0, b"GGUF", "is a GGUF file, made for llama.cpp: give the safetensors file of the same model"),
    (0, b"\x89HDF\r\n\x1a\n", f"is an HDF5 file, as Keras writes them: {CONVERT}"),
    (0, b"\x93NUMPY", "is a single NumPy array: a model needs its arrays by name, as np.savez "
     "writes them"),
    (4, b"TFL3", "is a TensorFlow Lite model: give the weights that it was converted from"),
    (257, b"ustar", "is a tar archive: unpack it, then give the file of weights in it"),
    (0, b"\x1f\x8b", "is compressed with gzip: unpack it first"),
    (0, b"\x28\xb5\x2f\xfd", "is compressed with zstd: unpack it first"),
    (0, b"\xfd7zXZ\x00", "is compressed with xz: unpack it first"),
    (0, b"BZh", "is compressed with bzip2: unpack it first"),
    (0, b"7z\xbc\xaf\x27\x1c", "is a 7z archive: unpack it, then give the file of weights in it"),
    (0, b"Rar!\x1a\x07", "is a RAR archive: unpack it, then give the file of weights in it"),
    (0, b"\x89PNG", "is an image, not weights"),
    (0, b"\xff\xd8\xff", "is an image, not weights"),
    (0, b"%PDF", "is a PDF file, not weights"),
)  # fmt: skip
ONNX = "is an ONNX model: give the weights that it was exported from, as safetensors or .pth"
SAVED_MODEL = f"is a TensorFlow SavedModel: {CONVERT}"
TF_CHECKPOINT = f"is a TensorFlow checkpoint: {CONVERT}"
ORBAX = (
    "is an Orbax checkpoint of JAX: restore it there and save its arrays by name with np.savez, or "
    "give the .npz or safetensors file of the same model"
)
DISTRIBUTED = (
    "a distributed checkpoint of PyTorch: make one file of its folder with python -m "
    "torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE.pth"
)
FLAX = (
    "a Flax model (MessagePack): give the safetensors file of the same model, or save its arrays "
    "by name with np.savez"
)
# A page, or the error of a storage service.
PAGE = re.compile(rb"(\xef\xbb\xbf)?\s*<(!doctype html|html|head|\?xml|!--|error>)", re.IGNORECASE)
# Files that a folder of another library has.
FOLDERS: tuple[tuple[str, str], ...] = (
    ("saved_model.pb", SAVED_MODEL),
    ("*.ckpt*.index", TF_CHECKPOINT),
    ("*.data-00000-of-*", TF_CHECKPOINT),
    ("_CHECKPOINT_METADATA", ORBAX),
    ("checkpoint_metadata", ORBAX),
    ("_METADATA", ORBAX),
    ("manifest.ocdbt", ORBAX),
    ("*.weights.h5", f"contains a model for Keras (.weights.h5): {CONVERT}"),
    ("tf_model.h5", f"contains a model for Keras (tf_model.h5): {CONVERT}"),
    ("*.onnx", "contains an ONNX model: give the weights that it was exported from"),
    (".metadata", f"is {DISTRIBUTED}"),
    ("*.msgpack", f"contains {FLAX}"),
    ("*.gguf", "contains a GGUF file, made for llama.cpp: give the safetensors files of the model"),
)


def reason(path: Path, start: bytes) -> str:
    """Return what a file is and what to do, if it is not weights; empty if it may be.

    Args:
        path: of the file; its name decides only where bytes cannot
        start: its first 512 bytes
    """
    if not start:
        return f"is empty: {AGAIN}"
    for place, magic, line in MAGIC:
        if start[place : place + len(magic)] == magic:
            return line
    if PAGE.match(start):
        return f"is a web page, not weights: the download was an error or a login page; {AGAIN}"
    if start[:2] == b"PK":
        return _zip_reason(path)
    if start[8:9] == b"{":
        return _cut_safetensors(path, start)
    if start.lstrip()[:1] in (b"{", b"["):
        return "is a JSON file, not weights: give the file of weights, or the folder of both"
    if path.suffix == ".msgpack":
        return f"is {FLAX}"
    if start[:2] == b"\x08\x01" and b"saved_model" in path.name.encode():
        return SAVED_MODEL
    if re.match(rb"\x08[\x01-\x20](\x12|\x3a)", start) or path.suffix == ".onnx":
        return ONNX
    if path.suffix in (".pdparams", ".pdopt"):
        return f"is a file of PaddlePaddle: {CONVERT}"
    if path.name.endswith(".index") or ".data-00000-of-" in path.name:
        return TF_CHECKPOINT
    if start[:1] != b"\x80" and _is_text(start):
        return f"is a text file, not weights ({_quoted(start)})"
    return ""


def folder_reason(path: Path) -> str:
    """Return what a folder without known weights is, and what to do; empty if unknown."""
    return next((line for pattern, line in FOLDERS if any(path.glob(pattern))), "")


def _zip_reason(path: Path) -> str:
    """What a zip is that holds no weights of PyTorch or NumPy."""
    if not zipfile.is_zipfile(path):
        return (
            f"is cut short: a zip archive of {path.stat().st_size:,} bytes without its end; {AGAIN}"
        )
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    inner = {name.rpartition("/")[2] for name in names}
    if "model.weights.h5" in inner:
        return f"is a Keras model: {CONVERT}"
    if any("serialized_exported_program" in name for name in inner) or (
        "archive_format" in inner and not _constants(names)
    ):
        return (
            "is a program that torch.export wrote: give the weights that it was exported from, "
            "saved with torch.save(model.state_dict(), FILE)"
        )
    if "data.pkl" in inner or (names and all(name.endswith(".npy") for name in names)):
        return ""
    if not names:
        return f"is an empty zip archive: {AGAIN}"
    more = ", …" if len(names) > 3 else ""
    shown = ", ".join(names[:3]) + more
    return f"is a zip archive of {shown}: unpack it, then give the file of weights in it"


def _constants(names: list[str]) -> bool:
    """Return whether an archive is one of TorchScript."""
    return any(name.endswith("/constants.pkl") or name == "constants.pkl" for name in names)


def _cut_safetensors(path: Path, start: bytes) -> str:
    """A safetensors file whose header does not fit into it."""
    header, size = int.from_bytes(start[:8], "little"), path.stat().st_size
    if size < 8 + header < 2**31:
        return f"is cut short: its header alone has {header:,} bytes, the file {size:,}; {AGAIN}"
    return ""


def _is_text(start: bytes) -> bool:
    try:
        text = start[:256].decode("ascii")
    except UnicodeDecodeError:
        return False
    return all(each.isprintable() or each in "\r\n\t" for each in text)


def _quoted(start: bytes) -> str:
    line = start.decode("ascii", "replace").strip().splitlines()
    return repr(line[0][:60]) if line else "blank lines"
