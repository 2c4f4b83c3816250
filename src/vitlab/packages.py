"""Packages that only some features need: imported where they are used, named where missing.

`pip install vitlab` is enough to train and fine-tune on images in files, to report, predict and
evaluate, and to load anybody's weights. The rest comes with an extra, as `vitlab[datasets]`.
"""

import importlib
import importlib.util
import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from vitlab.errors import PackageError

# The extra of pyproject.toml that installs each of them.
EXTRAS = {
    "datasets": "datasets",
    "pyarrow": "datasets",
    "aiohttp": "remote",
    "s3fs": "remote",
    "gcsfs": "remote",
    "adlfs": "remote",
    "pytorch_optimizer": "optimizers",
    "tensorboard": "track",
    "pillow_heif": "heif",
    "soundfile": "audio",
    "av": "video",
    "pycocotools": "coco",
    "onnx": "export",
    "onnxscript": "export",
    "onnxruntime": "export",
    "openvino": "openvino",
    "fastapi": "serve",
    "uvicorn": "serve",
    "prometheus_client": "serve",
    "ray": "ray",
}


def install(package: str) -> str:
    """Return the command that installs a package with the extra that has it."""
    return f'pip install "vitlab[{EXTRAS[package]}]"'


def check_installed(package: str, what: str, instead: str = "") -> None:
    """Refuse what needs a missing package, without importing the package if it is there.

    Args:
        package: a key of `EXTRAS`
        what: what needs it: begins the message
        instead: what would work without it: ends the message

    Raises:
        PackageError: it is not installed.
    """
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        found = None
    if found is None:
        rest = f", or {instead}" if instead else ""
        raise PackageError(f"{what} needs the package {package}: {install(package)}{rest}")


def version_of(package: str) -> str:
    """Return a package's version; ours has none where a checkout is imported from its folder."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def silent_onnxruntime() -> Any:
    """Import ONNX Runtime, which sends usage data from 1.29 on, without that."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    return importlib.import_module("onnxruntime")


def needed(package: str, what: str, instead: str = "") -> Any:
    """Import a package that only some features need.

    Args:
        package: a key of `EXTRAS`
        what: what needs it: begins the message
        instead: what would work without it: ends the message

    Raises:
        PackageError: it is not installed, or cannot be imported.
    """
    check_installed(package, what, instead)
    try:
        return importlib.import_module(package)
    except (ImportError, RuntimeError) as error:  # for instance one built for another NumPy
        reason = " ".join(str(error).split())
        again = install(package)
        raise PackageError(f"{package} cannot be imported ({reason}): {again} -U") from error
