"""Hostile data with boxes, masks and numbers, made on demand, small or large.

`PYTHONPATH=src:tests python -m data.hostile_places FOLDER [NAME …]` opens each large set in a
process of its own, and prints how it ended, its processor seconds and its most memory.
"""

import json
import os
import resource
import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

Set = Callable[[Path, bool], None]
IMAGE = {"id": 1, "file_name": "a.png", "width": 40, "height": 30}
SQUARE = [[2.0, 2, 20, 2, 20, 20, 2, 20]]
OBJECT = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [2, 2, 9, 9], "segmentation": SQUARE}
CATEGORY = {"id": 1, "name": "cat"}
AS_FILES: dict[str, Set] = {}
OF_COCO: dict[str, Set] = {}


def coco(root: Path, text: str = "", **changed: Any) -> None:
    """Two images and a file of annotations, of which some is changed."""
    for name in ("a", "b"):
        Image.fromarray(np.full((30, 40, 3), ord(name), np.uint8)).save(root / f"{name}.png")
    images = [IMAGE, IMAGE | {"id": 2, "file_name": "b.png"}]
    said = {"images": images, "annotations": [OBJECT], "categories": [CATEGORY]} | changed
    (root / "annotations.json").write_text(text or json.dumps(said))


def of_coco(make: Set) -> Set:
    OF_COCO[make.__name__] = make
    return make


def as_files(make: Set) -> Set:
    AS_FILES[make.__name__] = make
    return make


def images(**changed: Any) -> dict[str, Any]:
    return {"images": [IMAGE | changed, IMAGE | {"id": 2, "file_name": "b.png"}]}


def objects(**changed: Any) -> dict[str, Any]:
    return {"annotations": [OBJECT, OBJECT | {"id": 2} | changed]}


def runs(counts: Any, rows: Any = 30, columns: Any = 40) -> dict[str, Any]:
    return objects(segmentation={"size": [rows, columns], "counts": counts})


def named(name: str, change: dict[str, Any]) -> None:
    """A set by what is changed."""
    OF_COCO[name] = lambda root, large: coco(root, **change)


named("sides of a billion", images(width=10**9, height=10**9))
named("sides of 32,768", images(width=2**15, height=2**15))
named("a side of 400 digits", images(width=10**400))
named(
    "sides like those of the image, 30 million times", images(width=40 * 10**7, height=30 * 10**7)
)
named("a sliver of a side", images(width=1e-300, height=1e-300))
named("run lengths of a gigapixel", images(width=2**15, height=2**15) | runs([2**30], 2**15, 2**15))
named("run lengths of huge numbers", runs([10**30, 5]))
named("run lengths below nothing", runs([-5, 1205]))
named("run lengths of words", runs(["a", "b"]))
named("packed numbers that go on", runs("~" * 1000))
named("a packed number of 100 characters", runs("o" * 99 + "0"))
named("packed numbers of other signs", runs("\u00e9\u20ac"))
named("sides of run lengths that are words", runs([1200], "30", None))
named("a size of one number", objects(segmentation={"size": 7, "counts": [1200]}))
named("edges that are no numbers", objects(bbox=["nan", "inf", 1e308, 1e308]))
named("edges of 400 digits", objects(bbox=[1, 1, 10**400, 5]))
named("edges in lists", objects(bbox=[[1], 1, 1, 5]))
named("edges that are words", objects(bbox=["a", 1, 1, 5]))
named("five edges", objects(bbox=[1, 2, 3, 4, 5]))
named("corners beyond the image", objects(segmentation=[[0, 0, 1e9, 0, 1e9, 1e9]]))
named("corners that are no numbers", objects(segmentation=[[1, 2, 3, 4, 5, float("nan")]]))
named("corners in corners", objects(segmentation=[[[1, 2], [3, 4]], [[1, [2]], 3]]))
named("an id that is true", images(id=True))
named("an id that is null", objects(image_id=None))
named("an id that is a list", objects(category_id=[1]))
named("an id twice", images(id=2))
named("one image under a thousand ids", {"images": [IMAGE | {"id": n} for n in range(1000)]})
named("a class that is not listed", objects(category_id=9))
named("a class with control characters", {"categories": [CATEGORY | {"name": "\x1b[31mcat\x07"}]})
named("a class of two lines", {"categories": [CATEGORY | {"name": "cat\ndog"}]})
named("a class of half a character", {"categories": [CATEGORY | {"name": "\ud800"}]})
named("a class of a megabyte", {"categories": [CATEGORY | {"name": "x" * 10**6}]})
named("a class twice", {"categories": [CATEGORY, CATEGORY | {"id": 2}]} | objects(category_id=2))
named("a class in two spellings", {
    "categories": [CATEGORY | {"name": "Caf\u00e9"}, {"id": 2, "name": "Cafe\u0301"}],
    "annotations": [OBJECT, OBJECT | {"category_id": 2}],
})  # fmt: skip
named("a file outside", images(file_name="../../../etc/passwd"))
named("an absolute file", images(file_name="/etc/passwd"))
named("a device", images(file_name="/dev/zero"))
named("a file without a name", images(file_name=""))
named("a name of zeros", images(file_name="a\0.png"))
named("a name of half a character", images(file_name="\ud800.png"))
named("a name of 100,000 characters", images(file_name="x/" * 50_000))
named("a name of control characters", images(file_name="\x1b]0;owned\x07"))
named("a name that is a list", images(file_name=["a.png"]))
named("images that are a text", {"images": "a.png"})
named("images that are numbers", {"images": [1, 2]})
named("annotations that are null", {"annotations": None})
named("annotations in annotations", {"annotations": [[OBJECT]]})
named("no categories", {"categories": []})
named("a crowd of an odd kind", objects(iscrowd={"a": [1]}))


@of_coco
def nested(root: Path, large: bool) -> None:
    coco(root, '{"images": ' + "[" * (10**6 if large else 10**5))


@of_coco
def nested_in_an_object(root: Path, large: bool) -> None:
    coco(root, '{"annotations": [{"image_id": 1, "x": ' + '{"a":' * 10**5)


@of_coco
def endless_number(root: Path, large: bool) -> None:
    coco(root, '{"images": [{"id": ' + "9" * (10**7 if large else 10**5) + "}]}")


@of_coco
def cut_off(root: Path, large: bool) -> None:
    coco(root)
    file = root / "annotations.json"
    file.write_text(file.read_text()[:-30])


@of_coco
def other_text(root: Path, large: bool) -> None:
    coco(root)
    file = root / "annotations.json"
    file.write_bytes(file.read_text().encode("utf-16"))


@of_coco
def a_list(root: Path, large: bool) -> None:
    coco(root, "[1, 2]")


@of_coco
def nothing(root: Path, large: bool) -> None:
    coco(root, " ")


@of_coco
def a_link_outside(root: Path, large: bool) -> None:
    coco(root)
    (root / "a.png").unlink()
    (root / "a.png").symlink_to("/etc/passwd")


@of_coco
def many_objects_in_an_image(root: Path, large: bool) -> None:
    count = 10**6 if large else 20_000
    each = json.dumps(OBJECT)
    others = [IMAGE | {"id": n, "file_name": f"{n}.png"} for n in range(3, 1000)]
    text = json.dumps({"images": [IMAGE, *others], "categories": [CATEGORY], "annotations": []})
    coco(root, text[:-2] + ",".join([each] * count) + "]}")


@of_coco
def many_objects_in_all(root: Path, large: bool) -> None:
    count = 5_000_000 if large else 1000
    head = json.dumps({"images": [IMAGE], "categories": [CATEGORY]})[:-1]
    each = '{"image_id":1,"category_id":1,"bbox":[1,1,3,3],"segmentation":[]}'
    coco(root, f'{head}, "annotations": [' + ",".join([each] * count) + "]}")


@of_coco
def many_classes(root: Path, large: bool) -> None:
    count = 10**6 if large else 30_000
    coco(root, categories=[{"id": n, "name": f"c{n}"} for n in range(count)])


@of_coco
def many_corners(root: Path, large: bool) -> None:
    count = 10**7 if large else 2 * 10**5
    coco(root, **objects(segmentation=[[1.5, 2.5] * count]))


@of_coco
def a_zigzag(root: Path, large: bool) -> None:
    count = 49_000
    coco(root)
    Image.new("1", (7000, 7000)).save(root / "a.png")
    said = {"images": [IMAGE | {"width": 7000, "height": 7000}], "categories": [CATEGORY],
            "annotations": [OBJECT | {"segmentation": [[0, 0, 6999, 6999] * count]}]}  # fmt: skip
    (root / "annotations.json").write_text(json.dumps(said))


@of_coco
def many_shapes_on_a_large_image(root: Path, large: bool) -> None:
    coco(root)
    Image.new("1", (7000, 7000)).save(root / "a.png")
    said = {"images": [IMAGE | {"width": 7000, "height": 7000}], "categories": [CATEGORY],
            "annotations": [OBJECT] * 2000}  # fmt: skip
    (root / "annotations.json").write_text(json.dumps(said))


@of_coco
def many_packed_characters(root: Path, large: bool) -> None:
    count = 10**8 if large else 10**6
    coco(root, **runs("0" * count))


# Masks as files


def masked(root: Path, mask: Any = None, classes: str = "") -> None:
    """Two images with masks, of which the first one is another."""
    for name in ("images", "masks"):
        (root / name).mkdir()
    for number in range(2):
        pixels = np.full((30, 40, 3), 9 * number, np.uint8)
        Image.fromarray(pixels).save(root / "images" / f"{number}.png")
        numbers = np.zeros((30, 40), np.uint8)
        numbers[:9] = 1
        Image.fromarray(numbers).save(root / "masks" / f"{number}.png")
    if isinstance(mask, bytes):
        (root / "masks" / "0.png").write_bytes(mask)
    elif mask is not None:
        (root / "masks" / "0.png").unlink()
        mask.save(root / "masks" / f"0{'.tif' if mask.mode == 'F' else '.png'}")
    if classes:
        (root / "classes.txt").write_text(classes)


def png_of(columns: int, rows: int) -> bytes:
    """A PNG that says that it is large, and is not."""
    head = struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(b"\0" * 100)), (b"IEND", b"")]
    made = b"\x89PNG\r\n\x1a\n"
    for kind, body in parts:
        made += (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )
    return made


MASKS: dict[str, Any] = {
    "a mask of another size": Image.new("L", (9, 9)),
    "a mask in colors": Image.new("RGB", (40, 30)),
    "a mask of fractions": Image.new("F", (40, 30)),
    "a mask of 16 bits beyond the classes": Image.fromarray(np.full((30, 40), 60_000, np.uint16)),
    "a mask of a gigapixel": png_of(40_000, 40_000),
    "a mask of two billion columns": png_of(2**31 - 1, 1),
    "a mask that is no image": b"no image",
    "a mask of nothing": b"",
    "a mask that is cut off": png_of(40, 30)[:40],
}
CLASSES = {
    "classes with control characters": "ground\n\x1b[31mcat\n",
    "a class of a megabyte in a file": "ground\n" + "x" * 10**6,
    "classes in two spellings": "Caf\u00e9\nCafe\u0301\n",
    "too many classes": "".join(f"c{n}\n" for n in range(5000)),
    "numbers beyond all": "0 ground\n99999 cat\n",
}
for title, made in MASKS.items():
    AS_FILES[title] = lambda root, large, made=made: masked(root, made)  # type: ignore[misc]
for title, text in CLASSES.items():
    AS_FILES[title] = lambda root, large, text=text: masked(root, None, text)  # type: ignore[misc]


@as_files
def a_palette_beyond_the_classes(root: Path, large: bool) -> None:
    mask = Image.fromarray(np.full((30, 40), 200, np.uint8))
    mask.putpalette([7] * 768)
    masked(root, mask, "ground\ncat\n")


@as_files
def a_mask_outside(root: Path, large: bool) -> None:
    masked(root)
    (root / "list.csv").write_text(
        "path,mask\nimages/0.png,/etc/passwd\nimages/1.png,masks/1.png\n"
    )


# How it ends


def opened(kind: str, root: Path) -> int:
    """Open a set, and use its first images; return how many are left."""
    from places_opened import open_boxes, open_masks
    from vitlab.data.box_targets import boxes_of
    from vitlab.data.settings import Data
    from vitlab.errors import ImageError

    if kind == "boxes":
        splits = open_boxes(Data(data=str(root)))
        source = splits.train if splits.whole is None else splits.whole
        assert ((boxes_of(source)[..., 1:] >= 0) & (boxes_of(source)[..., 1:] <= 1)).all()
        notes = splits.notes
    else:
        listed = root / "list.csv"
        found = open_masks(listed if listed.is_file() else root)
        source, notes = next(iter(found.parts.values())), found.notes
        for index in range(min(3, len(source))):
            try:
                pixels = source.image(index).decode(3)
                source.target.truth(index, pixels.shape[:2])
            except ImageError as error:
                notes.append(str(error))
    for note in notes:
        assert "\n" not in note
        assert len(note) < 20_000
    return len(source)


def _measure(place: Path, names: Sequence[str]) -> None:
    """Open each large set, or those of some names, in a process of its own."""
    for kind, name, make in every():
        if names and name not in names:
            continue
        (root := place / f"{len(name)}-{kind}").mkdir()
        make(root, True)
        child = os.fork()
        if not child:
            resource.setrlimit(resource.RLIMIT_CPU, (150, 150))
            resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
            status, line = 0, ""
            try:
                line = f"opened, {opened(kind, root)} images left"
            except ValueError as error:
                known = type(error).__module__ == "vitlab.errors"
                status, line = (1, "refused") if known else (2, f"TRACEBACK {error!r:.90}")
            except BaseException as error:
                status, line = 2, f"TRACEBACK {type(error).__name__}: {error!s:.90}"
            print(f"{line}\t", end="", flush=True)
            os._exit(status)
        _, status, used = os.wait4(child, 0)
        ended = "KILLED" if os.WIFSIGNALED(status) else ""
        seconds, memory = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
        print(f"{ended}{seconds:.1f} s\t{memory:.0f} MB\t{kind}\t{name}", flush=True)
        for file in sorted(root.rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        root.rmdir()


def every() -> list[tuple[str, str, Set]]:
    """Each set with what it is opened as."""
    coco = [(kind, *each) for each in OF_COCO.items() for kind in ("boxes", "masks")]
    return [*coco, *(("masks", *each) for each in AS_FILES.items())]


if __name__ == "__main__":
    import vitlab.data.masks
    import vitlab.data.open  # noqa: F401  # imported once, before the forks

    _measure(Path(sys.argv[1]), sys.argv[2:])
