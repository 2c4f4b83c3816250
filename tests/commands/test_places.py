"""Where commands write: what names nothing new is refused in one line, before work is done."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vitlab
from conftest import call, photo_folder
from made_heads import save_heads
from vitlab.errors import DiskError, UserError
from vitlab.files import staged_file, staged_folder

D = ("--device", "cpu", "--workers", "0")
RUN = ("--model", "ViT(width=8,depth=1,heads=1,mlp=8)/4", "--image-size", "8", "--steps", "1")
RUN = (*RUN, "--report", "no")
Given = dict[str, str]
Words = tuple[str, ...]
COMMANDS: dict[str, Callable[[Given, str], Words]] = {
    "prepare": lambda own, out: ("prepare", own["photos"], out, "--workers", "0"),
    "prepare tar": lambda own, out: ("prepare", own["photos"], out, "--format", "tar"),
    "train": lambda own, out: ("train", own["photos"], "--out", out, *RUN, *D),
    "pretrain": lambda own, out: ("pretrain", own["photos"], "--out", out, *RUN, *D),
    "probe": lambda own, out: ("probe", own["photos"], "--from", own["model"], "--out", out, *D),
    "predict": lambda own, out: ("predict", own["model"], own["photos"], "--out", out, *D),
    "masks": lambda own, out: ("predict", own["masks"], own["photos"], "--out", out, *D),
    "boxes": lambda own, out: ("predict", own["boxes"], own["photos"], "--out", out, *D),
    "evaluate": lambda own, out: ("evaluate", own["model"], own["photos"], "--out", out, *D),
    "errors": lambda own, out: ("evaluate", own["model"], own["photos"], "--label-errors", out),
    "embed": lambda own, out: ("embed", own["model"], own["photos"], "--out", out, *D),
    "onnx": lambda own, out: ("export", own["model"], "--to", "onnx", "--out", out),
    "timm": lambda own, out: ("export", own["model"], "--to", "timm", "--out", out),
    "head": lambda own, out: ("export", own["masks"], "--to", "onnx", "--out", out),
    "delta": lambda own, out: ("delta", own["model"], own["model"], "--out", out),
    "soup": lambda own, out: ("soup", own["model"], own["model"], "--out", out),
    "duplicates": lambda own, out: ("duplicates", own["photos"], "--out", out),
    "inspect": lambda own, out: ("inspect", own["model"], own["photos"], "--out", out),
    "measure": lambda own, out: ("measure", own["model"], "--full", "--out", out, *D[:2]),
    "vtab": lambda own, out: ("vtab", own["model"], "--data", own["photos"], "--out", out),
    "study": lambda own, out: ("study", "norms", own["photos"], "--out", out),
}
HERE = {"train", "pretrain", "probe", "predict", "embed", "vtab", "study"}  # may fill a folder
SLOW = {"onnx", "head", "measure", "inspect", "probe"}  # before they write
PLACES = ("", ".", "..", "/", "x\0y", "x" * 300, "file/x", "/proc/x/y", "file", "full")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Given:
    root = tmp_path_factory.mktemp("own")
    photos = photo_folder(root / "photos", {"blue": 4, "red": 4})
    tiny = vitlab.create("ViT(width=8,depth=1,heads=1,mlp=8)/4", 2, 8, labels=("blue", "red"))
    model = vitlab.save(tiny, root / "model")
    heads = {name: str(place) for name, place in save_heads(root / "heads").items()}
    return {"photos": str(photos), "model": str(model)} | heads


@pytest.mark.parametrize("name", COMMANDS)
def test_places_that_name_nothing_new(
    name: str, own: Given, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing, `.`, `..`, `/`, a file, a full folder, what is below a file, no disk at all."""
    for place in PLACES:
        here = tmp_path / str(PLACES.index(place)) / "here"
        here.mkdir(parents=True)
        monkeypatch.chdir(here)
        if place in (".", "..") and name in HERE:
            continue
        if place.startswith("/proc") and name in SLOW:
            continue
        if place == "file" and name == "delta":  # which replaces an older one
            continue
        if place not in (".", ".."):
            (here / "file").write_text("mine")
            (here / "full").mkdir()
            (here / "full" / "mine.txt").write_text("mine")
        before = {each: each.stat().st_mtime_ns for each in here.rglob("*") if each.is_file()}
        code, out, err = call(capsys, *COMMANDS[name](own, place))
        assert code == 2, (place, out, err)
        assert len(err.splitlines()[-1]) < 1000, place
        after = {each: each.stat().st_mtime_ns for each in here.rglob("*") if each.is_file()}
        assert after == before, place


@pytest.mark.parametrize("form", ["parquet", "tar"])
def test_a_copy_lies_outside_of_its_source(
    form: str, own: Given, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = Path(own["photos"])
    monkeypatch.chdir(photos / "blue")
    for place in (str(photos), f"{photos}/new", "new", "../new", "../../photos/red/a/b"):
        code, _, err = call(capsys, "prepare", str(photos), place, "--format", form)
        assert code == 2, place
        assert "choose a" in err.splitlines()[-1], place
    assert {each.name for each in photos.iterdir()} == {"blue", "red"}
    beside = ("prepare", str(photos), str(tmp_path / "photos-2"), "--format", form)
    assert call(capsys, *beside, "--workers", "0")[0] == 0


def test_a_ring_of_links_is_no_place(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photo_folder(tmp_path / "photos", {"blue": 2, "red": 2}))
    Path("ring").symlink_to("ring")
    for place in ("ring", "ring/new"):
        code, _, err = call(capsys, "prepare", ".", place, "--format", "tar")
        assert (code, len(err.splitlines())) == (2, 1), err


def test_what_has_no_name_is_refused_in_python_too(own: Given) -> None:
    model = vitlab.load(own["model"])
    for place in (".", "..", "/"):
        for write in (
            lambda: vitlab.save(model, place),  # noqa: B023
            lambda: vitlab.delta(model, model).save(place),  # noqa: B023
            lambda: staged_file(Path(place)).__enter__(),  # noqa: B023
            lambda: staged_folder(Path(place)).__enter__(),  # noqa: B023
        ):
            with pytest.raises(UserError):
                write()
    with pytest.raises(DiskError, match="null character"), staged_file(Path("a\0b")):
        pass


@pytest.mark.parametrize("out", ["p.csv", "p.jsonl", "p.parquet", "p"])
def test_what_a_line_says_was_written(
    out: str, own: Given, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with exit status 2: the rows of images none of which can be read are there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad").mkdir()
    for number in range(3):
        (tmp_path / "bad" / f"{number}.png").write_bytes(b"no image")
    code, _, err = call(capsys, "predict", own["model"], "bad", "--out", out, *D)
    assert code == 2
    last = err.splitlines()[-1]
    assert (f"{out} says why" in last) == (out != "p")
    assert (tmp_path / out).exists()
    if out == "p.csv":
        rows = (tmp_path / out).read_text().splitlines()
        assert [row.split(",")[0] for row in rows[1:]] == [f"bad/{n}.png" for n in range(3)]
        assert all("not a JPEG" in row for row in rows[1:])
    again = call(capsys, "predict", own["model"], "bad", "--out", out, *D)
    assert again[0] == 2
