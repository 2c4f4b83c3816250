"""Options that the product's lines name: each exists for the commands that can print the line."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import vitlab
import vitlab.commands
from conftest import call, photo_folder
from syntax import nodes_of, parse_file
from test_by_name import texts_of
from test_house import graph_of, module_of
from vitlab.command_table import COMMANDS, command_named
from vitlab.console.leaves import all_leaves

SOURCE = Path(vitlab.__file__).parent
FOREIGN = {  # options of other programs, by the file that writes them
    "data.loading.handover": {"--memory", "--shm-size"},  # docker
    "data.loading.loader": {"--shm-size"},
    "distributed.launch": {"--nproc-per-node"},  # torchrun
    "graphs.check": {"--folder", "--limit", "--set"},  # check.py of an export
    "graphs.targets": {"--install"},  # xcode-select
    "pages.runtime": {"--ignore-scripts", "--silent"},  # npm
    "report.next_steps": {"--exclude"},  # tar
    "runs.versions": {"--porcelain", "--untracked-files"},  # git
    "weights.save": {"--to"},  # of an export, which reaches it by name
    "cli": {"--version"},
    "console.leaves": {"--no"},  # the beginning of a flag's opposite
    "console.parsing": {"--no"},
    "transfer.soup": {"--ema"},  # of the runs that are averaged
    # options of the runs that are compared
    "commands.compare": {"--fold", "--seed"},
    "runs.several_runs": {"--resume"},
}
OPTION = r"(?<![\w(-])--[a-z][a-z-]*[a-z]"


@cache
def options() -> dict[str, set[str]]:
    """The options of each command, as they are typed."""
    found = {}
    for name in COMMANDS:
        own = {"--help", "--help-all"}
        for leaf in all_leaves(command_named(name).kind):
            if not leaf.about.positional:
                own |= {leaf.flag} | ({f"--no-{leaf.flag[2:]}"} if leaf.is_flag else set())
        found[name.replace("-", "_")] = own
    return found


@cache
def trees() -> dict[str, ast.Module]:
    """Every file of the package, by the name of its module."""
    files = SOURCE.rglob("*.py")
    return {module_of(file, SOURCE): parse_file(file) for file in files}


@cache
def reaching() -> dict[str, set[str]]:
    """The commands that import each module, themselves, through others or through tables."""
    graph, found = graph_of(trees()), defaultdict[str, set[str]](set)
    for module, tree in trees().items():
        if module != "command_table":
            graph[module] |= {text[len("vitlab.") :].split(":")[0] for text in texts_of(tree)}
    for command in options():
        todo = [f"commands.{command}"]
        while todo:
            module = todo.pop()
            if command not in found[module]:
                found[module].add(command)
                todo += graph.get(module, set()) - {"__init__"}
    return found


def lines_of(tree: ast.Module) -> Iterator[str]:
    """The texts of a file but its docstrings; an ellipsis for what is put into them."""
    inner = {id(node.value) for node in nodes_of(tree) if isinstance(node, ast.Expr)}
    for node in nodes_of(tree):
        if isinstance(node, ast.JoinedStr):
            inner |= {id(each) for each in ast.walk(node) if each is not node}
            texts = [each.value if isinstance(each, ast.Constant) else "…" for each in node.values]
            yield "".join(map(str, texts))
    for node in nodes_of(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner:
            yield node.value


@cache
def lines() -> dict[str, list[str]]:
    """The texts of every file that have an option, by the name of its module."""
    return {
        module: [text for text in lines_of(tree) if "--" in text]
        for module, tree in trees().items()
    }


def named_commands(text: str) -> Iterator[tuple[str, str]]:
    """The commands that a line spells out, each with an option that it gives them."""
    for found in re.finditer(r"vitlab ([a-z]+(?:-[a-z]+)?)\b([^;:`]*)", text):
        command = found[1].replace("-", "_")
        if command in options():
            words = re.split(r", (?!sampling)|\. | or (?!focal)|\) |\bvitlab ", found[2])[0]
            yield from ((command, option) for option in re.findall(OPTION, words))


def test_every_option_in_a_line_exists_for_a_command_that_can_print_it() -> None:
    count, wrong = 0, list[str]()
    for module, texts in lines().items():
        for text in texts:
            spelled = [*named_commands(text)]
            wrong += [f"{module}: vitlab {c} {o}" for c, o in spelled if o not in options()[c]]
            for option in set(re.findall(OPTION, text)) - FOREIGN.get(module, set()):
                count += 1
                printing = reaching().get(module) or set(options())
                able = {each for each in printing if option in options()[each]}
                elsewhere = any(option == each for _, each in spelled)
                # of the run that the line is about
                other = re.search(r"--(task|what)\b", option) is not None
                other = other or module.startswith("report.comparing.")
                if not able and not elsewhere and not (other and any_has(option)):
                    wrong.append(f"{module}: {option} in {text[:80]!r}")
    assert count > 250
    assert wrong == []


def any_has(option: str) -> bool:
    """Whether any command has an option."""
    return any(option in own for own in options().values())


TRAINING = ("train", "finetune", "probe", "pretrain")


@pytest.mark.parametrize("option", ["--part", "--drop", "--name", "--base"])
def test_lines_about_weights_name_the_option_of_training_too(option: str) -> None:
    """What is `--part` to most commands is `--weights-part` to those that train."""
    assert not any(option in options()[command] for command in TRAINING)
    instead = "vitlab export" if option == "--base" else f"--weights-{option[2:]}"
    for module, texts in lines().items():
        for text in texts:
            if module.startswith("weights.") and option in re.findall(OPTION, text):
                before = module == "weights.save"  # an export, which has the option
                assert instead in text or before, f"{module}: {text}"


def test_a_probe_is_told_what_makes_up_for_uneven_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    photo_folder(tmp_path / "photos", {"a": 66, "b": 5}, 16, 16)
    shape = "ViT(width=16,depth=1,heads=2,mlp=32)/4"
    vitlab.save(vitlab.create(shape, 0, 8), tmp_path / "model")
    common = ("photos", "--from", "model", "--workers", "0")
    status, _, err = call(capsys, "probe", *common, "--out", "run")
    assert status == 0
    (line,) = {line for line in err.splitlines() if "--balance" in line}
    advice = "vitlab finetune with --balance weights, sampling or focal would make up for it"
    assert line.endswith(advice)
    for number, value in enumerate(("weights", "sampling", "focal")):
        words = (*common, "--balance", value, "--epochs", "1", "--out", f"tuned{number}")
        assert call(capsys, "finetune", *words)[0] == 0
