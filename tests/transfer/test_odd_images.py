"""`probe`, `fewshot`, `finetune` on odd data and weights: each works, or says why in one line."""

import json
from pathlib import Path

import pytest

import vitlab
from conftest import call, photo_folder

VIT = "ViT(width=16,depth=2,heads=2,mlp=32)/4"
COMMANDS = ("probe", "fewshot", "finetune")


def words_of(command: str, data: Path, weights: str, out: Path) -> tuple[str, ...]:
    quick = ("--image-size", "8", "--workers", "0", "--json")
    match command:
        case "fewshot":
            return (command, weights, str(data), "--cache", "no", *quick)
        case "probe":
            more = ("--cache", "no")
        case _:
            more = ("--steps", "2", "--batch", "4", "--warmup-steps", "0")
    return (
        command,
        str(data),
        "--from",
        weights,
        "--out",
        str(out),
        "--report",
        "no",
        *more,
        *quick,
    )


def saved(folder: Path, name: str = VIT, **choices: object) -> str:
    given = {"classes": 0, "image_size": 8} | choices
    return str(vitlab.save(vitlab.create(name, **given), folder / "weights"))


@pytest.mark.parametrize(
    ("command", "name", "choices"),
    [  # with `probe`, test_linear_probe.py has the others
        ("fewshot", VIT, {"pool": "mean"}),
        ("finetune", VIT, {"pool": "attention"}),
        ("fewshot", "BiT-R(1)x1", {"image_size": 32}),
        ("finetune", "BiT-R(1)x1", {"image_size": 32}),
        ("probe", VIT, {"classes": 7}),
        ("fewshot", VIT, {"classes": 7}),
    ],
)
def test_weights_of_every_kind(
    command: str,
    name: str,
    choices: dict[str, object],
    tmp_path: Path,
    photos: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = words_of(command, photos, saved(tmp_path, name, **choices), tmp_path / "run")
    code, out, err = call(capsys, *words)
    assert code == 0, err
    if command == "fewshot":
        found = json.loads(out)
        assert found["features"] > 0
        assert found["images"] == 11
    else:
        assert vitlab.load(tmp_path / "run").config.labels == ("blue", "green", "red")


@pytest.mark.parametrize("command", COMMANDS)
def test_one_image_in_a_class(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = photo_folder(tmp_path / "photos", {"a": 1, "b": 9, "c": 9})
    code, out, err = call(capsys, *words_of(command, data, saved(tmp_path), tmp_path / "run"))
    assert code == 0, err
    assert json.loads(out)["images"] > 0


@pytest.mark.parametrize("command", COMMANDS)
def test_one_class_and_nothing_but_damage(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = saved(tmp_path)
    data = photo_folder(tmp_path / "one", {"a": 9})
    code, out, err = call(capsys, *words_of(command, data, weights, tmp_path / "run"))
    last = err.splitlines()[-1]
    assert (code, out) == (2, ""), err
    assert "Traceback" not in err
    assert "has only one class" in last
    data = photo_folder(tmp_path / "damaged", {"a": 9, "b": 9})
    for file in data.rglob("*.png"):
        file.write_bytes(file.read_bytes()[:60])
    code, out, err = call(capsys, *words_of(command, data, weights, tmp_path / "run"))
    assert (code, out) == (2, ""), err
    assert "Traceback" not in err
    assert "damaged" in err.splitlines()[-1] or "decode" in err.splitlines()[-1], err
