"""Records: what is known of a family of weights, in one notation for facts, limits and names.

`norm_eps 1e-5, gelu exact, @OPENAI` are facts, `stem linear|resnet` are limits, and a line of a
word and another text is a rule. Tables of tensor names (`entries.table`) are of rules as well.
"""

import json
import re
from collections.abc import Mapping
from textwrap import dedent
from typing import Any

from vitlab.images import IMAGENET, INCEPTION, OPENAI
from vitlab.weights.sharded import Fields

Limits = dict[str, tuple[Any, ...]]  # the values that a field may have
NAMED: dict[str, Fields] = {
    "IMAGENET": IMAGENET,
    "INCEPTION": INCEPTION,
    "OPENAI": OPENAI,
    "HALF": {"mean": (0.5,), "std": (0.5,)},
    "SATELLITE": {"mean": (0.430, 0.411, 0.296), "std": (0.213, 0.156, 0.143)},  # SAT-493M
    "UNCHANGED": {"mean": (0.0,) * 3, "std": (1.0,) * 3},
    "PLAIN": {"gelu": "exact", "norm_eps": 1e-6},
}


def record(text: str, others: Mapping[str, Fields] = NAMED) -> Fields:
    """Return facts as a record has them: `norm_eps 1e-5, gelu exact, @OPENAI`.

    Values are words, or as in JSON; `@` is another record, such as a mean and std of pixels.
    """
    found: Fields = {}
    for item in filter(None, re.split(r",\s+", text.strip())):
        word, *value = item.split(None, 1)
        found |= {word: plain(value[0])} if value else others[word[1:]]
    return found


def words(text: str) -> tuple[str, ...]:
    """Return the words of a text."""
    return tuple(text.split())


def limits(text: str) -> Limits:
    """Return the values that fields may have: `stem linear|resnet, norm layer`."""
    items = (item.split() for item in text.strip().split(","))
    return {word: tuple(map(plain, values.split("|"))) for word, values in items}


def records(text: str) -> dict[str, Fields]:
    """Return a record by the name or pattern in front of it; indented lines belong to it.

    `@` is one of `NAMED` or a record above; lines that begin with `|` go on with a pattern.
    """
    found: dict[str, Fields] = {}
    for row in re.split(r"\n(?=\S)", dedent(text).strip()):
        name, facts = re.sub(r"\n\s+\|", "|", row).split(None, 1)
        found[name] = record(facts, NAMED | found)
    return found


def found_in(table: Mapping[str, Fields], name: str) -> Fields:
    """Return what all rows whose pattern a name contains say together, the last the most."""
    rows = [row for pattern, row in table.items() if re.search(pattern, name)]
    return {key: value for row in rows for key, value in row.items()}


def plain(text: str) -> Any:
    """Return a value of JSON, or the word itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def rules(text: str) -> dict[str, str]:
    """Return what stands behind the first word of each line: names, a word, or a reason."""
    rows = (row.split(None, 1) for row in text.strip().splitlines())
    return {word: rest.strip() for word, rest in rows}
