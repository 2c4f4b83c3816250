"""The public names: present, typed for editors, and the same in both lists."""

import ast
import importlib
import inspect
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import vitlab
from vitlab.errors import DivergedError, OptionError


def test_the_public_names_are_there() -> None:
    for name in vitlab.__all__:
        assert getattr(vitlab, name) is not None
    assert set(vitlab.__all__) <= set(dir(vitlab))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        vitlab.nothing  # noqa: B018


def test_every_name_comes_from_the_file_that_editors_read() -> None:
    """Each is imported by a line of `__init__.pyi`, which has nothing else but two variables."""
    tree = ast.parse(Path(vitlab.__file__).with_suffix(".pyi").read_text())
    imported = {
        alias.asname: each.module
        for each in tree.body
        if isinstance(each, ast.ImportFrom)
        for alias in each.names
    }
    assert imported == vitlab._HOMES
    others = [each for each in tree.body if not isinstance(each, ast.ImportFrom)]
    assert [type(each) for each in others] == [ast.Expr, ast.AnnAssign, ast.AnnAssign]


def test_windows_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(ImportError, match=r"^vitlab needs Linux or macOS: on Windows use WSL 2$"):
        importlib.reload(vitlab)


@pytest.mark.parametrize(
    "name", ["create", "load", "train", "evaluate", "recipe", "save", "delta", "fuse", "compare"]
)
def test_public_functions_return_what_they_are_typed_as(name: str) -> None:
    function = getattr(vitlab, name)
    hints = get_type_hints(function)
    assert hints["return"] is not Any
    assert set(inspect.signature(function).parameters) <= set(hints)


def test_errors_can_be_caught_by_their_kind() -> None:
    assert vitlab.errors.DivergedError is DivergedError
    assert issubclass(DivergedError, vitlab.UserError)
    with pytest.raises(vitlab.UserError) as caught:
        vitlab.recipe("digits", lr=0)
    assert type(caught.value) is OptionError
