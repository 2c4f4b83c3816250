"""Every recipe: it starts, on gray or on color images, and the same line goes on with --resume."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vitlab
from conftest import call, photo_folder
from steps import asked_to_stop, each_step
from vitlab.commands import pretrain, train
from vitlab.console.parsing import parse
from vitlab.images import ImageSpec
from vitlab.recipes.named import FROM_WEIGHTS, RECIPES
from vitlab.recipes.recipe import Host

VIT = "ViT(width=8,depth=1,heads=1,mlp=8)/16"
VIT_OPTIONS = ["--width", "8", "--depth", "1", "--heads", "1", "--mlp", "8"]
TOKENIZER = "dVAE(codes=16,code_width=8,width=8)/8"
TOKENIZER_OPTIONS = ["--codes", "16", "--code-width", "8", "--width", "8"]
OF_TASK = {
    "detect": ["--query-blocks", "1", "--object-queries", "4"],
    "dino": ["--prototypes", "16", "--head-width", "8", "--bottleneck", "4", "--local-crops", "2"],
    "mae": ["--decoder-width", "8", "--decoder-depth", "1", "--decoder-heads", "1"],
    "regress": ["--targets", "a,b"],
}  # fmt: skip


def boxes_of(photos: Path, folder: Path) -> None:
    """The pictures with a box each, annotated as COCO's."""
    folder.mkdir()
    images, boxes = [], []
    for number, file in enumerate(sorted(photos.rglob("*.png"))):
        shutil.copy(file, folder / f"{number}.png")
        with Image.open(file) as picture:
            width, height = picture.size
        images.append(
            {"id": number, "file_name": f"{number}.png", "width": width, "height": height}
        )
        boxes.append({"image_id": number, "category_id": 1, "bbox": [1, 1, width / 2, height / 2]})
    found = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "thing"}]}
    (folder / "annotations.json").write_text(json.dumps(found))


def masks_of(photos: Path, folder: Path) -> None:
    """The pictures, each with a mask whose left half is of another class."""
    shutil.copytree(photos, folder / "images")
    for file in sorted(photos.rglob("*.png")):
        mask = folder / "masks" / file.relative_to(photos)
        mask.parent.mkdir(parents=True, exist_ok=True)
        with Image.open(file) as picture:
            drawn = Image.new("L", picture.size)
            drawn.paste(1, (0, 0, picture.width // 2, picture.height))
        drawn.save(mask)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Color and gray pictures of two classes; weights and a tokenizer for either."""
    place = tmp_path_factory.mktemp("place")
    photo_folder(place / "color", {"a": 5, "b": 5})
    for file in photo_folder(place / "gray", {"a": 5, "b": 5}).rglob("*.png"):
        Image.open(file).convert("L").save(file)
    for data in ("color", "gray"):
        boxes_of(place / data, place / f"boxes-{data}")
        masks_of(place / data, place / f"masks-{data}")
        files = sorted((place / data).rglob("*.png"))
        rows = [f"{file},{number},{number % 3}" for number, file in enumerate(files)]
        (place / f"{data}.csv").write_text("\n".join(["path,a,b", *rows]))
    for data, channels, classes in (("digits", 1, 10), ("gray", 1, 2), ("color", 3, 2)):
        vit = vitlab.create(VIT, classes=classes, image_size=32, channels=channels)
        vitlab.save(vit, place / f"vit-{data}")
        tokenizer = vitlab.create(TOKENIZER, image_size=32, channels=channels)
        vitlab.save(tokenizer, place / f"tokenizer-{data}")
    for data in ("color", "gray"):
        start = vitlab.load(place / f"vit-{data}")
        host, to = Host(workers=0, report="no"), place / f"fitted-{data}"
        vitlab.probe(str(place / f"masks-{data}"), start, to, task="segment", host=host, quiet=True)
    return place


def words_of(name: str, place: Path, data: str, model: bool = True) -> list[str]:
    """The command line of a few steps by a recipe, with the model's name or with its fields."""
    task = RECIPES[name]().pretext.task
    labeled = ("classify", "detect", "regress", "segment")
    words = ["train" if task in labeled else "pretrain"]
    kind = {"detect": "boxes-", "segment": "masks-"}.get(task, "")
    folder = place / f"{kind}{data}"
    if task == "regress":
        data = str(place / f"{'gray' if data == 'digits' else data}.csv")
        folder = Path(data)
    words += [data if data == "digits" else str(folder), "--recipe", name]
    words += ["--batch", "4", "--steps", "2", "--workers", "0", *OF_TASK.get(task, [])]
    if task == "classify":
        words += ["--check-duplicates", "no"]
    if task == "beit":
        words += ["--tokenizer", str(place / f"tokenizer-{data}")]
    if name == "deit-distilled":
        words += ["--teacher", str(place / f"vit-{data}")]
    if name in FROM_WEIGHTS:
        if task == "segment":
            return [*words, "--from", str(place / f"fitted-{data}"), "--tune", "last"]
        return [*words, "--from", str(place / f"vit-{data}"), "--model", VIT if model else ""]
    if task == "tokenizer":
        return words + (["--model", TOKENIZER] if model else TOKENIZER_OPTIONS)
    return words + (["--model", VIT] if model else VIT_OPTIONS)


def small(name: str) -> list[str]:
    """Images of 32 pixels, where the recipe has larger ones."""
    return ["--image-size", "32"] if RECIPES[name]().model.image_size else []


def interrupted(words: list[str], capsys: pytest.CaptureFixture[str]) -> ImageSpec:
    """A session that is stopped after a step; what its model takes."""
    seen = list[ImageSpec]()
    look = each_step(before=lambda trainer, state, batch: seen.append(trainer.model.config))
    with look, asked_to_stop(1):
        code, _, err = call(capsys, *words)
    assert code == 130, err
    return seen[-1]


@pytest.mark.parametrize(("number", "name"), [*enumerate(RECIPES)])
def test_the_same_line_goes_on(
    number: int, name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With color and gray images and the digits in turn, the model by its name or its fields.

    To the same bits, and to the end: test_pretext_runs.py, and below.
    """
    data = ("color", "gray", "gray" if name in ("detect", "segment") else "digits")[number % 3]
    words = words_of(name, place, data, number % 2 == 0) + small(name)
    words += ["--steps", "3", "--out", "cut"]
    first = interrupted(words, capsys)
    config, own = interrupted([*words, "--resume"], capsys), RECIPES[name]().model.mean
    assert config == first
    assert config.channels == (3 if data == "color" else 1)
    if own is not None and data != "color":
        assert config.mean == (sum(own) / 3,)


@pytest.mark.parametrize("name", ["dino", "beit-finetune"])
def test_what_a_start_decided_is_no_difference(
    name: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In Python, by the newest folder of the name, with what is `auto` and what is a share."""
    words = words_of(name, place, "digits") + small(name)
    words += ["--micro-batch", "auto", "--train-images", "50%"] * (name != "dino")
    words += ["--balance", "auto"] * (name != "dino")
    interrupted(words, capsys)
    (run,) = Path("runs").iterdir()
    shutil.copytree(run, "python")
    code, _, err = call(capsys, *words, "--resume")
    assert code == 0, err
    command: Any = train if words[0] == "train" else pretrain
    kind = train.Train if words[0] == "train" else pretrain.Pretrain
    recipe = command.build(parse(kind, words[1:])).recipe
    again = vitlab.train(recipe, "python", resume=True, host=Host(workers=0)).model.state_dict()
    first = vitlab.load(run).state_dict()
    assert first.keys() == again.keys()
    assert all(torch.equal(first[key], again[key]) for key in first)
