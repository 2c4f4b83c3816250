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
from vitlab.report.inside import looking

CLASSES = ("cat", "<b>dog</b>")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A saved model with two classes, one of them named to break pages."""
    torch.manual_seed(0)
    made = vitlab.create(
        "ViT(width=12,depth=2,heads=3,mlp=32)/8", 2, (16, 24), labels=CLASSES, zero_head=False
    )
    return vitlab.save(made, tmp_path / "model")


def images(folder: Path) -> list[str]:
    folder.mkdir()
    frames = [photo(seed, 30, 30) for seed in (3, 4)]
    frames[0].save(folder / "moving.gif", save_all=True, append_images=frames[1:])
    Image.new("L", (1, 1)).save(folder / "still.png")
    return sorted(map(str, folder.iterdir()))


def test_a_folder_of_pictures_numbers_and_a_page(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "SHOWN", 1)
    files = images(tmp_path / "images")[:1]
    damaged = (tmp_path / "images" / "broken.jpg", tmp_path / "images" / "cut.jpg")
    damaged[0].write_bytes(b"\xff\xd8\xff no image")
    photo(5, 200, 200).save(damaged[1])
    damaged[1].write_bytes(damaged[1].read_bytes()[:600])
    out = tmp_path / "look"
    words = ["inspect", str(model), str(tmp_path / "images"), "--watch", CLASSES[1], "--layer=1"]
    code, printed, said = call(capsys, *words, "--out", str(out))
    assert code == 0, said
    assert f"2 images: {out / 'inspect.html'}" in printed
    for name in damaged:
        assert f"skipped: {name}: " in said
    facts: dict[str, Any] = json.loads((out / "inspect.json").read_text())
    assert (facts["images"], facts["layer"], facts["seen"][0]["class"]) == (2, 1, CLASSES[1])
    assert np.shape(facts["attention_distance"]) == (2, 3)
    assert (np.array(facts["attention_distance"], float) >= 0).all()
    assert np.shape(facts["token_norms"]) == np.shape(facts["longest_tokens"]) == (3,)
    assert np.shape(facts["position_similarity"]) == (2, 3, 2, 3)
    assert np.shape(facts["embedding_filters"]) == (12, 8, 8, 3)
    assert [each["image"] for each in facts["seen"]] == files
    for each in facts["seen"]:
        for kind in ("late_attention", "rollout", "relevance", "gradcam", "norm_map"):
            assert np.shape(each[kind]) == (2, 3)
        assert np.shape(each["heads"]) == (3, 2, 3)
        assert {one["class"] for one in each["top"]} == set(CLASSES)
    names = {file.stem for file in out.glob("*.png")}
    kinds = {"rollout", "relevance", "gradcam", "norm_map", "similar_patches", "heads", "colors"}
    kinds |= {"late_attention"}
    assert names == {f"01-{kind}" for kind in kinds} | {
        "distance", "entropy", "filters", "positions", "norms", "similarity",
    }  # fmt: skip
    assert {file.stem for file in out.glob("*.svg")} == names
    with Image.open(out / "01-rollout.png") as picture:
        assert np.asarray(picture).std() > 20
    page = (out / "inspect.html").read_text()
    assert "<b>dog" not in page
    assert "&lt;b&gt;dog" in page
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)", page)
    assert not re.findall(r"url\((?!data:|#)", page)
    assert page.count('class="plot"') == 6  # with filters and positions
    assert len(re.findall(r'class="lens[" ]', page)) == len(files) * (8 + 3)  # maps, photo, heads
    assert f"vitlab inspect {model}" in page
    assert "each head of layer 1 looks" in page


def test_a_resnet_shows_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = images(tmp_path / "images")
    saved = vitlab.save(vitlab.create("BiT-R(1-1)x1", 3, 32, zero_head=False), tmp_path / "resnet")
    out = tmp_path / "look"
    code, _, said = call(capsys, "inspect", str(saved), *files, "--out", str(out))
    assert code == 0, said
    kinds = {"colors", "gradcam", "norm_map", "similar_patches"}
    assert {each.stem for each in out.glob("*.png")} == {"filters", "similarity"} | {
        f"0{number}-{kind}" for kind in kinds for number in (1, 2)
    }
    (line,) = [line for line in said.splitlines() if "has no attention maps" in line]
    names = "positions, attention distance, attention entropy, attention of the last layers, "
    assert line.startswith(f"{names}rollout, relevance, heads: ")
    facts = json.loads((out / "inspect.json").read_text())
    assert facts["model"].startswith("BiT")
    assert [each["image"] for each in facts["seen"]] == files
