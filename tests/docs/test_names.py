"""What the documentation names exists: commands, options, functions, and the peers' names too."""

import inspect
import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import torch
from command_pages import help_text

import vitlab
from docs.pages import ROOT, blocks, commands, understood
from oracles import peers
from vitlab.command_table import COMMANDS
from vitlab.models.names import MODELS

PAGES = sorted((ROOT / "docs").rglob("*.md"))
TEXTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + PAGES
DATED = ("log.md", "results.md", "performance.md")  # they quote commands as they were that day
OTHERS = re.findall(  # of torchrun, pytest, mypy, docker, sbatch and ray, and of every command
    r"\S+",
    "--rdzv-backend --rdzv-endpoint --rdzv-id --max-restarts --standalone --nproc-per-node "
    "--nnodes --master-port --durations --strict --help --help-all --version --json --entrypoint "
    "--shm-size --shuffle --target --gpus --time --build-arg --nodes --include-dashboard --dist "
    "--head",
)
CODE = re.compile(r"`([^`\n]+)`")


@cache
def options(command: str) -> frozenset[str]:
    """The options that a command's help lists."""
    return frozenset(re.findall(r"--[a-z][a-z0-9-]*", help_text(command, "--help-all")))


def rows(page: str, head: str) -> list[tuple[str, str]]:
    """The first two cells of each row of the table below a header cell."""
    lines = iter((ROOT / "docs" / page).read_text().splitlines())
    assert any(line.startswith(f"| {head} |") for line in lines), head
    next(lines)
    table = []
    for line in lines:
        if not line.startswith("|"):
            break
        left, right, *_ = (cell.strip() for cell in line.strip("|").split("|"))
        table.append((left, right))
    return table


def words(cell: str, pattern: str) -> list[str]:
    return [found for code in CODE.findall(cell) for found in re.findall(pattern, code)]


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_commands_of_shell_blocks_are_understood(page: Path) -> None:
    if page.name in DATED:
        return
    for block in blocks(page, "sh"):
        for line in commands(block):
            if "vitlab" in line and line[0] != "pip":
                _, command, *rest = line[line.index("vitlab") :]
                understood(command, rest)


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.name)
def test_options_and_functions_named_in_the_text_exist(page: Path) -> None:
    if page.name in DATED:
        return
    known = set().union(*(options(command) for command in COMMANDS), OTHERS)
    for cell in CODE.findall(page.read_text()):
        if page.parent.name != "from":  # their own tables are below
            assert set(re.findall(r"(?<!\S)--[a-z][a-z-]+", cell)) <= known, cell
        for path in re.findall(r"\bvitlab\.([a-z_.]+)\(", cell):
            assert dotted(path), cell
        if match := re.match(r"vitlab ([a-z][a-z-]*)", cell):
            assert match[1] in COMMANDS, cell


def dotted(path: str) -> object:
    value: object = vitlab
    for name in path.split("."):
        value = getattr(value, name)
    return value


def test_peers_model_names_have_the_parameters_of_ours() -> None:
    timm = peers.timm()
    for left, right in rows("from/timm.md", "timm"):
        (theirs,), (ours, *extra) = CODE.findall(left), CODE.findall(right)
        with torch.device("meta"):
            model = timm.create_model(theirs, num_classes=1000)
            choices = {key: float(value) for key, value in (each.split("=") for each in extra)}
            own = MODELS[ours][0] if not extra else count(vitlab.create(ours, 1000, **choices))
        assert count(model) == own, theirs


def count(model: torch.nn.Module) -> int:
    return sum(each.numel() for each in model.parameters())


@pytest.mark.parametrize(
    ("page", "head"),
    [
        ("from/timm.md", "argument of `timm.create_model`"),
        ("from/transformers.md", "field of `ViTConfig` (and of `Dinov2Config`)"),
        ("from/big_vision.md", "big_vision"),
    ],
)
def test_keywords_are_fields_on_both_sides(page: str, head: str) -> None:
    own = {each.name for each in fields(vitlab.ViTConfig)}
    theirs = arguments(page)
    for left, right in rows(page, head):
        assert set(words(right, r"^[a-z_]+")) <= own, right
        if theirs:
            assert set(words(left, r"^[a-z0-9_]+")) <= theirs, left


def arguments(page: str) -> set[str]:
    """The arguments by which a peer's model is described; none of one that is not installed."""
    if "timm" in page:
        return set(inspect.signature(peers.timm().models.VisionTransformer).parameters)
    if "transformers" in page:
        library = peers.transformers()
        kinds = (library.ViTConfig, library.Dinov2Config)
        names = set().union(*(inspect.signature(kind).parameters for kind in kinds))
        return names | {"num_labels"}  # of every configuration
    return set()


@pytest.mark.parametrize(
    ("page", "head"),
    [
        ("from/timm.md", "option of timm's `train.py`"),
        ("from/transformers.md", "field of `TrainingArguments`"),
        ("from/big_vision.md", "config of big_vision"),
    ],
)
def test_training_options_exist(page: str, head: str) -> None:
    theirs = {each.name for each in fields(peers.transformers().TrainingArguments)}
    for left, right in rows(page, head):
        assert set(words(right, r"^--[a-z-]+")) <= options("train"), right
        if "transformers" in page:
            assert set(words(left, r"^[a-z0-9_]+(?==|$)")) <= theirs, left
