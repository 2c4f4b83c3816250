"""`vitlab finetune --task segment`: the fitted head learns on, with the last blocks."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from conftest import BRIEF, call
from made_scenes import scene_folder
from vitlab.errors import OptionError, WeightsError
from vitlab.recipes.recipe import Host
from vitlab.weights.segmenter import load_segmenter

HOST = Host(workers=0, device="cpu", effort=BRIEF)
QUICK: dict[str, Any] = {"epochs": 10, "batch": 8, "lr": 5e-3, "host": HOST, "quiet": True}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes, and a head that was fitted to a small model of random weights."""
    place = tmp_path_factory.mktemp("tuning")
    torch.manual_seed(0)
    model = vitlab.create("ViT(width=16,depth=3,heads=2,mlp=32)/4", classes=0, image_size=32)
    scenes = scene_folder(place / "scenes", 24)
    host = Host(workers=0, device="cpu", effort=BRIEF)
    vitlab.probe(
        str(scenes), model, place / "fitted", task="segment", by="ridge", host=host, quiet=True
    )
    return place


@pytest.fixture(autouse=True)
def there(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test stands in that folder."""
    monkeypatch.chdir(place)


@pytest.fixture(scope="module")
def tuned(place: Path) -> vitlab.Run:
    """Two blocks of it and the head, trained, with a report."""
    return vitlab.finetune(
        str(place / "scenes"), place / "fitted", place / "tuned", "last", task="segment",
        **QUICK | {"host": Host(workers=0, device="cpu")},  # all resamples, as `evaluate` has
    )  # fmt: skip


def test_two_blocks_learn_and_segment_better(tuned: vitlab.Run) -> None:
    before, after = load_segmenter("fitted"), load_segmenter(tuned.folder)
    assert before.about == after.about
    fitted = json.loads(Path("fitted/metrics.jsonl").read_text().splitlines()[-1])
    assert tuned.metrics["miou"] > fitted["miou"] + 0.02
    kept = before.model.state_dict()
    moved = {name for name, own in after.model.state_dict().items() if not own.equal(kept[name])}
    assert {name.split(".")[1] for name in moved if name.startswith("blocks.")} == {"1", "2"}
    assert all(name.startswith(("blocks.1.", "blocks.2.", "norm.")) for name in moved)
    assert not torch.equal(before.head.weight, after.head.weight)


def test_evaluate_predict_and_the_report_know_the_run(
    tuned: vitlab.Run, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, "evaluate", "tuned", "scenes", "--json")
    assert code == 0, err
    found = json.loads(out)
    for name in ("miou", "pixel_accuracy", "boundary_iou", "classes", "intervals"):
        assert found[name] == tuned.metrics[name]
    assert found["images"] == tuned.metrics["test_images"] == 24 - tuned.metrics["images"]
    code, _, err = call(capsys, "predict", "tuned", "scenes/images/003.png", "--out", "masks")
    assert code == 0, err
    mask, truth = (np.asarray(Image.open(f"{each}/003.png")) for each in ("masks", "scenes/masks"))
    assert (mask == truth).mean() > 0.8
    page = (tuned.folder / "report.html").read_text()
    for words in ("Segmentation", "learned to segment images, from ", "mIoU", "Boundary IoU",
                  "Images with the lowest IoU", "triangle", "--out masks"):  # fmt: skip
        assert words in page, words


def test_queries_take_the_place_of_the_head(capsys: pytest.CaptureFixture[str]) -> None:
    line = "finetune scenes --task segment --from fitted --mask-queries 5 --query-blocks 1"
    rate = "--epochs 12 --batch 4 --lr 1e-2 --report no --workers 0 --device cpu --out queries"
    code, out, err = call(capsys, *line.split(), *rate.split(), "--json")
    assert code == 0, err
    run = json.loads(out)
    assert run["miou"] > 0.25  # of four classes, the most frequent of which alone has 0.18
    assert load_segmenter("queries").about.queries == 5
    code, out, err = call(capsys, "evaluate", "queries", "scenes", "--json")
    assert code == 0, err
    assert json.loads(out)["miou"] == run["miou"]
    words = ("export", "queries", "--to", "onnx", "--out", "queries.onnx", "--json")
    code, out, err = call(capsys, *words)
    assert code == 0, err
    assert json.loads(out)["difference"] < 1e-4
    code, _, err = call(capsys, *line.replace("fitted", "queries").split(), "--out", "again")
    assert code == 2
    assert "queries has queries, no linear layer to start from: name a run of" in err


def test_two_seeds_have_a_mean(capsys: pytest.CaptureFixture[str]) -> None:
    line = "finetune scenes --task segment --from fitted --steps 1 --batch 2 --seeds 2 --report no"
    code, out, err = call(capsys, *line.split(), "--workers", "0", "--out", "two")
    assert code == 0, err
    assert all(word in out for word in ("mean", "std", "mIoU", "two/seed-1"))


WRONG = {
    "": "task=segment without --from has no segment.safetensors: run vitlab probe DATA",
    "--from fitted/model": "fitted/model has no segment.safetensors: run vitlab probe DATA",
    "--from fitted --rotate 5": "rotate would not move the masks of task=segment: leave it",
    "--from fitted --mixup 0.2": "mixup needs labels of classes, not task=segment",
    "--from fitted --last-blocks 1": "last_blocks=1 applies only with tune=last",
    "--from fitted --fit native": "segmentation slides windows of one size: not with fit=",
    "--from fitted --recipe small": "task=segment, but recipe small is for task=classify",
}


@pytest.mark.parametrize("line", WRONG)
def test_what_does_not_go_together_is_one_line(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["finetune", "scenes", "--task", "segment", "--workers", "0", "--out", "refused"]
    code, out, err = call(capsys, *command, *line.split())
    assert (code, out) == (2, ""), err
    assert WRONG[line] in err.splitlines()[-1]
    assert not Path("refused").exists()


def test_other_classes_and_a_model_in_hand_are_refused(tmp_path: Path) -> None:
    other = scene_folder(tmp_path / "other", 4)
    Image.new("L", (56, 48), 9).save(other / "masks" / "000.png")
    with pytest.raises(vitlab.errors.UserError, match="has the number 9, which is none of the 4"):
        vitlab.finetune(str(other), "fitted", tmp_path / "a", task="segment", **QUICK)
    with pytest.raises(WeightsError, match="without weights= has no"):
        model = vitlab.load("fitted")
        vitlab.finetune(str(other), model, tmp_path / "b", task="segment", **QUICK)
    with pytest.raises(OptionError, match="tune=last needs"):
        vitlab.train(vitlab.recipe("digits", tune="last"), tmp_path / "c", host=HOST)
