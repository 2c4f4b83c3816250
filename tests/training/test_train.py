"""Whole runs, small ones: what they leave, how they go on, how they stop."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

import vitlab
from conftest import TINY, stub_reports
from forked import Forked
from steps import asked_to_stop, each_step
from vitlab.data.learning import open_to_learn
from vitlab.errors import DataError
from vitlab.files import sha256
from vitlab.recipes.recipe import Host
from vitlab.runs.run_folder import RunFolder
from vitlab.training import checkpoints
from vitlab.training.state import State
from vitlab.training.step import Trainer
from vitlab.training.stop import Interrupted

QUICK = TINY | {"epochs": 2, "batch": 256, "dropout": 0.1, "micro_batch": 100}


def weights(run: Path) -> str:
    return sha256(run / "model" / "model.safetensors")


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> vitlab.Run:
    """A run that was never stopped."""
    return vitlab.train(vitlab.recipe("digits", **QUICK), tmp_path_factory.mktemp("whole") / "run")


def test_a_run_leaves_all_it_should(whole: vitlab.Run) -> None:
    names = {each.name for each in whole.folder.iterdir()} - {".lock"}
    assert names == {
        "run.toml",
        "metrics.jsonl",
        "checkpoints",
        "duplicates.json",
        "model",
        "predictions.safetensors",
        "report.html",
    }
    lines = [json.loads(line) for line in (whole.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(1, 13))
    assert [line["step"] for line in lines if line["kind"] == "test"] == [12]
    assert lines[-1]["kind"] == "result"
    keys = "accuracy top5 nll ece images model params macs images_per_second peak_memory seconds"
    assert set(whole.metrics) >= {*keys.split(), "run", "report"}
    assert lines[-2]["accuracy"] == whole.metrics["accuracy"]
    assert whole.metrics["images"] == 359
    assert whole.metrics["params"] == sum(weight.numel() for weight in whole.model.parameters())


def test_the_saved_model_is_the_one_that_was_tested(whole: vitlab.Run) -> None:
    loaded = vitlab.load(whole.folder)
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    figures = vitlab.evaluate(loaded, "digits")
    for key in ("accuracy", "top5", "nll", "ece", "images", "params", "macs", "model"):
        assert figures[key] == pytest.approx(whole.metrics[key]), key
    assert loaded.config.labels == tuple("0123456789")


@pytest.mark.workers
def test_the_same_seed_gives_the_same_bits_and_another_does_not(
    whole: vitlab.Run, tmp_path: Path
) -> None:
    again = vitlab.train(vitlab.recipe("digits", **QUICK), tmp_path / "a", host=Host(workers=2))
    other = vitlab.train(vitlab.recipe("digits", **QUICK | {"seed": 1}), tmp_path / "b")
    assert weights(again.folder) == weights(whole.folder)
    assert weights(other.folder) != weights(whole.folder)


def test_stopped_and_resumed_anywhere_the_bits_are_the_same(
    whole: vitlab.Run, tmp_path: Path
) -> None:
    recipe, stops = vitlab.recipe("digits", **QUICK), 0
    for steps, workers in ((3, 0), (5, 2), (2, 1), (99, 0)):
        with asked_to_stop(steps):
            try:
                run = vitlab.train(recipe, tmp_path / "r", resume=True, host=Host(workers=workers))
            except Interrupted as stop:
                assert "stopped after step" in str(stop)
                stops += 1
    assert stops == 3
    assert weights(run.folder) == weights(whole.folder)
    ours, theirs = (
        [json.loads(line) for line in (each.folder / "metrics.jsonl").read_text().splitlines()]
        for each in (run, whole)
    )
    for a, b in zip(ours, theirs, strict=True):
        for key in ("kind", "step", "epoch", "loss", "accuracy", "lr"):
            assert a.get(key) == b.get(key)


def command(folder: Path, *more: str) -> list[str]:
    words = ["train", "digits", "--out", str(folder), *more]
    for key, value in QUICK.items():
        words += [f"--{key.replace('_', '-')}", str(value)]
    return words


def test_killed_at_random_moments_and_resumed_the_bits_are_the_same(
    whole: vitlab.Run, tmp_path: Path
) -> None:
    generator, folder, kills = np.random.default_rng(0), tmp_path / "run", 0
    for attempt in range(12):
        workers = str(attempt % 3)
        words = command(folder, "--resume", "--checkpoint-every", "0", "--workers", workers)
        process = Forked(words)
        journal = folder / "metrics.jsonl"
        size = journal.stat().st_size if journal.exists() else 0
        while process.poll() is None and kills < 3:  # with none, one and two workers
            time.sleep(0.005)
            if journal.exists() and journal.stat().st_size != size:  # it is taking steps
                time.sleep(float(generator.uniform(0, 0.05)))
                process.send_signal(signal.SIGKILL)
                kills += process.wait() == -signal.SIGKILL
        if process.wait() == 0:
            break
    assert kills >= 2
    assert weights(folder) == weights(whole.folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_exits_with_130(tmp_path: Path, number: int) -> None:
    folder = tmp_path / "run"
    words = command(folder, "--checkpoint-every", "1000", "--workers", "1", "--json")
    words[words.index("--epochs") + 1] = "500"
    process = Forked(words)
    while not (folder / "metrics.jsonl").exists() or not (folder / "metrics.jsonl").stat().st_size:
        time.sleep(0.02)
        assert process.poll() is None
    process.send_signal(number)
    assert process.wait() == 130
    out, err = process.out, process.err
    assert out == ""
    assert "Traceback" not in err
    last = err.splitlines()[-1]
    assert last.startswith("vitlab train: stopped after step ")
    assert "--resume" in last
    found, _ = checkpoints.load(folder / "checkpoints")
    assert found is not None
    assert f"step {found.state['step']:,} " in last


def test_a_finished_run_is_told_again_not_trained_again(whole: vitlab.Run, tmp_path: Path) -> None:
    copy = shutil.copytree(whole.folder, tmp_path / "copy")
    again = vitlab.train(vitlab.recipe("digits", **QUICK), copy, resume=True)
    assert again.metrics == whole.metrics | {"run": str(copy), "report": str(copy / "report.html")}


def test_a_folder_that_holds_a_run_is_kept(whole: vitlab.Run, tmp_path: Path) -> None:
    before = weights(whole.folder)
    with pytest.raises(ValueError, match="already contains a run: pass --resume to continue it"):
        vitlab.train(vitlab.recipe("digits", **QUICK), whole.folder)
    with pytest.raises(ValueError, match="was started with seed=0, not 3"):
        vitlab.train(vitlab.recipe("digits", **QUICK | {"seed": 3}), whole.folder, resume=True)
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="exists and contains no run"):
        vitlab.train(vitlab.recipe("digits", **QUICK), tmp_path)
    assert weights(whole.folder) == before


def test_changed_data_is_noticed_on_resuming(photos: Path, tmp_path: Path) -> None:
    recipe = vitlab.recipe("small", str(photos), **TINY | {"epochs": 1, "batch": 16})
    vitlab.train(recipe, tmp_path / "run", host=Host(workers=0))
    (photos / "red" / "007.png").unlink()
    with pytest.raises(ValueError, match=r"has changed since .* was started"):
        vitlab.train(recipe, tmp_path / "run", resume=True)


HOLD = """
import os, sys, time
from pathlib import Path
from vitlab.runs.run_folder import RunFolder
with RunFolder(sys.argv[1]).locked():
    if os.fork() == 0:  # as a worker process that outlives its parent
        time.sleep(20)
        os._exit(0)
    print("held", flush=True)
    time.sleep(60)
"""


def test_two_processes_cannot_share_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = [sys.executable, "-c", HOLD, str(folder)]
    holder = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    recipe = vitlab.recipe("digits", **QUICK | {"epochs": 0.1})
    with pytest.raises(ValueError, match="another process is training in"):
        vitlab.train(recipe, folder)
    holder.kill()
    holder.wait()
    holder.stdout.close()
    assert vitlab.train(recipe, folder).metrics["images"] == 359  # its orphan holds nothing


def test_weights_that_are_not_finite_are_those_of_the_newest_good_checkpoint_again(
    tmp_path: Path,
) -> None:
    def poison(trainer: Trainer, state: State, batch: object) -> None:
        if state.step == 7:
            with torch.no_grad():
                next(state.model.parameters()).fill_(math.inf)

    folder = tmp_path / "run"
    with each_step(before=poison):
        recipe = vitlab.recipe("digits", **TINY | {"steps": 20, "batch": 64})
        done = vitlab.train(recipe, folder, host=Host(checkpoint_every=0))
    assert RunFolder(folder).decisions.rollbacks == ((6, 10),)  # 7 is not known to be good
    assert all(torch.isfinite(tensor).all() for tensor in done.model.state_dict().values())


@pytest.mark.drawn
def test_damaged_images_are_skipped_counted_and_limited(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = ["red/000.png", "green/001.png", *(f"blue/{n:03d}.png" for n in range(4))]
    for name in broken:
        (photos / name).write_bytes(b"\x89PNG no more")
    recipe = vitlab.recipe("small", str(photos), **TINY | {"epochs": 2, "batch": 16})
    for limit, said in ((0.01, "1%"), (2, "2"), (0.05, "5%")):  # five are put up with
        words = f"6 of 60 .* --max-bad {said} allows: .*--max-bad 12$"
        with pytest.raises(DataError, match=words):
            vitlab.train(recipe, tmp_path / "strict", host=Host(max_bad=limit))
        said = capsys.readouterr().err
        assert all(name in said for name in broken), "all of them at once"
        assert not (tmp_path / "strict").exists()
    with pytest.raises(DataError, match="6 of 60 images are damaged, more than --max-bad 0%"):
        vitlab.train(recipe, tmp_path / "stricter", host=Host(max_bad=0.0))
    followed = vitlab.train(recipe, tmp_path / "strict", resume=True, host=Host(max_bad=12))
    report = (followed.folder / "report.html").read_text()
    assert "red/000.png" in report
    assert "green/001.png" in report
    stub_reports(monkeypatch)
    assert followed.metrics["damaged"] == 6
    runs = [
        vitlab.train(recipe, tmp_path / f"w{workers}", host=Host(max_bad=0.1, workers=workers))
        for workers in (0, 2)
    ]
    assert [run.metrics["damaged"] for run in runs] == [6, 6]
    assert weights(runs[0].folder) == weights(runs[1].folder)


def test_a_few_damaged_of_few_are_named_before_the_first_step_and_left_out(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = ["red/000.png", "green/001.png", "blue/019.png"]
    for name in broken:
        (photos / name).write_bytes((photos / name).read_bytes()[:200])
    base = vitlab.create("ViT(width=32,depth=1,heads=2,mlp=64)/4", classes=3, image_size=24)
    folder = vitlab.save(base, tmp_path / "base")
    lines: list[str] = []

    def on_line(line: dict[str, object]) -> None:
        lines.append(capsys.readouterr().err + str(line["kind"]))

    run = vitlab.finetune(
        str(photos), folder, tmp_path / "run", steps=2, batch=8, host=Host(workers=0),
        on_line=on_line,
    )  # fmt: skip
    assert all(f"{name}: damaged" in lines[0] for name in broken)
    assert all(lines[0].count(name) == 1 and name not in "".join(lines[1:]) for name in broken)
    assert run.metrics["damaged"] == 3
    note = "no test image is a near-duplicate of a training image, as far as 3 damaged images"
    assert any(each.startswith(note) for each in run.metrics["notes"])


FULL = "Error while serializing: I/O error: No space left on device (os error 28)"


@pytest.mark.parametrize("failure", [OSError(28, os.strerror(28)), SafetensorError(FULL)])
def test_a_full_disk_keeps_the_last_good_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    real, saves = checkpoints.save_file, 0

    def full(tensors: object, file: Path) -> None:
        nonlocal saves
        saves += 1
        if saves == 4:
            raise failure
        real(tensors, file)

    monkeypatch.setattr(checkpoints, "save_file", full)
    folder = tmp_path / "run"
    with pytest.raises(ValueError, match=r"cannot write .*no space left on device"):
        vitlab.train(vitlab.recipe("digits", **QUICK), folder, host=Host(checkpoint_every=0))
    found, remarks = checkpoints.load(folder / "checkpoints")
    assert found is not None
    assert (found.state["step"], remarks) == (3, [])


def test_held_out_images_stay_held_out(photos: Path, tmp_path: Path) -> None:
    recipe = vitlab.recipe("small", str(photos), **TINY | {"epochs": 1, "batch": 16})
    run = vitlab.train(recipe, tmp_path / "run", host=Host(workers=0))
    model = vitlab.load(run.folder)
    moved = shutil.copytree(photos, tmp_path / "elsewhere")
    count = run.metrics["images"]
    assert 6 <= count <= 18
    assert vitlab.evaluate(model, str(moved))["images"] == count  # known by its content
    assert vitlab.evaluate(model, str(moved), split="all")["images"] == 60
    assert vitlab.evaluate(model, str(photos), split="train")["images"] == 60 - count
    shutil.rmtree(moved / "red")
    held_out = open_to_learn(str(photos)).test
    left = sum("red" not in held_out.name(number) for number in range(count))
    assert vitlab.evaluate(model, str(moved))["images"] == left


@pytest.mark.parametrize(
    "how",
    [
        {"model": "BiT-R(1-1)x1", "image_size": 32},
        {"model": "Axial-ResNet-(1-1)", "image_size": 32},
        {
            "model": "R(1)+ViT(width=32,depth=1,heads=2,mlp=64,branches=2)/8",
            "layer_scale": 1e-4,
            "drop_path": 0.2,
            "ema": 0.0,
        },
        {
            "model": "ViT(width=32,depth=1,heads=2,mlp=64)/8",
            "stem": "hmlp",
            "stem_norm": "batch",
            "pool": "attention",
        },
        {"model": "Axial-ViT(width=32,depth=1,heads=2,mlp=64)/8", "positions_at": "shared"},
        {
            "model": "ViT(width=32,depth=1,heads=2,mlp=64)/8",
            "positions": "rope",
            "registers": 2,
            "ffn": "swiglu",
        },
    ],
)
def test_every_kind_of_model_trains_saves_and_loads(
    photos: Path, tmp_path: Path, how: dict[str, object]
) -> None:
    recipe = vitlab.recipe("small", str(photos), **{"epochs": 1, "batch": 16} | how)
    run = vitlab.train(recipe, tmp_path / "run", host=Host(workers=0))
    again = vitlab.evaluate(vitlab.load(run.folder), str(photos))
    assert again["nll"] == pytest.approx(run.metrics["nll"])
    assert again["macs"] == run.metrics["macs"]


def test_slots_are_not_for_classification(photos: Path, tmp_path: Path) -> None:
    how = {"model": "ViT-Ti1/8", "pool": "attention", "queries": 3}
    with pytest.raises(ValueError, match="queries=3 gives that many outputs per image"):
        vitlab.train(vitlab.recipe("small", str(photos), **how), tmp_path / "run")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_learns(photos: Path, tmp_path: Path, precision: str) -> None:
    recipe = vitlab.recipe(
        "small",
        str(photos),
        **TINY | {"epochs": 30, "batch": 16, "lr": 3e-3, "precision": precision},
    )
    run = vitlab.train(recipe, tmp_path / "run", host=Host(workers=0))
    assert run.metrics["accuracy"] == 1.0
    assert run.model.config.size == (24, 32)


def test_accumulation_gives_the_same_gradient(tmp_path: Path) -> None:
    base = TINY | {"epochs": 0.5, "batch": 240, "dropout": 0.0}
    runs = [
        vitlab.train(
            vitlab.recipe("digits", **base | {"micro_batch": micro}), tmp_path / str(micro)
        )
        for micro in (0, 80, 100)
    ]
    states = [run.model.state_dict() for run in runs]
    for name, tensor in states[0].items():
        for other in states[1:]:
            torch.testing.assert_close(other[name], tensor, rtol=0, atol=2e-4)
