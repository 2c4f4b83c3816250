"""Control characters in names reach no terminal, whoever prints them; JSON stays JSON."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitlab
from conftest import LIGHT, call, photo, photo_folder
from made_heads import save_heads
from vitlab.console.screen import Screen, screen_output
from vitlab.errors import CONTROL, DataError, escape_controls
from vitlab.progress import say
from vitlab.terminal import print_rows, print_table

NAMES = ("a\x1b[31mb", "a\x9b2Jb", "a\x7fb", "a\x07b", "a\u202eb", "a\u2066b", "a\u2028b", "a\rb")


def clean(text: str) -> bool:
    return not CONTROL.search(text.replace("\n", ""))


@pytest.mark.parametrize("name", NAMES)
def test_whatever_prints_a_name(name: str, capsys: Any) -> None:
    """Within a command: `print`, tables, lines on stderr, and other libraries."""
    with screen_output():
        print(name, "x")
        sys.stderr.write(name.replace("\r", ""))
        print_table(("name", name), [(name, "2")])
        print_rows([{"name": name, name: 3}])
    say(f"reading {name}")
    out, err = capsys.readouterr()
    assert clean(out), repr(out)
    assert clean(err), repr(err)
    assert "x\n" in out


def test_json_that_is_escaped_is_the_same_json() -> None:
    whole = {name: [name] for name in NAMES}
    text = json.dumps(whole, ensure_ascii=False)
    assert json.loads(escape_controls(text)) == whole
    assert clean(escape_controls(text))


def test_a_stream_is_told_from_no_other(capsys: Any) -> None:
    own, other = Screen(sys.stdout, ""), Screen(sys.stderr, "")
    assert own == sys.stdout == Screen(sys.stdout, "\n")
    assert own not in (sys.stderr, other)
    assert own.encoding == sys.stdout.encoding
    own.writelines(["a\n", "b\x1b"])
    assert capsys.readouterr().out == "a\\x0ab\\x1b"


@pytest.mark.parametrize("name", [each for each in NAMES if each.isascii()] + ["a\u202eb"])
def test_files_models_and_classes_with_such_names(name: str, tmp_path: Path, capsys: Any) -> None:
    """In lines, tables, refusals and JSON of commands on what a stranger sends."""
    root = photo_folder(tmp_path / "photos", {"blue": 4, "red": 4})
    odd = tmp_path / name
    shutil.copytree(root, odd)
    (odd / "red" / f"{name}.png").write_bytes(b"no image")
    photo(1).save(odd / "red" / f"{name}-good.png")
    tiny = vitlab.create("ViT(width=8,depth=1,heads=1,mlp=8)/4", 2, 8, labels=("blue", "red"))
    model = str(vitlab.save(tiny, tmp_path / f"model-{name}"))
    how, rows = ("--device", "cpu", "--workers", "0"), str(tmp_path / "rows.csv")
    for words in (
        ("predict", model, str(odd), *how),
        ("predict", model, str(odd), *how, "--json"),
        ("predict", model, str(odd), *how, "--out", rows),
        ("evaluate", model, str(odd), *how, "--split", "all"),
        ("duplicates", str(odd), "--workers", "0"),
        ("evaluate", f"{model}-gone", str(odd)),
        ("predict", model, f"{odd}-gone"),
        ("train", str(odd), "--model", f"ViT-{name}/16"),
        ("runs", str(odd)),
        (name,),
    ):
        code, out, err = call(capsys, *words)
        assert code in (0, 2), (words, err)
        assert clean(out), (words, repr(out))
        assert clean(err), (words, repr(err))
        if "--json" in words:
            assert any(name in each["image"] for each in json.loads(out)["predictions"])


def coco(root: Path, name: str, masks: bool) -> Path:
    """Four images with boxes, or polygons, of a class of this name and another."""
    (root / "images").mkdir(parents=True)
    for number in range(4):
        photo(number, 16, 16).save(root / "images" / f"{number}.png")
    shape = {"segmentation": [[1, 1, 9, 1, 9, 9]]} if masks else {"bbox": [1, 1, 8, 8]}
    objects = [
        {"id": n, "image_id": n % 4, "category_id": n % 2, "area": 9, "iscrowd": 0} | shape
        for n in range(8)
    ]
    images = [
        {"id": n, "file_name": f"images/{n}.png", "width": 16, "height": 16} for n in range(4)
    ]
    names = [{"id": 0, "name": name}, {"id": 1, "name": "other"}]
    file = root / "annotations.json"
    file.write_text(json.dumps({"images": images, "annotations": objects, "categories": names}))
    return file


REFUSED = "has a control character: give it another name"


@pytest.mark.parametrize("name", NAMES)
def test_names_of_classes_are_refused_in_every_kind_of_data(
    name: str, tmp_path: Path, capsys: Any
) -> None:
    """In one line, before anything is written: folders, lists, memory, COCO, masks, columns."""
    tiny = ("--model", "ViT(width=8,depth=1,heads=1,mlp=8)/4", "--image-size", "8", "--steps", "1")
    how = (*tiny, "--device", "cpu", "--workers", "0", "--out", str(tmp_path / "run"))
    root = photo_folder(tmp_path / "photos", {"blue": 4, name: 4})
    rows = [{"path": str(each), "label": each.parent.name} for each in root.rglob("*.png")]
    listed = tmp_path / "list.jsonl"
    listed.write_text("".join(json.dumps(each) + "\n" for each in rows))
    boxes = coco(tmp_path / "boxes", name, masks=False)
    numbers = tmp_path / "numbers.jsonl"
    numbers.write_text(
        "".join(json.dumps({"path": each["path"], name: n}) + "\n" for n, each in enumerate(rows))
    )
    for words in (
        ("train", str(root), *how),
        ("train", str(listed), *how),
        ("train", str(boxes), "--task", "detect", *how),
        ("train", str(numbers), "--task", "regress", "--targets", name, *how),
    ):
        code, out, err = call(capsys, *words)
        assert code == 2, (words, out)
        assert REFUSED in err.splitlines()[-1], (words[1:4], err)
        assert clean(out + err), words
        assert not (tmp_path / "run").exists()
    with pytest.raises(vitlab.UserError, match=REFUSED):
        vitlab.train(
            vitlab.recipe("small", model=tiny[1], steps=1, image_size=8),
            tmp_path / "run",
            data=[(photo(n), (name, "b")[n % 2]) for n in range(8)],
            host=LIGHT,
        )


@pytest.mark.parametrize("name", NAMES)
def test_names_of_masks_are_refused(name: str, tmp_path: Path) -> None:
    from places_opened import open_masks

    with pytest.raises(DataError, match=REFUSED):
        open_masks(coco(tmp_path / "polygons", name, masks=True))
    for kind in ("images", "masks"):
        (tmp_path / "pairs" / kind).mkdir(parents=True)
        photo(1, 16, 16).convert("L").save(tmp_path / "pairs" / kind / "1.png")
    Image.fromarray(np.eye(16, dtype=np.uint8)).save(tmp_path / "pairs" / "masks" / "1.png")
    names = tmp_path / "pairs" / "classes.txt"
    if name.isascii() and name != "a\rb":  # which ends a line
        names.write_bytes(f"{name}\nother\n".encode())
        with pytest.raises(DataError, match=REFUSED):
            open_masks(tmp_path / "pairs")


def test_heads_print_their_names(tmp_path: Path, capsys: Any) -> None:
    """Of files with such names; classes of such names are refused as the head is read."""
    runs = save_heads(tmp_path)
    photo(1, 16, 16).save(tmp_path / "a\x1b[2Jb.png")
    for run in runs.values():
        code, out, err = call(
            capsys, "predict", str(run), str(tmp_path / "a\x1b[2Jb.png"), "--device", "cpu"
        )
        assert code == 0, err
        assert clean(out + err)
        assert "a\\x1b[2Jb" in out
