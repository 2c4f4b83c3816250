"""Objects by name: only the tables reach the package so, by texts that one function resolves.

Else a reader, and the closures of `tests/house.toml`, could not see what a file depends on.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from syntax import nodes_of
from test_house import parsed
from vitlab.by_name import load_object

TABLES = {
    "command_table.py",
    "data/decode/media.py",
    "data/identities.py",
    "data/open.py",
    "graphs/targets.py",
    "models/registry.py",
    "objectives/pretext_tasks.py",
    "studies/papers/__init__.py",
    "weights/formats/catalog.py",
}
IMPORTING = {
    "by_name.py",  # the one function
    "__init__.py",  # the public names, by `__init__.pyi`
    "packages.py",  # other people's packages
    "training/tracking.py",  # trackers, likewise
}
LOOKING_UP = {"console/interrupts.py"}  # a module that has work to undo, if it is there
TEXT = re.compile(r"vitlab(\.[a-z0-9_]+)+:[A-Za-z_]\w*")
PART = re.compile(r"vitlab\.([a-z0-9_]+\.)+")  # of one that is put together
IMPORTERS = {
    "__import__", "exec_module", "import_module", "load_module", "resolve_name", "run_module",
    "run_path", "spec_from_file_location",
}  # fmt: skip


def is_ours(name: str) -> bool:
    """Whether a module is of the package, or relative to one that may be."""
    return f"{name}.".startswith(("vitlab.", "."))


def text_of(node: ast.AST | None) -> str | None:
    """What a text says; None for an expression that is none."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def texts_of(tree: ast.AST) -> list[str]:
    """The texts "module:object" of a file."""
    texts = (text_of(node) for node in nodes_of(tree))
    return [text for text in texts if text is not None and TEXT.fullmatch(text)]


def import_holes(node: ast.AST, modules: set[str]) -> Iterator[str]:
    """What a statement imports of the package but modules; no file is told to depend on names."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if is_ours(alias.name) and not alias.asname:  # `vitlab.load` could be called
                yield f"import {alias.name}"
    elif isinstance(node, ast.ImportFrom) and (node.level or node.module == "vitlab"):
        for alias in node.names:
            if node.level or alias.name not in modules | {"__version__"}:
                yield f"from {'.' * node.level}{node.module or ''} import {alias.name}"


def importing_holes(tree: ast.AST) -> Iterator[str]:
    """Uses of what imports by name, but calls that spell out another package."""
    spelled = set()
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            name = text_of(node.args[0])
            if name is not None and not is_ours(name):
                spelled.add(id(node.func))
    for node in nodes_of(tree):
        if isinstance(node, ast.Name | ast.Attribute) and id(node) not in spelled:
            if name_of(node) in IMPORTERS:
                yield f"{name_of(node)} of ours, or of what only a run shows"
        elif isinstance(node, ast.alias) and node.asname and node.name in IMPORTERS:
            yield f"{node.name} as {node.asname}"


def key_holes(node: ast.AST) -> Iterator[str]:
    """Modules of ours that are looked up among those that are there."""
    key = None
    if isinstance(node, ast.Subscript) and name_of(node.value) == "modules":
        key = node.slice
    elif isinstance(node, ast.Call) and name_of(getattr(node.func, "value", node)) == "modules":
        key = node.args[0] if node.args else None
    if key is not None and is_ours(text_of(key) or "a package"):
        yield f"sys.modules, {text_of(key)}"


def table_holes(node: ast.AST) -> Iterator[str]:
    """Texts "module:object", also in parts, and uses of what resolves them."""
    text = text_of(node) or ""
    if TEXT.fullmatch(text) or PART.fullmatch(text):
        yield repr(text)
    if name_of(node) == "load_object":
        yield "load_object"


def name_of(node: ast.AST) -> str:
    """The name that a node of the syntax tree uses, looks up or imports; empty for none."""
    return str(getattr(node, "id", getattr(node, "attr", getattr(node, "name", ""))))


def holes(path: str, tree: ast.Module, modules: set[str]) -> list[str]:
    """Every way in which a file reaches the package by name though it may not."""
    nodes = nodes_of(tree)
    found = [hole for node in nodes for hole in import_holes(node, modules)]
    if path not in IMPORTING:
        found += importing_holes(tree)
    if path not in LOOKING_UP:
        found += [hole for node in nodes for hole in key_holes(node)]
    if path not in TABLES | {"by_name.py"}:
        found += [hole for node in nodes for hole in table_holes(node)]
    return found


def test_only_tables_reach_the_package_by_name() -> None:
    modules = {path.removesuffix(".py").removesuffix("/__init__") for path in parsed()}
    wrong = {path: holes(path, tree, modules) for path, tree in parsed().items()}
    assert {path: found for path, found in wrong.items() if found} == {}
    assert set(parsed()) >= TABLES | IMPORTING | LOOKING_UP


def test_each_table_has_texts_and_each_text_names_an_object() -> None:
    for path in TABLES:
        texts = texts_of(parsed()[path])
        assert len(texts) > 2, path
        for text in texts:
            module, _, name = text.removeprefix("vitlab.").partition(":")
            file = module.replace(".", "/")
            tree = parsed().get(f"{file}.py") or parsed()[f"{file}/__init__.py"]
            assert name in set(defined_names(tree)), text


def defined_names(tree: ast.Module) -> Iterator[str]:
    """The functions, classes and constants of a file."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


@pytest.mark.parametrize(
    "line",
    [
        "import vitlab",
        "import vitlab.models.vit",
        "from vitlab import train",
        "from vitlab import load as read",
        "from . import vit",
        "from .vit import VisionTransformer",
        "def f():\n    import os, vitlab",
        "importlib.import_module('vitlab.models.vit')",
        "import_module(f'vitlab.{name}')",
        "import_module('vitlab.' + name)",
        "import_module('.vit', __package__)",
        "import_module('.vit', package='vitlab.models')",
        "import_module(name=name)",
        "import_module(name)",
        "modules = map(import_module, names)",
        "from importlib import import_module as get",
        "__import__('vitlab')",
        "__import__(name, fromlist=['x'])",
        "pkgutil.resolve_name(text)",
        "runpy.run_module('vitlab.cli')",
        "importlib.util.spec_from_file_location('own', file)",
        "sys.modules['vitlab.files'].clear()",
        "sys.modules.get('vitlab')",
        "WRITE = 'vitlab.graphs.onnx_file:write'",
        "text = f'vitlab.graphs.{name}:write'",
        "text = 'vitlab.graphs.' + name + ':write'",
        "from vitlab.by_name import load_object",
        "by_name.load_object(TARGETS[name])",
    ],
)
def test_each_other_way_is_refused(line: str) -> None:
    assert holes("models/vit.py", ast.parse(line), {"by_name", "models"}), line


@pytest.mark.parametrize(
    "line",
    [
        "import torch, os",
        "import vitlab.models.vit as page",
        "from vitlab import models, __version__",
        "from vitlab.models.vit import VisionTransformer",
        "torch = importlib.import_module('torch')",
        "sys.modules.get('multiprocessing.util')",
        "say('vitlab.load: a folder')",
        "text = f'vitlab.train(..., {name}={value})'",
        "files('vitlab.studies.papers')",
    ],
)
def test_plain_imports_are_not(line: str) -> None:
    assert holes("models/vit.py", ast.parse(line), {"by_name", "models"}) == []


def test_a_text_is_resolved_to_what_it_names() -> None:
    assert load_object("vitlab.by_name:load_object") is load_object
    assert load_object("pathlib:Path") is Path
