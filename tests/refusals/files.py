"""Files that refused lines name, each made by the first line that asks for it."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image

import vitlab
from conftest import BRIEF, photo, photo_folder
from made_files import png, tarred
from made_scenes import scene_folder
from vitlab.runs.run_folder import RunFolder

MAKERS = dict[str, Callable[[Path], None]]()
TINY = "ViT(width=8,depth=1,heads=1,mlp=8)/4"


def register(make: Callable[[Path], None]) -> Callable[[Path], None]:
    """Keep a maker by its name: it fills an empty folder, which nothing changes after it."""
    MAKERS[make.__name__] = make
    return make


@register
def empty(folder: Path) -> None:
    """Nothing."""


@register
def photos(folder: Path) -> None:
    """Two classes of four pictures each."""
    photo_folder(folder, {"blue": 4, "red": 4}, 8, 8)


@register
def one_class(folder: Path) -> None:
    """Class folders, of which there is one."""
    photo_folder(folder, {"only": 3})


@register
def bad_image(folder: Path) -> None:
    """A PNG of which only the first bytes are there."""
    (folder / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    Image.new("1", (20_000, 20_000)).save(folder / "huge.png")


@register
def model(folder: Path) -> None:
    """Weights of a model of `photos`, not of a run."""
    torch.manual_seed(0)
    vitlab.save(vitlab.create(TINY, 2, 8, labels=("blue", "red")), folder)


@register
def digits_model(folder: Path) -> None:
    """Weights of a model of `digits`."""
    torch.manual_seed(0)
    names = tuple("0123456789")
    vitlab.save(vitlab.create(TINY, 10, 8, channels=1, labels=names), folder)


@register
def three_classes(folder: Path) -> None:
    """Weights of a model of gray images in three classes without names."""
    vitlab.save(vitlab.create(TINY, 3, 8, channels=1), folder)


@register
def tokenizer(folder: Path) -> None:
    """Weights of a tokenizer."""
    vitlab.save(vitlab.create("dVAE(codes=12,code_width=6,width=8)/4", image_size=8), folder)


@register
def no_classes(folder: Path) -> None:
    """Weights of a model that learned without labels."""
    vitlab.save(vitlab.create(TINY, 0, 8), folder)


@register
def bad_recipes(folder: Path) -> None:
    """TOML that is no recipe."""
    (folder / "text.toml").write_text("nothing = 3\nthat is TOML")


@register
def runs(folder: Path) -> None:
    """Runs that were begun: one with labels, and one without."""
    for name in ("mae", "small"):
        begun = RunFolder(folder / name)
        begun.start(vitlab.recipe(name, "digits"), vitlab.Host(effort=BRIEF), "", "")


@register
def features(folder: Path) -> None:
    """Tables of `model`'s features of `photos`: of images, and of patches."""
    photos(folder / "photos")
    torch.manual_seed(0)
    own = vitlab.create(TINY, 2, 8, labels=("blue", "red"))
    how = {"workers": 0, "quiet": True}
    vitlab.embed(own, folder / "photos", folder / "x.parquet", **how)
    vitlab.embed(own, folder / "photos", folder / "tokens.parquet", what="patches", **how)


@register
def pages(folder: Path) -> None:
    """A page and a figure that are there already, and a folder with the name of one."""
    (folder / "folder.html").mkdir()
    for name in ("pairs.html", "there.svg"):
        (folder / name).write_text("mine")


@register
def lists(folder: Path) -> None:
    """Tables of images with something wrong in each."""
    photo_folder(folder, {"a": 6, "b": 6}, 8, 8)
    rows = [f'{{"path": "a/00{n}.png", "labels": ["x", "{n}"]}}' for n in range(6)]
    (folder / "several.jsonl").write_text("\n".join(rows))


@register
def two_classes(folder: Path) -> None:
    """Two classes of pictures, for lists beside them."""
    photo_folder(folder, {"a": 6, "b": 6}, 8, 8)


@register
def flat(folder: Path) -> None:
    """Pictures without class folders."""
    for name in ("000.png", "001.png"):
        photo(int(name[:3])).save(folder / name)


@register
def under_data(folder: Path) -> None:
    """Pictures in a folder `data`, as FiftyOne keeps them."""
    photo_folder(folder, {"data": 6}, 8, 8)


@register
def yolo(folder: Path) -> None:
    """An image, the text of its objects, and the names of two classes."""
    for name in ("images", "labels"):
        (folder / name).mkdir()
    photo(1).save(folder / "images" / "1.jpg")
    (folder / "labels" / "1.txt").write_text("0 0.25 0.5 0.1 0.2\n")
    (folder / "classes.txt").write_text("cat\ndog\n")


@register
def scenes(folder: Path) -> None:
    """Images and their masks."""
    scene_folder(folder, 4)


@register
def binary_masks(folder: Path) -> None:
    """Images and masks of the numbers 0 and 255."""
    scene_folder(folder, 3)
    for file in (folder / "masks").iterdir():
        with Image.open(file) as mask:
            mask.point(lambda number: 255 * bool(number)).save(file)
    (folder / "classes.txt").unlink()


@register
def shards(folder: Path) -> None:
    """A tar shard of images of three classes, numbered."""
    members = [(f"{n}.png", png(n)) for n in range(6)]
    labels = [(f"{n}.cls", str(n % 3).encode()) for n in range(6)]
    (folder / "photos.tar").write_bytes(tarred(*sorted(members + labels)))


@register
def started(folder: Path) -> None:
    """Runs that were begun, many in one folder, and experiments without a result."""
    recipe = vitlab.recipe("digits", data="digits")
    rates = {f"many/{number:02d}": 0.001 * (number + 1) for number in range(21)}
    for name, rate in ({"a": 0.1, "b": 0.2, "grid/x": 0.3, "lost/x": 0.4} | rates).items():
        RunFolder(folder / name).start(recipe.changed(lr=rate), vitlab.Host(), "vitlab train", "")
    results = {"grid": None, "lost": {"best": 3, "runs": [{}]}}
    for name, result in results.items():
        told = {"campaign": "sweep", "result": result}
        (folder / name / "campaign.json").write_text(json.dumps(told))
    (folder / "many" / "campaign.json").write_text("{}")
    (folder / "broken").mkdir()
    (folder / "broken" / "run.toml").write_text("[[[")
