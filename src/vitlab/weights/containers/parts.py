"""The models in a checkpoint: found by what they hold, chosen by what they are usually called.

Training scripts save a dictionary that holds the model's tensors somewhere, often beside a copy
(averaged weights, a teacher) and the optimizer's state; or one flat dictionary in which two models
have a prefix each. Prefixes that come from how a model was trained are not part of its names.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from vitlab.errors import WeightsError
from vitlab.weights.containers.arrays import Stored
from vitlab.weights.sharded import Fields

# What the weights for evaluation are called, in order of preference: averages of a run; those that
# self-supervised methods are evaluated with; others, only if an entry has just this name.
BEST = (
    "ema|averaged|shadow", "teacher", "target_encoder", "base_encoder|encoder_q|online_encoder",
)  # fmt: skip
USUAL = (
    "model", "model_state_dict", "model_state", "state_dict", "net_state_dict", "state", "module",
    "net", "network", "weights", "params", "target", "checkpoint", "backbone", "encoder", "vit",
    "visual", "generator",
)  # fmt: skip
# Companions of a model, which are read only if they are alone or asked for.
LAST = "student|momentum|encoder_k|predictor|decoder|discriminator|tokenizer|text"
# Entries that hold tensors but no model.
STATE = re.compile(
    r"opt|.*optim.*|.*sched.*|.*scaler.*|amp|callbacks|loops|.*loss.*|.*rng.*", re.IGNORECASE
)
# Ends of names that only image tokenizers have: their groups and their decoder are one model.
TOGETHER = ("codebook.weight", "blocks.input.w")
NUMBERED = re.compile(r"(^|[./_])\d+[./]")  # the name of a tensor in one of several layers
# Modules that PyTorch's engines put around others, anywhere in a name.
ENGINES = "_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module"
# Attributes under which training scripts keep the whole model.
HOLDERS = (
    "module|model|net|network|backbone|student|teacher|encoder|ema_model|online_model|state_dict|"
    "params"
)
FEWEST = 4  # tensors of a model beside others
MOST_TWINS, MOST_TAILS = 16, 64  # models in one dictionary; ends of names that are compared
WORDS = 24  # of a name that are compared
SHOWN = 8  # names in a message
UNUSUAL = len(BEST) + len(USUAL)  # place of an unknown name in the order of preference

Tensors = Mapping[str, Stored]


@dataclass(frozen=True)
class FileModel:
    """One model of a file.

    Attributes:
        name: what tells it from the others: `model_ema`, `teacher`, or empty for the only one
        wrapper: the entries that its dictionary is in
        tensors: all in its dictionary, by name
        stored: names of its own ones, by the same without prefixes
        outside: names in that dictionary that are of no model in it
    """

    name: str = ""
    wrapper: tuple[str, ...] = ()
    tensors: Tensors = field(default_factory=dict)
    stored: Mapping[str, str] = field(default_factory=dict)
    outside: tuple[str, ...] = ()


def chosen(
    path: Path, root: Fields, wanted: str, together: bool = False
) -> tuple[FileModel, list[str]]:
    """Return the model to read, and the names of all, its own first.

    Args:
        path: for messages
        root: content of a container
        wanted: the user's choice: the name of a part, or a word of it that no other has
        together: a configuration beside the file says that each dictionary is one model

    Raises:
        WeightsError: there is no model, or several and nothing says which to read.
    """
    if {"state", "param_groups"} <= root.keys():
        raise WeightsError(f"{path} is the state of an optimizer: give the model's file beside it")
    parts = [
        part
        for wrapper, tensors in _models(root)
        for part in _split(wrapper, tensors, together and not wanted)
    ]
    if not parts:
        keys = [key if key.isprintable() else repr(key) for key in root]
        raise WeightsError(f"{path} contains no tensors; its entries are {some(keys) or 'none'}")
    if len(parts) > 1:  # tensors beside the dictionaries of others are the model's own
        parts = [replace(part, name=part.name or "model") for part in parts]
    names = [part.name for part in parts]
    there = f"its parts are {', '.join(names)}" if len(parts) > 1 else "it contains one model"
    if wanted:
        exact = [part for part in parts if part.name == wanted]
        found = exact or [part for part in parts if _has(part.name, re.escape(wanted))]
        if len(found) != 1:
            raise WeightsError(
                f"{path} has {'several parts' if found else 'no part'} {wanted!r}: {there}"
            )
    else:
        best = min(map(_rank, parts))
        found = [part for part in parts if _rank(part) == best]
        if len(parts) > 1 and (len(found) > 1 or best == UNUSUAL):
            raise WeightsError(
                f"{path} contains several models ({', '.join(names)}): choose one with --part "
                f"{names[0]} (in training --weights-part, in Python part={names[0]!r})"
            )
    return found[0], [found[0].name, *(name for name in names if name != found[0].name)]


def some(names: Sequence[str]) -> str:
    """Return the first of many names, for a message."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def without_holders(stored: Mapping[str, str]) -> Mapping[str, str]:
    """Return the same without a prefix that all names have in common, if it is a usual one."""
    found = re.match(rf"(({HOLDERS})\.)*", os.path.commonprefix(list(stored)))  # noqa: RUF071
    return {name[found.end() if found else 0 :]: old for name, old in stored.items()}


def _without_engines(names: Mapping[str, object]) -> dict[str, str]:
    """Names without the modules of engines; `module` of data parallelism where all stay apart."""
    for modules in (f"{ENGINES}|module", ENGINES):
        short = {re.sub(rf"(?<![^.])({modules})\.", "", name): name for name in names}
        if len(short) == len(names):
            return short
    return {name: name for name in names}


def _models(root: Fields) -> list[tuple[tuple[str, ...], Tensors]]:
    """The dictionaries that hold a model, by where they are; else the first with tensors."""
    every = [each for each in _dictionaries(root, ()) if each[1]]
    large = [
        each for each in every if len(each[1]) >= FEWEST and not any(map(STATE.fullmatch, each[0]))
    ]
    with_kernel = [each for each in large if any(len(s.shape) >= 4 for s in each[1].values())]
    numbered = [each for each in large if any(map(NUMBERED.search, each[1]))]
    return with_kernel or numbered or large or every[:1]


def _dictionaries(
    node: Fields, place: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Tensors]]:
    yield place, {name: value for name, value in node.items() if isinstance(value, Stored)}
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _dictionaries(value, (*place, key))


def _split(wrapper: tuple[str, ...], tensors: Tensors, together: bool) -> list[FileModel]:
    """The models of one dictionary, which is one unless two prefixes have the same layers."""
    stored, place = _without_engines(tensors), ".".join(wrapper)
    whole = together or any(name.endswith(TOGETHER) for name in stored)
    prefixes = () if whole else _twins(stored, tensors)
    if not prefixes:
        return [FileModel(place, wrapper, tensors, stored)]
    outside = tuple(old for name, old in stored.items() if not name.startswith(prefixes))
    parts = []
    for prefix in prefixes:
        longer = tuple(each for each in prefixes if each != prefix and each.startswith(prefix))
        own = {
            name.removeprefix(prefix): old
            for name, old in stored.items()
            if name.startswith(prefix) and not name.startswith(longer)
        }
        name = ".".join(filter(None, (place, prefix.rstrip(".") or "model")))
        parts.append(FileModel(name, wrapper, tensors, own, outside))
    return parts


def _twins(stored: Mapping[str, str], tensors: Tensors) -> tuple[str, ...]:
    """The prefixes (`student.`) under which several models have layers of the same names."""
    prefixes: dict[str, set[str]] = defaultdict(set)  # by the ends of names
    for name, old in stored.items():
        words = name.split(".", WORDS)
        if len(tensors[old].shape) >= 4 and len(words) <= WORDS:
            for place, word in enumerate(words):
                prefixes[".".join(words[place:])].add("".join(f"{w}." for w in words[:place]))
                if word.isdigit():
                    break
    shared = [tail for tail, heads in prefixes.items() if 1 < len(heads) <= MOST_TWINS]
    numbered = [name for name in stored if NUMBERED.search(name)]
    for tail in sorted(shared, key=lambda tail: (-tail.count("."), tail))[:MOST_TAILS]:
        layers = [
            (head, name.removeprefix(head))
            for head in prefixes[tail]
            for name in numbered
            if name.startswith(head)
        ]
        times = Counter(layer for _, layer in layers)
        if alike := {head for head, layer in layers if times[layer] > 1}:
            return tuple(sorted(alike))
    return ()


def _rank(part: FileModel) -> int:
    """The place of a part in the order of preference."""
    for place, words in enumerate(BEST):
        if _has(part.name, words):
            return place
    keys = [] if _has(part.name, LAST) else part.name.lower().split(".")
    known = (len(BEST) + place for place, word in enumerate(USUAL) if word in keys)
    return next(known, UNUSUAL)


def _has(name: str, words: str) -> bool:
    return re.search(rf"(^|[._])({words})([._]|$)", name, re.IGNORECASE) is not None
