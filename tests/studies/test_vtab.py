"""VTAB-1k: one setting for all tasks, nothing learned twice, no mean over fewer in silence."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import vitlab
from conftest import BRIEF, call
from data.vtab.fakes import listed
from vitlab.data.vtab import BY_NAME, GROUPS, TASKS
from vitlab.errors import DataError, DivergedError, OptionError, RunError
from vitlab.experiments import cells
from vitlab.experiments.several import VtabSetting
from vitlab.experiments.sweep import best_of
from vitlab.runs.run_folder import RunFolder
from vitlab.studies.vtab import PAPER, recipe_of, remark, summary, table, vtab

QUICK = VtabSetting(steps=2, batch=16, image_size=8, precision="fp32")
HOST = vitlab.Host(device="cpu", workers=0, check_duplicates="no", effort=BRIEF)


@pytest.fixture
def weights(tmp_path: Path) -> str:
    model = vitlab.create(
        "ViT(width=8,depth=1,heads=1,mlp=8)/4", classes=2, image_size=8, labels=("cat", "dog")
    )
    vitlab.save(model, tmp_path / "base")
    return str(tmp_path / "base")


def test_one_setting_for_all_tasks_is_the_papers() -> None:
    recipe = recipe_of(BY_NAME["dtd"], "base", "vtab:root/dtd", VtabSetting(), 0.01)
    how, when = recipe.optimizer, recipe.schedule
    assert (recipe.steps, recipe.batch, how.lr) == (2500, 512, 0.01)
    assert (how.optimizer, how.momentum, how.weight_decay, how.clip) == ("sgd", 0.9, 0, 1)
    assert (when.schedule, when.warmup_steps, recipe.objective.label_smoothing) == (
        "cosine", 200, 0)  # fmt: skip
    assert recipe.model.chosen()["image_size"] == 384
    assert (recipe.start.weights, recipe.data.data) == ("base", "vtab:root/dtd")
    short = recipe_of(BY_NAME["dtd"], "base", "x", VtabSetting(steps=100), 0.03)
    assert (short.schedule.warmup_steps, short.optimizer.lr) == (8, 0.03)


def test_tasks_whose_label_a_crop_or_flip_would_change_have_none() -> None:
    def augment(name: str, **setting: Any) -> tuple[bool, bool]:
        options = recipe_of(BY_NAME[name], "b", "x", VtabSetting(**setting), 0.01).augment
        assert options.area in (1, pytest.approx(0.7347, abs=1e-4))
        return options.area < 1, options.flip

    assert augment("cifar100") == (True, True)
    assert augment("clevr_count") == (False, True)
    assert augment("dsprites_ori") == (True, False)
    assert augment("dsprites_loc") == (False, False)
    assert augment("cifar100", augment="none") == (False, False)


def test_every_task_gets_its_run_and_none_is_repeated(
    weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the command line, then from Python."""
    root, out = tmp_path / "root", tmp_path / "out"
    listed(root / "svhn", test=20)
    listed(root / "dmlab", classes=6, test=12)
    words = ["vtab", weights, "--data", str(root), "--out", str(out), "--device", "cpu"]
    words += ["--steps", "2", "--batch", "16", "--image-size", "8", "--precision", "fp32"]
    words += ["--check-duplicates", "no"]
    status, text, err = call(capsys, *words, "--workers", "0")
    assert status == 0, err
    assert "no data for 17 of 19 tasks: caltech101, cifar100" in err
    assert "1 of 7 natural" in text
    assert "not to be compared with the paper's" in text
    html = (out / "report.html").read_text()
    assert "2 of 8 structured" not in html
    assert all(text in html for text in ("1 of 8 structured", "No data: caltech101", "2 of 19"))
    folder = RunFolder(out / "svhn")
    assert folder.recipe.data.data == f"vtab:{root}/svhn"
    before = folder.journal.file.stat().st_mtime_ns
    result = json.loads((out / "campaign.json").read_text())["result"]
    (out / "dmlab" / "metrics.jsonl").unlink()  # as if it had been stopped
    with pytest.raises(RunError, match=r"out already contains a vtab: pass "):
        vtab(weights, root, out, setting=QUICK, host=HOST)
    again = vtab(weights, root, out, setting=QUICK, resume=True, host=HOST)
    assert folder.journal.file.stat().st_mtime_ns == before
    accuracies = [row["accuracy"] for row in again["tasks"]]
    assert accuracies == [row["accuracy"] for row in result["tasks"]]
    assert [row["task"] for row in again["tasks"]] == ["svhn", "dmlab"]
    assert [row["images"] for row in again["tasks"]] == [20, 12]
    assert (len(again["missing"]), again["accuracy"]) == (17, None)
    assert (again["done"], again["of"]) == (2, 19)
    assert again["mean_of_done"] == pytest.approx(sum(accuracies) / 2)
    with pytest.raises(RunError, match="was started with seed=0, not 1"):
        vtab(weights, root, out, setting=QUICK.changed(seed=1), resume=True, host=HOST)
    status, text, err = call(capsys, *words, "--workers", "0", "--json", "--resume")
    assert json.loads(text)["tasks"] == again["tasks"]
    assert {each.name for each in fields(VtabSetting)} <= set(json.loads(text)["setting"])
    assert "is already finished" in err
    dry = [*words, "--tasks", "svhn", "--workers", "0", "--dry-run", "--sweep", "0.1", "0.2"]
    plan = json.loads(call(capsys, *dry, "--json")[1])
    assert [row["name"] for row in plan["rows"]] == ["sweep/svhn-0.1", "sweep/svhn-0.2", "svhn"]
    assert plan["seconds"] > 0


def test_a_sweep_chooses_on_the_validation_images(weights: str, tmp_path: Path) -> None:
    """And what the weights do not say reaches every run."""
    root, out = tmp_path / "root", tmp_path / "out"
    listed(root / "svhn", classes=2, test=20)
    known = {"heads": 2, "mean": 0.1, "name": "ViT(width=8,depth=1,heads=2,mlp=8)/4"}
    how: dict[str, Any] = {"tasks": ("svhn",), "known": known, "host": HOST}
    row = vtab(weights, root, out, setting=QUICK.changed(sweep=(0.5, 1e-5)), **how)["tasks"][0]
    assert [each["lr"] for each in row["sweep"]] == [1e-5, 0.5]
    assert row["lr"] == best_of(row["sweep"])["lr"]
    tried, last = RunFolder(out / "sweep" / "svhn-1e-05"), RunFolder(out / "svhn").recipe
    assert tried.recipe.data.data == f"vtab-search:{root}/svhn"
    assert tried.result()["images"] == 200
    assert last.optimizer.lr == row["lr"]
    assert last.start.weights_name == tried.recipe.start.weights_name == known["name"]
    config = vitlab.load(out / "svhn").config
    assert (config.as_dict()["heads"], config.mean) == (2, (0.1,) * 3)
    assert (config.fit, config.crop) == ("squash", 1.0)


def test_the_highest_accuracy_is_chosen_and_ties_go_to_the_lower_rate() -> None:
    def chosen(*accuracies: float | None) -> float:
        rates = (0.001, 0.003, 0.01, 0.03)
        return best_of(
            [
                {"lr": lr} | ({"diverged": "no"} if each is None else {"accuracy": each})
                for lr, each in zip(rates, accuracies, strict=True)
            ]
        )["lr"]

    assert chosen(0.1, 0.3, 0.2, None) == 0.003
    assert chosen(0.1, 0.3, 0.3, 0.2) == 0.003
    assert chosen(0.0, None, 0.0, None) == 0.001
    assert chosen(None, None, None, None) == 0.001


def test_a_run_that_diverges_does_not_count(
    weights: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(recipe: vitlab.Recipe, folder: Path, **more: Any) -> vitlab.Run:
        if recipe.optimizer.lr > 0.1 or folder.name == "svhn":
            raise DivergedError("diverged at step 1")
        assert folder.name.startswith("svhn-")
        metrics = {"accuracy": 0.5, "images": 200, "seconds": 1.0}
        return vitlab.Run(folder, metrics, None)  # type: ignore[arg-type]

    monkeypatch.setattr(cells, "train", train)
    listed(tmp_path / "svhn")
    (tmp_path / "out").mkdir()
    setting = QUICK.changed(sweep=(0.01, 1.0))
    result = vtab(weights, tmp_path, tmp_path / "out", setting=setting, host=HOST)
    row = result["tasks"][0]
    assert [each["accuracy"] for each in row["sweep"]] == [0.5, None]
    assert (row["accuracy"], row["note"], row["lr"]) == (None, "diverged at step 1", 0.01)
    assert result["done"] == 0
    assert ("SVHN", "0.01", "diverged", "88.9%", "87.4%", "80.9%", "88.5%") in table(result)


def test_what_is_missing_is_refused_or_listed(weights: str, tmp_path: Path) -> None:
    def message(*tasks: str) -> str:
        with pytest.raises((DataError, OptionError)) as error:
            vtab(weights, tmp_path, tmp_path / "out", tasks=tasks, setting=QUICK)
        return str(error.value)

    assert message() == (
        f"{tmp_path} has no folder of any VTAB task, such as caltech101 or cifar100"
    )
    listed(tmp_path / "svhn")
    assert message("svhn", "dtd") == f"{tmp_path} has no folder dtd: add it, or leave the task out"
    assert message("svnh") == "unknown task 'svnh': did you mean svhn?"
    (tmp_path / "svhn" / "val200.txt").write_text("images/0 .png 1")
    assert message("svhn") == f"{tmp_path}/svhn/val200.txt has 1 images; VTAB-1k has 200"
    assert not (tmp_path / "out").exists()


def test_the_papers_rows_have_the_papers_means() -> None:
    """ViT, Table 9; of S4L the mean of VTAB's own results."""
    means = {name: summary(values)["accuracy"] for name, values in PAPER.items()}
    assert [round(100 * each, 1) for each in means.values()] == [77.6, 76.3, 72.7, 68.0]
    assert all(len(values) == len(TASKS) for values in PAPER.values())


def test_means_over_fewer_tasks_have_another_name() -> None:
    natural = [task.name for task in TASKS if task.group == "natural"]
    # natural: 0.1 … 0.7, mean 0.4; specialized: one task of four, 1.0; structured: none
    known = {name: (place + 1) / 10 for place, name in enumerate(natural)} | {"eurosat": 1.0}
    found = summary(known)
    assert found["groups"]["natural"]["accuracy"] == pytest.approx(0.4)
    assert found["groups"]["specialized"] == {
        "accuracy": None, "done": 1, "of": 4, "mean_of_done": 1.0}  # fmt: skip
    assert found["groups"]["structured"] == {
        "accuracy": None, "done": 0, "of": 8, "mean_of_done": None}  # fmt: skip
    assert (found["accuracy"], found["done"]) == (None, 8)
    assert found["mean_of_done"] == pytest.approx((2.8 + 1.0) / 8)
    rows = [
        {"task": name, "accuracy": value, "images": 1000, "lr": 0.01}
        for name, value in known.items()
    ]
    lines = {line[0]: line[1:4] for line in table(found | {"tasks": rows, "missing": ["dmlab"]})}
    assert lines["Caltech101"] == ("0.01", "10.0%", "95.3%")
    assert lines["Retinopathy"] == ("", "not run", "76.6%")
    assert lines["DMLab"] == ("", "no data", "53.1%")
    # (95.3 + 85.5 + 75.2 + 99.7 + 97.2 + 65.0 + 88.9) / 7 = 86.7 in the paper
    assert lines["mean, natural"] == ("", "40.0%", "86.7%")
    assert lines["1 of 4 specialized"] == ("", "(100.0%)", "87.0%")
    assert lines["0 of 8 structured"][1] == ""
    assert lines["8 of 19 all"] == ("", "(47.5%)", "77.6%")
    assert "8 of 19" in remark(found)
    every = summary({task.name: 0.5 for task in TASKS})
    assert (every["accuracy"], remark(every)) == (0.5, "")
    assert [every["groups"][group]["of"] for group in GROUPS] == [7, 4, 8]
