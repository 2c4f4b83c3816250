"""What a choice is: one typed field with its bounds, its help, and when it applies.

A group of choices is a frozen dataclass whose fields are options:

    @dataclass(frozen=True, kw_only=True)
    class Optimization(Options):
        optimizer: Literal["sgd", "adamw"] = option("adamw", "the optimizer")
        lr: float = option(1e-3, "peak learning rate", above(0))
        momentum: float = option(
            0.9, "momentum of sgd", at_least(0), below(1), only=when("optimizer", "sgd")
        )

Creating one checks it: types, allowed values, finite numbers, bounds, and that no option is given
that would do nothing. The command line, `run.toml`, Python and `--help` all read these lines, so
they refuse the same things in the same words.
"""

import difflib
import math
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from numbers import Integral, Real
from typing import Any, Literal, Self, Union, cast, get_args, get_origin, get_type_hints

from vitlab.errors import OptionError


@dataclass(frozen=True)
class Bound:
    """What every number of an option must satisfy; `words` finish "must be …"."""

    words: str
    holds: Callable[[Any], bool]


def above(limit: float) -> Bound:
    """Numbers greater than `limit`."""
    return Bound(f"above {limit}", lambda number: bool(number > limit))


def at_least(limit: float) -> Bound:
    """Numbers not less than `limit`."""
    return Bound(f"at least {limit}", lambda number: bool(number >= limit))


def below(limit: float) -> Bound:
    """Numbers less than `limit`."""
    return Bound(f"below {limit}", lambda number: bool(number < limit))


def at_most(limit: float) -> Bound:
    """Numbers not greater than `limit`."""
    return Bound(f"at most {limit}", lambda number: bool(number <= limit))


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
    """Where another option of the same group has one of these values; any but 0 if none given."""
    if not values:
        return Only(f"with {name}", lambda options: bool(getattr(options, name)))
    words = f"with {name}={_either(map(str, values))}"
    return Only(words, lambda options: getattr(options, name) in values)


def when_any(*names: str) -> Only:
    """Where one of these options of the same group is on."""
    return Only(
        f"with {_either(names)}", lambda options: any(getattr(options, name) for name in names)
    )


@dataclass(frozen=True)
class Option:
    """What is known of one field beside its name, type and default.

    Attributes:
        help: one phrase for `--help` and the reference
        bounds: what each of its numbers must satisfy
        only: when it has an effect (None: always)
        choices: the allowed words, where they are not in the type
        positional: given on the command line by its place
    """

    help: str
    bounds: tuple[Bound, ...] = ()
    only: Only | None = None
    choices: Callable[[], Iterable[str]] | None = None
    positional: bool = False


def option(
    default: object,
    help: str,
    *bounds: Bound,
    only: Only | None = None,
    choices: Callable[[], Iterable[str]] | None = None,
    positional: bool = False,
) -> Any:
    """A field of an `Options` class: its default, its help, and its rules.

    Args:
        default: its value where none is given; `MISSING` (of dataclasses) if it is required
        help: one phrase for `--help` and the reference
        bounds: what each of its numbers must satisfy, as `above(0)`
        only: when it has an effect, as `when("optimizer", "sgd")`; else it must keep its default
        choices: a function for the allowed words, where the type cannot list them
        positional: given on the command line by its place
    """
    about = {"option": Option(help, bounds, only, choices, positional)}
    return field(metadata=about) if default is MISSING else field(default=default, metadata=about)


class Options:
    """A group of choices, checked when it is created; the base of frozen dataclasses."""

    def __post_init__(self) -> None:
        """Bring every field to its type, and check it.

        Raises:
            OptionError: the first field that cannot be, with what would work.
        """
        for name, hint in hints(type(self)).items():
            value = checked(type(self), name, getattr(self, name), hint)
            object.__setattr__(self, name, value)
        for each in fields(cast(Any, self)):
            if getattr(self, each.name) != each.default:
                self.check_applies(each.name)

    def check_applies(self, name: str) -> None:
        """Refuse an option that does nothing beside the others.

        Raises:
            OptionError: it has no effect; the message says with what it has one.
        """
        about = options_of(type(self)).get(name)
        if about and about.only and not about.only.holds(self):
            value = getattr(self, name)
            raise OptionError(f"{name}={_shown(value)} applies only {about.only.words}")

    def changed(self, **given: Any) -> Self:
        """The same options with some given, those of nested groups by their own names.

        What was chosen before and no longer applies beside them goes back to its default.

        Raises:
            OptionError: an unknown name, a value that cannot be, or a given option that does
                nothing beside the others, also where it equals the default.
        """
        owner = owners(self)
        self.check_foreign(given)
        check_known(given, owner)
        mine = {name for name in given if owner[name] is type(self)}
        values = {name: getattr(self, name) for name in hints(type(self))}
        values |= {name: checked(type(self), name, given[name]) for name in mine}
        for name, value in values.items():
            if isinstance(value, Options):
                own = {key: given[key] for key in owners(value) if key in given}
                values[name] = value.changed(**own)
        for each in fields(cast(Any, self)):
            if each.name not in mine and not applies(type(self), each.name, values):
                values[each.name] = each.default
        result = type(self)(**values)
        for name in sorted(mine):
            result.check_applies(name)
        return result

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON and TOML hold them: lists for tuples, tables for groups."""
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
        """The classes that a group of this type may be of."""
        return (cls,)

    @classmethod
    def of(cls, **given: Any) -> Self:
        """Create the options from some given by name, those of nested groups too.

        Raises:
            OptionError: an unknown name, a value that cannot be, or an option that does nothing.
        """
        required = {each.name for each in fields(cast(Any, cls)) if each.default is MISSING}
        return cls(**{name: given[name] for name in required & set(given)}).changed(**given)

    def as_table(self) -> dict[str, Any]:
        """The fields as TOML holds them: those that are None are left out."""
        return {name: value for name, value in self.as_dict().items() if value is not None}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The options that `as_dict` wrote; fields left out have their defaults.

        Raises:
            OptionError: an unknown field, or a value that cannot be.
        """
        check_names(cls, values)
        return cls(**values)


def applies(kind: type[Options], name: str, values: dict[str, Any]) -> bool:
    """Whether an option has an effect beside these values of all options, not yet checked."""
    only = options_of(kind).get(name, Option("")).only
    draft = object.__new__(kind)
    for each, value in values.items():
        object.__setattr__(draft, each, value)
    return only is None or only.holds(draft)


def hints(kind: type[Options]) -> dict[str, Any]:
    """The type of each field, in order."""
    return _schema(cast(Any, kind))[0]


def options_of(kind: type[Options]) -> dict[str, Option]:
    """What is known of each field that is an option, in order."""
    return _schema(cast(Any, kind))[1]


@cache
def _schema(kind: Any) -> tuple[dict[str, Any], dict[str, Option]]:
    types_, known = get_type_hints(kind), fields(kind)
    abouts = {each.name: each.metadata["option"] for each in known if "option" in each.metadata}
    return {each.name: types_[each.name] for each in known}, abouts


def owners(options: Options | type[Options]) -> dict[str, type[Options]]:
    """Every option by its name, those of nested groups too, with the class that it belongs to."""
    kind = options if isinstance(options, type) else type(options)
    found: dict[str, type[Options]] = {}
    for name, hint in hints(kind).items():
        part = hint if isinstance(options, type) else getattr(options, name)
        if isinstance(part, Options) or (isinstance(part, type) and issubclass(part, Options)):
            found |= owners(part)
        else:
            found[name] = kind
    return found


def check_names(kind: type[Options], names: Iterable[str], what: str = "option") -> None:
    """Refuse names that no field has.

    Raises:
        OptionError: the first unknown name, with the nearest known one.
    """
    check_known(names, hints(kind), what)


def check_known(
    names: Iterable[str], known: Iterable[str], what: str = "option", of: str = ""
) -> None:
    """Refuse names that are not among the known ones.

    Raises:
        OptionError: the first unknown name, with the nearest known one.
    """
    known = list(known)
    if unknown := sorted(set(names) - set(known)):
        where = f" of {of}" if of else ""
        raise OptionError(f"unknown {what} {unknown[0]!r}{where}: {nearest(unknown[0], known)}")


def nearest(word: str, known: Iterable[str]) -> str:
    """What a mistyped word may have been, or all that there is: `did you mean lr?`."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}"


def checked(kind: type[Options], name: str, value: object, hint: Any = None) -> Any:
    """A value as the field `name` of `kind` holds it: of its type, and within its bounds.

    Raises:
        OptionError: it cannot be; the message says what would work.
    """
    about = options_of(kind).get(name, Option(""))
    hint = hints(kind)[name] if hint is None else hint
    limits = " and ".join(bound.words for bound in about.bounds)
    try:
        result = _conform(value, hint)
    except _MismatchError:
        kind_words = described(hint)
        wanted = kind_words + (", " if " or " in kind_words else " ") * bool(limits) + limits
        raise OptionError(f"{name} must be {wanted}, not {_shown(value)}") from None
    if about.choices and result is not None:
        words = list(about.choices())
        if result not in words:
            raise OptionError(f"{name} must be one of {', '.join(words)}, not {_shown(value)}")
    if not all(bound.holds(number) for number in _numbers(result) for bound in about.bounds):
        raise OptionError(f"{name} must be {limits}, not {_shown(value)}")
    return result


class _MismatchError(Exception):
    """A value is not of a type."""


def _conform(value: Any, hint: Any) -> Any:
    """The value in the form of a type: whole numbers as int, lists as tuples, None for None."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _first_fitting(value, parts)
    if origin is Literal:
        if any(type(value) is type(each) and value == each for each in parts):
            return value
    elif hint is Any:
        return value
    elif hint is bool:
        if isinstance(value, bool):
            return value
    elif hint is int:
        if isinstance(value, Integral) and not isinstance(value, bool):
            return int(value)
    elif hint is float:
        if isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    elif origin is tuple:
        many = isinstance(value, list | tuple)
        if many or parts[-1] is Ellipsis:  # a single value is a list of one
            return _conform_tuple(value if many else (value,), parts)
    elif isinstance(value, hint):
        return value
    raise _MismatchError


def _first_fitting(value: Any, types_: tuple[Any, ...]) -> Any:
    for each in types_:
        try:
            return _conform(value, each)
        except _MismatchError:
            continue
    raise _MismatchError


def _conform_tuple(value: list[Any] | tuple[Any, ...], parts: tuple[Any, ...]) -> tuple[Any, ...]:
    if parts[-1] is Ellipsis:
        parts = parts[:1] * len(value)
    if len(parts) != len(value):
        raise _MismatchError
    return tuple(_conform(each, part) for each, part in zip(value, parts, strict=True))


def described(hint: Any) -> str:
    """A type in words: `a whole number`, `one of sgd, adamw`, `two numbers`."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _either(dict.fromkeys(described(each) for each in parts))
    if origin is Literal:
        return str(parts[0]) if len(parts) == 1 else f"one of {', '.join(map(str, parts))}"
    if origin is tuple:
        each = described(parts[0]).removeprefix("a ")
        if parts[-1] is Ellipsis:
            return f"a list of {each}s" if each != "text" else "a list of words"
        return f"{ {2: 'two', 3: 'three'}.get(len(parts), len(parts)) } {each}s"
    names = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}
    return names.get(hint, "None" if hint is types.NoneType else f"a {hint.__name__}")


def _numbers(value: object) -> Iterator[float]:
    """The numbers in a value, to be held against the bounds."""
    if isinstance(value, tuple):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _either(words: Iterable[str]) -> str:
    """`a, b or c`."""
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _shown(value: object) -> str:
    """A value as it stands in a message: short, on one line."""
    value = tuple(value) if isinstance(value, list) else value
    text = str(value) if isinstance(value, str) and value.isidentifier() else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _plain(value: Any) -> Any:
    if isinstance(value, Options):
        return value.as_dict()
    return [_plain(each) for each in value] if isinstance(value, tuple) else value
