"""What each command can be told, and how words become it. No PyTorch here."""

import contextlib
import io
import re
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import tyro
from tyro.conf import Positional

from vitlab import parsing
from vitlab.errors import UserError
from vitlab.images import Size
from vitlab.options import Options, option
from vitlab.recipes.named import default_recipe
from vitlab.recipes.named import recipe as named_recipe
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs import RunFolder

Arguments = TypeVar("Arguments")


@dataclass(frozen=True, kw_only=True)
class Train(Options):
    """Train a model from scratch; the run folder gets its weights, its figures and a report."""

    out: str | None = option(None, "the run's folder (None: runs/, then data, recipe and seed)")
    resume: bool = option(False, "continue the run in that folder")
    recipe: Recipe = Recipe()
    host: Host = Host()


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Measure a model on labeled images.

    Attributes:
        weights: a run folder or a saved model
        data: digits, a folder of class folders, Parquet files, tar shards (glob or brace range),
            a .csv or .jsonl list, or a Hugging Face data set
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
class LoadCheck:
    """Say what a file or folder of weights is: its format, its model, and every tensor's place.

    Attributes:
        source: a file, a folder, or user/name on the Hugging Face hub
        name: what the file may not say, ViT-B/16 or vit_base_patch16_224
        image_size: pixels, where the file does not say
        json: print one JSON object
    """

    source: Positional[str]
    name: str = ""
    image_size: Size | None = None
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write a model in another format, which that library's own loader takes.

    Attributes:
        weights: anything that loads
        to: vitlab (a folder of our own), timm, transformers, or google (.npz)
        out: the new folder
        name: what the file may not say, ViT-B/16 or vit_base_patch16_224
        json: print one JSON object
    """

    weights: Positional[str]
    to: Literal["vitlab", "timm", "transformers", "google"]
    out: str
    name: str = ""
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class DeltaOf:
    """Keep only what a fine-tuned model has that its base has not, in one file.

    Attributes:
        weights: the fine-tuned model
        base: what it started from
        out: the file, .safetensors
        json: print one JSON object
    """

    weights: Positional[str]
    base: Positional[str]
    out: str
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class Push:
    """Put a model on the Hugging Face hub, with a card that says what it is.

    Attributes:
        weights: anything that loads
        to: user/name
        private: only for you, if it is made
        license: of the weights, apache-2.0 say (None: that of the source weights, if known)
        json: print one JSON object
    """

    weights: Positional[str]
    to: Positional[str]
    private: bool = False
    license: str | None = None
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """Write a training-ready copy: images no larger than needed, bad ones left out and listed.

    Attributes:
        data: what to copy, any DATA of `vitlab train`; its splits and class order are kept
        out: a new folder, which is then DATA itself
        side: pixels of the shorter side that images keep at most; smaller ones stay as they are
        format: parquet in Hugging Face's layout, or tar shards as WebDataset's
        quality: of the JPEGs, 1 to 95
        workers: processes (None: chosen for the machine)
        json: print one JSON object
    """

    data: Positional[str]
    out: Positional[str]
    side: int = 256
    format: Literal["parquet", "tar"] = "parquet"
    quality: int = 92
    workers: int | None = None
    json: bool = False


@dataclass(frozen=True, kw_only=True)
class Study:
    """Make a table of a paper or an article anew; what is finished is not trained again.

    Attributes:
        name: which one; optimizers trains the same ViT with each of them
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

    name: Positional[Literal["optimizers"]]
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


def parse_train(words: list[str]) -> tuple[Train, bool]:
    """The options of `vitlab train`, and whether to print JSON."""
    asked = [word for word in words if word not in ("-h", "--help")]
    given = parsing.parse(Train, asked, "vitlab train")
    as_json = given.pop("json", False)
    options = train_options(given)
    if asked != words:
        print(parsing.help_text(options, "vitlab train", Train.__doc__ or "", 80), end="")
        raise SystemExit(0)
    return options, as_json


def train_options(given: dict[str, Any]) -> Train:
    """Options whose defaults are those of the named recipe, or of the run to continue."""
    rest = dict(given)
    if given.get("resume") and given.get("out") and RunFolder(given["out"]).started:
        start = RunFolder(given["out"]).recipe
    else:
        name = given.get("recipe", default_recipe(given.get("data", "")))
        model = {"model": rest.pop("model")} if "model" in rest else {}
        start = named_recipe(name, **model)
    return Train(recipe=start).changed(**rest)


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
