"""Next steps of a report: a colleague's folder, and a run with more photographs, as a user does."""

import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from conftest import SHOWN, call, photo, photo_folder
from made_facts import some
from report.reading import alone
from vitlab.report.facts import facts_of
from vitlab.report.next_steps import next_command, next_run, next_steps
from vitlab.runs.run_folder import RunFolder

SMALL = (
    "--model", "ViT(width=16,depth=2,heads=2,mlp=32)/8", "--image-size", "16", "--epochs", "2",
    "--batch", "16",
)  # fmt: skip


def run_line(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a line of a shell in the working folder, the command in this process; return stdout."""
    out = ""
    for part in line.split(" && "):
        words = shlex.split(part)
        if words[0] == "vitlab":
            status, out, err = call(capsys, *words[1:])
            assert not status, err
        else:
            subprocess.run(words, check=True)
    return out


def hand_over(
    steps: dict[str, str],
    photo: str,
    away: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> str:
    """Pack the model, unpack it in another folder, where the working folder is then, and use it."""
    run_line(steps["Give it to somebody"], capsys)
    away.mkdir()
    shutil.move("model.tar.gz", away)
    shutil.copy(photo, away / "new.png")
    monkeypatch.chdir(away)
    return run_line(steps["They unpack and use it"].replace("IMAGE…", "new.png --json"), capsys)


def steps_of(run: str) -> dict[str, str]:
    """The commands of a run's report, by the first words of what they do."""
    items = next_steps(facts_of(RunFolder(run))).items
    return {re.split(r"[:,]", words)[0]: line for words, line in items}


@pytest.mark.parametrize("command", ["train", "probe"])
def test_a_model_is_given_away_and_more_photographs_come_next_week(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    photo_folder(Path("my photos"), {"ants": 60, "bees": 60})
    words = ["train", "my photos", *SMALL, "--out", "runs/ants"]
    assert not call(capsys, *words)[0]
    if command == "probe":
        words = ["probe", "my photos", "--from", "runs/ants", "--out", "runs/probe"]
        assert not call(capsys, *words)[0]
    run = words[-1]
    steps = steps_of(run)
    away = tmp_path / "away"
    theirs = json.loads(hand_over(steps, "my photos/ants/000.png", away, monkeypatch, capsys))
    monkeypatch.chdir(home)
    ours = json.loads(run_line(f"vitlab predict {run} 'my photos/ants/000.png' --json", capsys))
    (mine,), (their,) = (each["predictions"] for each in (ours, theirs))
    for each in (mine, their):
        del each["image"]
    assert mine == their
    for tint, name in enumerate(("ants", "bees")):
        for number in range(60, 90):
            photo(number, tint=tint).save(f"my photos/{name}/{number:03d}.png")
    found = json.loads(run_line(f"{steps['More photographs next week']} --json", capsys))
    assert [each["run"] for each in found["runs"]] == [run, f"{run}-2"]
    before, after = (each["images"] for each in found["runs"])
    assert found["images"] == before < after
    assert len(found["pairs"]) == 1


def test_a_run_of_numbers_is_given_away_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    photo_folder(Path("photos"), {"a": 40})
    rows = [f"photos/a/{number:03d}.png,{number % 7}" for number in range(40)]
    Path("ages.csv").write_text("\n".join(["path,age", *rows]))
    words = ["train", "ages.csv", "--targets", "age", "--task", "regress", *SMALL]
    assert not call(capsys, *words, "--out", "runs/ages")[0]
    steps = steps_of("runs/ages")
    away = tmp_path / "away"
    assert "age" in hand_over(steps, "photos/a/000.png", away, monkeypatch, capsys)
    assert not (away / "ages" / "checkpoints").exists()


def test_the_next_run_is_the_same_command_with_a_folder_of_its_own() -> None:
    assert next_run("runs/ants") == "runs/ants-2"
    assert next_run("runs/ants-9") == "runs/ants-10"
    assert next_run("/a b/2026-11-29") == "/a b/2026-11-30"
    for given, again in (
        ("vitlab train d", "vitlab train d --out o"),
        ("vitlab train 'd e' --out x --lr 1", "vitlab train 'd e' --lr 1 --out o"),
        ("vitlab train d --out=x --resume", "vitlab train d --out o"),
        ("vitlab train d --out --resume", "vitlab train d --out o"),
        ("vitlab train 'd", "vitlab train 'd"),
    ):
        assert next_command(given, "o") == again


def test_a_run_from_python_is_trained_again_by_its_recipe() -> None:
    facts = replace(some(), run={}, figures=some().figures | {"run": "runs/a"})
    compare = " && vitlab compare runs/a runs/a-2"
    assert f"vitlab train --recipe runs/a --out runs/a-2{compare}" in [
        line for _, line in next_steps(facts).items
    ]
    recipe = facts.recipe | {"recipe": {"recipe": "probe"}, "start": {"weights": "w x"}}
    lines = [line for _, line in next_steps(replace(facts, recipe=recipe)).items]
    assert f"vitlab probe some/digits --out runs/a-2 --from 'w x'{compare}" in lines


def test_the_table_of_a_probe_is_in_its_report_and_figures_of_a_table_were_made_alike(
    digits_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("probe", "digits", "--from", str(digits_run), "--layers", "2", "--out", "probe")
    status, out, err = call(capsys, *words, effort=SHOWN)
    assert not status, err
    lines = [line for line in err.splitlines() if "head: " in line]
    assert len(lines) == 1
    assert re.search(r"chosen among \d+: \d+\.\d% of the training images in cross-valid", lines[0])
    assert "leave-one-out" not in out + err
    text = alone(Path("probe/report.html"))
    section = text[text.index('id="heads"') :]
    tables = re.findall(r"<table.*?</table>", section, re.DOTALL)[:2]
    tried = [json.loads(line) for line in Path("probe/metrics.jsonl").read_text().splitlines()]
    kinds = ("leave-one-out", "5 folds")
    for table, how in zip(tables, kinds, strict=True):
        own = [each for each in tried if each.get("how") == how]
        assert own
        assert table.count("<tr>") == len(own) + 1
        best = max(each["accuracy"] for each in own)
        assert f"{best:.1%}" in table
