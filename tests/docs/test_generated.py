"""The generated pages: nothing is left out, and the drawing shows the imports."""

import re
from pathlib import Path

import pytest
from api_pages import python_page, room_pages, since
from command_pages import commands_page
from house_drawing import direct, drawing, floors, imports
from option_pages import groups, options_page
from recipe_table import PLACE, recipe_table

import vitlab
from docs.pages import ROOT
from vitlab.command_table import COMMANDS
from vitlab.options import options_of
from vitlab.recipes.named import RECIPES


def test_every_command_is_shown_as_it_explains_itself() -> None:
    page = commands_page()
    for name in COMMANDS:
        assert (
            f"## vitlab {name}\n\n```text\n$ vitlab {name} --help-all\nusage: vitlab {name}" in page
        )
    assert "--layer-scale" in page
    assert "\x1b" not in page


def test_every_option_has_a_row_with_its_default_and_its_meaning() -> None:
    page = options_page()
    for kind in groups():
        for name, about in options_of(kind).items():
            assert f"| `{name}` |" in page, (kind, name)
            assert about.help, (kind, name)
    assert page.count("| `interpolation` |") == 1, "a field stands where it is declared"
    assert "| `resume` | `False` |" in page
    (row,) = [line for line in page.splitlines() if line.startswith("| `momentum` ")]
    assert row == (
        "| `momentum` | `0.9` | a number, at least 0 and below 1 "
        "| momentum; applies only with optimizer=sgd, lars or muon |"
    )


def test_every_recipe_has_a_row_with_its_values() -> None:
    rows = recipe_table().splitlines()[2:]
    assert [each.split("`")[1] for each in rows] == list(RECIPES)
    (row,) = [each for each in rows if each.startswith("| `vit-finetune` |")]
    assert row.endswith("| 20,000 steps | 512 | sgd | 0.03 | 0 | cosine, warm-up 500 steps |")
    assert PLACE in (ROOT / "docs" / "recipes.md").read_text()


def test_every_public_name_and_every_module_has_its_place() -> None:
    page = python_page()
    for name in vitlab.__all__:
        assert f"::: vitlab.{name}\n" in page or name.endswith("Error"), name
    assert "::: vitlab.errors\n" in page
    assert {*since()} == {*vitlab.__all__}
    assert "| [`create`](#vitlab.create) | Create a freshly" in page
    named = set(re.findall(r"^::: vitlab\.(\w+)$", "\n".join(room_pages().values()), re.MULTILINE))
    package = ROOT / "src" / "vitlab"
    files = {each.stem for each in package.glob("*.py") if not each.stem.startswith("__")}
    folders = {each.parent.name for each in package.glob("*/__init__.py")}
    assert named == files | folders


def test_the_files_that_the_architecture_names_exist() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text().partition("## A run folder")[0]
    named = re.findall(r"`([a-z_]+/[a-z_/.]*)`", page)
    assert len(named) > 30
    for name in named:
        assert (ROOT / "src" / "vitlab" / name).exists(), name


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """Five rooms, each on the one before: errors, data, train, commands, cli."""
    for name, text in {
        "errors.py": "import os",
        "data/__init__.py": "",
        "data/read.py": "from vitlab import __version__\nfrom vitlab.errors import Error",
        "train/__init__.py": "",
        "train/run.py": "import vitlab.data.read\nfrom vitlab.train import stop",
        "train/stop.py": "def stop():\n    from vitlab import errors",
        "commands/__init__.py": "",
        "commands/go.py": "def go():\n    from vitlab.train.run import run",
        "cli.py": "COMMANDS = {'go': 'vitlab.commands.go:COMMAND'}",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_imports_in_functions_and_texts_of_tables_count(house: Path) -> None:
    graph = imports(house)
    chain = {"errors": set(), "data": {"errors"}, "train": {"data"}}
    chain |= {"commands": {"train"}, "cli": {"commands"}}
    assert graph == chain | {"train": {"data", "errors"}}
    assert floors(graph) == [["errors"], ["data"], ["train"], ["commands"], ["cli"]]
    assert direct(graph) == chain


def test_the_drawing_has_a_box_per_room_and_arrows_that_point_down(house: Path) -> None:
    picture = drawing(house)
    rooms = re.findall(r'<text x="[^>]*>(\w+)</text>', picture)
    assert rooms == ["cli", "commands", "data", "errors", "train"]
    assert picture.count("2 files") == 1
    arrows = re.findall(r'<path d="M[\d.]+ ([\d.]+)C.* ([\d.]+)"/>', picture)
    assert len(arrows) == 4
    assert all(float(start) < float(end) for start, end in arrows)


def test_rooms_that_import_from_each_other_stand_side_by_side() -> None:
    graph = {"a": set(), "b": {"a", "c"}, "c": {"b"}, "d": {"a", "b", "c"}}
    assert floors(graph) == [["a"], ["b", "c"], ["d"]]
    assert direct(graph)["b"] == {"a"}
    assert direct(graph)["c"] == set()
    assert direct(graph)["d"] == {"b", "c"}
