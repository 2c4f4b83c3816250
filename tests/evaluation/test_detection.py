"""Average precision against pycocotools, and a detector from data through figures to boxes."""

import contextlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from conftest import SHOWN, call
from places_opened import open_boxes
from vitlab.data.box_targets import BoxTargets, boxes_of
from vitlab.data.boxes import scenes
from vitlab.data.settings import Data
from vitlab.errors import DataError, WeightsError
from vitlab.evaluation.average_precision import average_precision, box_figures
from vitlab.evaluation.detection import Detections
from vitlab.graphs import check
from vitlab.weights.detector import load_detector

TINY: dict[str, Any] = {"model": "ViT(width=16,depth=2,heads=2,mlp=32)/8", "batch": 16, "steps": 3,
                        "warmup": 0, "query_blocks": 1, "object_queries": 9,
                        "precision": "fp32"}  # fmt: skip


def made(images: int, classes: int, seed: int) -> tuple[list[Detections], BoxTargets]:
    """Detections near objects, wrong ones and doubled ones, with many equal probabilities."""
    draw = np.random.default_rng(seed)
    objects, found = [], []
    for _ in range(images):
        count, more = draw.integers(0, 6), draw.integers(0, 4)
        low = draw.random((count, 2)) * 0.6
        own = np.concatenate([low, low + 0.1 + draw.random((count, 2)) * 0.3], 1)
        names = draw.integers(0, classes - 1, count)  # the last class has no object
        objects.append(np.concatenate([names[:, None], own], 1))
        boxes = np.concatenate(
            [own + draw.normal(0, 0.02, own.shape), own[:2], draw.random((more, 4))]
        )
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 0.01)
        guess = np.concatenate([names, names[:2], draw.integers(0, classes, more)])
        chances = draw.random(len(guess)).round(1)
        order = np.argsort(-chances, kind="stable")
        found.append(Detections(guess[order], chances[order], boxes[order]))
    return found, BoxTargets.of(objects, classes)


def by_pycocotools(found: list[Detections], truth: BoxTargets, classes: int) -> Any:
    """Its precision at 101 recalls, (thresholds, recalls, classes), -1 where there is no object."""
    coco = pytest.importorskip("pycocotools.coco")
    cocoeval = pytest.importorskip("pycocotools.cocoeval")

    def area(box: Any) -> list[float]:
        left, top, right, bottom = (float(edge) for edge in box)
        return [left, top, right - left, bottom - top]

    index, rows = coco.COCO(), []
    index.dataset = {
        "images": [{"id": number} for number in range(len(found))],
        "categories": [{"id": name} for name in range(classes)],
        "annotations": [],
    }
    for number, own in enumerate(truth.boxes):
        for name, *box in own[own[:, 0] >= 0].tolist():
            row: dict[str, Any] = {"image_id": number, "category_id": int(name), "iscrowd": 0}
            row |= {"id": len(index.dataset["annotations"]) + 1, "bbox": area(box), "area": 1.0}
            index.dataset["annotations"].append(row)
    for number, each in enumerate(found):
        for name, chance, box in zip(*each, strict=True):
            row = {"image_id": number, "category_id": int(name), "score": float(chance)}
            rows.append(row | {"bbox": area(box)})
    with contextlib.redirect_stdout(io.StringIO()):
        index.createIndex()
        judge = cocoeval.COCOeval(index, index.loadRes(rows), "bbox")
        judge.params.areaRng, judge.params.areaRngLbl = [[0, 1e10]], ["all"]
        judge.evaluate()
        judge.accumulate()
    return judge.eval["precision"][:, :, :, 0, -1]


@pytest.mark.parametrize("seed", range(2))
def test_average_precision_is_that_of_pycocotools(seed: int) -> None:
    """Also of resamples: images drawn several times are as many images."""
    found, truth = made(40, 4, seed)
    wanted = by_pycocotools(found, truth, 4)
    [table] = average_precision(found, truth.boxes, 4, np.ones((1, 40)))
    assert np.isnan(table[3]).all()
    assert (wanted[..., 3] == -1).all()
    assert np.allclose(table[:3].T, wanted[..., :3].mean(1), atol=1e-9)
    figures = box_figures(found, truth.boxes, ["a", "b", "c", "d"])
    assert figures["ap50"] == pytest.approx(wanted[0][:, :3].mean())
    assert figures["ap"] == pytest.approx(wanted[..., :3].mean())
    assert [row["ap50"] is None for row in figures["classes"]] == [False, False, False, True]
    draw = np.random.default_rng(seed)
    found = [each._replace(chances=np.sort(draw.random(len(each.chances)))[::-1]) for each in found]
    weights = draw.multinomial(40, np.full(40, 1 / 40), 2).astype(float)
    for own, table in zip(weights, average_precision(found, truth.boxes, 4, weights), strict=True):
        drawn = np.repeat(np.arange(40), own.astype(int))
        wanted = by_pycocotools([found[each] for each in drawn], truth.take(drawn), 4)
        assert np.allclose(table[:3].T, wanted[..., :3].mean(1), atol=1e-9)


def test_intervals_hold_the_figures_and_shrink_with_images() -> None:
    found, truth = made(600, 4, 0)
    widths = []
    for count in (200, 600):
        figures = box_figures(found[:count], truth.boxes[:count], ["a", "b", "c", "d"])
        ends = figures["intervals"]
        assert all(low < figures[name] < high for name, (low, high) in ends.items())
        widths.append([high - low for low, high in ends.values()])
    assert (np.divide(*widths) > 1.4).all()  # sqrt(3) = 1.73
    assert not box_figures(found[:8], truth.boxes[:8], ["a", "b", "c", "d"])["intervals"]


def test_no_detection_is_no_precision() -> None:
    _, truth = made(3, 2, 5)
    none = Detections(np.empty(0, np.int64), np.empty(0), np.empty((0, 4)))
    assert box_figures([none] * 3, truth.boxes, ["a", "b"])["ap"] == 0


def test_a_scene_is_a_function_of_split_and_number(few_scenes: None) -> None:
    few = scenes("train")
    again = scenes.__wrapped__("train")
    assert np.array_equal(few.store.images, again.store.images)
    assert not np.array_equal(few.store.images[:16], scenes("test").store.images)
    boxes = boxes_of(few)
    counts = (boxes[..., 0] >= 0).sum(1)
    assert counts.min() >= 2
    assert counts.max() == 6
    name, left, top, right, bottom = boxes[3, 0]
    inside = few.store.images[
        3, round(top * 48) : round(bottom * 48), round(left * 48) : round(right * 48)
    ]
    assert 0 <= name < 10
    for edge in (inside[0], inside[-1], inside[:, 0], inside[:, -1]):  # ink on each side
        assert edge.max() >= 32


# COCO folders


def coco_folder(root: Path, images: int = 12, **changed: Any) -> Path:
    """Photographs with one colored square each, and their annotations."""
    (root / "images").mkdir(parents=True)
    classes = [{"id": 7, "name": "red"}, {"id": 3, "name": "blue"}]
    said: dict[str, Any] = {"images": [], "annotations": [], "categories": classes}
    for number in range(images):
        left, top, side = np.random.default_rng(number).integers((0, 0, 8), (20, 10, 20)).tolist()
        pixels = np.full((32, 48, 3), number * 10, np.uint8)
        pixels[top : top + side, left : left + side] = ((250, 0, 0), (0, 0, 250))[number % 2]
        Image.fromarray(pixels).save(root / "images" / f"{number}.png")
        said["images"].append(
            {"id": number, "file_name": f"{number}.png", "width": 48, "height": 32}
        )
        high = min(side, 32 - top)
        said["annotations"].append(
            {"image_id": number, "category_id": (7, 3)[number % 2], "bbox": [left, top, side, high]}
        )
    said |= changed
    (root / "annotations.json").write_text(json.dumps(said))
    return root


def test_a_folder_of_coco_annotations(tmp_path: Path) -> None:
    root = coco_folder(tmp_path / "photos")
    (root / "._annotations.json").write_bytes(b"\0")  # as macOS adds to archives
    splits = open_boxes(Data(data=str(root)))
    assert splits.classes == ("red", "blue")
    assert len(splits.train) + len(splits.test) == 12
    assert splits.whole is not None
    box = boxes_of(splits.whole)[0, 0]
    with Image.open(root / "images" / "0.png") as image:
        pixels = np.asarray(image)
    rows, columns = np.nonzero(pixels[..., 0] == 250)
    edges = [columns.min() / 48, rows.min() / 32, (columns.max() + 1) / 48, (rows.max() + 1) / 32]
    assert box.tolist() == pytest.approx([0, *edges])
    alone = open_boxes(Data(data=str(root / "annotations.json")), ("blue", "red"))
    assert alone.classes == ("blue", "red")
    assert alone.whole is not None
    assert boxes_of(alone.whole)[0, 0, 0] == 1


def test_annotations_of_splits_without_training_are_named_one_by_one(tmp_path: Path) -> None:
    (notes := tmp_path / "annotations").mkdir()
    for split, images in (("val", 5), ("test", 7)):
        own = coco_folder(tmp_path / split, images)
        (own / "images").rename(tmp_path / f"{split}2017")
        (own / "annotations.json").rename(notes / f"instances_{split}2017.json")
    with pytest.raises(DataError) as said:
        open_boxes(Data(data=str(tmp_path)))
    line, _, file = str(said.value).rpartition(" ")
    assert line.endswith("annotations of test and validation, not of train: name one file, such as")
    splits = open_boxes(Data(data=file))  # its images are beside its folder
    assert len(splits.train) + len(splits.test) == 7


@pytest.mark.parametrize("layout", ["coco", "roboflow"])
def test_splits_of_coco_annotations(layout: str, tmp_path: Path) -> None:
    root = tmp_path / "photos"
    for split, images in (("train", 6), ("valid", 3)):
        own = coco_folder(tmp_path / split, images)
        if layout == "coco":
            file, home = root / "annotations" / f"instances_{split}2017.json", root / f"{split}2017"
        else:
            file, home = root / split / "_annotations.coco.json", root / split
        file.parent.mkdir(parents=True, exist_ok=True)
        if not home.exists():
            (own / "images").rename(home)
        else:
            [each.rename(home / each.name) for each in (own / "images").iterdir()]
        (own / "annotations.json").rename(file)
    splits = open_boxes(Data(data=str(root)))
    assert (len(splits.train), len(splits.test), splits.whole) == (6, 3, None)


def test_boxes_outside_and_images_that_are_not_there_are_named_and_skipped(tmp_path: Path) -> None:
    root = coco_folder(tmp_path / "photos")
    said = json.loads((root / "annotations.json").read_text())
    said["annotations"][0]["bbox"] = [40, 0, 20, 10]
    said["annotations"][1]["bbox"] = [4, 4, 0, 3]
    said["annotations"][2]["iscrowd"] = 1
    said["annotations"][3]["bbox"] = [-0.6, 0, 20, 10]  # rounding
    said["annotations"][6]["bbox"] = [1, 1, float("nan"), 3]
    said["annotations"][7]["image_id"] = 99
    said["images"][4]["file_name"] = "gone.png"
    said["images"][5]["file_name"] = "../../outside.png"
    Image.new("RGB", (48, 32)).save(tmp_path / "outside.png")
    (root / "annotations.json").write_text(json.dumps(said))
    splits = open_boxes(Data(data=str(root)))
    assert splits.whole is not None
    assert len(splits.whole) == 10
    boxes = boxes_of(splits.whole)
    assert ((boxes[:, 0, 0] >= 0).sum()) == 6
    assert boxes[0, 0].tolist() == pytest.approx([0, 40 / 48, 0, 1, 10 / 32])
    text = "\n".join(splits.notes)
    for words in (
        "skipped 4 boxes that are empty, outside of their image or around a crowd: [4.0, 4.0, 0",
        "cut 1 boxes at the edge of their image: [40.0, 0.0, 20.0, 10.0] of 0.png",
        "skipped 2 images that are not there: gone.png",
    ):  # fmt: skip
        assert words in text


def notes(**changed: Any) -> dict[str, Any]:
    """One annotation."""
    return {"annotations": [{"image_id": 0, "category_id": 7, "bbox": [1, 1, 5, 5]} | changed]}


BAD: dict[str, dict[str, Any]] = {
    "category_id 9 is not among": notes(category_id=9),
    "left, top, width, height": notes(bbox=[1, 1]),
    "too large": notes(bbox=[1, 1, 5, 10**400]),
    "is not COCO's format": {"annotations": [{"image_id": 0, "bbox": [1, 1, 5, 5]}]},
    "not COCO's format": {"categories": 3},
    "category_id 3 is not among the categories": {"categories": []},
    "has no boxes": {"annotations": []},
    "id 7 is given twice": {
        "categories": [{"id": 7, "name": n} for n in ("red", "blue")],
        "annotations": [],
    },
}


@pytest.mark.parametrize("words", BAD)
def test_bad_annotations_are_one_line(words: str, tmp_path: Path) -> None:
    root = coco_folder(tmp_path / "photos", **BAD[words])
    with pytest.raises(DataError) as said:
        open_boxes(Data(data=str(root)))
    assert words in str(said.value)
    assert "\n" not in str(said.value)


def test_which_annotations_are_meant_is_one_line(tmp_path: Path) -> None:
    root = coco_folder(tmp_path / "photos")
    file = next(root.rglob("*.json"))
    shutil.copy(file, file.with_stem(f"{file.stem}_more"))
    for data, words in (
        ("", "no data given: name a folder with COCO annotations, or digit-scenes"),
        (str(root), f"several files of annotations for one split, {file}, "),
        (str(tmp_path / "gone.json"), "has no annotations: put COCO's .json beside the images"),
    ):
        with pytest.raises(DataError) as said:
            open_boxes(Data(data=data))
        assert words in str(said.value)
    with pytest.raises(DataError, match="has 'patient', by which they are to be grouped"):
        open_boxes(Data(data=str(file), group_column="patient"))


def test_train_evaluate_predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, run = coco_folder(tmp_path / "photos"), str(tmp_path / "run")
    small = [f"--{name.replace('_', '-')}={value}" for name, value in TINY.items()]
    how = ["--workers", "0", "--device", "cpu", "--json"]
    code, out, err = call(capsys, "train", str(root), "--task", "detect", "--out", run,
                          "--image-size", "32", *small, *how, effort=SHOWN)  # fmt: skip
    assert code == 0, err
    trained = json.loads(out)
    assert {"ap50", "ap", "objects", "classes", "test_images", "loss"} <= trained.keys()
    report = (tmp_path / "run" / "report.html").read_text()
    assert "learned to find objects" in report
    assert report.count("AP50") >= 2  # a card, and the table of classes
    assert f"vitlab predict {run}" in report
    assert json.loads(call(capsys, "runs", run, "--json")[1])["runs"][0]["ap50"] == trained["ap50"]
    code, out, err = call(capsys, "evaluate", run, str(root), *how)
    assert code == 0, err
    assert {key: json.loads(out)[key] for key in ("ap50", "ap", "objects")} == {
        key: trained[key] for key in ("ap50", "ap", "objects")
    }
    code, out, err = call(capsys, "evaluate", run, str(root), "--split", "all", *how[:-1])
    assert code == 0, err
    assert out.count("AP50") == 2  # of all classes, and in the table of each
    assert "blue" in out
    photo = str(root / "images" / "1.png")
    code, out, err = call(capsys, "predict", run, photo, "--out", str(tmp_path / "found"), *how)
    assert code == 0, err
    [row] = json.loads(out)["detections"]
    assert all({"class", "probability", "box"} == each.keys() for each in row["objects"])
    assert all(0 <= edge <= 48 for each in row["objects"] for edge in each["box"])
    with Image.open(row["picture"]) as picture:
        assert picture.size == (48, 32)
    assert call(capsys, "predict", run, photo, *how[:-1])[1].startswith(photo)
    code, _, err = call(capsys, "evaluate", run, str(root), "--flips", *how)
    assert code == 2
    assert "flips does not apply to a run of masks, boxes or numbers" in err


def test_the_onnx_file_gives_probabilities_and_boxes(
    boxes_run: Path, few_scenes: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    words = ["export", str(boxes_run), "--to", "onnx", "--out", str(tmp_path / "boxes")]
    code, text, err = call(capsys, *words, "--json")
    assert code == 0, err
    found = json.loads(text)
    assert found["outputs"] == {"probabilities": ["batch", 9, 10], "boxes": ["batch", 9, 4]}
    session = onnxruntime.InferenceSession(found["file"])
    detector = load_detector(boxes_run)
    photos = [np.asarray(scenes("test").store.images[number]) for number in range(3)]
    images = vitlab.preprocess(detector.model)(photos)
    with torch.inference_mode():
        own = detector(images)
    for out, exact in zip(session.run(None, {"images": images.numpy()}), own, strict=True):
        assert np.abs(out - exact.numpy()).max() < 1e-4
    about = json.loads(session.get_modelmeta().custom_metadata_map["vitlab"])
    assert (about["classes"], about["queries"]) == ([*"0123456789"], 9)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["check.py", "--folder", found["folder"]])
        assert check.main() == 0
    assert "no block of 2 deviates" in capsys.readouterr().out


def test_damaged_images_are_named(boxes_run: Path, tmp_path: Path, capsys: Any) -> None:
    classes = [{"id": 7, "name": "3"}, {"id": 3, "name": "5"}]
    root = coco_folder(tmp_path / "photos", categories=classes)
    (root / "images" / "2.png").write_bytes(b"no image")
    how = ["--workers", "0", "--device", "cpu", "--json"]
    code, text, err = call(capsys, "evaluate", str(boxes_run), str(root), "--split", "all", *how)
    assert code == 0, err
    assert (json.loads(text)["images"], json.loads(text)["damaged"]) == (11, 1)
    assert "2.png: not a JPEG" in err
    code, text, _ = call(capsys, "predict", str(boxes_run), str(root / "images"), *how)
    rows = {Path(row["image"]).name: row for row in json.loads(text)["detections"]}
    assert {name for name, row in rows.items() if "error" in row} == {"2.png"}
    assert all("objects" in row for name, row in rows.items() if name != "2.png")
    for file in (root / "images").glob("*.png"):
        file.write_bytes(b"no image")
    code, _, err = call(capsys, "evaluate", str(boxes_run), str(root), "--split", "all", *how)
    assert code == 2
    assert "no image can be used: " in err.splitlines()[-1]


def test_a_head_of_another_model_is_refused(boxes_run: Path, tmp_path: Path) -> None:
    assert load_detector(boxes_run).about.classes == tuple("0123456789")
    # the recipe mirrors, digits are not
    assert "flip = false" in (boxes_run / "run.toml").read_text()
    copy = shutil.copytree(boxes_run, tmp_path / "copy")
    other = vitlab.load(boxes_run)
    with torch.no_grad():
        next(other.parameters()).add_(1)
    vitlab.save(other, copy / "model")
    with pytest.raises(WeightsError, match="is of another model than"):
        load_detector(copy)
