"""The model of a recipe: its name, and the fields that are not as the name or the data says."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, make_dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vitlab.models.config import ModelConfig, ResNetConfig, ViTConfig, config_of, kind_of
from vitlab.models.names import shape_of
from vitlab.options import Options, applies, check_known, checked, hints, option, options_of

FROM_DATA = ("labels",)  # fields of a configuration that nobody chooses


@dataclass(frozen=True, kw_only=True)
class ModelPart(Options):
    """The model; fields that are not given are as its name says, or as the data needs.

    `model_part("ViT-S/16", drop_path=0.1)` makes the one that fits a name.
    """

    CONFIG: ClassVar[type[ModelConfig]] = ModelConfig

    model: str = option(
        "ViT-Ti/16", "a model by its name in the papers; `vitlab models` lists some"
    )

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A field of the configuration, or None."""

    def __post_init__(self) -> None:
        """Check each chosen field as the configuration does.

        Raises:
            OptionError: an unknown name, or a value that cannot be.
        """
        object.__setattr__(self, "model", checked(type(self), "model", self.model))
        shape_of(self.model)  # refuses an unknown name
        config = kind_of(self.model)
        if config is not self.CONFIG:
            raise TypeError(f"use model_part({self.model!r}, ...)")
        for name in self.chosen():
            value = checked(config, name, getattr(self, name))
            object.__setattr__(self, name, value)

    @classmethod
    def kinds(cls) -> tuple[type[Options], ...]:
        """One for each kind of model."""
        return tuple(PARTS.values())

    def check_foreign(self, names: Iterable[str]) -> None:
        """Refuse fields that only other kinds of models have.

        Raises:
            OptionError: the first such field.
        """
        fields = {name for kind in self.kinds() for name in hints(kind)}
        check_known(fields & set(names), hints(type(self)), of=self.model)

    def chosen(self) -> dict[str, Any]:
        """The fields that are not left to the name and the data."""
        values = {name: getattr(self, name) for name in hints(type(self)) if name != "model"}
        return {name: value for name, value in values.items() if value is not None}

    def config(self, **found: Any) -> ModelConfig:
        """The configuration; what was chosen comes before what the data needs.

        Args:
            found: fields by the data: image_size, channels, classes, labels

        Raises:
            OptionError: the fields do not go together.
        """
        return config_of(self.model, **(found | self.chosen()))

    def check(self) -> ModelConfig:
        """Refuse what no data could mend; return a configuration that fits some data.

        Raises:
            OptionError: fields that do not go together.
        """
        patch = self.chosen().get("patch") or shape_of(self.model).get("patch", 32)
        return self.config(image_size=8 * patch)

    def changed(self, **given: Any) -> Self:
        """The same model with some fields given; what no longer applies is left to the name again.

        Raises:
            OptionError: an unknown field, a value that cannot be, or a field that does nothing.
        """
        if not given:
            return self
        check_known(given, hints(type(self)), of=self.model)
        defaults = {each.name: each.default for each in fields(self.CONFIG)}
        mine = self.chosen() | given
        values = defaults | shape_of(self.model) | mine
        for name in set(mine) - set(given):
            if not applies(self.CONFIG, name, values):
                del mine[name]
        result = replace(type(self)(model=self.model), **mine)
        config = result.check()
        for name in given:
            config.check_applies(name)
        return result

    def resolved(self, config: ModelConfig) -> "ModelPart":
        """The part with every field as the configuration has it."""
        names = [name for name in hints(type(self)) if name != "model"]
        return replace(self, **{name: getattr(config, name) for name in names})


def _part(name: str, config: type[ModelConfig]) -> type[ModelPart]:
    """The part for one kind of model: every field of its configuration, or None."""
    names = [key for key in hints(config) if key not in FROM_DATA]
    return make_dataclass(
        name,
        [
            (
                key,
                hints(config)[key] | None,
                option(None, options_of(config)[key].help, only=options_of(config)[key].only),
            )
            for key in names
        ],
        bases=(ModelPart,),
        frozen=True,
        kw_only=True,
        namespace={"__doc__": ModelPart.__doc__, "__module__": __name__, "CONFIG": config},
    )


ViTPart = _part("ViTPart", ViTConfig)
ResNetPart = _part("ResNetPart", ResNetConfig)
PARTS: dict[type[ModelConfig], type[ModelPart]] = {ViTConfig: ViTPart, ResNetConfig: ResNetPart}


def model_part(model: str = "ViT-Ti/16", **fields: Any) -> ModelPart:
    """A model by its name, with fields chosen.

    Raises:
        OptionError: an unknown name or field, or a value that cannot be.
    """
    kind = PARTS[kind_of(checked(ModelPart, "model", model))]
    check_known(fields, hints(kind), of=model)
    return kind(model=model, **fields)
