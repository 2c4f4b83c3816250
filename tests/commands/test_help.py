"""Every command explains itself, quickly, and under `python -OO` too."""

import re
import subprocess
import sys

import pytest

from conftest import call, environment
from vitlab.command_table import COMMANDS, command_named
from vitlab.commands.train import Train, build
from vitlab.console.help_page import help_text
from vitlab.console.leaves import Leaf, all_leaves, leaves_of
from vitlab.options import Options

HEAVY = {"torch", "datasets", "matplotlib"}
LIGHT = HEAVY | {"numpy", "PIL", "shtab", "rich"}


def kind_of_options(command: str) -> type[Options]:
    kind: type[Options] = command_named(command).kind
    return kind


def spelled(leaf: Leaf) -> str:
    return f"--{leaf.word.replace('_', '-')}"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_option_stands_in_the_help_once(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = re.findall(r"^  (\S+)", call(capsys, command, "--help-all")[1], re.MULTILINE)
    entries = [each for each in entries if each.startswith("-") or each.strip("[]").isupper()]
    assert len(entries) == len(set(entries)), sorted(entries)
    leaves = list(leaves_of(kind_of_options(command)))
    places = [each for each in leaves if each.about.positional]
    assert sum(not each.startswith("-") for each in entries) == len(places)
    short = call(capsys, command, "--help")[1]
    others = sum(map(int, re.findall(r"^  [a-z ]+ \((\d+)\)", short, re.MULTILINE)))
    shown = re.findall(r"^  --", short, re.MULTILINE)
    general = ("--help-all", "--json", "--quiet")
    assert len(shown) + others == len(leaves) - len(places) + sum(
        f"\n  {each}" in short for each in general
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_help_and_stands_in_the_help(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, err = call(capsys, command, "--help-all")
    assert (code, err) == (0, "")
    assert text.startswith(f"usage: vitlab {command}")
    assert COMMANDS[command].summary in text
    leaves = list(leaves_of(kind_of_options(command)))
    for leaf in all_leaves(kind_of_options(command)):
        assert len(leaf.about.help) > 5, leaf.name
        assert not leaf.about.help.endswith("."), leaf.name
    lines = text.splitlines()
    for leaf in leaves:
        shown = [each for each in lines if each.startswith(f"  {spelled(leaf)}")]
        assert leaf.about.positional or shown, leaf.name
    assert max(map(len, lines)) <= 80


def test_the_overview_lists_every_command_with_its_summary(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = call(capsys, "--help")
    assert (code, call(capsys)[1]) == (0, out)
    for command in COMMANDS:
        assert f"  {command:<10}  {COMMANDS[command].summary}" in out
    assert len(COMMANDS) >= 13
    assert tuple(COMMANDS)[:4] == ("finetune", "train", "pretrain", "evaluate")
    assert max(map(len, out.splitlines())) <= 80


def test_what_matters_first_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    lines = call(capsys, "finetune", "--help-all")[1].splitlines()
    heads = [number for number, line in enumerate(lines) if re.match(r" \w", line)]
    titles = [lines[number] for number in heads]
    assert titles[:4] == [
        " positional arguments", " options", " several options", " other recipe options",
    ]  # fmt: skip
    first = [line.split()[0] for line in lines[heads[1] : heads[2]] if line.startswith("  -")]
    words = [name.replace("weights", "from").replace("_", "-") for name in Train.FIRST]
    assert [word.strip(",") for word in first[2 : len(words) + 2]] == [
        f"--{word}" for word in words
    ]
    assert not set(first[2:-1]) & {line.split()[0] for line in lines[heads[2] :] if line.split()}


def test_the_short_help_names_the_groups_of_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    short = call(capsys, "finetune", "--help")[1]
    whole = call(capsys, "finetune", "--help-all")[1]
    assert "--lr FLOAT" in short
    assert "--label-smoothing" not in short
    assert "--label-smoothing" in whole
    titles = re.findall(r"^  ([a-z ]+) \(\d+\)", short, re.MULTILINE)
    assert titles == re.findall(r"^ ([a-z ]+) options$", whole, re.MULTILINE)
    assert len(short.splitlines()) < 100 < len(whole.splitlines())
    assert "--help-all" not in call(capsys, "recipes", "--help")[1]


def test_help_has_no_colors_on_a_terminal() -> None:
    """Neither of argparse's nor of rich's, whatever NO_COLOR says."""
    command = [sys.executable, "-m", "vitlab", "train", "--help"]
    words = [sys.executable, "-c", f"import pty; pty.spawn({command})"]
    done = subprocess.run(words, capture_output=True, check=False, env=environment(TERM="xterm"))
    assert b"--resume" in done.stdout
    assert b"\x1b" not in done.stdout


def test_help_shows_the_values_of_the_named_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "x", "--recipe", "deit3", "--model", "ViT-B/16", "--help-all"]
    text = " ".join(call(capsys, *words)[1].split())
    assert "--lr FLOAT peak learning rate (default: 0.003)" in text
    assert "--color-jitter FLOAT" in text
    assert "around factor 1 (default: 0.3)" in text
    assert "--flip, --no-flip mirror left and right with probability 0.5 (default: on)" in text
    resnet = call(capsys, "train", "x", "--model", "BiT-R50x1", "--help-all")[1]
    assert "--widen" in resnet
    assert "--patch" not in resnet
    assert "--patch" in call(capsys, "train", "x", "--help-all")[1]


def test_help_says_when_an_option_applies() -> None:
    text = " ".join(help_text(build({}), "vitlab train", "", whole=True).split())
    assert "only with schedule=rsqrt (default: 10000)" in text
    assert "activation after a linear stem; only with stem=linear" in text


def modules_after(code: str) -> set[str]:
    """What a fresh interpreter has imported after some code."""
    code = f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    return set(done.stderr.splitlines()[-1].split())


def test_importing_vitlab_imports_next_to_nothing() -> None:
    loaded = modules_after("import vitlab")
    bare = modules_after("import importlib, typing")
    assert {name for name in loaded - bare if not name.startswith("vitlab")} == set()
    code = "import vitlab\nvitlab.recipe('digits')\nimport vitlab.data.settings"
    assert not modules_after(code) & LIGHT


def lines_run(*lines: str, status: int) -> str:
    """Code that calls the command line with each of these."""
    each = [line.split() for line in lines]
    return f"""
from vitlab.cli import main
for words in {each}:
    try: main(words)
    except SystemExit as stop: assert (stop.code or 0) == {status}, words
    assert not {HEAVY} & set(sys.modules), words
"""


def test_help_does_not_import_torch() -> None:
    loaded = modules_after(lines_run("--help", status=0))
    assert not loaded & LIGHT
    assert "vitlab.recipes.recipe" not in loaded
    lines = ("train --help", "evaluate --help", "recipes", "models --help")
    assert not modules_after(lines_run(*lines, status=0)) & HEAVY


EARLY = (
    "train /nowhere", "train digits --lr fast", "train digits --out /",
    "pretrain /nowhere --task mae", "pretrain digits --task beit --tokenizer /nowhere",
    "pretrain digits", "finetune digits --from /nowhere", "evaluate /nowhere digits",
    "predict / /nowhere.png", "serve /nowhere", "serve / --host 192.0.2.1", "explore /nowhere",
    "export / --to timm --out /",
)  # fmt: skip


def test_what_cannot_be_there_is_noticed_before_torch_is_imported() -> None:
    assert not modules_after(lines_run(*EARLY, status=2)) & HEAVY


def test_without_docstrings() -> None:
    code = "import sys\nimport vitlab.recipes.recipe, vitlab.recipes.named\n"
    code += lines_run("--help", "recipes --json", "train --help", status=0)
    words = [sys.executable, "-OO", "-c", code]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env=environment(COLUMNS="80")
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "peak learning rate" in done.stdout
