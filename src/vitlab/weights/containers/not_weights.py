"""What is not weights, or cannot be read safely: recognized in one table, each with what works."""

import fnmatch
import re
from collections.abc import Sequence

_AGAIN = "download it again"
_CONVERT = "convert it to safetensors with the library that wrote it"
_INSIDE = "unpack it, then give the file of weights in it"
# The first bytes of a file (a regular expression); names of files, of which one is the file itself
# or in the folder or archive; what it is, and what to do. The first that fits is said.
KINDS: tuple[tuple[bytes, str, str], ...] = (
    (rb"\Z", "", f"empty: {_AGAIN}"),
    (rb"PK\x05\x06", "", f"an empty zip archive: {_AGAIN}"),
    (rb"version https://git-lfs", "", "a Git LFS pointer, not the file itself: run git lfs pull in "
     "its repository, or download it from the repository's page"),
    (rb"(?i)(\xef\xbb\xbf)?\s*<(!doctype html|html|head|\?xml|!--|error>)", "", "a web page, not "
     f"weights: the download was an error or a login page; {_AGAIN}"),
    (rb"", "constants.pkl", "a TorchScript archive: give the safetensors file of the same model, "
     "or, where you trust it, save torch.jit.load(FILE).state_dict() with torch.save"),
    (rb"", "serialized_exported_program* archive_format", "a program that torch.export wrote: give "
     "the weights that it was exported from, saved with torch.save(model.state_dict(), FILE)"),
    (rb"GGUF", "*.gguf", "a GGUF file, made for llama.cpp: give the safetensors file of the same "
     "model"),
    (rb"\x89HDF\r\n\x1a\n", "*.h5", f"a model for Keras (HDF5): {_CONVERT}"),
    (rb".{4}TFL3", "*.tflite", "a TensorFlow Lite model: give the weights that it was converted "
     "from"),
    (rb"", "saved_model.pb", f"a TensorFlow SavedModel: {_CONVERT}"),
    (rb"", "*.ckpt*.index *.data-00000-of-*", f"a TensorFlow checkpoint: {_CONVERT}"),
    (rb"", "_CHECKPOINT_METADATA checkpoint_metadata _METADATA manifest.ocdbt", "an Orbax "
     "checkpoint of JAX: restore it there and save its arrays by name with np.savez, or give the "
     ".npz or safetensors file of the same model"),
    (rb"", ".metadata", "a distributed checkpoint of PyTorch: make one file of its folder with "
     "python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE.pth"),
    (rb"", "*.msgpack", "a Flax model (MessagePack): give the safetensors file of the same model, "
     "or save its arrays by name with np.savez"),
    (rb"\x08[\x01-\x20](\x12|\x3a)", "*.onnx", "an ONNX model: give the weights that it was "
     "exported from, as safetensors or .pth"),
    (rb"", "*.pdparams *.pdopt", f"a file of PaddlePaddle: {_CONVERT}"),
    (rb"\x93NUMPY", "", "a single NumPy array: a model needs its arrays by name, as np.savez "
     "writes them"),
    (rb".{257}ustar", "", f"a tar archive: {_INSIDE}"),
    (rb"\x1f\x8b", "", "compressed with gzip: unpack it first"),
    (rb"\x28\xb5\x2f\xfd|\xfd7zXZ\x00|BZh|7z\xbc\xaf\x27\x1c|Rar!", "", f"compressed: {_INSIDE}"),
    (rb"\x89PNG|\xff\xd8\xff|%PDF", "", "an image or a document, not weights"),
    (rb"\s*[\[{]", "", "a JSON file, not weights: give the file of weights, or the folder of both"),
    (rb"[\t\r\n -~]{256}|[\t\r\n -~]+\Z", "", "a text file, not weights ({!r})"),
)  # fmt: skip


def reason(names: Sequence[str], start: bytes = b"\0") -> str:
    """Return what a file or folder is and what to do, if it is no weights; empty if it may be.

    Args:
        names: of the file, or of those in an archive or a folder
        start: the file's first 512 bytes
    """
    for pattern, globs, what in KINDS:
        known = pattern and re.match(pattern, start, re.DOTALL)
        if known or any(fnmatch.filter(names, glob) for glob in globs.split()):
            return what.format(start[:60].decode("ascii", "replace").strip().partition("\n")[0])
    return ""
