"""YOLO's layout of boxes, as several tools write it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import call
from places_opened import open_boxes
from vitlab.data.box_targets import boxes_of
from vitlab.data.images import Images
from vitlab.data.settings import Data
from vitlab.data.sources.yolo import read_yolo
from vitlab.errors import DataError

BOX = "0.25 0.5 0.1 0.2"


def draw(root: Path, image: str, label: str | None, text: str = f"0 {BOX}\n") -> None:
    """An image, and the text of its objects."""
    (root / image).parent.mkdir(parents=True, exist_ok=True)
    seed = sum(map(ord, str(root / image)))
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(root / image)
    if label is not None:
        (root / label).parent.mkdir(parents=True, exist_ok=True)
        (root / label).write_text(text)


NAMES = "names: [cat, dog]\n"
LAYOUTS: dict[str, tuple[str, str, str]] = {  # an image, its text, data.yaml
    "ultralytics": ("images/{}/1.jpg", "labels/{}/1.txt", "train: images/train\nval: images/val\n"),
    "with a path": (
        "images/{}/1.jpg", "labels/{}/1.txt",
        "path: ../datasets/x\ntrain: images/train\nval: images/val\n",
    ),
    "with an absolute path": (
        "images/{}/1.jpg", "labels/{}/1.txt",
        "path: /home/me/x\ntrain: /home/me/x/images/train\nval: /home/me/x/images/val\n",
    ),
    "roboflow": (
        "{}/images/1.jpg", "{}/labels/1.txt", "train: ../train/images\nval: ../val/images\nnc: 2\n"
    ),
    "a folder of the data": (
        "sub/images/{}/1.jpg", "sub/labels/{}/1.txt",
        "path: sub\ntrain: images/train\nval: images/val\n",
    ),
    "lists of folders": (
        "images/{}/1.jpg", "labels/{}/1.txt", "train: [images/train]\nval:\n  - images/val\n"
    ),
    "windows": (
        "images/{}/1.jpg", "labels/{}/1.txt",
        "path: C:\\data\ntrain: C:\\data\\images\\train\nval: images\\val\n",
    ),
    "beside": ("{}/1.jpg", "{}/1.txt", "train: train\nval: val\n"),
    "a folder around": ("x/images/{}/1.jpg", "x/labels/{}/1.txt", ""),
    "without data.yaml": ("images/{}/1.jpg", "labels/{}/1.txt", ""),
    "splits outside, without data.yaml": ("{}/images/1.jpg", "{}/labels/1.txt", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_with_splits(tmp_path: Path, name: str) -> None:
    image, label, yaml = LAYOUTS[name]
    for split, kind in (("train", 1), ("val", 0)):
        draw(tmp_path, image.format(split), label.format(split), f"{kind} {BOX}\r\n")
        draw(tmp_path, image.format(split).replace("1.jpg", "2.jpg"), None)
    if yaml:
        (tmp_path / "data.yaml").write_text(yaml + NAMES)
    places = [tmp_path, tmp_path / "data.yaml"] if yaml else [tmp_path]
    for place in places:
        splits = open_boxes(Data(data=str(place)))
        assert splits.classes == (("cat", "dog") if yaml else ("0", "1"))
        assert (len(splits.train), len(splits.test), splits.whole) == (2, 2, None)
        assert boxes_of(splits.train)[0].tolist() == [pytest.approx([1, 0.2, 0.4, 0.3, 0.6])]
        assert boxes_of(splits.test)[0, 0, 0] == 0
        assert boxes_of(splits.test)[1, 0, 0] == -1
        assert any("2 images without a .txt" in note for note in splits.notes)
        for source in splits.parts.values():
            assert [source.image(n).shape() for n in range(2)] == [(24, 32, 3)] * 2


def whole(root: Path) -> Images:
    found = open_boxes(Data(data=str(root))).whole
    assert found is not None
    return found


def test_layouts_without_splits(tmp_path: Path) -> None:
    for n in range(6):
        draw(tmp_path / "studio", f"images/{n}.jpg", f"labels/{n}.txt", f"{n % 2} {BOX}\n")
        draw(tmp_path / "darknet", f"{n}.jpg", f"{n}.txt", f"{n % 2} {BOX}\n")
    (tmp_path / "studio" / "classes.txt").write_text("cat\ndog\n")
    (tmp_path / "studio" / "notes.json").write_text("{}")
    (tmp_path / "darknet" / "obj.names").write_text("cat\ndog\n")
    (tmp_path / "darknet" / "@eaDir").mkdir()
    draw(tmp_path / "darknet", "@eaDir/0.jpg", None)
    for name in ("studio", "darknet"):
        assert (len(whole(tmp_path / name)), whole(tmp_path / name).classes) == (6, ("cat", "dog"))


def test_lists_of_images(tmp_path: Path) -> None:
    for n in range(6):
        draw(tmp_path, f"images/{n}.jpg", f"labels/{n}.txt")
    train = [f"./images/{n}.jpg" for n in range(4)] + ["../../etc/passwd", "/etc/passwd"]
    (tmp_path / "train.txt").write_text("\n".join(train))
    (tmp_path / "val.txt").write_text("/home/me/data/images/4.jpg\n/home/me/data/images/5.jpg\n")
    (tmp_path / "data.yaml").write_text("train: train.txt\nval: val.txt\nnames:\n  0: cat\n")
    splits = open_boxes(Data(data=str(tmp_path)))
    assert (len(splits.train), len(splits.test)) == (4, 2)


def test_classes_of_a_model_decide_the_order(tmp_path: Path) -> None:
    for n in range(6):
        draw(tmp_path, f"images/{n}.jpg", f"labels/{n}.txt", f"{n % 2} {BOX}\n")
    (tmp_path / "classes.txt").write_text("cat\ndog\nno\n")
    splits = open_boxes(Data(data=str(tmp_path)), ("dog", "cat", "cow"))
    assert splits.whole is not None
    assert boxes_of(splits.whole)[:, 0, 0].tolist() == [1, 0, 1, 0, 1, 0]
    with pytest.raises(DataError, match="an object of class 'dog', which is not among those known"):
        open_boxes(Data(data=str(tmp_path)), ("cat",))


def test_boxes_are_shares_of_the_upright_image(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    for n in range(4):
        pixels = np.full((40, 80, 3), 60 + n, np.uint8)
        pixels[10:20, 20:40] = (250, 0, 0)  # stored; upright it is 80 rows of 40
        (tmp_path / "images").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{n}.png", exif=exif)
        upright = np.rot90(pixels, -1)
        rows, columns = np.nonzero(upright[..., 0] == 250)
        x, y = (columns.min() + columns.max() + 1) / 80, (rows.min() + rows.max() + 1) / 160
        (tmp_path / "labels").mkdir(exist_ok=True)
        (tmp_path / "labels" / f"{n}.txt").write_text(f"0 {x} {y} {10 / 40} {20 / 80}\n")
    source = whole(tmp_path)
    for n in range(4):
        image = source.image(n).decode(3)
        assert image.shape == (80, 40, 3)
        left, top, right, bottom = boxes_of(source)[n, 0, 1:] * [40, 80, 40, 80]
        inside = image[round(top) : round(bottom), round(left) : round(right), 0]
        assert (inside == 250).all()
        assert (image[..., 0] == 250).sum() == inside.size


def test_odd_objects_are_counted(tmp_path: Path) -> None:
    lines = {
        "0": "0 0.1 0.1 0.3 0.1 0.3 0.4\n",  # a polygon
        "1": f"0 {BOX}\n0 {BOX}\n",
        "2": "0 0.5 0.5 0 0.1\n0 0.5 0.5 nan 0.1\n0 1.5 0.5 0.1 0.1\n0 0.95 0.5 0.105 0.1\n",
        "3": "\n",
        "4": "0 0.1 0.1 0.3 0.1 0.3 0.4 0.1 0.4\n",  # a turned box
    }
    for name, text in lines.items():
        draw(tmp_path, f"images/{name}.jpg", f"labels/{name}.txt", text)
    splits = open_boxes(Data(data=str(tmp_path)))
    said = "\n".join(splits.notes)
    assert "2 polygons, taken as the boxes around them: " in said
    assert "1 boxes that are there twice" in said
    assert "3 boxes skipped, empty or outside of their image" in said
    assert splits.whole is not None
    found = boxes_of(splits.whole)
    assert (found[..., 0] >= 0).sum(1).tolist() == [1, 1, 1, 0, 1]
    assert found[0, 0].tolist() == pytest.approx([0, 0.1, 0.1, 0.3, 0.4])
    assert found[2, 0, 3] == 1
    (tmp_path / "data.yaml").write_text("train: images\nnames: [x]\nkpt_shape: [2, 3]\n")
    points = f"0 {BOX} 0.1 0.2 1 0.3 0.4 1\n"
    for name in lines:
        (tmp_path / "labels" / f"{name}.txt").write_text(points)
    assert boxes_of(whole(tmp_path))[0, 0].tolist() == pytest.approx([0, 0.2, 0.4, 0.3, 0.6])


LAUGHS = "\n".join(
    ["a: &a [x, x, x, x, x, x, x, x, x]"]
    + [
        f"{two}: &{two} [{', '.join([f'*{one}'] * 9)}]"
        for one, two in zip("abcdefgh", "bcdefghi", strict=True)
    ]
)
TREE = "train: images\nnames: "
YAML: dict[str, tuple[str, str | None]] = {
    "aliases": (f"{LAUGHS}\n{TREE}[cat, dog]", None),
    "an object": (f"{TREE}!!python/object/apply:os.system ['touch pwned']", None),
    "a tag": (f"x: !!python/name:os.system\n{TREE}[cat, dog]", None),
    "no and yes": (f"{TREE}[no, yes]", None),
    "deep": (f"{TREE}{'[' * 5000}", "is not YAML"),
    "large": (f"{TREE}[cat, dog]\n#{'x' * 300_000}", None),  # not read as one of YOLO
    "elsewhere": ("train: /etc\nval: ../../..\nnames: [cat, dog]", None),
}


@pytest.mark.parametrize("name", YAML)
def test_data_yaml_of_strangers(tmp_path: Path, monkeypatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    text, said = YAML[name]
    draw(tmp_path, "images/1.jpg", "labels/1.txt")
    (tmp_path / "data.yaml").write_text(text)
    if said is None:
        found = read_yolo(tmp_path)
        assert found is not None
        assert found.splits["train"].paths == [str(tmp_path / "images" / "1.jpg")]
        assert found.classes[0] in ("cat", "no", "0", "touch pwned")
    else:
        with pytest.raises(DataError, match=said) as caught:
            read_yolo(tmp_path)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "pwned").exists()


def test_other_folders_are_left_to_others(tmp_path: Path) -> None:
    others: dict[str, Callable[[], None]] = {
        "coco": lambda: draw(tmp_path / "coco", "images/1.jpg", None),
        "texts": lambda: draw(tmp_path / "texts", "1.jpg", "1.txt", "a caption"),
        "none": lambda: (tmp_path / "none").mkdir(),
    }
    for name, make in others.items():
        make()
        assert read_yolo(tmp_path / name) is None
    assert read_yolo(tmp_path / "missing") is None


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n in range(8):
        draw(tmp_path / "p", f"images/{n}.jpg", f"labels/{n}.txt")
    words = ["--task", "detect", "--model", "ViT(width=32,depth=3,heads=2,mlp=64)/8", "--steps",
             "1", "--image-size", "16", "--object-queries", "4", "--query-blocks", "1", "--batch",
             "4", "--workers", "0", "--out", str(tmp_path / "run")]  # fmt: skip
    status, _, said = call(capsys, "train", str(tmp_path / "p"), *words)
    assert status == 0, said
    assert "names no classes, so that they are numbers, 0 to 0" in said
