"""ViTLab, the Vision Transformer workbench: the public names, each loaded when first used.

They are listed once, in `__init__.pyi` beside this file.
"""

import importlib
import os
import sys
from typing import Any

if sys.platform == "win32":  # it has no fcntl and no resource, and forks no process
    raise ImportError("vitlab needs Linux or macOS: on Windows use WSL 2")

# pathlib would take time to import
with open(f"{__file__}i", encoding="utf-8") as _list:  # noqa: PTH123
    _HOMES = {words[3]: words[1] for words in map(str.split, _list) if words[:1] == ["from"]}
__all__ = sorted(_HOMES)
__version__ = "0.1.0"

# OpenMP threads busy-wait; on a loaded machine that burns whole time slices. A short spin costs
# little when idle and saves a lot under load: digits were trained with 1067 in place of 1171
# images/s alone, with 561 in place of 414 beside a busy process (2026-11-21). It counts where
# PyTorch is imported later, in this process or another.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def __getattr__(name: str) -> Any:
    """Import a public name from its home when it is first used (PyTorch alone takes seconds)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'vitlab' has no attribute {name!r}")
    home = _HOMES[name]
    module = importlib.import_module(f"vitlab.{name}" if home == "vitlab" else home)
    value = module if home == "vitlab" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
