"""Everything that a few steps of any recipe need: pictures, labels, weights, and the words."""

import json
import shutil
from pathlib import Path
from typing import Any

from PIL import Image

import vitlab
from conftest import BRIEF, photo_folder
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


def make_place(place: Path) -> Path:
    """Color and gray pictures of two classes; weights and a tokenizer for either."""
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
        seen: dict[str, Any] = {"pool": "prefix", "class_token": True, "registers": 1}
        distilled = vitlab.create(VIT, classes, 32, channels=channels, **seen)
        vitlab.save(distilled, place / f"distilled-{data}")
        tokenizer = vitlab.create(TOKENIZER, image_size=32, channels=channels)
        vitlab.save(tokenizer, place / f"tokenizer-{data}")
    for data in ("color", "gray"):
        start = vitlab.load(place / f"vit-{data}")
        host, to = Host(workers=0, report="no", effort=BRIEF), place / f"fitted-{data}"
        vitlab.probe(str(place / f"masks-{data}"), start, to, task="segment", host=host, quiet=True)
    return place


def words_of(name: str, place: Path, data: str, model: bool = True) -> list[str]:
    """The command line of a few steps by a recipe, with the model's name or with its fields."""
    words = words_without_model(name, place, data)
    task = RECIPES[name]().pretext.task
    if name in FROM_WEIGHTS:
        start = ["--from", weights_for(name, place, data)]
        return (
            words
            + start
            + (["--tune", "last"] if task == "segment" else ["--model", VIT if model else ""])
        )
    if task == "tokenizer":
        return words + (["--model", TOKENIZER] if model else TOKENIZER_OPTIONS)
    return words + (["--model", VIT] if model else VIT_OPTIONS)


def weights_for(name: str, place: Path, data: str) -> str:
    """Weights that a recipe can start from."""
    recipe = RECIPES[name]()
    kind = {"segment": "fitted", "tokenizer": "tokenizer"}.get(recipe.pretext.task, "vit")
    return str(place / f"{'distilled' if recipe.distill.distill_token else kind}-{data}")


def words_without_model(name: str, place: Path, data: str) -> list[str]:
    """The command line of a few steps by a recipe, but for the model and the weights."""
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
    return words
