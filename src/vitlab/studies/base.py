"""The base of a study's arms: a small model on the user's data; recipes of papers; their tables.

Small budgets have one recipe for training with labels, one for each way to learn without them, and
one for fine-tuning after either.
"""

import tomllib
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import resources
from typing import Any, Self

from vitlab.errors import OptionError
from vitlab.models.config import ViTConfig
from vitlab.models.names import shape_of, vit_name
from vitlab.recipes.model_part import ModelPart
from vitlab.recipes.named import recipe
from vitlab.recipes.recipe import Recipe
from vitlab.weights.load import load

DIGITS = "ViT(width=64,depth=4,heads=2,mlp=128)/2"
SMALL = "ViT(width=96,depth=4,heads=3,mlp=192)/4"

PATCH, SIDE = 8, 6  # the smallest patch that an hMLP stem takes; patches of a side of the image
NOTHING = 1e-12  # a learning rate that moves no weight
CODES = "dVAE(codes=256,width=32,code_width=32)"


@cache
def read(name: str) -> dict[str, Any]:
    """Return `studies.toml` or `tables.toml` of the papers."""
    file = resources.files("vitlab.studies.papers") / f"{name}.toml"
    return tomllib.loads(file.read_text("utf-8"))


def table(name: str) -> dict[str, Any]:
    """Return a table of a paper, its rows by their names."""
    found = read("tables")[name]
    assert isinstance(found, dict)
    return found


def options_of(name: str, row: str) -> dict[str, Any]:
    """Return the options of a recipe in a row of a table; lists are tuples there."""
    options = table(name)[row]
    return {key: tuple(v) if isinstance(v, list) else v for key, v in options.items()}


@dataclass(frozen=True)
class Shape:
    """The shape of a ViT, whose name says it: `Shape(96, 4, 3, 192, 4).name`."""

    width: int
    depth: int
    heads: int
    mlp: int
    patch: int
    branches: int = 1

    @property
    def name(self) -> str:
        """The papers' notation."""
        sizes = self.width, self.depth, self.heads, self.mlp, self.branches, self.patch
        return vit_name(*sizes, axial=False, hybrid=None)

    def changed(self, **fields: int) -> Self:
        """Return the shape with some fields replaced."""
        return replace(self, **fields)


@dataclass(frozen=True)
class Base:
    """What the arms of a study have in common.

    Attributes:
        recipe: data, model, length and optimizer, small unless the user has changed them
        downstream: data that pre-trained models are transferred to; empty for the recipe's own
    """

    recipe: Recipe
    downstream: str = ""

    @property
    def shape(self) -> Shape:
        """The shape of the recipe's ViT."""
        stated = shape_of(self.recipe.model.model).items()
        return Shape(**{key: value for key, value in stated if key in Shape.__dataclass_fields__})

    @property
    def image_size(self) -> int:
        """Pixels per side of the images, of the shorter side if they are not square."""
        size = self.recipe.model.config().image_size
        return size if isinstance(size, int) else min(size)

    @cached_property
    def grid(self) -> tuple[int, int]:
        """Pixels per side of the images and of a patch; of the weights, if it starts from any."""
        if not self.recipe.start.weights:
            return self.image_size, self.shape.patch
        config = load(self.recipe.start.weights).config
        if not isinstance(config, ViTConfig):
            raise OptionError(
                "the parts to tune are those of a ViT: start from the weights of a ViT"
            )
        size = self.recipe.model.image_size or config.image_size
        return (size if isinstance(size, int) else min(size)), config.patch

    @property
    def transferred(self) -> str:
        """The data that pre-trained models are transferred to."""
        return self.downstream or self.recipe.data.data

    def model(self, name: str, **choices: Any) -> Recipe:
        """Return the recipe with another model, whose images are prepared the same."""
        own = self.recipe.model
        part = own if name == own.model else own.of_model(name)
        return replace(self.recipe, model=part).changed(**choices)

    def hybrid(self, shape: Shape) -> str:
        """Return the name of a ViT above one ResNet stage of one unit, which reduces images by 4.

        Args:
            shape: of the ViT; its patch is rounded up to a multiple of 4
        """
        return f"R(1)+{shape.changed(patch=-(-shape.patch // 4) * 4).name}"

    def published(self, name: str, model: str, **choices: Any) -> Recipe:
        """Return a recipe by name for a model, on the base's data and with its seed."""
        own = {"data": self.recipe.data.data, "seed": self.recipe.seed, "model": model}
        return recipe(name, **{**own, **choices})

    def of_similar_cost(self, resnet: str) -> dict[str, str]:
        """Return the names of a ViT, a hybrid and a ResNet with about the same multiply-adds.

        The ViT is the base's own; the hybrid is one stage of one bottleneck below a ViT of one
        block less and MLPs two thirds as wide.

        Args:
            resnet: the ResNet
        """
        shape = self.shape
        above = shape.changed(depth=max(1, shape.depth - 1), mlp=2 * shape.mlp // 3, patch=4)
        return {"ViT": self.recipe.model.model, "hybrid": self.hybrid(above), "ResNet": resnet}


def small(data: str, model: str = "") -> Recipe:
    """Return the recipe that the arms of small budgets start from.

    A ViT of width 96 and depth 4 on images of 32 pixels, which are cut into 8x8 patches, with a
    class token, AdamW, flips and bf16; for the digits, of width 64 on 8 pixels, in 4x4
    patches, in fp32. Images of any other size are resized. Every run is tested once, at its end.

    Args:
        data: what to learn from
        model: in place of this one
    """
    digits = data == "digits"
    first = recipe(
        "digits" if digits else "cifar10",
        data=data,
        model=model or (DIGITS if digits else SMALL),
        image_size=8 if digits else 32,
    )
    # a shift of short runs costs more than it teaches (docs/log.md)
    augment = {} if digits else {"shift": 0.0}
    return first.changed(
        lr=2e-3, epochs=1.0, warmup=0.1, ema=0.99, batch=64, test_every=1e6, **augment
    )


def in_few_patches(base: Base, deeper: int = 0, **choices: Any) -> Recipe:
    """Return the base's recipe with patches of at least 8 pixels, which every stem can take.

    If they are smaller, images are enlarged or reduced to as many patches of 8 pixels, but at most
    6 a side, since learning without labels wants many epochs more than many patches.

    Args:
        base: of the study
        deeper: blocks more than the base has
        choices: fields of the model
    """
    shape, size = base.shape, base.recipe.model.image_size
    own, larger = shape.changed(depth=shape.depth + deeper), {}
    if size and shape.patch < PATCH:
        own = own.changed(patch=PATCH)
        larger = {"image_size": PATCH * min(size // shape.patch, SIDE)}
    return base.model(own.name, **{"pool": "mean", **larger, **choices})


def without_labels(base: Base, task: str, model: ModelPart, **choices: Any) -> Recipe:
    """Return the recipe of a task for a small model: one relative epoch, of which a tenth warms up.

    Batch and precision are the base's, the learning rate is half of it, and every task has AdamW,
    crops of at least 30% of the image, one mean and deviation of pixels, and the mean of the
    patches as the feature.

    Args:
        base: of the study
        task: of `vitlab pretrain`, or another recipe for it
        model: that learns; its name and image size are taken
        choices: further options
    """
    part: dict[str, Any] = {"mean": (0.5,), "std": (0.5,), "pool": "mean"}
    part |= options_of("small-tasks", recipe(task).pretext.task)
    return base.published(task, model.model, **part, **_common(base, model), **choices).changed(
        optimizer="adamw", lr=base.recipe.optimizer.lr / 2, weight_decay=0.05, area=0.3
    )


def tokenizer(base: Base, model: ModelPart) -> Recipe:
    """Return the recipe of BEiT's codes: half a relative epoch.

    Args:
        base: of the study
        model: that learns the codes, one for each of its patches
    """
    codes = f"{CODES}/{shape_of(model.model)['patch']}"
    return base.published("tokenizer", codes, **_common(base, model)).lasting(0.5)


def fine_tuning(base: Base, **choices: Any) -> Recipe:
    """Return the recipe of fine-tuning: the base's, at half its rate and less in early layers.

    The image size is that of the weights.

    Args:
        base: of the study
        choices: further options
    """
    part = base.recipe.model.of_weights().of_size(None)
    return replace(base.recipe, model=part).changed(
        lr=base.recipe.optimizer.lr / 2, layer_decay=0.75, **choices
    )


def _common(base: Base, model: ModelPart) -> dict[str, Any]:
    """Return length, batch, precision and, if the model has its own, image size."""
    own = {name: getattr(base.recipe, name) for name in ("batch", "precision", "test_every")}
    size = {"image_size": model.image_size} if model.image_size else {}
    return {"epochs": 1.0, "warmup": 0.1, **own, **size}
