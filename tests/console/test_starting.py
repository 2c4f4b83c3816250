"""How a command starts: PyTorch is imported without a look for garbage."""

import gc
import importlib
import sys
from types import SimpleNamespace

import pytest

from vitlab.cli import import_torch


def test_nothing_is_collected_while_torch_is_imported_nor_ever_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def imported(name: str) -> SimpleNamespace:
        seen.append((name, gc.isenabled()))
        return SimpleNamespace(_logging=SimpleNamespace(set_logs=lambda **levels: None))

    enabled = gc.isenabled()
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(importlib, "import_module", imported)
    try:
        gc.enable()
        import_torch()
        assert seen == [("torch", False)]
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
        (gc.enable if enabled else gc.disable)()


def test_torch_is_imported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", lambda name: pytest.fail(name))
    before = gc.get_freeze_count()
    import_torch()
    assert gc.get_freeze_count() == before
