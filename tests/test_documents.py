"""JSON and TOML of others: an object, or one error that names the file; run folders, all commands.

`VITLAB_CAMPAIGN=200 pytest -m campaign tests/test_documents.py -rP` tries as many changes of each.
"""

import json
import os
import shutil
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from conftest import QUICK, call
from vitlab.documents import DEEPEST, parse_json, read_json, read_toml
from vitlab.errors import CONTROL, RunError
from vitlab.training import checkpoints

CASES = int(os.environ.get("VITLAB_CAMPAIGN", "25"))
NESTED = "[" * 10_000 + "]" * 10_000
DEEP = '{"a": ' * (DEEPEST + 1) + "1" + "}" * (DEEPEST + 1)
HOSTILE: tuple[Any, ...] = (
    10**9, -1, 0, 10**30, 1e308, float("nan"), "x" * 1000, "/etc/passwd", None, True, [], [[]] * 5,
    {}, {"a": {"a": 1}}, "\0", "9" * 50, [10**9] * 3, "\x1b[31m", 1.5, "a",
)  # fmt: skip
BAD_JSON = {
    NESTED: "nested too deeply", f'{{"a": {NESTED}}}': "nested too deeply",
    DEEP: "nested too deeply", f"[{DEEP}]": "nested too deeply",
    "": "Expecting value", "null": "no object, but null",
    "[]": "no object, but a list", "1": "no object, but a number", '"a"': "no object, but a text",
    "true": "no object, but true or false", '{"a": 1': "Expecting", "\xff": "decode",
    '{"a": ' + "9" * 5000 + "}": "too many digits",
}  # fmt: skip
BAD_TOML = {
    f"a = {NESTED}": "nested too deeply", "a = " + "{a=" * 3000 + "1" + "}" * 3000: "nested",
    ".".join("a" * 5000) + " = 1": "nested too deeply", "[" + ".".join("a" * 5000) + "]": "nested",
    "a = {" + ".".join("a" * 100_000) + " = 1}": "nested too deeply", "[run": "Expected",
    " . ".join(["'a b'"] * 100) + " = 1": "nested too deeply", "\xff": "decode",
    "a = " + "9" * 5000: "too many digits",
}  # fmt: skip


@pytest.mark.parametrize("text", BAD_JSON)
def test_json_is_an_object_or_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(RunError, match=r"a\.json is damaged: ") as error:
        read_json(file, RunError)
    assert BAD_JSON[text] in str(error.value)
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("text", BAD_TOML)
def test_toml_is_tables_or_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(RunError, match=r"a\.toml is damaged: ") as error:
        read_toml(file, RunError)
    assert BAD_TOML[text] in str(error.value)


def test_files_of_any_kind_and_size(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"a": ["b"] * 100}))
    assert read_json(file, RunError) == {"a": ["b"] * 100}
    with pytest.raises(RunError, match="exceed the limit of 100"):
        read_json(file, RunError, 100)
    with pytest.raises(RunError, match="exceed the limit of 10"):
        parse_json("{} " * 10, "its header", RunError, 10)
    os.mkfifo(tmp_path / "pipe")
    for name, why in (("pipe", "not a regular file"), ("", "a folder"), ("no", "no such file")):
        with pytest.raises(RunError, match=why):
            read_json(tmp_path / name, RunError)


def test_what_is_nested_as_far_as_allowed_is_read() -> None:
    text = '{"a": ' * DEEPEST + "1" + "}" * DEEPEST
    assert parse_json(text, "x", RunError) == json.loads(text)


# The files of runs


@pytest.fixture(scope="module")
def runs(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, `a` and `b`, and `c`, which is not."""
    root = tmp_path_factory.mktemp("runs")
    for name in "ab":
        shutil.copytree(digits_run, root / name)
    shutil.copytree(root / "a", root / "c")
    journal = root / "c" / "metrics.jsonl"
    lines = [line for line in journal.read_text().splitlines() if '"result"' not in line]
    journal.write_text("\n".join(lines) + "\n")
    return root


def commands_on(run: Path, other: Path, finished: bool) -> list[list[str]]:
    again = ["train", "digits", "--out", str(run), "--resume", *QUICK]
    found = [["runs", str(run)], [*again, "--device", "cpu", "--report", "no"]]
    return [*found, ["compare", str(run), str(other)]] if finished else found


def tried(root: Path, run: Path, capsys: Any, what: object) -> Counter[int]:
    """The exit statuses of the commands on a copy of a run, which are lines, not tracebacks."""
    found = Counter[int]()
    for words in commands_on(run, root / "b", "a" in run.name):
        code, out, err = call(capsys, *words)  # which lets a traceback through
        assert code in (0, 2), (what, words[0], err)
        assert not CONTROL.search((out + err).replace("\n", "").replace("\r", "")), what
        found[code] += 1
    return found


def copied(root: Path, name: str, place: Path) -> Path:
    shutil.rmtree(place / name, ignore_errors=True)
    return shutil.copytree(root / name, place / name)


@pytest.mark.parametrize("name", ["a", "c"])
def test_a_run_whose_files_are_something_else(
    name: str, runs: Path, tmp_path: Path, capsys: Any
) -> None:
    tables = (runs / name / "run.toml").read_text()
    texts = {"run.toml": [*BAD_TOML, "run = 1\n", "changes = 1\n" + tables, ""]}
    texts["metrics.jsonl"] = [f"{NESTED}\n", f'{{"kind": "result", "a": {NESTED}}}\n', "null\n1\n"]
    texts["duplicates.json"] = [NESTED, "[]", "{}", '{"dropped": true}']
    for file, contents in texts.items():
        for text in contents:
            run = copied(runs, name, tmp_path)
            (run / file).write_bytes(text.encode("latin-1"))
            found = tried(runs, run, capsys, (file, text[:60]))
            unread = file == "metrics.jsonl" or (name == "a" and file == "duplicates.json")
            assert found[2] or unread, (file, text[:60])


LINES: dict[str, Any] = {
    "params": "many", "macs": [], "images": {}, "seconds": "long", "accuracy": "good", "top5": [1],
    "model": 3, "intervals": {"accuracy": 1}, "classes": [{"class": 1}], "notes": 3, "device": None,
    "confused": {"a": 1}, "nll": 10**400, "kind": 3, "loss": {}, "step": "one", "epoch": None,
}  # fmt: skip


@pytest.mark.parametrize("key", LINES)
def test_a_journal_with_something_else_where_a_number_belongs(
    key: str, runs: Path, tmp_path: Path, capsys: Any
) -> None:
    """Such a line is damaged: it is skipped and counted, as one that is cut."""
    run = copied(runs, "a", tmp_path)
    file = run / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    changed = [line | {key: LINES[key]} if key in line else line for line in lines]
    assert changed != lines or key in ("step", "epoch", "loss", "intervals", "notes")
    file.write_text("".join(json.dumps(line) + "\n" for line in changed))
    tried(runs, run, capsys, key)


@pytest.mark.parametrize("text", [*BAD_JSON, "{}", '{"step": "a"}', '{"step": 1e400}'])
def test_a_checkpoint_with_another_state_is_skipped(
    text: str, runs: Path, tmp_path: Path, capsys: Any
) -> None:
    run = copied(runs, "c", tmp_path)
    found = checkpoints.places(run / "checkpoints")
    (found[0] / "state.json").write_bytes(text.encode("latin-1"))
    assert not checkpoints.is_good(found[0], 10**6)
    older = run / "checkpoints" / "step-000000001"
    shutil.copytree(found[0], older)  # which is looked at when the next one is saved
    shutil.copytree(found[0], older.with_name("step-000000002"))
    shutil.copytree(found[0], older.with_name("step-000000003"))
    words = commands_on(run, runs / "b", finished=False)[1]
    code, _, err = call(capsys, *words)
    assert code == 0, err
    assert "is damaged and was skipped" in err


def changed_somewhere(value: Any, draw: np.random.Generator) -> Any:
    """The same with one value somewhere left out, or replaced by a hostile one."""
    inside = isinstance(value, dict | list) and len(value) and draw.random() < 0.9
    if not inside:
        return HOSTILE[int(draw.integers(len(HOSTILE)))]
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = keys[int(draw.integers(len(keys)))]
    made = dict(value) if isinstance(value, dict) else list(value)
    if draw.random() < 0.15:
        del made[key]
    else:
        made[key] = changed_somewhere(value[key], draw)
    return made


def change(file: Path, draw: np.random.Generator) -> None:
    """Change a value in a file."""
    text = file.read_text()
    match file.suffix:
        case ".toml":
            made: Any = None
            while made is None or not _writable(made):
                made = changed_somewhere(tomllib.loads(text), draw)
            file.write_text(tomli_w.dumps(made))
        case ".jsonl":
            lines = [json.loads(line) for line in text.splitlines()]
            place = int(draw.integers(len(lines))) if draw.random() < 0.5 else len(lines) - 1
            lines[place] = changed_somewhere(lines[place], draw)
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        case _:
            file.write_text(json.dumps(changed_somewhere(json.loads(text), draw)))


def _writable(made: Any) -> bool:
    try:
        return bool(tomli_w.dumps(made))
    except (TypeError, ValueError, AttributeError):
        return False


@pytest.mark.campaign
@pytest.mark.parametrize("file", ["run.toml", "metrics.jsonl", "duplicates.json"])
@pytest.mark.parametrize("name", ["a", "c"])
def test_one_value_somewhere_is_another(
    name: str, file: str, runs: Path, tmp_path: Path, capsys: Any
) -> None:
    counts = Counter[int]()
    for seed in range(CASES):
        run = copied(runs, name, tmp_path)
        change(run / file, np.random.default_rng(seed))
        counts += tried(runs, run, capsys, (file, seed))
    print(f"{file} of {name}: {dict(counts)}")
