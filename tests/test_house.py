"""The house: imports point downwards, no cycles, one name for one class."""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import house_numbers
import patches
from syntax import nodes_of, parse_file

REPOSITORY = Path(__file__).parent.parent
SOURCE = REPOSITORY / "src" / "vitlab"

# Lowest first. A file imports from its own layer or a lower one.
LAYERS = (
    ("by_name", "effort", "errors", "units", "values"),
    (
        "options",
        "keywords",
        "files",
        "locks",
        "hub",
        "documents",
        "machine",
        "device",
        "on_device",
        "packages",
        "precision",
        "progress",
        "public_calls",
    ),
    ("places", "recorded_paths"),
    ("images", "pages"),
    ("models",),
    ("data", "weights"),
    ("recipes", "objectives", "optim", "tuning"),
    ("runs",),
    ("distributed",),
    ("adapters", "evaluation", "measure", "inspect"),
    ("report",),
    ("training",),
    ("run_reports",),
    ("experiments",),
    ("transfer",),
    ("studies", "graphs", "client"),
    ("serve",),
    ("explore",),
    ("__init__",),  # the public names
    ("console", "terminal"),
    ("commands", "command_table"),
    ("cli", "__main__"),
)
FLOOR = {room: number for number, layer in enumerate(LAYERS) for room in layer}
# The table of metrics needs NumPy and labels alone; the model card, below its room, reads it.
FLOOR |= dict.fromkeys((f"evaluation.{each}" for each in ("answers", "metrics", "reliability")),
                       FLOOR["data"])  # fmt: skip


def floor(module: str) -> int:
    """The layer of a module: its own, or its room's."""
    return FLOOR.get(module, FLOOR[module.split(".")[0]])


def module_of(file: Path, root: Path) -> str:
    """`models.vit` for src/vitlab/models/vit.py, `models` for a folder's __init__."""
    parts = file.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def imported(tree: ast.AST, modules: set[str]) -> Iterator[str]:
    """The modules of ours that a file imports, inside functions and for type checkers too."""
    for node in nodes_of(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports are not followed"
            names = [f"{node.module}.{each.name}" for each in node.names]
        for name in names:
            root, *rest = name.split(".")
            if root != "vitlab":
                continue
            while rest and ".".join(rest) not in modules:
                rest.pop()
            yield ".".join(rest) or "__init__"


def graph_of(modules: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Each module, and the modules it imports."""
    return {name: set(imported(tree, set(modules))) - {name} for name, tree in modules.items()}


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a ring, empty if there are none."""
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph.get(name, ())):
            if found := visit(other, [*path, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := visit(name, []))), [])


def upward(graph: dict[str, set[str]]) -> list[str]:
    """Imports from a lower layer to a higher one, or to a room that no layer names."""
    return [
        f"{name} -> {other}"
        for name, others in sorted(graph.items())
        for other in sorted(others)
        if floor(other) > floor(name)
    ]


def test_every_room_has_its_layer_and_imports_point_downward() -> None:
    graph = graph_of({module_of(SOURCE / path, SOURCE): tree for path, tree in parsed().items()})
    rooms = {name.split(".")[0] for name in graph}
    assert rooms == {room for room in FLOOR if "." not in room}
    assert set(FLOOR) - set(graph) <= rooms
    assert upward(graph) == []
    assert cycle(graph) == []


@cache
def parsed() -> dict[str, ast.Module]:
    """What is in each file of the package, by its path."""
    files = sorted(SOURCE.rglob("*.py"))
    return {str(file.relative_to(SOURCE)): parse_file(file) for file in files}


def test_no_two_classes_share_a_name() -> None:
    """Private classes stay in one file."""
    places = defaultdict(list)
    for path, tree in parsed().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


GATHERING = {
    "Best", "BodyMemory", "Compiled", "Facts", "Figures", "Form", "Graphs", "HeaderReader",
    "Inside", "Known", "Looked", "Observer", "Rollback", "Rows", "RunState", "Saver", "Session",
    "StoredTensors", "Tally", "Timed", "TimedFile", "_Plain",
}  # fmt: skip


def test_data_classes_are_frozen() -> None:
    """But for those that gather something while it happens."""
    found = {
        node.name
        for tree in parsed().values()
        for node in nodes_of(tree)
        if isinstance(node, ast.ClassDef)
        for how in map(ast.unparse, node.decorator_list)
        if how.startswith("dataclass") and "frozen=True" not in how
    }
    assert found <= GATHERING


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    return lines - len((ast.get_docstring(function, clean=False) or "").splitlines())


def test_functions_stay_short() -> None:
    long = {
        f"{path}:{node.name}"
        for path, tree in parsed().items()
        for node in nodes_of(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and body_lines(node) > 60
    }
    assert long == set()


def test_the_numbers_of_the_house_only_fall() -> None:
    """Closures, diction, and patches of internals; see `house_numbers`."""
    lines = [*house_numbers.complaints(house_numbers.read_numbers(), house_numbers.measure())]
    assert not lines, "\n".join(lines)


def test_a_number_that_rises_or_falls_far_is_told() -> None:
    recorded = {"closures": {"models.vit": 1000, "data.open": 1000, "gone": 5}, "diction": {"x": 8}}
    measured = {"closures": {"models.vit": 1001, "data.open": 979, "new": 7}, "diction": {"x": 5}}
    assert list(house_numbers.complaints(recorded, measured)) == [
        "closures, models.vit: 1,001, above the 1,000 in tests/house.toml, which may only fall",
        "closures, data.open: 979, well below the 1,000 in tests/house.toml: run python "
        "tests/house_numbers.py, so that it stays there",
        "closures, new: 7, of which tests/house.toml says nothing",
        "closures, gone: in tests/house.toml, but not in the package",
    ]
    lower = {"closures": {"models.vit": 1000, "data.open": 979, "new": 7}, "diction": {"x": 5}}
    assert house_numbers.lower(recorded, measured) == lower
    assert tomllib.loads(house_numbers.as_toml(lower)) == lower


PATCHES = """
import time
from unittest import mock
import vitlab
import vitlab.weights.load as reading
from vitlab.models import cost as price, vit

def test(monkeypatch, patch):
    monkeypatch.setattr(price, "cost", 1)  # yes
    monkeypatch.setattr("vitlab.models.cost.cost", 1)  # yes
    monkeypatch.setattr(time, "sleep", 1)
    monkeypatch.setattr("time.sleep", 1)
    for name in ("vitlab.a.b", "vitlab.a.c"):
        monkeypatch.delattr(name)  # yes
    for module in (time, vit):
        patch.setattr(module, "x", 1)  # yes
    table = reading.TABLE
    patch.setitem(table, "x", 1)  # yes
    patch.setitem(reading.TABLE["x"], "y", 1)  # yes
    patch.setitem(sys.modules, "vitlab.files", None)  # yes
    patch.setitem(sys.modules, "ray", None)
    with mock.patch("vitlab.hub.get"), mock.patch.object(vit, "x"):  # yes, twice
        setattr(vit.Block, "forward", None)  # yes
        vitlab.create = None  # yes
        del vit.Block  # yes
    model = vitlab.create("ViT-B/16")
    monkeypatch.setattr(model, "forward", 1)
    model.forward = 1
"""


def test_patches_of_internals_are_counted(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(PATCHES)
    lines = [
        int(place.split()[0].split(":")[1]) for place in patches.find_patches("vitlab", tmp_path)
    ]
    marked = [n for n, line in enumerate(PATCHES.splitlines(), 1) if "# yes" in line]
    twice = [n for n, line in enumerate(PATCHES.splitlines(), 1) if "twice" in line]
    assert sorted(lines) == sorted(marked + twice)


def test_scripts_styles_and_templates_are_short() -> None:
    """But for what others wrote, which is fetched into `pages/vendor`."""
    kinds = {".js", ".mjs", ".css", ".html", ".jinja", ".svg"}
    files = [file for file in SOURCE.rglob("*") if file.suffix in kinds and file.is_file()]
    lines = {
        str(file.relative_to(SOURCE)): len(file.read_text(encoding="utf-8").splitlines())
        for file in files
        if "vendor" not in file.parts
    }
    assert len(lines) > 20
    assert {name: count for name, count in lines.items() if count > 300} == {}


CLAUSES = {"What", "Which", "Who", "Whose", "Whether", "Where", "How", "Everything", "From"}
METAPHORS = {
    "nursery", "roster", "desk", "pot", "taste", "rehearsal", "whereabouts", "doubts",
    "cartographer", "told_apart", "envelope", "lockstep", "room", "door",
}  # fmt: skip


def test_the_first_line_of_a_file_is_a_noun_phrase_with_its_term() -> None:
    """A reader searches for terms; clauses and metaphors hide them."""
    for path, tree in parsed().items():
        first = (ast.get_docstring(tree) or "").split()
        assert first, f"{path} has no docstring"
        assert first[0] not in CLAUSES, f"{path}: {' '.join(first[:8])} …"
        assert Path(path).stem not in METAPHORS, path


BRITISH = re.compile(
    r"\b\w*(optimis|normalis|initialis|recognis|minimis|maximis|randomis|synchronis|standardis"
    r"|quantis|summaris|colour|flavour|neighbour|behaviour|licence|artefact|catalogue)\w*",
    re.IGNORECASE,
)


@pytest.mark.parametrize("folder", ["src", "docs", "examples", "benchmarks"])
def test_spelling_is_american(folder: str) -> None:
    found = {
        f"{file.relative_to(REPOSITORY)}: {match[0]}"
        for file in (REPOSITORY / folder).rglob("*")
        if file.suffix in (".py", ".md", ".jinja") and "log.md" not in file.name
        for match in BRITISH.finditer(file.read_text(encoding="utf-8"))
    }
    assert found - ALLOWED == set()


# Names of things that others spell so, and the tables that read files of before the renaming.
ALLOWED = {"src/vitlab/runs/recipe_file.py: optimiser"}


def test_these_tests_can_fail(tmp_path: Path) -> None:
    """A tree with a cycle through a function and an import that points upward."""
    (tmp_path / "models").mkdir()
    (tmp_path / "cli.py").write_text("from vitlab.models import vit\n")
    (tmp_path / "models" / "vit.py").write_text(
        "def f():\n    from vitlab.models.head import Head\n"
    )
    (tmp_path / "models" / "head.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import vitlab.models.vit\n"
        "from vitlab.cli import main\n"
    )
    files = sorted(tmp_path.rglob("*.py"))
    graph = graph_of({module_of(file, tmp_path): ast.parse(file.read_text()) for file in files})
    assert graph == {
        "cli": {"models.vit"},
        "models.vit": {"models.head"},
        "models.head": {"cli", "models.vit"},
    }
    assert cycle(graph)[0] == cycle(graph)[-1]
    assert upward(graph) == ["models.head -> cli"]
