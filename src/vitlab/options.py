"""Typed, validated options: each a field with its bounds, its help, and when it applies.

A group of choices is a frozen dataclass whose fields are options:

    @dataclass(frozen=True, kw_only=True)
    class Optimization(Options):
        optimizer: Literal["sgd", "adamw"] = option("adamw", "the optimizer")
        lr: float = option(1e-3, "peak learning rate", above(0))
        momentum: float = option(
            0.9, "momentum of sgd", at_least(0), below(1), only=when("optimizer", "sgd")
        )

Creating one checks it: types, allowed values, finite numbers, bounds, and that every option that
differs from its default has an effect. The command line, `run.toml`, Python and `--help` all read
these lines, so they refuse the same things in the same words.
"""

import difflib
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Any, Literal, Self, cast, get_type_hints

from vitlab.errors import OptionError
from vitlab.values import MismatchError, conform, described, either, numbers, shown

MOST, WIDEST = 60, 500  # names that a message lists, and their characters
# What other libraries call the same (timm, transformers, torchvision, Keras, ultralytics).
FAMILIAR = {
    "num_classes": "classes", "num_labels": "classes", "img_size": "image_size", "imgsz":
    "image_size", "input_size": "image_size", "in_chans": "channels", "num_channels": "channels",
    "patch_size": "patch", "embed_dim": "width", "hidden_size": "width", "dim": "width",
    "num_layers": "depth", "num_hidden_layers": "depth", "num_heads": "heads",
    "num_attention_heads": "heads", "intermediate_size": "mlp", "mlp_ratio": "mlp", "mlp_dim":
    "mlp", "global_pool": "pool", "pooling": "pool", "drop_path_rate": "drop_path", "drop_rate":
    "dropout", "init_values": "layer_scale", "reg_tokens": "registers", "num_register_tokens":
    "registers", "layer_norm_eps": "norm_eps", "hidden_act": "gelu", "pos_embed": "positions",
    "learning_rate": "lr", "lr0": "lr", "batch_size": "batch", "train_batch_size": "batch",
    "per_device_train_batch_size": "batch", "num_epochs": "epochs", "max_epochs": "epochs",
    "num_train_epochs": "epochs", "opt": "optimizer", "optim": "optimizer", "wd": "weight_decay",
    "sched": "schedule", "scheduler": "schedule", "warmup": "warmup_steps", "num_workers":
    "workers", "output_dir": "out", "output": "out", "grad_clip": "clip", "clip_grad": "clip",
    "smoothing": "label_smoothing", "amp": "precision", "fp16": "precision", "bf16": "precision",
    "weights": "from", "pretrained": "weights", "early_stopping": "patience", "id2label": "labels",
}  # fmt: skip


@dataclass(frozen=True)
class Bound:
    """What every number of an option must satisfy; `words` finish "must be …"."""

    words: str
    holds: Callable[[Any], bool]


def above(limit: float) -> Bound:
    """Numbers greater than `limit`."""
    return Bound(f"above {limit}", lambda number: number > limit)


def at_least(limit: float) -> Bound:
    """Numbers not less than `limit`."""
    return Bound(f"at least {limit}", lambda number: number >= limit)


def below(limit: float) -> Bound:
    """Numbers less than `limit`."""
    return Bound(f"below {limit}", lambda number: number < limit)


def at_most(limit: float) -> Bound:
    """Numbers not greater than `limit`."""
    return Bound(f"at most {limit}", lambda number: number <= limit)


Check = Callable[[Any], object] | Literal["data", "weights"]
"""What refuses a value that cannot be there: a function, or what the value names.

DATA and weights may be on another machine: `vitlab.console.existence` looks for them.
"""


@dataclass(frozen=True)
class Only:
    """When an option has an effect; `words` finish "… applies only …".

    Words that only another part of the house knows may be a function, called where they are shown.
    """

    phrase: str | Callable[[], str]
    holds: Callable[[Any], bool]

    @property
    def words(self) -> str:
        """The phrase itself."""
        return self.phrase if isinstance(self.phrase, str) else self.phrase()


def when(name: str, *values: object) -> Only:
    """Where another option of the group has one of these values, or is not 0 if none is given."""
    if not values:
        return Only(f"with {name}", lambda options: getattr(options, name))
    words = f"with {name}={either(map(str, values))}"
    return Only(words, lambda options: getattr(options, name) in values)


def when_any(*names: str) -> Only:
    """Where at least one of these options of the group is on."""
    return Only(
        f"with {either(names)}", lambda options: any(getattr(options, name) for name in names)
    )


@dataclass(frozen=True)
class Option:
    """Everything about a field except its name, type and default.

    Attributes:
        help: one phrase for `--help` and the reference
        bounds: what each of its numbers must satisfy
        only: when it has an effect (None: always)
        choices: returns the allowed words, if they are not in the type
        positional: given on the command line by position, without its name
        flag: its name on the command line, if Python reserves that word
        check: what the command line refuses before a command runs, such as a missing file
    """

    help: str
    bounds: tuple[Bound, ...] = ()
    only: Only | None = None
    choices: Callable[[], Iterable[str]] | None = None
    positional: bool = False
    flag: str = ""
    check: Check | None = None


def option(
    default: object,
    help: str,
    *bounds: Bound,
    only: Only | None = None,
    choices: Callable[[], Iterable[str]] | None = None,
    positional: bool = False,
    flag: str = "",
    check: Check | None = None,
) -> Any:
    """Declare a field of an `Options` class: its default, its help and its rules.

    Args:
        default: its value if none is given; `MISSING` (of dataclasses) if it is required
        help: one phrase for `--help` and the reference
        bounds: what each of its numbers must satisfy, as `above(0)`
        only: when it has an effect, as `when("optimizer", "sgd")`; else it must keep its default
        choices: returns the allowed words, if the type cannot list them
        positional: given on the command line by position, without its name
        flag: its name on the command line, if Python reserves that word
        check: what the command line refuses before a command runs, such as a missing file
    """
    about = {"option": Option(help, bounds, only, choices, positional, flag, check)}
    return field(metadata=about) if default is MISSING else field(default=default, metadata=about)


def argument(
    help: str,
    check: Check | None = None,
    default: object = MISSING,
    choices: Callable[[], Iterable[str]] | None = None,
) -> Any:
    """Declare an option that is given by its position, and is required without a default."""
    return option(default, help, choices=choices, positional=True, check=check)


@dataclass(frozen=True, eq=False, repr=False)
class Options:
    """A group of choices, checked when it is created; the base of frozen dataclasses."""

    def __init_subclass__(cls) -> None:
        """Keep the representation of this class, which `dataclass` would replace."""
        super().__init_subclass__()
        cls.__repr__ = Options.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """Show what differs from the defaults."""
        usual = defaults(type(self))
        chosen = [name for name in usual if getattr(self, name) != usual[name]]
        inside = ", ".join(f"{name}={getattr(self, name)!r}" for name in chosen)
        return f"{type(self).__name__}({inside})"

    def __post_init__(self) -> None:
        """Convert every field to its type and check it.

        Raises:
            OptionError: the first invalid field; the message says what is allowed.
        """
        usual = defaults(type(self))
        for name, default in usual.items():
            if (value := getattr(self, name)) is not default:  # which is valid
                object.__setattr__(self, name, checked(type(self), name, value))
        for name, default in usual.items():
            if getattr(self, name) != default:
                self.check_applies(name)

    def check_applies(self, name: str) -> None:
        """Refuse an option that has no effect with the others as they are, unless it is off.

        Raises:
            OptionError: it has no effect; the message says what it applies with.
        """
        about, value = options_of(type(self)).get(name), getattr(self, name)
        off = not value and value == defaults(type(self))[name]
        if about and about.only and not off and not about.only.holds(self):
            raise OptionError(f"{name}={shown(value)} applies only {about.only.words}")

    def changed(self, **given: Any) -> Self:
        """Return a copy with some options replaced, those of nested groups by their own names.

        Options that were chosen before and no longer apply return to their defaults.

        Raises:
            OptionError: an unknown name, an invalid value, or a given option without effect, even
                if it equals the default.
        """
        owner = owners(self)
        self.check_foreign(given)
        check_known(given, owner)
        values = {name: getattr(self, name) for name in hints(type(self))}
        mine = [name for name in values if name in given and owner[name] is type(self)]
        values |= {name: checked(type(self), name, given[name]) for name in mine}
        for name, value in values.items():
            inner = owners(value) if isinstance(value, Options) else ()
            if own := {key: given[key] for key in inner if key in given}:
                values[name] = value.changed(**own)
        for name, default in defaults(type(self)).items():
            if name not in mine and not applies(type(self), name, values):
                values[name] = default
        result = type(self)(**values)
        for name in mine:
            result.check_applies(name)
        return result

    def values(self, names: str) -> dict[str, Any]:
        """Return some options by name, `"device workers"`, as keyword arguments."""
        return {name: getattr(self, name) for name in names.split()}

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON has them: lists for tuples, objects for groups."""
        return {name: _plain(getattr(self, name)) for name in hints(type(self))}

    def check_foreign(self, names: Iterable[str]) -> None:
        """Refuse names that only another kind of a nested group has.

        Raises:
            OptionError: the first such name.
        """
        for name in hints(type(self)):
            if isinstance(group := getattr(self, name), Options):
                group.check_foreign(names)

    @classmethod
    def kinds(cls) -> "tuple[type[Options], ...]":
        """Return the classes that may stand for this group."""
        return (cls,)

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Create options from values by name, including those of nested groups.

        Raises:
            OptionError: an unknown name, an invalid value, or an option without effect.
        """
        required = [name for name, default in defaults(cls).items() if default is MISSING]
        return cls(**{name: given[name] for name in required if name in given}).changed(**given)

    def as_table(self) -> dict[str, Any]:
        """Return the fields as TOML has them: those that are None are left out."""
        return {name: value for name, value in self.as_dict().items() if value is not None}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Create options from what `as_dict` wrote; missing fields get their defaults.

        Raises:
            OptionError: an unknown field or an invalid value.
        """
        check_known(values, hints(cls))
        return cls(**values)


def applies(kind: type[Options], name: str, values: dict[str, Any]) -> bool:
    """Whether an option has an effect, given the values of all options, checked or not."""
    only = options_of(kind).get(name, Option("")).only
    draft = object.__new__(kind)
    for each, value in values.items():
        object.__setattr__(draft, each, value)
    return only is None or only.holds(draft)


def hints(kind: type[Options]) -> dict[str, Any]:
    """Return the type of each field, in order."""
    return _schema(cast(Any, kind))[0]


def options_of(kind: type[Options]) -> dict[str, Option]:
    """Return the declaration of each field that is an option, in order."""
    return _schema(cast(Any, kind))[1]


def defaults(kind: type[Options]) -> dict[str, Any]:
    """Return the default of each field, in order."""
    return _schema(cast(Any, kind))[2]


@cache
def _schema(kind: Any) -> tuple[dict[str, Any], dict[str, Option], dict[str, Any]]:
    types_, known = get_type_hints(kind), fields(kind)
    abouts = {each.name: each.metadata["option"] for each in known if "option" in each.metadata}
    usual = {each.name: each.default for each in known}
    return {name: types_[name] for name in usual}, abouts, usual


def owners(options: Options | type[Options]) -> dict[str, type[Options]]:
    """Return every option by name, including nested groups, with the class that declares it."""
    kind = options if isinstance(options, type) else type(options)
    found: dict[str, type[Options]] = {}
    for name, hint in hints(kind).items():
        part = hint if isinstance(options, type) else getattr(options, name)
        if isinstance(part, Options) or (isinstance(part, type) and issubclass(part, Options)):
            found |= owners(part)
        else:
            found[name] = kind
    return found


def check_known(names: Iterable[str], known: Iterable[str], what: str = "option") -> None:
    """Refuse names that are not among the known ones.

    Raises:
        OptionError: the first unknown name, with the nearest known one.
    """
    known = list(known)
    if unknown := sorted(set(names) - set(known)):
        raise OptionError(f"unknown {what} {unknown[0]!r}: {nearest(unknown[0], known)}")


def nearest(word: str, known: Iterable[str]) -> str:
    """Suggest the nearest known word, or list them all: `did you mean lr?`."""
    known = list(known)
    usual = FAMILIAR.get(word, "")
    for name in (usual, FAMILIAR.get(usual, "")):
        if name in known:
            return f"did you mean {name}?"
    if near := difflib.get_close_matches(word, known, n=1):
        return f"did you mean {near[0]}?"
    if len(known) > MOST or len(listed := ", ".join(known)) > WIDEST:
        return f"nothing similar among the {len(known)} known"
    return f"choose from {listed}"


def checked(kind: type[Options], name: str, value: object) -> Any:
    """Return a value converted to the type of field `name` of `kind`, within its bounds.

    Raises:
        OptionError: it is invalid; the message says what is allowed.
    """
    about = options_of(kind).get(name, Option(""))
    hint = hints(kind)[name]
    limits = " and ".join(bound.words for bound in about.bounds)
    try:
        result = conform(value, hint)
    except MismatchError:
        kind_words = described(hint)
        wanted = kind_words + (", " if " or " in kind_words else " ") * bool(limits) + limits
        raise OptionError(f"{name} must be {wanted}, not {shown(value)}") from None
    if about.choices and result is not None:
        words = list(about.choices())
        if result not in words:
            raise OptionError(f"{name} must be one of {', '.join(words)}, not {shown(value)}")
    if not all(bound.holds(number) for number in numbers(result) for bound in about.bounds):
        raise OptionError(f"{name} must be {limits}, not {shown(value)}")
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, Options):
        return value.as_dict()
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
