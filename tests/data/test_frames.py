"""A box, or a mask, lies on its object however EXIF turns the photo; or the photo is left out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageOps
from pycocotools import mask as drawing

from conftest import call
from places_opened import open_boxes, open_masks
from vitlab.data.annotated_images import find_annotated
from vitlab.data.box_targets import boxes_of
from vitlab.data.decode.headers import BACK, turn
from vitlab.data.frames import image_frames, place, read_frame, turn_shares, verdicts_of
from vitlab.data.images import Images
from vitlab.data.settings import AnnotationFrame, Columns, Data
from vitlab.errors import DataError

ROWS, COLUMNS = 48, 80
TURNED = (5, 6, 7, 8)  # quarter turns


def upright(number: int, rows: int = ROWS, columns: int = COLUMNS) -> NDArray[np.uint8]:
    """A dark picture with one bright rectangle."""
    draw = np.random.default_rng(number)
    pixels = draw.integers(0, 60, (rows, columns, 3)).astype(np.uint8)
    top, left = draw.integers((2, 2), (rows // 2, columns // 2)).tolist()
    pixels[top : top + rows // 4, left : left + columns // 3] = 250
    return pixels


def bright(pixels: NDArray[Any]) -> NDArray[np.bool_]:
    return np.asarray(pixels[..., 0] > 150)


def box_of(inside: NDArray[np.bool_]) -> list[int]:
    """Left, top, width and height of what is bright."""
    rows, columns = (np.flatnonzero(inside.any(axis)) for axis in (1, 0))
    return [int(columns[0]), int(rows[0]), int(np.ptp(columns)) + 1, int(np.ptp(rows)) + 1]


def stored(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    """The pixels that the orientation turns into these."""
    return np.ascontiguousarray(turn(pixels, BACK.get(orientation, orientation)))


def save(file: Path, pixels: NDArray[np.uint8], orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    how = {"quality": 95} if file.suffix == ".jpg" else {}
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file, exif=exif, **how)


def image_of(number: int, kind: str, orientation: int, pixels: NDArray[np.uint8]) -> dict[str, Any]:
    """What a file of annotations says of a photo, its box in the frame that goes with it."""
    raw = stored(pixels, orientation)
    seen = pixels if kind in ("upright", "resized", "labelstudio", "none") else raw
    box, sides = box_of(bright(seen)), [seen.shape[1], seen.shape[0]]
    if kind == "resized":
        box, sides = [2 * each for each in box], [2 * each for each in sides]
    if kind == "labelstudio":  # the sides of the stored pixels, shares of the upright photo
        sides = [raw.shape[1], raw.shape[0]]
        scale = np.array([*sides, *sides]) / ([pixels.shape[1], pixels.shape[0]] * 2)
        box = (np.array(box) * scale).tolist()
    if kind == "other":
        sides = [100, 100]
    said = {"id": number, "file_name": f"{number}.png", "width": sides[0], "height": sides[1]}
    if kind == "none":
        del said["width"]
        said["height"] = None
    return {"image": said, "box": box}


def coco(root: Path, kinds: list[tuple[str, int]], square: bool = False) -> Path:
    """Photos with one box each; of each photo what its sides say, and its orientation."""
    images, boxes = [], []
    for number, (kind, orientation) in enumerate(kinds):
        pixels = upright(number, ROWS, ROWS if square else COLUMNS)
        save(root / f"{number}.png", stored(pixels, orientation), orientation)
        said = image_of(number, kind, orientation, pixels)
        images.append(said["image"])
        boxes.append({"image_id": number, "category_id": 1, "bbox": said["box"]})
    found = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "bar"}]}
    (root / "annotations.json").write_text(json.dumps(found))
    return root


def opened(root: Path, frame: AnnotationFrame = "auto") -> tuple[dict[int, Any], str]:
    """The boxes of the photos that are left, in pixels, and the notes; all lie on their objects."""
    splits = open_boxes(Data(data=str(root), annotation_frame=frame))
    source = splits.whole
    assert source is not None
    found = {}
    for index, (own, *_) in enumerate(boxes_of(source)):
        pixels = source.image(index).decode(3)
        rows, columns = pixels.shape[:2]
        left, top, right, bottom = own[1:] * (columns, rows, columns, rows)
        found[int(Path(source.name(index)).stem)] = [left, top, right - left, bottom - top]
    return found, "\n".join(splits.notes)


def on_their_objects(root: Path, found: dict[int, Any]) -> list[int]:
    """The photos whose box is where the bright pixels are."""
    good = []
    for number, box in found.items():
        with Image.open(root / f"{number}.png") as image:
            wanted = box_of(bright(np.asarray(ImageOps.exif_transpose(image))))
        if np.array(box) == pytest.approx(np.array(wanted), abs=0.01):
            good.append(number)
    return good


@pytest.mark.parametrize("kind", ["stored", "upright", "resized"])
def test_boxes_lie_on_their_objects_in_all_orientations(kind: str, tmp_path: Path) -> None:
    root = coco(tmp_path, [(kind, orientation) for orientation in range(1, 9)])
    found, notes = opened(root)
    assert on_their_objects(root, found) == [*range(8)]
    line = (
        "the annotations of 7 images were turned with their pixels (EXIF), as drawn on the stored"
    )
    assert (line in notes) == (kind == "stored")
    assert "left out" not in notes


def test_photos_whose_sides_do_not_tell_are_left_out_and_named(tmp_path: Path) -> None:
    for number, (kinds, square) in enumerate(
        [
            ([("stored", each) for each in (1, 2, 3, 4)], False),
            ([("stored", each) for each in range(1, 9)], True),
            ([("none", each) for each in range(1, 9)], False),
            ([("stored", 6), ("upright", 8), ("stored", 3), ("stored", 1)], False),  # both frames
        ]
    ):
        root = coco(tmp_path / str(number), kinds, square)
        found, notes = opened(root)
        assert on_their_objects(root, found) == [*found]
        assert 1 <= len(found) < len(kinds)
        left = len(kinds) - len(found)
        assert f"left out {left} images that EXIF turns or mirrors" in notes
        assert "--annotation-frame upright, or --annotation-frame stored: " in notes
        wanted: AnnotationFrame = "upright" if kinds[0][0] == "none" else "stored"
        found, notes = opened(root, wanted)  # as the line advises
        assert len(found) == len(kinds)
        assert "left out" not in notes
        if number < 3:
            assert on_their_objects(root, found) == [*range(len(kinds))]


def test_the_other_photos_tell_for_those_whose_sides_do_not(tmp_path: Path) -> None:
    for kind in ("stored", "upright"):
        root = coco(tmp_path / kind, [(kind, 3), (kind, 6), (kind, 2), (kind, 8), (kind, 1)])
        found, notes = opened(root)
        assert on_their_objects(root, found) == [*range(5)]
        assert ("of 4 images were turned" in notes) == (kind == "stored")


def test_label_studio_states_the_other_sides(tmp_path: Path) -> None:
    root = coco(tmp_path, [("labelstudio", each) for each in range(1, 9)])
    found, notes = opened(root)
    assert "as in Label Studio, pass --annotation-frame upright: 1.png" in notes
    assert len(on_their_objects(root, found)) < 8
    found, notes = opened(root, "upright")
    assert on_their_objects(root, found) == [*range(8)]
    assert "turned" not in notes
    text = json.loads((root / "annotations.json").read_text())
    text["info"] = {"contributor": "Label Studio"}  # as it writes
    (root / "annotations.json").write_text(json.dumps(text))
    found, notes = opened(root)
    assert on_their_objects(root, found) == [*range(8)]
    assert "is Label Studio's: its objects were drawn on the upright photos, of which EXIF" in notes
    assert "were turned" in opened(root, "stored")[1]


def test_sides_of_another_proportion_are_left_out_and_named(tmp_path: Path) -> None:
    root = coco(tmp_path, [("stored", 1), ("other", 1), ("other", 6), ("stored", 6)])
    found, notes = opened(root)
    assert on_their_objects(root, found) == [0, 3]
    assert "left out 2 images whose sides are not those that go with their annotations" in notes
    assert "1.png, 2.png" in notes
    root = coco(tmp_path / "all", [("other", 1)])
    with pytest.raises(DataError, match="whose sides are not those that go with their annot"):
        opened(root)


@pytest.mark.parametrize("said", [None, 0, -3, "", "wide", float("nan"), float("inf"), True, []])
def test_what_is_no_side_is_that_of_the_image(said: Any, tmp_path: Path) -> None:
    root = coco(tmp_path, [("upright", 1), ("upright", 1)])
    text = json.loads((root / "annotations.json").read_text())
    text["images"][0]["width"] = said
    text["images"][1] |= {"width": str(COLUMNS), "height": float(ROWS)}
    (root / "annotations.json").write_text(json.dumps(text))
    found, _ = opened(root)
    assert on_their_objects(root, found) == [0, 1]


def test_boxes_beyond_the_edge_are_cut_and_empty_ones_dropped(tmp_path: Path) -> None:
    root = coco(tmp_path, [("upright", 1)] * 5)
    text = json.loads((root / "annotations.json").read_text())
    given = [[-20, 5, 30, 10], [70, 40, 300, 300], [90, 5, 10, 10], [5, 5, -3, 4], [-0.5, 0, 9, 9]]
    for own, box in zip(text["annotations"], given, strict=True):
        own["bbox"] = box
    (root / "annotations.json").write_text(json.dumps(text))
    splits = open_boxes(Data(data=str(root)))
    assert splits.whole is not None
    boxes = boxes_of(splits.whole)[:, 0]
    assert boxes[0, 1:].tolist() == pytest.approx([0, 5 / 48, 10 / 80, 15 / 48])
    assert boxes[1, 1:].tolist() == pytest.approx([70 / 80, 40 / 48, 1, 1])
    assert boxes[:, 0].tolist() == [0, 0, -1, -1, 0]
    notes = "\n".join(splits.notes)
    assert "cut 2 boxes at the edge of their image: [-20.0, 5.0, 30.0, 10.0] of 0.png" in notes
    assert "skipped 2 boxes that are empty, outside of their image or around a crowd" in notes


@pytest.mark.parametrize("ending", [".jpg", ".png", ".webp", ".tif", ".avif"])
def test_the_frame_of_a_file_is_that_of_its_decoded_pixels(ending: str, tmp_path: Path) -> None:
    if ending.upper() not in {each.upper() for each in Image.registered_extensions()}:
        pytest.skip(f"Pillow reads no {ending}")
    for orientation in range(1, 9):
        pixels = upright(0)
        save(file := tmp_path / f"{orientation}{ending}", stored(pixels, orientation), orientation)
        frame = read_frame(file)
        assert frame is not None
        assert frame.upright == (COLUMNS, ROWS)
        assert frame.orientation == orientation
        assert frame.stored == stored(pixels, orientation).shape[1::-1]


def test_frames_of_odd_files(tmp_path: Path) -> None:
    data = b"\xff\xe2\xff\xfe" + bytes(0xFFFC)  # segments before the sides: a profile
    save(tmp_path / "a.jpg", upright(0), 6)
    whole = (tmp_path / "a.jpg").read_bytes()
    (tmp_path / "long.jpg").write_bytes(whole[:2] + data * 3 + whole[2:])
    (tmp_path / "bad.jpg").write_bytes(whole[:30])
    (tmp_path / "none.png").write_bytes(b"")
    save(tmp_path / "b.png", upright(0), 6)
    png = (tmp_path / "b.png").read_bytes()
    at = png.index(b"eXIf") - 4
    end = at + 12 + int.from_bytes(png[at : at + 4])
    last = png.index(b"IEND") - 4
    (tmp_path / "late.png").write_bytes(png[:at] + png[end:last] + png[at:end] + png[last:])
    names = ["a.jpg", "long.jpg", "bad.jpg", "none.png", "late.png", "gone.jpg"]
    found = image_frames(str(tmp_path / name) for name in names)
    assert [frame and frame.orientation for frame in found] == [6, 6, None, None, 6, None]


def test_labels_in_shares_have_no_sides(tmp_path: Path) -> None:
    """As YOLO's, whose own reader turns photos upright."""
    paths = []
    for orientation in (1, 6, 3):
        paths.append(str(tmp_path / f"{orientation}.jpg"))
        save(Path(paths[-1]), stored(upright(0), orientation), orientation)
    frames, sides = image_frames(paths), [None] * 3
    how = frames, sides
    for wanted, turns in (("auto", [1, 0, 0]), ("upright", [1, 1, 1]), ("stored", [1, 6, 3])):
        placed = place("labels", paths, *how, verdicts_of(*how, wanted), set())
        assert placed.turns.tolist() == turns
    rows = np.array([[0.1, 0.2, 0.3, 0.6]])
    assert turn_shares(rows, np.array([6])).tolist() == [pytest.approx([0.4, 0.1, 0.8, 0.3])]


# Masks


def decoded(file: Path) -> Image.Image:
    """An image of Pillow's, of no file, which knows its orientation."""
    with Image.open(file) as image:
        return image.copy()


def masks_of(source: Images) -> dict[int, bool]:
    """Of each image that is left, whether its mask is where the bright pixels are."""
    found = {}
    for index in range(len(source)):
        pixels = source.image(index).decode(3)
        own = source.target.truth(index, pixels.shape[:2]) == 1
        found[int(Path(source.name(index)).stem)] = bool((own == bright(pixels)).all())
    return found


@pytest.mark.parametrize("layout", ["folder", "list", "memory", "bytes", "pillow"])
@pytest.mark.parametrize("kind", ["stored", "upright"])
def test_masks_lie_on_their_objects(kind: str, layout: str, tmp_path: Path) -> None:
    lines = ["path,mask"]
    for orientation in range(1, 9):
        pixels = upright(orientation)
        raw = stored(pixels, orientation)
        save(tmp_path / "images" / f"{orientation}.png", raw, orientation)
        mask = bright(raw if kind == "stored" else pixels).astype(np.uint8)
        (tmp_path / "masks").mkdir(exist_ok=True)
        Image.fromarray(mask).save(tmp_path / "masks" / f"{orientation}.png")
        lines.append(f"images/{orientation}.png,masks/{orientation}.png")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    pairs = [line.split(",") for line in lines[1:]]
    data: Any = {"folder": tmp_path, "list": tmp_path / "list.csv"}.get(layout)
    if data is None:
        read = {"memory": str, "bytes": Path.read_bytes, "pillow": decoded}[layout]
        data = [(read(tmp_path / one), np.asarray(decoded(tmp_path / two))) for one, two in pairs]
    if layout == "folder":
        (tmp_path / "list.csv").unlink()
    result = open_masks(data)
    (part,) = result.parts.values()
    names = list(range(len(part)))
    assert len(names) == 8
    good = [
        (part.target.truth(n, (p := part.image(n).decode(3)).shape[:2]) == 1) == bright(p)
        for n in names
    ]
    assert all(each.all() for each in good)
    notes = "\n".join(result.notes)
    assert ("of 7 images were turned" in notes) == (kind == "stored")
    alone = part.take(np.array([7, 3]))
    pixels = alone.image(0).decode(3)
    assert np.array_equal(alone.target.truth(0, pixels.shape[:2]) == 1, bright(pixels))


def test_masks_whose_sides_do_not_tell_are_left_out(tmp_path: Path) -> None:
    pairs = []
    for orientation in (1, 3, 6):
        pixels = upright(orientation, ROWS, ROWS)
        raw = stored(pixels, orientation)
        save(tmp_path / f"{orientation}.png", raw, orientation)
        pairs.append((str(tmp_path / f"{orientation}.png"), bright(raw).astype(np.uint8)))
    result = open_masks(pairs)
    assert masks_of(result.parts["all"]) == {1: True}
    assert "left out 2 images that EXIF turns or mirrors" in "\n".join(result.notes)
    result = open_masks(pairs, columns=Columns(annotation_frame="stored"))
    assert masks_of(result.parts["all"]) == {1: True, 3: True, 6: True}
    with pytest.raises(DataError, match="no image is left to learn from: the given data: left out"):
        open_masks(pairs[1:])


@pytest.mark.parametrize("shape", ["polygon", "runs", "packed", "resized"])
@pytest.mark.parametrize("kind", ["stored", "upright", "labelstudio"])
def test_drawn_masks_lie_on_their_objects(shape: str, kind: str, tmp_path: Path) -> None:
    images, shapes = [], []
    for orientation in range(1, 9):
        pixels = upright(orientation)
        save(tmp_path / f"{orientation}.png", raw := stored(pixels, orientation), orientation)
        seen = raw if kind == "stored" else pixels
        left, top, width, height = box_of(bright(seen))
        corners = np.array([[left, top], [left + width, top], [left + width, top + height],
                            [left, top + height]], float)  # fmt: skip
        sides = np.array([seen.shape[1], seen.shape[0]])
        if kind == "labelstudio":
            if shape in ("runs", "packed"):
                pytest.skip("run lengths have sides of their own")
            corners *= np.array([raw.shape[1], raw.shape[0]]) / sides
            sides = np.array([raw.shape[1], raw.shape[0]])
        if shape == "resized":
            corners, sides = corners / 2, sides / 2
        segmentation: Any = [corners.ravel().tolist()]
        if shape in ("runs", "packed"):
            packed = drawing.encode(np.asfortranarray(bright(seen).astype(np.uint8)))
            segmentation = {"size": [*seen.shape[:2]], "counts": packed["counts"].decode()}
            if shape == "runs":
                flat = bright(seen).T.ravel()
                edges = np.flatnonzero(np.diff(flat)) + 1
                segmentation["counts"] = np.diff([0, *edges, flat.size]).tolist()
        images.append({"id": orientation, "file_name": f"{orientation}.png",
                       "width": int(sides[0]), "height": int(sides[1])})  # fmt: skip
        shapes.append({"image_id": orientation, "category_id": 1, "segmentation": segmentation})
    said = {"images": images, "annotations": shapes, "categories": [{"id": 1, "name": "bar"}]}
    (tmp_path / "annotations.json").write_text(json.dumps(said))
    frame: AnnotationFrame = "upright" if kind == "labelstudio" else "auto"
    result = open_masks(tmp_path, columns=Columns(annotation_frame=frame))
    assert masks_of(result.parts["all"]) == dict.fromkeys(range(1, 9), True)


# Where images are


def test_images_are_found_where_other_tools_put_them(tmp_path: Path) -> None:
    for name in ("photos/images/a.png", "photos/images/cat/b.png"):
        save(tmp_path / name, upright(0), 1)
    file = tmp_path / "photos" / "result.json"
    for names in (["a.png", "cat/b.png"], ["images\\a.png", "images\\cat\\b.png"],
                  ["a.png", "cat\\b.png"]):  # fmt: skip
        found, notes = find_annotated(file, file, names, Columns())
        assert [Path(path).name for path in found] == ["a.png", "b.png"]
        assert not notes
    for names in (
        ["/data/upload/1/a.png", "/data/upload/1/b.png"],
        ["C:\\Users\\me\\a.png", "..\\..\\b.png"],
        ["train/a.png", "x/b.png"],
    ):
        found, (note,) = find_annotated(file, file, names, Columns())
        assert [Path(path).name for path in found] == ["a.png", "b.png"]
        assert "2 of 2 images were found by the names of their files alone, in " in note
        assert str(tmp_path / "photos" / "images") in note
    found, _ = find_annotated(file, file, ["a.png", "gone/b.png"], Columns())
    assert found == [str(tmp_path / "photos" / "images" / "a.png"), ""]  # no guess beside names
    save(tmp_path / "photos" / "more" / "a.png", upright(1), 1)
    assert find_annotated(file, file, ["x/a.png", "x/b.png"], Columns())[0][0] == ""  # two of them
    save(tmp_path / "photos" / "val" / "c.png", upright(1), 1)
    train = tmp_path / "photos" / "train.json"
    assert find_annotated(train, train, ["x/c.png"], Columns()) == ([""], [])  # another split's


def test_images_outside_are_not_read(tmp_path: Path) -> None:
    save(tmp_path / "outside.png", upright(0), 1)
    save(tmp_path / "other" / "b.png", upright(0), 1)
    (home := tmp_path / "photos").mkdir()
    (home / "link.png").symlink_to(tmp_path / "outside.png")
    (home / "folder").symlink_to(tmp_path)
    file, names = home / "a.json", ["../outside.png", str(tmp_path / "outside.png"), "link.png",
                                    "folder/outside.png", "a\0.png", "x" * 5000, "\ud800.png", "",
                                    ".", "..", "/"]  # fmt: skip
    assert find_annotated(file, file, names, Columns()) == ([""] * len(names), [])
    trusted, _ = find_annotated(file, file, names[:3], Columns(allow_outside=True))
    assert all(trusted)
    found, _ = find_annotated(file, file, ["b.png"], Columns(images=str(tmp_path / "other")))
    assert found == [str(tmp_path / "other" / "b.png")]


def test_commands_say_what_was_turned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = coco(tmp_path / "photos", [("labelstudio", each % 8 + 1) for each in range(16)])
    small = ["--model", "ViT-Ti/16", "--width", "16", "--depth", "1", "--heads", "1", "--steps",
             "1", "--image-size", "32", "--query-blocks", "1", "--workers", "0", "--device", "cpu",
             "--batch", "4"]  # fmt: skip
    run = str(tmp_path / "run")
    code, _, err = call(capsys, "train", str(root), "--task", "detect", "--out", run, *small)
    assert code == 0, err
    assert "were turned with their pixels (EXIF)" in err
    code, _, err = call(capsys, "evaluate", run, str(root), "--annotation-frame", "upright")
    assert code == 0, err
    assert "turned" not in err
    recorded = (tmp_path / "run" / "run.toml").read_text()
    assert 'annotation_frame = "auto"' in recorded


def test_groups_of_coco_are_a_key_of_its_images(tmp_path: Path) -> None:
    root = coco(tmp_path, [("upright", 1)] * 20)
    text = json.loads((root / "annotations.json").read_text())
    for number, each in enumerate(text["images"]):
        each["site"] = number % 5
    (root / "annotations.json").write_text(json.dumps(text))
    splits = open_boxes(Data(data=str(root), group_column="site", test_fraction=0.4))
    train, test = (
        {int(Path(part.name(n)).stem) % 5 for n in range(len(part))}
        for part in (splits.train, splits.test)
    )
    assert train
    assert test
    assert not train & test
