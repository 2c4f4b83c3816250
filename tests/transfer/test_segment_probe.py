"""`vitlab probe --task segment`: a run of masks, and what evaluates, predicts and reports it."""

import json
import re
import shutil
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

import vitlab
from conftest import BRIEF, call
from made_scenes import CLASSES, scene, scene_folder
from places_opened import open_masks
from six_runs import run_in
from vitlab.errors import DataError, OptionError, RunError, WeightsError
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.weights.segmenter import load_segmenter

HOST = Host(workers=0, report="no", device="cpu", effort=BRIEF)
QUIET: dict[str, Any] = {"task": "segment", "host": HOST, "quiet": True}


@pytest.fixture
def weights(masks_run: Path) -> str:
    return str(masks_run.with_name("weights"))


@pytest.fixture
def data(masks_run: Path) -> Path:
    return masks_run.with_name("data")


@pytest.fixture
def run(masks_run: Path) -> vitlab.Run:
    """A run with a report."""
    return run_in(masks_run)


@pytest.fixture
def command(
    run: vitlab.Run, data: Path, weights: str, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[int, str, str]]:
    """Call a command whose words RUN, DATA and W stand for the run, its data and its weights."""
    named = {"RUN": str(run.folder), "DATA": str(data), "W": weights}

    def called(line: str) -> tuple[int, str, str]:
        words = line.split()
        return call(capsys, *(named.get(w, w.replace("DATA/", f"{data}/")) for w in words))

    return called


def test_shapes_are_found_and_the_run_is_a_run(run: vitlab.Run) -> None:
    """Random weights do: a linear head sees the colors of patches. All as ground would be 0.16."""
    found = run.metrics
    assert found["miou"] > 0.6
    assert found["pixel_accuracy"] > 0.8
    assert 0.2 < found["boundary_iou"] < found["miou"]
    assert [row["class"] for row in found["classes"]] == [*CLASSES]
    assert abs(found["head"]["miou"] - found["miou"]) < 0.2
    assert found["images"] + found["train_images"] == 24
    written = tomllib.loads((run.folder / "run.toml").read_text())
    assert written["pretext"] == {"task": "segment"}
    assert written["head"] == found["head"]
    folder = RunFolder(run.folder)
    assert isinstance(folder.recipe, Recipe)
    assert folder.recipe.pretext.task == "segment"
    assert (folder.state, folder.result()) == ("done", dict(found))
    assert vitlab.load(run.folder).config.classes == 0
    heads = [(each["head"], tuple(each["layers"])) for each in found["tried"]]
    assert {("ridge", (2,)), ("ridge", (1, 2))} <= set(heads)
    assert "logistic" in {kind for kind, _ in heads}
    page = (run.folder / "report.html").read_text()
    table = page.split('<section id="classes"')[1].split("</table>")[0]
    worst = [row["class"] for row in sorted(found["classes"], key=lambda row: row["iou"])]
    assert re.findall('<th scope="row"><bdi>(.*?)</bdi>', table) == worst
    for words in ("Boundary IoU", "Images with the lowest IoU", "triangle", "vitlab predict"):
        assert words in page
    assert f"{100 * found['miou']:.1f}%" in page
    assert page.count("data:image/jpeg") == 2 * found["images"]
    assert "<script" not in page


def test_the_same_bits_again_and_with_workers(
    run: vitlab.Run, weights: str, data: Path, tmp_path: Path
) -> None:
    host = Host(workers=2, report="no", device="cpu", effort=BRIEF)
    again = vitlab.probe(
        str(data), weights, tmp_path / "run", task="segment", host=host, quiet=True
    )
    for name in ("segment.safetensors", "model/model.safetensors"):
        assert (again.folder / name).read_bytes() == (run.folder / name).read_bytes()
    assert again.metrics["miou"] == run.metrics["miou"]
    before = (again.folder / "metrics.jsonl").read_bytes()
    resumed = vitlab.probe(str(data), weights, again.folder, resume=True, **QUIET)
    assert dict(resumed.metrics) == dict(again.metrics)
    assert (again.folder / "metrics.jsonl").read_bytes() == before
    for more, words in (({"concat": 1}, "concat=4, not 1"), ({"ignore": 3}, "ignore=None, not 3")):
        with pytest.raises(RunError, match=f"was started with {words}: leave the option out, or"):
            vitlab.probe(str(data), weights, again.folder, resume=True, **QUIET, **more)


def test_evaluate_and_predict_have_the_figures_of_the_run(
    run: vitlab.Run, data: Path, tmp_path: Path, command: Callable[[str], tuple[int, str, str]]
) -> None:
    """Of unsplit data, `auto` is what the head has not learned from; all masks are written."""
    code, text, err = command("evaluate RUN DATA --json")
    assert code == 0, err
    found = json.loads(text)
    for key in ("miou", "pixel_accuracy", "boundary_iou", "images", "classes", "intervals"):
        assert found[key] == run.metrics[key]
    assert f"left out {run.metrics['train_images']} images" in err
    code, text, err = command("evaluate RUN DATA --split all")
    assert code == 0, err
    assert "mIoU" in text
    assert "triangle" in text
    assert "has learned from" in err
    every = json.loads(command("evaluate RUN DATA --split all --json")[1])
    code, text, err = command(f"predict RUN DATA/images --out {tmp_path}/out --json")
    assert code == 0, err
    found = json.loads(text)
    assert (found["images"], found["damaged"]) == (24, 0)
    right = total = 0
    for row in found["masks"]:
        mask = np.asarray(Image.open(row["mask"]))
        truth = np.asarray(Image.open(data / "masks" / Path(row["mask"]).name))
        assert mask.shape == truth.shape
        right, total = right + (mask == truth).sum(), total + mask.size
        shares = {name: (mask == n).mean() for n, name in enumerate(CLASSES)}
        assert row["shares"] == {name: share for name, share in shares.items() if share}
        assert [*row["shares"].values()] == sorted(row["shares"].values(), reverse=True)
    assert every["pixel_accuracy"] == pytest.approx(right / total)
    code, text, _ = command("predict RUN DATA/images/001.png")
    assert code == 0
    assert str(data / "images" / "001.png") in text
    assert "ground" in text


def test_predict_names_damaged_images(
    tmp_path: Path, command: Callable[[str], tuple[int, str, str]]
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        Image.fromarray(scene(1)[0]).save(tmp_path / folder / "same.png")
    (tmp_path / "b" / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    code, text, err = command(f"predict RUN {tmp_path} --out {tmp_path}/out --json")
    assert code == 0
    assert json.loads(text)["damaged"] == 1
    assert "bad.png" in err
    assert len({each["mask"] for each in json.loads(text)["masks"] if "mask" in each}) == 2
    assert len([*(tmp_path / "out").iterdir()]) == 2
    code, _, err = command(f"predict RUN {tmp_path}/a --out {tmp_path}/out")
    assert (code, "already exists" in err) == (2, True)


def test_features_that_are_no_numbers_are_refused(weights: str, data: Path, tmp_path: Path) -> None:
    model = vitlab.load(weights)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(DataError, match="pixels a feature that is not a number"):
        vitlab.probe(str(data), model, tmp_path / "x", by="ridge", **QUIET)


WRONG = {
    "evaluate RUN DATA --flips": "flips does not apply to a run of masks",
    "evaluate RUN DATA --precision bf16": "precision does not apply to a run",
    "evaluate RUN DATA --split train": "has no split train: choose from auto, all",
    "predict RUN DATA --engine plain": "engine does not apply to a run",
    "predict RUN DATA --top 2": "top does not apply to a run of masks",
    "predict RUN DATA --out rows.csv": "masks need a folder",
    "export RUN --to onnx --out x --batch 2": "batch does not apply",
    "export RUN --to timm --out x": "a run that answers with masks is exported with --to onnx",
    "probe DATA --from W --scale 2": "scale=2.0 does not apply with task=classify: leave it out",
    "probe DATA --from W --task segment --by means": "by=means does not apply with task=seg",
    "probe DATA --from W --task segment --folds 3": "folds=3 does not apply",
    "probe DATA --from W --task segment --fold 1/5": "fold=1/5 does not apply with task=segment",
    "probe DATA --from W --task segment --precision bf16": "precision=bf16 does not apply",
    "probe DATA --from W --task mae": "task must be",
    "train DATA --task segment": "vitlab p",
    "train DATA": "which are not classes: vitlab probe --task segment",
    "probe DATA/images --from W --task segment": "has no images with masks",
}


@pytest.mark.parametrize("line", WRONG)
def test_what_does_not_go_together_is_one_line(
    line: str, command: Callable[[str], tuple[int, str, str]]
) -> None:
    code, _, err = command(line)
    assert code == 2
    assert WRONG[line] in err.splitlines()[-1]
    assert not [*Path.cwd().iterdir()]


def test_damaged_masks_are_skipped_counted_and_said(
    tmp_path: Path, command: Callable[[str], tuple[int, str, str]]
) -> None:
    root = scene_folder(tmp_path / "data", 12)
    (root / "masks" / "001.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(root / "masks" / "002.png")
    (root / "masks" / "003.png").unlink()
    line = f"probe {root} --from W --task segment --by ridge --device cpu --workers 0 --report no"
    code, text, err = command(f"{line} --json --out {tmp_path}/run")
    assert code == 0, err
    found = json.loads(text)
    assert found["damaged"] == 2
    for name, why in (("001", "damaged"), ("002", "3 x 3 pixels"), ("003", "without a mask")):
        assert any(name in note and why in note for note in found["notes"]), name
    assert "skipped: " in err
    code, _, err = command(f"{line} --out {tmp_path}/strict --max-bad 0")
    assert code == 2
    assert "2 of 11 images, or their masks, cannot be used" in err
    assert not (tmp_path / "strict").exists()
    Image.fromarray(np.full((40, 56), 9, np.uint8)).save(root / "masks" / "004.png")
    code, _, err = command(f"{line} --out {tmp_path}/other")
    assert code == 2
    assert "004.png has the number 9, which is none of the 4 classes" in err


def test_masks_of_ade_come_back_with_their_numbers(weights: str, tmp_path: Path) -> None:
    """0 does not count, 1 is the first class; the run reads and writes masks so."""
    from vitlab.evaluation.compute import Compute
    from vitlab.evaluation.mask_figures import evaluate_masks
    from vitlab.evaluation.segmentation import write_masks

    for split, numbers in (("training", range(10)), ("validation", range(10, 14))):
        for kind in ("images", "annotations"):
            (tmp_path / "ade" / kind / split).mkdir(parents=True)
        for number in numbers:
            image, mask = scene(number)
            Image.fromarray(image).save(tmp_path / "ade/images" / split / f"{number}.png")
            Image.fromarray(mask).save(tmp_path / "ade/annotations" / split / f"{number}.png")
    made = vitlab.probe(str(tmp_path / "ade"), weights, tmp_path / "run", **QUIET, by="ridge")
    assert [row["class"] for row in made.metrics["classes"]] == ["1", "2", "3"]
    assert made.metrics["images"] == 4
    compute = Compute("cpu", workers=0)
    found = evaluate_masks(made.folder, str(tmp_path / "ade"), "auto", compute)
    assert (found["split"], found["miou"]) == ("validation", made.metrics["miou"])
    images = str(tmp_path / "ade" / "images" / "validation")
    write_masks(made.folder, images, tmp_path / "out", compute)
    for file in (tmp_path / "out").iterdir():
        assert set(np.unique(np.asarray(Image.open(file)))) <= {1, 2, 3}


def test_pairs_in_memory_and_a_model_in_hand(weights: str, tmp_path: Path) -> None:
    model = vitlab.load(weights)
    pairs = {"train": [scene(n) for n in range(8)], "test": [scene(n) for n in range(8, 11)]}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        made = vitlab.probe(pairs, model, **QUIET, by="logistic", concat=1, scale=1.5)
    assert made.folder.parent.name == "runs"
    assert made.metrics["head"]["by"] == "logistic"
    assert made.metrics["head"]["layers"] == [2]
    assert made.metrics["images"] == 3
    segmenter = load_segmenter(tmp_path / made.folder)
    assert segmenter.about.scale == 1.5
    assert segmenter.about.classes == ("0", "1", "2", "3")


def test_a_damaged_or_strange_head_is_refused(run: vitlab.Run, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run.folder, copy)
    file = copy / "segment.safetensors"
    whole = file.read_bytes()
    with safe_open(file, "pt") as stored:
        assert json.loads(stored.metadata()["about"])["classes"] == [*CLASSES]
    for place in (-3, whole.index(b"disk") + 1):
        changed = bytearray(whole)
        changed[place] ^= 1
        file.write_bytes(changed)
        with pytest.raises(WeightsError, match="checksum"):
            load_segmenter(copy)
    file.write_bytes(whole)
    torch.manual_seed(5)
    other = vitlab.create("ViT(width=16,depth=2,heads=2,mlp=32)/4", classes=0, image_size=32)
    vitlab.save(other, copy / "model")
    with pytest.raises(WeightsError, match="of another model"):
        load_segmenter(copy)
    with pytest.raises(WeightsError, match=r"has no segment\.safetensors"):
        load_segmenter(tmp_path)


def test_another_input_size_and_wrong_models(weights: str, data: Path, tmp_path: Path) -> None:
    made = vitlab.probe(
        str(data),
        weights,
        tmp_path / "run",
        **QUIET,
        by="ridge",
        image_size=24,
        concat=2,
    )
    assert vitlab.load(made.folder).config.image_size == 24
    assert {len(each["layers"]) for each in made.metrics["tried"]} == {1, 2}
    with pytest.raises(OptionError, match="precision=bf16 does not apply"):
        vitlab.probe(str(data), weights, tmp_path / "half", **QUIET, precision="bf16")
    with pytest.raises(DataError, match="not with fit=native"):
        vitlab.probe(str(data), weights, tmp_path / "native", **QUIET, fit="native")
    pairs = open_masks(str(data)).parts["all"].take(np.array([0]))
    with pytest.raises(DataError, match="only image with a mask"):
        vitlab.probe(
            [(pairs.image(0).decode(3), pairs.target.numbers(0))],
            weights,
            tmp_path / "1",
            **QUIET,
        )


@pytest.mark.slow
def test_the_onnx_file_gives_the_scores_of_the_module(
    run: vitlab.Run, tmp_path: Path, command: Callable[[str], tuple[int, str, str]]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    code, text, err = command(f"export RUN --to onnx --out {tmp_path}/masks.onnx --json")
    assert code == 0, err
    found = json.loads(text)
    assert found["outputs"] == {"mask": ["batch", 4, 32, 32]}
    assert found["difference"] < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "masks.onnx")
    segmenter = load_segmenter(run.folder)
    images = vitlab.preprocess(segmenter.model)([scene(n)[0] for n in range(3)])
    with torch.inference_mode():
        own = segmenter(images)
    (scores,) = session.run(["mask"], {"images": images.numpy()})
    assert np.abs(scores - own.numpy()).max() < 1e-4 * own.abs().max()
    about = json.loads(session.get_modelmeta().custom_metadata_map["vitlab"])
    assert (about["classes"], about["values"]) == ([*CLASSES], [0, 1, 2, 3])
