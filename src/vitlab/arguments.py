"""What each command can be told, and how words become it. No PyTorch here."""

import contextlib
import io
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

import tyro
from tyro.conf import Positional

from vitlab.errors import UserError
from vitlab.models.config import Size
from vitlab.training.folder import holds_run, read_recipe
from vitlab.training.recipe import Host, ModelPart, Recipe, check
from vitlab.training.recipes import recipe as named_recipe

Arguments = TypeVar("Arguments")


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a model from scratch; the run folder gets its weights, its figures and a report.

    Attributes:
        out: the run's folder (None: runs/, then data, recipe and seed)
        resume: go on where the run in that folder stopped
        json: print one JSON object
    """

    out: str | None = None
    resume: bool = False
    json: bool = False
    recipe: Recipe = field(default_factory=Recipe)
    host: Host = field(default_factory=Host)


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure a model on labelled images.

    Attributes:
        weights: a run folder or a saved model
        data: digits, a folder of class folders, Parquet files, or a Hugging Face data set
        split: auto is the test split where there is one; of unsplit data, what training held out
            if the model was trained on it, else every image
        device: auto, cpu, cuda or cuda:N
        precision: fp32, or bf16 autocast
        workers: processes that decode images (None: chosen for the machine)
        json: print one JSON object
    """

    weights: Positional[str]
    data: Positional[str]
    split: Literal["auto", "train", "validation", "test", "all"] = "auto"
    device: str = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    workers: int | None = None
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Name the likeliest classes of images.

    Attributes:
        weights: a run folder or a saved model
        images: image files, folders, or glob patterns
        top: how many classes to name
        device: auto, cpu, cuda or cuda:N
        workers: processes that decode images
        json: print one JSON object
    """

    weights: Positional[str]
    images: Positional[tuple[str, ...]]
    top: int = 5
    device: str = "auto"
    workers: int = 0
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Count what models cost, and time them if asked.

    Attributes:
        models: names, as ViT-B/16, or run folders and saved models
        image_size: pixels, where not the model's own
        classes: outputs of the classifier of a named model
        speed: time inference and measure memory as well
        fuse: time the fused inference form
        batch: images at once
        device: auto, cpu, cuda or cuda:N
        precision: fp32, or bf16 autocast
        json: print one JSON object
    """

    models: Positional[tuple[str, ...]]
    image_size: Size | None = None
    classes: int = 1000
    speed: bool = False
    fuse: bool = False
    batch: int = 1
    device: str = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class Study:
    """Make a table of a paper or an article anew; what is finished is not trained again.

    Attributes:
        name: which one; optimisers trains the same ViT with each of them
        data: what vitlab train takes
        recipe: the recipe that is varied (empty: digits for the digits, else small)
        model: the model, where not the recipe's
        epochs: passes over the training images, where not the recipe's; warm-up in proportion
        only: some of its rows
        lr_grid: factors of each learning rate to try
        seed: what everything random comes from
        out: folder for the runs (None: runs/, then the study and the data)
        json: print one JSON object
    """

    name: Positional[Literal["optimisers"]]
    data: Positional[str] = "digits"
    recipe: str = ""
    model: str | None = None
    epochs: float | None = None
    only: tuple[str, ...] = ()
    lr_grid: tuple[float, ...] = (1.0,)
    seed: int = 0
    out: str | None = None
    json: bool = False
    host: Host = field(default_factory=Host)


@dataclass(frozen=True, kw_only=True)
class List:
    """List what there is.

    Attributes:
        json: print one JSON object
    """

    json: bool = False


def parse(
    kind: type[Arguments], words: list[str], command: str, default: Arguments | None = None
) -> Arguments:
    """Words to arguments.

    Raises:
        ValueError: an unknown option or a value of the wrong type, in one line.
        SystemExit: after printing the help that was asked for.
    """
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                kind,
                prog=f"vitlab {command}",
                args=words,
                default=tyro.MISSING_NONPROP if default is None else default,
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.PositionalMetavarFromFieldName),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UserError(_one_line(said.getvalue(), command)) from None


def parse_train(words: list[str]) -> Train:
    """The arguments of `vitlab train`; defaults are the recipe's, or those of the run to go on."""
    first = parse(Train, words, "train", Train(recipe=replace(Recipe(), recipe="")))
    name, data = first.recipe.recipe, first.recipe.data.data
    model = first.recipe.model.model
    given = any(word == "--model" or word.startswith("--model=") for word in words)
    if first.resume and first.out and holds_run(Path(first.out)):
        start, _ = read_recipe(Path(first.out))
    else:
        chosen = {"model": model} if given else {}
        start = named_recipe(name or ("digits" if data == "digits" else "small"), **chosen)
    if given and model != start.model.model:  # what was chosen for another model is forgotten
        start = replace(start, model=ModelPart(model=model))
    args = parse(Train, words, "train", Train(recipe=start))
    check(args.recipe)
    return args


def _one_line(box: str, command: str) -> str:
    """What a framed message of tyro's comes down to."""
    lines = [re.sub(r"[│╭╮╰╯─]+", " ", line).strip() for line in box.splitlines()]
    text = " ".join(line for line in lines if line)
    text = re.sub(
        r"^(Value error|Unrecognized options|Required options|Parsing error)\s+", "", text
    )
    text = re.split(r" Argument helptext:| For full helptext", text)[0].strip()
    text = re.sub(r"\s+", " ", text)
    return f"{text}; vitlab {command} --help lists all options"
