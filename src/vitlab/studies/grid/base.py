"""What the arms of a study are made from: a small model on the user's data, or the paper's own."""

from dataclasses import dataclass, replace
from typing import Any, Self

from vitlab.models.names import shape_of
from vitlab.recipes.named import recipe
from vitlab.recipes.recipe import Recipe


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
        fields = ("width", "depth", "heads", "mlp")
        text = ",".join(f"{name}={getattr(self, name)}" for name in fields)
        text += f",branches={self.branches}" if self.branches > 1 else ""
        return f"ViT({text})/{self.patch}"

    def changed(self, **fields: int) -> Self:
        """Return the shape with some fields replaced."""
        return replace(self, **fields)


@dataclass(frozen=True)
class Base:
    """What the arms of a study have in common.

    Attributes:
        recipe: data, model, length and optimizer of small budgets, as the user may have changed
            them; with `paper`, data and seed alone are meant
        paper: whether the paper's own recipes are asked for
        downstream: data that pre-trained models are transferred to; empty for the recipe's own
    """

    recipe: Recipe
    paper: bool = False
    downstream: str = ""

    @property
    def shape(self) -> Shape:
        """The shape of the recipe's ViT."""
        names = ("width", "depth", "heads", "mlp", "patch", "branches")
        stated = shape_of(self.recipe.model.model)
        return Shape(**{name: stated[name] for name in names if name in stated})

    def vit(self, shape: Shape, **choices: Any) -> Recipe:
        """Return the recipe with a ViT of another shape; chosen fields of the model stay."""
        return self.model(shape.name, **choices)

    def model(self, name: str, **choices: Any) -> Recipe:
        """Return the recipe with another model of the same image size."""
        size = {"image_size": self.recipe.model.image_size}
        return self.recipe.changed(**{"model": name, **size, **choices})

    def hybrid(self, shape: Shape) -> str:
        """Return the name of a ViT above one ResNet stage of one unit, which reduces images by 4.

        Args:
            shape: of the ViT; its patch is rounded up to a multiple of 4
        """
        return f"R(1)+{shape.changed(patch=-(-shape.patch // 4) * 4).name}"

    def published(self, name: str, model: str, **choices: Any) -> Recipe:
        """Return a paper's recipe for a model, on the base's data and with its seed."""
        own = {"data": self.recipe.data.data, "seed": self.recipe.seed, "model": model}
        return recipe(name, **{**own, **choices})
