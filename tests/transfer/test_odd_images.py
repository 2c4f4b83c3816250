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
    if command == "fewshot":
        return (command, weights, str(data), "--cache", "no", *quick)
    more = ("--cache no" if command == "probe" else "--steps 2 --batch 4 --warmup-steps 0").split()
    run = ("--from", weights, "--out", str(out), "--report", "no")
    return (command, str(data), *run, *more, *quick)


def saved(folder: Path) -> str:
    return str(vitlab.save(vitlab.create(VIT, 0, 8), folder / "weights"))


@pytest.mark.parametrize("command", COMMANDS)
def test_one_image_in_a_class_one_class_and_nothing_but_damage(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = saved(tmp_path)
    data = photo_folder(tmp_path / "photos", {"a": 1, "b": 9, "c": 9})
    code, out, err = call(capsys, *words_of(command, data, weights, tmp_path / "run"))
    assert code == 0, err
    assert json.loads(out)["images"] > 0
    one = photo_folder(tmp_path / "one", {"a": 9})
    damaged = photo_folder(tmp_path / "damaged", {"a": 9, "b": 9})
    for file in damaged.rglob("*.png"):
        file.write_bytes(file.read_bytes()[:60])
    for data, says in ((one, ("has only one class",)), (damaged, ("damaged", "decode"))):
        code, out, err = call(capsys, *words_of(command, data, weights, tmp_path / data.name / "r"))
        assert (code, out) == (2, ""), err
        assert "Traceback" not in err
        assert any(word in err.splitlines()[-1] for word in says), err
