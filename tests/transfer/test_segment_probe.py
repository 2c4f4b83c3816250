"""`vitlab probe --task segment`: a run of masks, and what evaluates, predicts and reports it."""

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

import vitlab
from conftest import call
from made_scenes import CLASSES, scene, scene_folder
from vitlab.data.masks import open_masks
from vitlab.errors import DataError, OptionError, WeightsError
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.weights.segmenter import load_segmenter

HOST = Host(workers=0, report="no", device="cpu")
QUIET: dict[str, Any] = {"task": "segment", "host": HOST, "quiet": True}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    name = "ViT(width=32,depth=3,heads=2,mlp=64)/4"
    model = vitlab.create(name, classes=0, image_size=32)
    return str(vitlab.save(model, tmp_path_factory.mktemp("backbone") / "weights"))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scene_folder(tmp_path_factory.mktemp("scenes") / "data", 40)


@pytest.fixture(scope="module")
def run(weights: str, data: Path, tmp_path_factory: pytest.TempPathFactory) -> vitlab.Run:
    folder = tmp_path_factory.mktemp("segment") / "run"
    host = Host(workers=0, device="cpu")
    return vitlab.probe(str(data), weights, folder, task="segment", host=host, quiet=True)


def test_shapes_are_found(run: vitlab.Run) -> None:
    """Random weights do: a linear head sees the colors of patches. All as ground would be 0.16."""
    found = run.metrics
    assert found["miou"] > 0.7
    assert found["pixel_accuracy"] > 0.85
    assert 0.2 < found["boundary_iou"] < found["miou"]
    assert [row["class"] for row in found["classes"]] == [*CLASSES]
    assert abs(found["head"]["miou"] - found["miou"]) < 0.15
    assert found["images"] + found["train_images"] == 40


def test_the_run_is_a_run(run: vitlab.Run) -> None:
    written = tomllib.loads((run.folder / "run.toml").read_text())
    assert written["pretext"] == {"task": "segment"}
    assert written["head"] == run.metrics["head"]
    folder = RunFolder(run.folder)
    assert isinstance(folder.recipe, Recipe)
    assert folder.recipe.pretext.task == "segment"
    assert folder.state == "done"
    assert folder.result() == dict(run.metrics)
    assert vitlab.load(run.folder).config.classes == 0
    heads = [(each["head"], tuple(each["layers"])) for each in run.metrics["tried"]]
    assert {("ridge", (3,)), ("ridge", (1, 2, 3))} <= set(heads)
    assert "logistic" in {kind for kind, _ in heads}


def test_the_same_bits_again_and_with_workers(
    run: vitlab.Run, weights: str, data: Path, tmp_path: Path
) -> None:
    host = Host(workers=2, report="no", device="cpu")
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


def test_evaluate_has_the_figures_of_the_run(
    run: vitlab.Run, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of unsplit data, `auto` is what the head has not learned from."""
    code, text, err = call(capsys, "evaluate", str(run.folder), str(data), "--json")
    assert code == 0, err
    found = json.loads(text)
    for key in ("miou", "pixel_accuracy", "boundary_iou", "images", "classes", "intervals"):
        assert found[key] == run.metrics[key]
    assert f"left out {run.metrics['train_images']} images" in err
    code, text, err = call(capsys, "evaluate", str(run.folder), str(data), "--split", "all")
    assert code == 0, err
    assert "mIoU" in text
    assert "triangle" in text
    assert "has learned from" in err
    code, _, err = call(capsys, "evaluate", str(run.folder), str(data), "--split", "train")
    assert (code, "has no split train: choose from auto, all" in err) == (2, True)


def test_predict_writes_the_masks_that_were_measured(
    run: vitlab.Run, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["predict", str(run.folder), str(data / "images"), "--out", str(out)]
    code, text, err = call(capsys, *words, "--json")
    assert code == 0, err
    found = json.loads(text)
    assert (found["images"], found["damaged"]) == (40, 0)
    right = total = 0
    for row in found["masks"]:
        mask = np.asarray(Image.open(row["mask"]))
        truth = np.asarray(Image.open(data / "masks" / Path(row["mask"]).name))
        assert mask.shape == truth.shape
        right, total = right + (mask == truth).sum(), total + mask.size
        shares = {name: (mask == n).mean() for n, name in enumerate(CLASSES)}
        assert row["shares"] == {name: share for name, share in shares.items() if share}
        assert [*row["shares"].values()] == sorted(row["shares"].values(), reverse=True)
    call(capsys, "evaluate", str(run.folder), str(data), "--split", "all")
    every = json.loads(
        call(capsys, "evaluate", str(run.folder), str(data), "--split", "all", "--json")[1]
    )
    assert every["pixel_accuracy"] == pytest.approx(right / total)
    code, _, err = call(capsys, *words)
    assert (code, "already exists" in err) == (2, True)
    one = str(data / "images" / "001.png")
    code, text, _ = call(capsys, "predict", str(run.folder), one)
    assert code == 0
    assert one in text
    assert "ground" in text


def test_predict_names_damaged_images(
    run: vitlab.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        Image.fromarray(scene(1)[0]).save(tmp_path / folder / "same.png")
    (tmp_path / "b" / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    out = str(tmp_path / "out")
    code, text, err = call(
        capsys, "predict", str(run.folder), str(tmp_path), "--out", out, "--json"
    )
    assert code == 0
    assert json.loads(text)["damaged"] == 1
    assert "bad.png" in err
    assert len({each["mask"] for each in json.loads(text)["masks"] if "mask" in each}) == 2
    assert len([*Path(out).iterdir()]) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("evaluate", "RUN", "DATA", "--flips"), "flips does not apply to a run of masks"),
        (("evaluate", "RUN", "DATA", "--precision", "bf16"), "precision does not apply to a run"),
        (("predict", "RUN", "DATA", "--engine", "plain"), "engine does not apply to a run"),
        (("predict", "RUN", "DATA", "--top", "2"), "top does not apply to a run of masks"),
        (("predict", "RUN", "DATA", "--out", "rows.csv"), "masks need a folder"),
        (("probe", "DATA", "--from", "W", "--scale", "2"), "scale applies only with task=segment"),
        (("probe", "DATA", "--from", "W", "--task", "segment", "--by", "means"), "by=means is for"),
        (("probe", "DATA", "--from", "W", "--task", "segment", "--folds", "3"), "folds does not"),
        (("probe", "DATA", "--from", "W", "--task", "mae"), "task must be"),
        (("train", "DATA", "--task", "segment"), "vitlab p"),
        (("train", "DATA"), "which are not classes: vitlab probe --task segment"),
        (("probe", "DATA/images", "--from", "W", "--task", "segment"), "has no images with masks"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    words: tuple[str, ...],
    message: str,
    run: vitlab.Run,
    weights: str,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    named = {"RUN": str(run.folder), "DATA": str(data), "W": weights}
    given = [named.get(word, word.replace("DATA/", f"{data}/")) for word in words]
    code, _, err = call(capsys, *given)
    assert code == 2
    assert message in err.splitlines()[-1]
    assert not [*tmp_path.iterdir()]


def test_damaged_masks_are_skipped_counted_and_said(
    weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = scene_folder(tmp_path / "data", 12)
    (root / "masks" / "001.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    Image.fromarray(np.zeros((3, 3), np.uint8)).save(root / "masks" / "002.png")
    (root / "masks" / "003.png").unlink()
    host = ["--device", "cpu", "--workers", "0", "--report", "no", "--json"]
    words = ["probe", str(root), "--from", weights, "--task", "segment", "--by", "ridge", *host]
    code, text, err = call(capsys, *words, "--out", str(tmp_path / "run"))
    assert code == 0, err
    found = json.loads(text)
    assert found["damaged"] == 2
    notes = "\n".join(found["notes"])
    for name, why in (("001", "damaged"), ("002", "3 x 3 pixels"), ("003", "without a mask")):
        assert any(name in line and why in line for line in notes.splitlines()), name
    assert "skipped: " in err
    code, _, err = call(capsys, *words, "--out", str(tmp_path / "strict"), "--max-bad", "0")
    assert code == 2
    assert "2 of 11 images, or their masks, cannot be used" in err
    assert not (tmp_path / "strict").exists()
    Image.fromarray(np.full((40, 56), 9, np.uint8)).save(root / "masks" / "004.png")
    code, _, err = call(capsys, *words, "--out", str(tmp_path / "other"))
    assert code == 2
    assert "004.png has the number 9, which is none of the 4 classes" in err


def test_masks_of_ade_come_back_with_their_numbers(weights: str, tmp_path: Path) -> None:
    """0 does not count, 1 is the first class; the run reads and writes masks so."""
    from vitlab.evaluation.compute import Compute
    from vitlab.evaluation.segmentation import evaluate_masks, write_masks

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
    assert made.metrics["head"]["layers"] == [3]
    assert made.metrics["images"] == 3
    segmenter = load_segmenter(tmp_path / made.folder)
    assert segmenter.about.scale == 1.5
    assert segmenter.about.classes == ("0", "1", "2", "3")


def test_a_damaged_or_strange_head_is_refused(run: vitlab.Run, tmp_path: Path) -> None:
    import shutil

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
    other = vitlab.create("ViT(width=32,depth=3,heads=2,mlp=64)/4", classes=0, image_size=32)
    vitlab.save(other, copy / "model")
    with pytest.raises(WeightsError, match="of another model"):
        load_segmenter(copy)
    with pytest.raises(WeightsError, match=r"has no segment\.safetensors"):
        load_segmenter(tmp_path)


def test_another_input_size_and_wrong_models(weights: str, data: Path, tmp_path: Path) -> None:
    made = vitlab.probe(
        str(data), weights, tmp_path / "run", **QUIET, by="ridge", image_size=24, concat=2
    )
    assert vitlab.load(made.folder).config.image_size == 24
    assert {len(each["layers"]) for each in made.metrics["tried"]} == {1, 2}
    with pytest.raises(OptionError, match="computes in fp32"):
        vitlab.probe(str(data), weights, tmp_path / "half", **QUIET, precision="bf16")
    with pytest.raises(DataError, match="not with fit=native"):
        vitlab.probe(str(data), weights, tmp_path / "native", **QUIET, fit="native")
    pairs = open_masks(str(data)).parts["all"].take(np.array([0]))
    with pytest.raises(DataError, match="only image with a mask"):
        vitlab.probe(
            [(pairs.image(0).decode(3), pairs.numbers(0))], weights, tmp_path / "1", **QUIET
        )


def test_the_onnx_file_gives_the_scores_of_the_module(
    run: vitlab.Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    file = tmp_path / "masks.onnx"
    words = ["export", str(run.folder), "--to", "onnx", "--out", str(file)]
    code, text, err = call(capsys, *words, "--json")
    assert code == 0, err
    found = json.loads(text)
    assert found["outputs"] == {"mask": ["batch", 4, 32, 32]}
    assert found["difference"] < 1e-4
    session = onnxruntime.InferenceSession(file)
    segmenter = load_segmenter(run.folder)
    images = vitlab.preprocess(segmenter.model)([scene(n)[0] for n in range(3)])
    with torch.inference_mode():
        own = segmenter(images)
    (scores,) = session.run(["mask"], {"images": images.numpy()})
    assert np.abs(scores - own.numpy()).max() < 1e-4 * own.abs().max()
    about = json.loads(session.get_modelmeta().custom_metadata_map["vitlab"])
    assert (about["classes"], about["values"]) == ([*CLASSES], [0, 1, 2, 3])
    code, _, err = call(capsys, *words, "--batch", "2")
    assert (code, "batch does not apply" in err) == (2, True)
    code, _, err = call(
        capsys, "export", str(run.folder), "--to", "timm", "--out", str(tmp_path / "x")
    )
    assert (code, "a run that answers with masks is exported with --to onnx" in err) == (2, True)


@pytest.mark.drawn
def test_the_report_shows_figures_classes_and_the_worst_images(run: vitlab.Run) -> None:
    page = (run.folder / "report.html").read_text()
    for words in (
        "mIoU",
        "Boundary IoU",
        "Images with the lowest IoU",
        "triangle",
        "vitlab predict",
    ):
        assert words in page
    assert page.count("data:image/jpeg") == 2 * run.metrics["images"]
    assert f"{100 * run.metrics['miou']:.1f}%" in page
    assert "<script" not in page
