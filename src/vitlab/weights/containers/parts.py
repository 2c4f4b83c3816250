"""The models in a checkpoint: found by what they hold, chosen by what they are usually called.

Training scripts save a dictionary that holds the model's tensors somewhere, often beside a copy
(averaged weights, a teacher) and the optimizer's state; or one flat dictionary in which two models
have a prefix each.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitlab.errors import WeightsError
from vitlab.weights.containers.contents import Stored
from vitlab.weights.containers.prefixes import without_engines

# What the weights for evaluation are called, in order of preference: averages of a run; those that
# self-supervised methods are evaluated with; any others.
AVERAGES = (
    "model_ema", "state_dict_ema", "ema_state_dict", "model_state_dict_ema", "ema_model",
    "params_ema", "ema", "averaged", "averaged_model", "shadow",
)  # fmt: skip
TARGETS = ("teacher", "target_encoder", "base_encoder", "encoder_q", "online_encoder")
USUAL = (
    *AVERAGES, *TARGETS, "model", "model_state_dict", "model_state", "state_dict",
    "net_state_dict", "state", "module", "net", "network", "weights", "params", "target",
    "checkpoint", "backbone", "encoder", "vit", "visual", "generator",
)  # fmt: skip
# Companions of a model: one of these is read only if it is alone or asked for.
LAST = (
    "student", "momentum", "momentum_encoder", "encoder_k", "predictor", "decoder", "discriminator",
    "tokenizer", "text", "current_model_state",  # Lightning's, beside averages in state_dict
)  # fmt: skip
# Entries that hold tensors but no model.
STATE = re.compile(
    r"opt|.*optim.*|.*sched.*|.*scaler.*|amp|callbacks|loops|.*loss.*|.*rng.*", re.IGNORECASE
)
# Ends of names that only image tokenizers have: their groups and their decoder are one model.
TOGETHER = ("codebook.weight", "blocks.input.w")
FEWEST = 4  # tensors of a model beside others
MOST_TWINS, MOST_TAILS = 16, 64  # models in one dictionary; ends of names that are compared
WORDS = 24  # in a name
SHOWN = 8  # keys in a message


@dataclass(frozen=True)
class Part:
    """One model of a file.

    Attributes:
        name: what tells it from the others: `model_ema`, `teacher`, or empty for the only one
        wrapper: the entries that its dictionary is in
        tensors: by their names in the dictionary
        stored: those names, by the same without prefixes
        outside: names in that dictionary that are of no model in it
    """

    name: str
    wrapper: tuple[str, ...]
    tensors: dict[str, Stored]
    stored: dict[str, str]
    outside: tuple[str, ...] = ()


def chosen(
    path: Path, root: Mapping[str, Any], wanted: str, explained: bool = False
) -> tuple[Part, list[str]]:
    """Return the model to read, and the names of all, its own first.

    Args:
        path: for messages
        root: content of a container
        wanted: the user's choice: the name of a part, or a word of it that no other has
        explained: a configuration beside it says which tensors are of the model

    Raises:
        WeightsError: there is no model, or several and nothing says which to read.
    """
    if {"state", "param_groups"} <= root.keys():
        raise WeightsError(f"{path} is the state of an optimizer: give the model's file beside it")
    found = _unwrapped(root) or _any_tensors(root)
    together = explained and not wanted
    parts = [part for wrapper, tensors in found for part in _split(wrapper, tensors, together)]
    if not parts:
        raise WeightsError(f"{path} contains no tensors; its entries are {_listed(root)}")
    if len(parts) > 1:  # tensors beside the dictionaries of others are the model's own
        parts = [replace(part, name=part.name or "model") for part in parts]
    names = [part.name for part in parts]
    if wanted:
        part = _asked(path, parts, wanted)
    elif len(parts) == 1:
        part = parts[0]
    else:
        part = min(parts, key=_rank)
        if _rank(part) >= len(USUAL) or sum(_rank(other) == _rank(part) for other in parts) > 1:
            raise WeightsError(
                f"{path} contains several models ({', '.join(names)}): choose one with --part "
                f"{names[0]} (in Python part={names[0]!r})"
            )
    return part, [part.name, *(name for name in names if name != part.name)]


def _unwrapped(root: Mapping[str, Any]) -> list[tuple[tuple[str, ...], dict[str, Stored]]]:
    """The dictionaries that hold a model, by where they are."""
    found = []
    for wrapper, tensors in _dictionaries(root, ()):
        if len(tensors) >= FEWEST and not any(STATE.fullmatch(key) for key in wrapper):
            found.append((wrapper, tensors))
    with_kernel = [each for each in found if any(len(s.shape) >= 4 for s in each[1].values())]
    numbered = [each for each in found if any(_is_numbered(name) for name in each[1])]
    return with_kernel or numbered or found


def _any_tensors(root: Mapping[str, Any]) -> list[tuple[tuple[str, ...], dict[str, Stored]]]:
    """The first dictionary with tensors, for a message of those who know names of tensors."""
    return [each for each in _dictionaries(root, ()) if each[1]][:1]


def _dictionaries(
    node: Mapping[str, Any], place: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], dict[str, Stored]]]:
    yield place, {name: value for name, value in node.items() if isinstance(value, Stored)}
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _dictionaries(value, (*place, key))


def _split(
    wrapper: tuple[str, ...], tensors: dict[str, Stored], together: bool = False
) -> list[Part]:
    """The models of one dictionary, which is one unless two prefixes have the same layers."""
    stored = without_engines(list(tensors))
    place = ".".join(wrapper)
    whole = together or any(name.endswith(TOGETHER) for name in stored)
    prefixes = [] if whole else _twins(stored, tensors)
    if not prefixes:
        return [Part(place, wrapper, tensors, stored)]
    parts = []
    inside = tuple(f"{prefix}." if prefix else "" for prefix in prefixes)
    outside = tuple(old for name, old in stored.items() if not name.startswith(inside))
    for prefix in prefixes:
        others = tuple(f"{other}." for other in prefixes if other and other != prefix)
        start = f"{prefix}." if prefix else ""
        names = {n[len(start) :]: old for n, old in stored.items() if n.startswith(start)}
        if not prefix:
            names = {n: old for n, old in names.items() if not n.startswith(others)}
        name = ".".join(filter(None, (place, prefix or "model")))
        own = {old: tensors[old] for old in names.values()}
        parts.append(Part(name, wrapper, own, names, outside))
    return parts


def _twins(stored: Mapping[str, str], tensors: Mapping[str, Stored]) -> list[str]:
    """The prefixes under which several models have the same layers: `student`, `teacher`.

    Two kernels whose names end alike give the prefixes, and a numbered layer under each, with the
    same name, confirms them.
    """
    numbered = [name for name in stored if _is_numbered(name)]
    heads: dict[str, set[str]] = defaultdict(set)
    for name, old in stored.items():
        words = name.split(".", WORDS)
        if len(tensors[old].shape) >= 4 and len(words) <= WORDS:
            for place in range(len(words)):
                if not any(word.isdigit() for word in words[:place]):
                    heads[".".join(words[place:])].add(".".join(words[:place]))
    shared = [tail for tail, found in heads.items() if 1 < len(found) <= MOST_TWINS]
    for tail in sorted(shared, key=lambda tail: (-tail.count("."), tail))[:MOST_TAILS]:
        layers = {
            head: {n[len(head) + bool(head) :] for n in numbered if _is_under(n, head)}
            for head in heads[tail]
        }
        alike = [
            head
            for head, own in layers.items()
            if any(own & theirs for other, theirs in layers.items() if other != head)
        ]
        if len(alike) > 1:
            return sorted(alike)
    return []


def _is_under(name: str, head: str) -> bool:
    return not head or name.startswith(f"{head}.")


def _is_numbered(name: str) -> bool:
    return re.search(r"(^|[./_])\d+[./]", name) is not None


def _rank(part: Part) -> int:
    """The place of a part in the order of preference; `len(USUAL)` for an unknown name."""
    for last, word in enumerate(LAST):
        if _has(part.name, word) and not any(
            _has(part.name, usual) for usual in (*AVERAGES, *TARGETS)
        ):
            return len(USUAL) + 1 + last
    keys = part.name.lower().split(".")
    for place, word in enumerate(USUAL):
        if word in keys or (word in (*AVERAGES, *TARGETS) and _has(part.name, word)):
            return place
    return len(USUAL)


def _has(name: str, word: str) -> bool:
    return re.search(rf"(^|[._]){word}([._]|$)", name, re.IGNORECASE) is not None


def _asked(path: Path, parts: list[Part], wanted: str) -> Part:
    """The part that the user asked for."""
    exact = [part for part in parts if part.name == wanted]
    fitting = exact or [part for part in parts if _has(part.name, re.escape(wanted))]
    if len(fitting) != 1:
        problem = "several parts" if fitting else "no part"
        names = ", ".join(part.name for part in parts)
        there = f"its parts are {names}" if len(parts) > 1 else "it contains one model"
        raise WeightsError(f"{path} has {problem} {wanted!r}: {there}")
    return fitting[0]


def _listed(root: Mapping[str, Any]) -> str:
    keys = [key if key.isprintable() else repr(key) for key in root]
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return (", ".join(keys[:SHOWN]) or "none") + more
