"""From words to values, and what a command line cannot be."""

from dataclasses import MISSING, dataclass
from typing import Any, ClassVar, Literal

import pytest

from vitlab.console.help_page import help_text
from vitlab.console.leaves import all_leaves, leaves_of, missing
from vitlab.console.parsing import from_words, parse
from vitlab.errors import OptionError
from vitlab.options import Options, at_least, option, when


@dataclass(frozen=True, kw_only=True)
class Part(Options):
    """The inner part."""

    depth: int = option(2, "how deep", at_least(1))
    kind: Literal["1d", "2d"] = option("1d", "which")


@dataclass(frozen=True, kw_only=True)
class Other(Part):
    """Another kind of part."""

    widen: int = option(1, "how wide")


@dataclass(frozen=True, kw_only=True)
class Kinds(Part):
    """A part of several kinds."""

    @classmethod
    def kinds(cls) -> tuple[type[Options], ...]:
        return (Part, Other)


@dataclass(frozen=True, kw_only=True)
class Toy(Options):
    """Everything that a command line may hold."""

    HIDDEN: ClassVar[frozenset[str]] = frozenset({"kind"})

    source: str = option(MISSING, "from where", positional=True)
    images: tuple[str, ...] = option(MISSING, "which", positional=True)
    out: str = option(MISSING, "where to")
    lr: float = option(0.001, "how fast")
    size: int | tuple[int, int] = option(224, "how large")
    rates: tuple[float, ...] | None = option(None, "to try")
    betas: tuple[float, float] = option((0.9, 0.999), "decays", only=when("lr"))
    flag: bool = option(True, "whether")
    maybe: bool | None = option(None, "perhaps")
    text: str | None = option(None, "some text")
    stem: str = option("linear", "the stem", choices=lambda: ("linear", "conv"))
    part: Part = Kinds()


GIVEN = ["here", "a", "b", "--out", "there"]


def given(*words: str) -> dict[str, Any]:
    return parse(Toy, [*GIVEN, *words])


def test_only_what_is_typed_is_given() -> None:
    assert given() == {"source": "here", "images": ("a", "b"), "out": "there"}
    assert given("--lr=3", "--no-flag", "--json")["lr"] == 3
    assert given("--flag")["flag"] is True
    assert given("--no-flag")["flag"] is False
    assert given("--json")["json"] is True
    assert given("--maybe")["maybe"] is True
    assert given("--size", "3", "4")["size"] == (3, 4)
    assert given("--size", "3")["size"] == 3
    assert given("--rates", "1", "50%")["rates"] == (1, 0.5)
    assert given("--lr", "-0.5")["lr"] == -0.5
    assert given("--lr", "-1e-5")["lr"] == -1e-5
    assert given("--lr=-1e-5")["lr"] == -1e-5
    assert given("--lr", "1", "--lr", "2")["lr"] == 2
    assert given("--json", "c")["images"] == ("a", "b", "c")
    assert given("--depth", "5")["depth"] == 5
    assert given("--text", "None")["text"] is None
    assert given("--text", "7")["text"] == "7"
    assert given("--stem", "3")["stem"] == "3"
    assert given("--widen", "3")["widen"] == 3  # of another kind: refused by the options


@pytest.mark.parametrize(
    ("words", "rates"),
    [
        ("--size 3 here a --rates 1", 1),  # which the option takes for a list of one
        ("--rates 1 50% here --size 3 a", (1, 0.5)),
        ("here --rates --size 3 a", ()),
        ("--size 3 --rates 1 2 here --lr 2 a", (1, 2)),
    ],
)
def test_a_list_of_numbers_ends_at_what_is_none(words: str, rates: object) -> None:
    found = parse(Toy, [*words.split(), "--out", "there"])
    assert (found["source"], found["images"]) == ("here", ("a",))
    assert (found["size"], found["rates"]) == (3, rates)


@pytest.mark.parametrize(
    ("words", "hint", "value"),
    [
        (["3"], int, 3),
        (["3"], float, 3),
        (["1e3"], int, 1000.0),
        (["1%"], float, 0.01),
        (["1%"], int, "1%"),
        (["x%"], float, "x%"),
        (["auto"], int | Literal["auto"], "auto"),
        (["12"], int | Literal["auto"], 12),
        (["None"], int | None, None),
        (["None"], int, "None"),
        (["None"], str, "None"),
        (["True"], int | bool, True),
        (["false"], bool, False),
        (["1d"], Literal["1d", "2d"], "1d"),
        (["5"], tuple[int, ...], (5,)),
        (["5", "x"], tuple[int, ...], (5, "x")),
        (["5"], tuple[int, ...] | None, 5),  # which the option takes for a list of one
        (["None"], tuple[int, ...] | None, None),
        (["5"], int | tuple[int, int], 5),
        (["5", "6", "7"], int | tuple[int, int], (5, 6, 7)),
        (["a", "None"], tuple[str, ...], ("a", "None")),
    ],
)
def test_words_become_values(words: list[str], hint: Any, value: object) -> None:
    result = from_words(words, hint)
    assert (result, type(result)) == (value, type(value))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--lrr", "3"], "unknown option 'lrr': did you mean lr?"),
        (["--no-lr"], "--no-lr: lr takes a value: leave it out, or give one"),
        (["--source", "x"], "SOURCE is given without --source, by its position"),
        (["--kind", "2d"], "unknown option 'kind': "),
        (["--betas", "3"], "--betas needs 2 values"),
        (["--lr"], "--lr needs a value"),
        (["--flag", "yes", "--out"], "--out needs a value"),
        (["-q"], "unexpected argument '-q'"),
        (["--json=yes"], "--json takes no value: write --json or --no-json"),
        (["--size"], "--size needs a value"),
        (["-0.5"], "unexpected argument '-0.5'"),
    ],
)
def test_what_cannot_be_parsed(words: list[str], says: str) -> None:
    with pytest.raises(OptionError) as caught:
        given(*words)
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


def test_words_after_two_dashes_are_no_options() -> None:
    assert parse(Toy, ["--out", "there", "--", "here", "--b"])["images"] == ("--b",)


def test_what_is_missing() -> None:
    assert missing(Toy, {}) == ["SOURCE", "IMAGE ...", "--out TEXT"]
    assert missing(Toy, {"source": "x", "images": (), "out": "y"}) == ["IMAGE ..."]
    assert missing(Toy, given()) == []


def test_options_and_those_of_other_kinds() -> None:
    names = [leaf.name for leaf in leaves_of(Toy)]
    assert names[-1] == "depth"
    assert "kind" not in names
    assert [leaf.name for leaf in all_leaves(Toy)][len(names) :] == ["widen", "json", "quiet"]
    assert {leaf.name: leaf.default for leaf in leaves_of(Part(depth=7))}["depth"] == 7


def test_the_help_of_everything() -> None:
    text = help_text(Toy, "vitlab toy", "Do something.", whole=True)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "usage: vitlab toy SOURCE IMAGE ... [OPTIONS]"
    assert lines[2] == "Do something."
    for line in (
        "SOURCE from where (required)",
        "--out TEXT where to (required)",
        "--lr FLOAT how fast (default: 0.001)",
        "--betas FLOAT FLOAT decays; only with lr (default: 0.9 0.999)",
        "--flag, --no-flag whether (default: on)",
        "--maybe, --no-maybe perhaps",
        "--text TEXT some text",
        "IMAGE ... which (required)",
        "--stem {linear,conv} the stem (default: linear)",
        "part options",
        "A part of several kinds.",
        "--depth INT how deep (default: 2)",
    ):
        assert line in lines, text
    assert "--kind" not in text
    assert "--widen" not in text
