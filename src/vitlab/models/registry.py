"""Registry of stems and position schemes: two dictionaries, and the classes that users define.

A configuration asks here by name. Ours stand in the dictionaries with the options that each uses,
all that `--help` needs: importing a class imports PyTorch. A class that a user defines registers
itself.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from vitlab.by_name import load_object
from vitlab.options import Only


@dataclass(frozen=True)
class Kind:
    """A stem or a position scheme of ours.

    Attributes:
        home: its class, as "module:object"
        uses: those options of the configuration that have an effect with it
    """

    home: str
    uses: tuple[str, ...] = ()


STEMS = {
    "conv": Kind("vitlab.models.stems.stem:LeViT", ("stem_norm",)),
    "hmlp": Kind("vitlab.models.stems.stem:HierarchicalMLP", ("stem_norm",)),
    "linear": Kind(
        "vitlab.models.stems.stem:Linear", ("stem_norm", "stem_act", "stem_bias", "stem_stride")
    ),
    "local": Kind("vitlab.models.stems.local:LocalTransformer"),
    "resnet": Kind("vitlab.models.stems.hybrid:Hybrid", ("stages", "resnet")),
    "tubelet": Kind("vitlab.models.stems.tubelet:Tubelet", ("stem_frames", "stem_bias")),
}
POSITIONS = {
    "1d": Kind("vitlab.models.positions.learned:Learned", ("positions_at", "positions_size")),
    "1d+bias": Kind(
        "vitlab.models.positions.both:LearnedAndBias",
        ("positions_at", "positions_size", "bias_locality"),
    ),
    "1d+rope": Kind(
        "vitlab.models.positions.both:LearnedAndRotary",
        ("positions_size", "rope_base", "rope_kind"),
    ),
    "2d": Kind("vitlab.models.positions.learned:Grid", ("positions_at", "positions_size")),
    "bias": Kind(
        "vitlab.models.positions.bias:Bias", ("positions_at", "positions_size", "bias_locality")
    ),
    "none": Kind("vitlab.models.positions.positions:NoPositions"),
    "relative": Kind("vitlab.models.positions.bias:Relative", ("positions_at",)),
    "rope": Kind("vitlab.models.positions.rotary:Rotary", ("rope_base", "rope_kind")),
    "sincos": Kind("vitlab.models.positions.sincos:SinCos", ("positions_at",)),
}
# By the field of the configuration, then by the value of that field.
OURS = {"stem": STEMS, "positions": POSITIONS}
DEFINED: dict[str, "dict[str, type[Component]]"] = {field: {} for field in OURS}  # by users


class Component:
    """What a stem and a position scheme have in common: what a configuration asks of them.

    Attributes:
        field: the configuration's field that names it
        name: the value of that field; a subclass that has one and is not ours is registered
        uses: those options of the configuration that have an effect here; of ours the dictionaries
            say so
        undecayed: own parameters that weight decay leaves alone, beside norms and biases
        usual_norm: the `stem_norm` that a stem is given by its name alone
    """

    field: ClassVar[str]
    name: ClassVar[str]
    uses: ClassVar[tuple[str, ...]] = ()
    undecayed: ClassVar[tuple[str, ...]] = ()
    usual_norm: ClassVar[str] = "none"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls):
            return
        kind = OURS[cls.field].get(cls.name)
        if kind and kind.home == f"{cls.__module__}:{cls.__qualname__}":
            cls.uses = kind.uses
        elif cls.name in used_options(cls.field):
            other = kind_named(cls.field, cls.name).__qualname__
            raise TypeError(f"{cls.field}={cls.name} is already {other}")
        else:
            DEFINED[cls.field][cls.name] = cls

    @staticmethod
    def check(config: Any) -> None:
        """Refuse a configuration that this part does not fit.

        Raises:
            OptionError: the message says what would work.
        """


def kind_named(field: str, name: str) -> type[Component]:
    """Return the class that a value of a field of the configuration names."""
    if name in DEFINED[field]:
        return DEFINED[field][name]
    kind: type[Component] = load_object(OURS[field][name].home)
    return kind


def used_options(field: str) -> dict[str, tuple[str, ...]]:
    """Return which options each kind uses, by its name in alphabetical order, without PyTorch."""
    every: dict[str, Any] = OURS[field] | DEFINED[field]
    return {name: every[name].uses for name in sorted(every)}


def where_used(field: str, option: str) -> Only:
    """Say that an option applies only with the stems, or position schemes, that use it."""

    def users() -> list[str]:
        return [name for name, used in used_options(field).items() if option in used]

    def words() -> str:
        *first, last = users()
        return f"with {field}={', '.join(first)} or {last}" if first else f"with {field}={last}"

    return Only(words, lambda options: getattr(options, field) in users())
