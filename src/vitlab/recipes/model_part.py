"""The model of a recipe: its name, and the fields that are chosen otherwise."""

from collections.abc import Iterable
from dataclasses import dataclass, field, make_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vitlab.images import Size
from vitlab.models.config import config_of, kind_of
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.resnet_config import ResNetConfig
from vitlab.models.configs.tokenizer_config import TokenizerConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.names import shape_of
from vitlab.options import (
    Options,
    applies,
    check_known,
    checked,
    defaults,
    hints,
    option,
    options_of,
)

OF_TRAINING = ("drop_path", "drop_path_ramp", "dropout")  # fields without effect on trained weights
# Whose a field of the model is where a recipe meets trained weights. The recipe's: the size of the
# images and how they are fitted to it, what is dropped in training, and where a new classifier
# starts. All else is the weights', which have learned with it: the architecture, and mean and
# deviation of the pixels. What the user chooses comes before both.
OF_RECIPE = (
    "image_size", "fit", "tokens", "crop", "interpolation", *OF_TRAINING, "zero_head", "head_bias",
)  # fmt: skip
OF_PIXELS = ("mean", "std", "center")  # of random weights, these are the recipe's too


@dataclass(frozen=True, kw_only=True)
class ModelPart(Options):
    """The model; fields that are not given follow from its name or from the data.

    `model_part("ViT-S/16", drop_path=0.1)` makes one. Each field is checked at once; whether the
    fields go together (`check`) when one is changed, or when a run is prepared: the rules of a stem
    stand beside its layers, and importing them imports PyTorch.
    """

    CONFIG: ClassVar[type[ModelConfig]] = ModelConfig

    model: str = option(
        "ViT-Ti/16",
        "a model by its name in the papers; `vitlab models` lists some (empty: that of the weights "
        "to start from)",
    )

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A field of the configuration, or None."""

    def __post_init__(self) -> None:
        """Check each chosen field as the configuration does.

        Raises:
            OptionError: an unknown name or an invalid value.
        """
        object.__setattr__(self, "model", checked(type(self), "model", self.model))
        config = self.CONFIG
        if self.model:
            shape_of(self.model)  # refuses an unknown name
            config = kind_of(self.model)
        if config is not self.CONFIG:
            raise TypeError(f"use model_part({self.model!r}, ...)")
        for name in self.chosen():
            value = checked(config, name, getattr(self, name))
            object.__setattr__(self, name, value)

    @classmethod
    def kinds(cls) -> tuple[type[Options], ...]:
        """Return one class per kind of model."""
        return tuple(PARTS.values())

    def check_foreign(self, names: Iterable[str]) -> None:
        """Refuse fields that only other kinds of models have.

        Raises:
            OptionError: the first such field.
        """
        fields = {name for kind in self.kinds() for name in hints(kind)}
        check_known(fields & set(names), hints(type(self)), f"{self.model} option")

    def chosen(self) -> dict[str, Any]:
        """Return the fields that are chosen."""
        values = {name: getattr(self, name) for name in hints(type(self)) if name != "model"}
        return {name: value for name, value in values.items() if value is not None}

    def of_weights(self, model: str = "") -> "ModelPart":
        """Return the model of trained weights, with the fields that stay the recipe's.

        Args:
            model: its name, if the user says it
        """
        return self._of(model, OF_RECIPE)

    def of_model(self, model: str) -> "ModelPart":
        """Return another model, which starts at random, with the fields that are not the model's.

        Args:
            model: its name; empty for that of the weights to start from
        """
        return self._of(model, (*OF_RECIPE, *OF_PIXELS)) if model else self.of_weights()

    def of_size(self, image_size: Size | None) -> Self:
        """Return the same model for images of another size; None for the data's or the weights'."""
        fields: dict[str, Any] = {"image_size": image_size}
        return replace(self, **fields)

    def _of(self, model: str, names: Iterable[str]) -> "ModelPart":
        """Return another model with those of some chosen fields that it has."""
        own = self.chosen()
        known = hints(PARTS[kind_of(checked(ModelPart, "model", model))])
        return model_part(model, **{n: own[n] for n in names if n in own and n in known})

    def config(self, **found: Any) -> ModelConfig:
        """Return the configuration; chosen fields take precedence over those of the data.

        Args:
            found: fields by the data: image_size, channels, classes, labels

        Raises:
            OptionError: the fields do not go together.
        """
        return config_of(self.model, **(found | self.chosen()))

    def check(self) -> ModelConfig:
        """Refuse fields that do not go together; return a configuration for some data.

        Raises:
            OptionError: fields that do not go together.
        """
        patch = self.chosen().get("patch") or shape_of(self.model).get("patch", 32)
        return self.config(image_size=8 * patch)

    def changed(self, **given: Any) -> Self:
        """Return the same model with other fields; chosen ones that no longer apply are dropped.

        Raises:
            OptionError: an unknown field, an invalid value, or a field without effect.
        """
        if not given:
            return self
        check_known(given, hints(type(self)), f"{self.model} option")
        asked = type(self)(**{"model": self.model} | given).chosen()
        mine = self.chosen() | asked
        if not self.model:  # what applies is known once the weights are read
            return type(self)(**{"model": ""} | mine)
        values = defaults(self.CONFIG) | shape_of(self.model) | mine
        for name in set(mine) - set(given):
            if not applies(self.CONFIG, name, values):
                del mine[name]
        result = type(self)(**{"model": self.model} | mine)
        config = result.check()
        for name in asked:
            config.check_applies(name)
        return result


def _part(name: str, config: type[ModelConfig]) -> type[ModelPart]:
    """Make the class for one kind of model: every field of its configuration, or None."""
    declared = options_of(config)
    return make_dataclass(
        name,
        [
            (key, hints(config)[key] | None, field(default=None, metadata={"option": each}))
            for key, each in declared.items()
            if key != "labels"  # which the data decides
        ],
        bases=(ModelPart,),
        frozen=True,
        kw_only=True,
        namespace={"__doc__": ModelPart.__doc__, "__module__": __name__, "CONFIG": config},
    )


ViTPart = _part("ViTPart", ViTConfig)
ResNetPart = _part("ResNetPart", ResNetConfig)
TokenizerPart = _part("TokenizerPart", TokenizerConfig)
PARTS: dict[type[ModelConfig], type[ModelPart]] = {
    ViTConfig: ViTPart,
    ResNetConfig: ResNetPart,
    TokenizerConfig: TokenizerPart,
}


def part_of(config: ModelConfig, name: str = "") -> ModelPart:
    """Return the part with every field of a configuration."""
    kind = PARTS[type(config)]
    names = [each for each in hints(kind) if each != "model"]
    return kind(model=name or config.name, **{each: getattr(config, each) for each in names})


def width_of(model: str) -> int:
    """Return the width of a Vision Transformer by its name."""
    return int(shape_of(model).get("width", ViTConfig.width))


def model_part(model: str = "ViT-Ti/16", **fields: Any) -> ModelPart:
    """Return a model by its name, with some fields chosen.

    Args:
        model: the papers' notation; empty for the model of the weights that a run starts from
        fields: of its configuration

    Raises:
        OptionError: an unknown name or field, or an invalid value.
    """
    kind = PARTS[kind_of(checked(ModelPart, "model", model))]
    check_known(fields, hints(kind), f"{model} option")
    return kind(model=model, **fields)
