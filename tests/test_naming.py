"""Where runs are if no folder is given."""

import json
from pathlib import Path

import pytest

import vitlab
from conftest import LIGHT, QUICK, TINY, call
from vitlab.runs.naming import folder_name, newest, next_free, run_name
from vitlab.runs.run_folder import RunFolder


@pytest.mark.parametrize(
    ("data", "model", "want"),
    [
        ("photos/", "ViT-Ti/16", "photos-ViT-Ti-16"),
        ("my photos & more", "R50+ViT-B/16", "my-photos-more-R50-ViT-B-16"),
        ("../Blumen/Gärten", "BiT-R50x1", "Gärten-BiT-R50x1"),
        ("digits", "ViT(width=8,depth=1,heads=1,mlp=8)/4", "digits-ViT-4"),
        ("s/train-{000..012}.tar", "ViT-S18x2/16", "train-000..012-.tar-ViT-S18x2-16"),
        ("a" * 300, "ViT-S/16", "a" * 60 + "-ViT-S-16"),
    ],
)
def test_runs_are_named_after_data_and_model(data: str, model: str, want: str) -> None:
    assert run_name(vitlab.recipe("small", data, model=model)) == Path("runs", want)


def test_the_folder_where_the_command_is_typed_has_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pets").mkdir()
    monkeypatch.chdir(tmp_path / "pets")
    assert run_name(vitlab.recipe("small", ".")) == Path("runs/pets-ViT-Ti-16")


def test_weights_give_their_name_where_no_model_is_named() -> None:
    tuned = vitlab.recipe("finetune", "photos", weights="timm/vit_tiny_patch16_224.augreg_in21k")
    assert run_name(tuned).name == "photos-vit_tiny_patch16_224.augreg_in21k"
    nameless = vitlab.recipe("finetune", "photos", weights="")
    assert run_name(nameless).name == "photos"
    start = vitlab.create("ViT-Ti/16", classes=2, image_size=32)
    assert run_name(nameless, start, "5-folds").name == "photos-ViT-Ti-16-5-folds"


def test_numbers_go_on_after_the_newest_folder_that_holds_something(tmp_path: Path) -> None:
    name = tmp_path / "digits-ViT-4"
    assert (newest(name), next_free(name)) == (None, name)
    for taken in ("digits-ViT-4", "digits-ViT-4-3", "digits-ViT-40", "digits-ViT-4-2x"):
        (tmp_path / taken).mkdir()
        (tmp_path / taken / "run.toml").touch()
    (tmp_path / "digits-ViT-4-7").mkdir()  # empty: whatever made it was refused
    (tmp_path / "digits-ViT-4-7" / ".lock").touch()
    assert newest(name) == tmp_path / "digits-ViT-4-3"
    assert next_free(name) == tmp_path / "digits-ViT-4-4"
    assert folder_name("vtab", "w/base.npz") == Path("runs/vtab-base.npz")


def test_each_start_gets_a_folder_and_resume_the_newest(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "digits", "--json", *QUICK]
    folders = [json.loads(call(capsys, *words)[1])["run"] for _ in range(2)]
    assert folders == ["runs/digits-ViT-4", "runs/digits-ViT-4-2"]
    code, out, err = call(capsys, "train", "digits", "--resume", "--json", *QUICK[:2])
    assert (code, json.loads(out)["run"]) == (0, folders[1]), err  # with QUICK's other options
    assert "continuing runs/digits-ViT-4-2\n" in err
    assert "already finished" in err
    code, out, err = call(capsys, *words, "--resume", "--folds", "2")
    assert json.loads(out)["runs"][0]["run"] == "runs/digits-ViT-4-2-folds/fold-1-of-2", err


def test_a_restarted_run_is_its_own_unfinished_one() -> None:
    from vitlab.distributed.world import ALONE, World
    from vitlab.training.resume import placed

    name = run_name(vitlab.recipe("digits", **TINY))
    again = World(restarted=True)
    assert placed(None, name, resume=False, world=again) == name
    run = vitlab.train(vitlab.recipe("digits", **TINY | {"steps": 1}), host=LIGHT)
    assert (run.folder, RunFolder(name).started) == (name, True)
    assert placed(None, name, resume=False, world=again).name.endswith("-2")  # it is finished
    (name / "metrics.jsonl").unlink()
    assert placed(None, name, resume=False, world=again) == name
    assert placed(None, name, resume=False, world=ALONE).name.endswith("-2")
    assert placed("mine", name, resume=False, world=again) == Path("mine")
