"""Every rule of an option: types, bounds, choices, when it applies, the words of a refusal."""

import math
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest

from vitlab.command_table import COMMANDS, command_named
from vitlab.errors import OptionError, UserError
from vitlab.options import (
    Options,
    above,
    at_least,
    at_most,
    below,
    check_known,
    checked,
    defaults,
    hints,
    nearest,
    option,
    options_of,
    owners,
    when,
    when_any,
)
from vitlab.values import described, shown


@dataclass(frozen=True, kw_only=True)
class Inner(Options):
    depth: int = option(2, "how deep", at_least(1))


@dataclass(frozen=True, kw_only=True)
class Toy(Options):
    kind: Literal["sgd", "adam"] = option("sgd", "which")
    rate: float = option(0.1, "how fast", above(0))
    share: float = option(0.5, "part", at_least(0), below(1))
    count: int | Literal["auto"] = option("auto", "how many", at_least(0))
    betas: tuple[float, float] = option(
        (0.9, 0.99), "decays", at_most(1), only=when("kind", "adam")
    )
    names: tuple[str, ...] = option((), "names")
    flag: bool = option(False, "on or off")
    maybe: int | None = option(None, "perhaps", at_least(3))
    warm: float = option(0.0, "warm-up")
    shape: float = option(1.0, "of the warm-up", only=when("warm"))
    extra: float = option(0.0, "on top of the warm-up", only=when("warm"))
    both: float = option(1.0, "of either", only=when_any("warm", "flag"))
    stem: str = option("linear", "part", choices=lambda: ("linear", "conv"))
    inner: Inner = Inner()


def groups_below(kind: type[Options]) -> Iterator[type[Options]]:
    """Every group of options, with those that are made of it."""
    for each in kind.__subclasses__():
        yield each
        yield from groups_below(each)


def test_a_default_is_what_a_check_would_make_of_it() -> None:
    """It is not checked again whenever a group is made."""
    for name in COMMANDS:
        command_named(name)
    ours = [each for each in groups_below(Options) if each.__module__.startswith("vitlab.")]
    assert len(ours) > 40
    for kind in ours:
        for name, default in defaults(kind).items():
            if default is not MISSING:
                assert repr(checked(kind, name, default)) == repr(default), f"{kind}: {name}"


def refused(**choices: Any) -> str:
    with pytest.raises(OptionError) as caught:
        Toy(**choices)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"kind": "adamw"}, "kind must be one of sgd, adam, not adamw"),
        ({"rate": 0}, "rate must be above 0, not 0"),
        ({"rate": "x"}, "rate must be a number above 0, not x"),
        ({"rate": math.inf}, "rate must be a number above 0, not inf"),
        ({"rate": math.nan}, "rate must be a number above 0, not nan"),
        ({"rate": 10**400}, f"rate must be a number above 0, not 1{'0' * 56}..."),
        ({"rate": True}, "rate must be a number above 0, not True"),
        ({"share": 1.0}, "share must be at least 0 and below 1, not 1.0"),
        ({"share": -0.1}, "share must be at least 0 and below 1, not -0.1"),
        ({"count": -1}, "count must be at least 0, not -1"),
        ({"count": 1.5}, "count must be a whole number or auto, at least 0, not 1.5"),
        ({"count": "all"}, "count must be a whole number or auto, at least 0, not all"),
        ({"kind": "adam", "betas": (0.9, 1.5)}, "betas must be at most 1, not (0.9, 1.5)"),
        ({"kind": "adam", "betas": 0.9}, "betas must be two numbers at most 1, not 0.9"),
        (
            {"kind": "adam", "betas": (1, 1, 1)},
            "betas must be two numbers at most 1, not (1, 1, 1)",
        ),
        ({"betas": (0.5, 0.5)}, "betas=(0.5, 0.5) applies only with kind=adam"),
        ({"names": ("a", 3)}, "names must be a list of words, not ('a', 3)"),
        ({"flag": 1}, "flag must be True or False, not 1"),
        ({"count": True}, "count must be a whole number or auto, at least 0, not True"),
        ({"maybe": 2}, "maybe must be at least 3, not 2"),
        ({"maybe": "2"}, "maybe must be a whole number or None, at least 3, not '2'"),
        ({"shape": 2.0}, "shape=2.0 applies only with warm"),
        ({"both": 2.0}, "both=2.0 applies only with warm or flag"),
        ({"stem": "hmlp"}, "stem must be one of linear, conv, not hmlp"),
        ({"inner": {"depth": 3}}, "inner must be a Inner, not {'depth': 3}"),
        ({"rate": "x" * 100}, f"rate must be a number above 0, not {'x' * 57}..."),
    ],
)
def test_refusals(choices: dict[str, Any], message: str) -> None:
    assert refused(**choices) == message


def test_values_are_brought_to_their_type() -> None:
    toy = Toy(kind="adam", rate=np.float32(0.5), count=np.int64(3), betas=[0, 1], names="solo")
    assert (toy.rate, type(toy.rate)) == (0.5, float)
    assert (toy.count, type(toy.count)) == (3, int)
    assert toy.betas == (0.0, 1.0)
    assert toy.names == ("solo",)


def test_what_applies_is_accepted() -> None:
    assert Toy(kind="adam", betas=(0.5, 0.5)).betas == (0.5, 0.5)
    assert Toy(warm=1, shape=2, both=3).both == 3.0
    assert Toy(flag=True, both=3).both == 3.0
    assert replace(Toy(), stem="conv").stem == "conv"


def test_an_option_that_does_nothing_is_told_even_at_its_default() -> None:
    with pytest.raises(OptionError, match=r"^shape=1.0 applies only with warm$"):
        Toy().check_applies("shape")
    Toy(warm=1).check_applies("shape")
    Toy(extra=0).check_applies("extra")  # off: nothing that could be without effect
    with pytest.raises(OptionError, match=r"^extra=0.5 applies only with warm$"):
        Toy(extra=0.5)
    Toy().check_applies("rate")


def test_a_change_resets_what_it_leaves_without_effect() -> None:
    toy = Toy(kind="adam", betas=(0.5, 0.5), warm=1, shape=2)
    assert toy.changed(kind="sgd") == Toy(warm=1, shape=2)
    assert toy.changed(warm=0, rate=0.5) == Toy(kind="adam", betas=(0.5, 0.5), rate=0.5)
    with pytest.raises(OptionError, match="applies only with kind=adam"):
        toy.changed(kind="sgd", betas=(0.5, 0.5))
    with pytest.raises(OptionError, match="unknown option 'rat': did you mean rate"):
        toy.changed(rat=1)


def test_nested_groups_refuse_as_well() -> None:
    with pytest.raises(UserError, match="depth must be at least 1, not 0"):
        Toy(inner=Inner(depth=0))


def test_written_down_and_read_again() -> None:
    toy = Toy(kind="adam", betas=(0.1, 0.2), names=("a", "b"), inner=Inner(depth=5))
    written = toy.as_dict()
    assert written["betas"] == [0.1, 0.2]
    assert written["inner"] == {"depth": 5}
    written["inner"] = Inner.from_dict(written["inner"])
    assert Toy.from_dict(written) == toy


def test_unknown_names() -> None:
    with pytest.raises(OptionError, match=r"^unknown option 'rat': did you mean rate\?$"):
        Toy.from_dict({"rat": 1})
    with pytest.raises(OptionError, match=r"^unknown field 'zzz': choose from depth$"):
        check_known(["depth", "zzz"], hints(Inner), "field")


def test_required_options() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Needs(Options):
        data: str = option(MISSING, "images", positional=True)

    with pytest.raises(TypeError):
        Needs()
    assert Needs(data="x").data == "x"
    assert options_of(Needs)["data"].positional


def test_types_in_words() -> None:
    words = {name: described(hint) for name, hint in hints(Toy).items()}
    assert words["kind"] == "one of sgd, adam"
    assert words["betas"] == "two numbers"
    assert words["maybe"] == "a whole number or None"
    assert described(tuple[int, int, int]) == "three whole numbers"
    assert described(tuple[int, ...]) == "a list of whole numbers"


def test_optional_positions_of_help() -> None:
    assert [about.help for about in options_of(Inner).values()] == ["how deep"]


@dataclass(frozen=True, kw_only=True)
class Deep(Options):
    needed: str = option(MISSING, "must be given")
    steps: int = option(0, "steps", at_least(0))
    epochs: float = option(5.0, "epochs", only=when("steps", 0))
    toy: Toy = Toy()


def test_changes_by_flat_names() -> None:
    deep = Deep(needed="x").changed(depth=7, kind="adam", betas=[0, 1], steps=3)
    assert (deep.toy.inner.depth, deep.toy.betas, deep.steps) == (7, (0.0, 1.0), 3)
    assert deep.epochs == 5.0  # back at its default, for it does not apply
    assert Deep(needed="x", epochs=9).changed(steps=2).epochs == 5.0
    assert Deep(needed="x", epochs=9).changed(rate=2).epochs == 9.0
    assert deep.changed() == deep
    assert deep.changed(kind="sgd").toy.betas == (0.9, 0.99)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"stepz": 1}, "unknown option 'stepz': did you mean steps?"),
        ({"toy": Toy()}, "unknown option 'toy': choose from needed, steps, epochs, kind, rate"),
        ({"steps": -1}, "steps must be at least 0, not -1"),
        ({"depth": 0}, "depth must be at least 1, not 0"),
        ({"steps": 3, "epochs": 5.0}, "epochs=5.0 applies only with steps=0"),
        ({"betas": (0.9, 0.99)}, "betas=(0.9, 0.99) applies only with kind=adam"),
        ({"betas": (0.5, 0.5)}, "betas=(0.5, 0.5) applies only with kind=adam"),
        ({"kind": "adamw", "betas": 3}, "kind must be one of sgd, adam, not adamw"),
    ],
)
def test_changes_that_are_refused(choices: dict[str, Any], message: str) -> None:
    for make in (Deep(needed="x").changed, lambda **given: Deep.of(needed="x", **given)):
        with pytest.raises(OptionError) as caught:
            make(**choices)
        assert str(caught.value).startswith(message)


def test_no_word_may_be_chosen_where_none_is_allowed() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Optional(Options):
        stem: str | None = option(None, "part", choices=lambda: ("linear", "conv"))

    assert Optional().stem is None
    with pytest.raises(OptionError, match="stem must be one of linear, conv, not hmlp"):
        Optional(stem="hmlp")


def test_options_from_flat_names() -> None:
    deep = Deep.of(needed="x", depth=3)
    assert (deep.needed, deep.toy.inner.depth) == ("x", 3)


def test_owners_and_tables() -> None:
    known = owners(Deep)
    assert (known["depth"], known["rate"], known["steps"]) == (Inner, Toy, Deep)
    assert {"toy", "inner"} & set(known) == set()
    assert owners(Deep(needed="x")) == known
    assert "maybe" not in Toy().as_table()
    assert Toy(maybe=4).as_table()["maybe"] == 4
    assert Deep.kinds() == (Deep,)


def test_many_known_names_are_not_listed() -> None:
    with pytest.raises(OptionError, match=r"^unknown part 'zzz': nothing similar among the 61"):
        check_known(["zzz"], [f"name{number}" for number in range(61)], "part")
    with pytest.raises(OptionError, match="choose from name0, name1"):
        check_known(["zzz"], [f"name{number}" for number in range(60)])
    check_known(["name3"], ["name3"])


def test_long_values_are_cut_in_messages() -> None:
    """Up to 60 characters are shown whole, longer ones end in dots."""
    assert shown("x" * 60) == "x" * 60
    assert shown("x" * 61) == "x" * 57 + "..."
    assert shown("two words") == "'two words'"


@pytest.mark.parametrize(
    ("word", "known", "hint"),
    [
        ("num_classes", ["classes", "width"], "did you mean classes?"),
        ("learning_rate", ["lr", "late"], "did you mean lr?"),
        ("pretrained", ["weights", "from"], "did you mean weights?"),
        ("pretrained", ["from"], "did you mean from?"),
        ("img_size", ["depth", "width"], "choose from depth, width"),
    ],
)
def test_names_of_other_libraries_are_understood(word: str, known: list[str], hint: str) -> None:
    assert nearest(word, known) == hint
