"""`vitlab inspect` as a person uses it: pictures, numbers, a page, and images that are none."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from conftest import call, photo

CLASSES = ("cat", "<b>dog</b>")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A saved model with two classes, one of them named to break pages."""
    torch.manual_seed(0)
    made = vitlab.create(
        "ViT(width=24,depth=2,heads=3,mlp=32)/8", 2, 32, labels=CLASSES, zero_head=False
    )
    return vitlab.save(made, tmp_path / "model")


def images(folder: Path) -> list[str]:
    folder.mkdir()
    frames = [photo(seed, 30, 30) for seed in (3, 4)]
    frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:])
    Image.new("L", (1, 1)).save(folder / "dot.png")
    return sorted(map(str, folder.iterdir()))


def test_a_folder_of_pictures_numbers_and_a_page(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = images(tmp_path / "images")
    (tmp_path / "images" / "broken.jpg").write_bytes(b"\xff\xd8\xff no image")
    out = tmp_path / "look"
    code, printed, said = call(
        capsys, "inspect", str(model), str(tmp_path / "images"), "--out", str(out)
    )
    assert code == 0, said
    assert f"2 images: {out / 'inspect.html'}" in printed
    assert "broken.jpg" in said
    facts: dict[str, Any] = json.loads((out / "inspect.json").read_text())
    assert facts["images"] == 2
    assert np.shape(facts["attention_distance"]) == (2, 3)
    assert np.shape(facts["position_similarity"]) == (4, 4, 4, 4)
    assert np.shape(facts["embedding_filters"]) == (24, 8, 8, 3)
    assert [each["image"] for each in facts["seen"]] == files
    for each in facts["seen"]:
        assert np.shape(each["rollout"]) == np.shape(each["relevance"]) == (4, 4)
        assert np.shape(each["heads"]) == (3, 4, 4)
        assert {one["class"] for one in each["top"]} == set(CLASSES)
    names = {file.stem for file in out.glob("*.png")}
    assert {"distance", "entropy", "filters", "positions", "01-rollout", "02-colors"} <= names
    assert {file.stem for file in out.glob("*.svg")} == names
    with Image.open(out / "01-rollout.png") as picture:
        assert np.asarray(picture).std() > 20
    page = (out / "inspect.html").read_text()
    assert "<b>dog" not in page
    assert "&lt;b&gt;dog" in page
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)", page)
    assert page.count("<figure>") == len(names)


def test_the_class_to_explain_can_be_named(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = images(tmp_path / "images")[-1]
    out = tmp_path / "look"
    words = ["inspect", str(model), file, "--watch", CLASSES[1], "--out", str(out), "--json"]
    code, printed, _ = call(capsys, *words)
    assert code == 0
    assert json.loads(printed)["images"] == 1
    facts = json.loads((out / "inspect.json").read_text())
    assert facts["seen"][0]["class"] == CLASSES[1]
    code, _, said = call(
        capsys, "inspect", str(model), file, "--watch", "horse", "--out", str(tmp_path / "no")
    )
    assert code == 2
    assert "'horse' is not a class of the model: cat, <b>dog</b>" in said
    assert not (tmp_path / "no").exists()


def test_a_resnet_shows_what_it_has_and_says_what_it_has_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = images(tmp_path / "images")[-1]
    saved = vitlab.save(vitlab.create("BiT-R26x1", 3, 64, zero_head=False), tmp_path / "resnet")
    out = tmp_path / "look"
    code, _, said = call(capsys, "inspect", str(saved), file, "--out", str(out))
    assert code == 0
    assert {each.stem for each in out.glob("*.png")} == {"filters", "01-gradcam", "01-colors"}
    assert "rollout: BiT-R26x1 has no attention maps" in said


def test_nothing_is_left_of_images_that_are_none(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff no image")
    Image.new("1", (20_000, 20_000)).save(tmp_path / "huge.png")
    for name, words in (("broken.jpg", "broken.jpg"), ("huge.png", "pixels exceed the limit")):
        out = tmp_path / "look"
        code, _, said = call(capsys, "inspect", str(model), str(tmp_path / name), "--out", str(out))
        assert code == 2
        assert words in said
        assert len(said.strip().splitlines()) == 1
        assert not out.exists()
