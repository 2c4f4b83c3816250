"""Targets of an export. To add a target, write its file here and give it an entry of `TARGETS`.

No PyTorch here: a target's module is imported when it first writes.
"""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from vitlab.by_name import load_object
from vitlab.errors import OptionError, PackageError
from vitlab.options import nearest
from vitlab.packages import check_installed
from vitlab.places import check_new_file, check_new_folder

Precision = Literal["fp32", "fp16", "int8"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
PRECISION = (
    "of the weights: fp16 halves the file and computes in fp32; int8 quarters it and computes most "
    "dense layers in 8 bits, with scales from --data"
)
COMPILER = (
    "install g++ (Debian and Ubuntu: apt install g++; macOS: xcode-select --install), or name "
    "another compiler in the environment variable CXX"
)
MODEL = "model.onnx"  # in a folder
IMAGES = 1000  # that the cost of a precision is measured on, at most


@dataclass(frozen=True)
class ExportTarget:
    """One kind of file, or of folder.

    Attributes:
        help: one phrase for `--help`
        ending: of its files; empty for folders
        home: its function, as "module:object", that writes a model into a file or folder and
            checks it
        packages: that it needs, keys of `packages.EXTRAS`
        compiled: whether it needs a C++ compiler
        narrow: whether it has the options of ONNX files: fewer bits, a folder, a fixed batch
    """

    help: str
    ending: str
    home: str
    packages: tuple[str, ...] = ()
    compiled: bool = False
    narrow: bool = False

    @property
    def write(self) -> Callable[..., dict[str, Any]]:
        """Return the function that writes a model into a file or folder and checks it."""
        function: Callable[..., dict[str, Any]] = load_object(self.home)
        return function


TARGETS: dict[str, ExportTarget] = {
    "onnx": ExportTarget(
        "a file for ONNX Runtime and others, from raw images to class names, or a folder with this "
        "file and a script that checks it where it will run",
        ".onnx",
        "vitlab.graphs.onnx_file:write",
        ("onnx", "onnxscript", "onnxruntime"),
        narrow=True,
    ),
    "torch": ExportTarget(
        "a compiled package for PyTorch, from raw images to probabilities",
        ".pt2",
        "vitlab.graphs.torch_file:write",
        compiled=True,
    ),
    "web": ExportTarget(
        "a folder with a page that runs the model in a browser, without a server or a network",
        "",
        "vitlab.graphs.web_export:write",
        ("onnx", "onnxscript", "onnxruntime"),
    ),
}


def target_help() -> str:
    """Return what each of them is, for `--help`."""
    return "; ".join(f"{name}, {each.help}" for name, each in TARGETS.items())


def check_target(to: str, file: str | Path) -> Path:
    """Return the path of a file or folder that a model can be exported to.

    Raises:
        OptionError: no such target, or another ending than its files have.
        DiskError: it exists.
        PackageError: a package or compiler that the target needs is missing.
    """
    if to not in TARGETS:
        raise OptionError(f"unknown target {to!r}: {nearest(to, list(TARGETS))}")
    path, target = Path(file).expanduser(), TARGETS[to]
    if not path.name:
        raise OptionError(f"out must be the name of a file or folder, not {file}")
    if not target.ending or (target.narrow and not path.suffix):
        check_new_folder(path)
    elif path.suffix.lower() != target.ending:
        raise OptionError(f"out must end in {target.ending} for {to}, not {path.name!r}")
    else:
        check_new_file(path)
    for package in target.packages:
        check_installed(package, f"{target.ending} files" if target.ending else f"--to {to}")
    if target.compiled:
        usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
        name = os.environ.get("CXX", usual)
        if shutil.which(name) is None:
            raise PackageError(
                f"{target.ending} files are compiled, and there is no C++ compiler {name}: "
                f"{COMPILER}"
            )
    return path


def check_precision(to: str, precision: str, measured: bool, others: bool = False) -> None:
    """Refuse a precision that does not exist, and what a target does not have.

    Args:
        to: a target
        precision: of its weights
        measured: whether what it costs is asked for
        others: whether other options of ONNX files are given

    Raises:
        OptionError: the message says what would work.
    """
    if precision not in PRECISIONS:
        raise OptionError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
    if (precision != "fp32" or others) and not TARGETS[to].narrow:
        having = ", ".join(name for name, target in TARGETS.items() if target.narrow)
        given = "batch" if others else f"precision={precision}"
        raise OptionError(f"{given} applies only to {having}: leave it out")
    if precision == "int8" and not measured:
        raise OptionError(
            "precision=int8 needs data=… (--data): scales are taken from some of its images, and "
            "what they change is measured on others"
        )
    if precision == "fp32" and measured:
        raise OptionError("data applies only with precision=fp16 or int8: leave it out")
