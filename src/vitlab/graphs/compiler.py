"""Detection of a C++ compiler, without PyTorch, before anything is computed."""

import os
import shutil
import sys

from vitlab.errors import PackageError

HOW = (
    "install g++ (Debian and Ubuntu: apt install g++; macOS: xcode-select --install), or name "
    "another compiler in the environment variable CXX"
)


def check_compiler(what: str) -> None:
    """Refuse what is compiled if PyTorch would find no compiler.

    Args:
        what: begins the message

    Raises:
        PackageError: there is none; the message says how to get one.
    """
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    name = os.environ.get("CXX", usual)
    if shutil.which(name) is None:
        raise PackageError(f"{what} are compiled, and there is no C++ compiler {name}: {HOW}")
