"""LoRA adapters as peft publishes them: merged onto their base as they are read, and written.

Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, 2021: a layer's weight becomes
W + (alpha / rank) B A. A folder of peft has A and B by the names of the layers in the library that
the base is of, and what was trained beside them (a classifier, biases); a state dict of peft's
model has the base's tensors, too.
"""

import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitlab.errors import UserError, WeightsError
from vitlab.recorded_paths import places, read_agreeing
from vitlab.weights.formats.own_names import NAMED, in_own_names
from vitlab.weights.formats.transformers.spellings import NEWER
from vitlab.weights.source import StoredTensors

WRAPPED = re.compile(
    r"^(.*\.)?base_model\.model\.|\.(base_layer|modules_to_save(\.\w+)?)(?=\.\w+$)"
)
MATRIX = re.compile(r"(.+)\.lora_([AB])(?:\.\w+)?\.weight")
STARTS = (True, False, "gaussian", "eva", "orthogonal")  # of A and B; others change the base, too
MERGE = "merge it there (model = model.merge_and_unload()), and give the model that this makes"
# Names by which other libraries store what they made of a weight, what it is and what to do.
ALTERED = {
    r"lora_|\.(hada|lokr|oft|ia3)_": f"an adapter: {MERGE}",
    r"\.parametrizations\.": "a parametrized layer: save the model again after "
    "torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight')",
    r"weight_scale|(^|\.|_)SCB$|\.(absmax|quant_state.*|qweight)$": "quantized weights: give "
    "those that they were made from, or save the model after model.dequantize()",
}
LABELS = ("id2label", "label_names")  # of the base's classifier
BASE = "base_fingerprint"  # in the header of an adapter of ours, which peft does not read
SUMS = ("tensors", "sha256")  # of a folder of ours


def with_base(adapter: Path) -> str:
    """Return how a base is named, also to a command that trains, which has no option for it."""
    return (
        f"with --base (Python: base=…; to train or serve, first vitlab export {adapter} "
        "--base BASE --to vitlab --out DIR)"
    )


@contextmanager
def unaltered(source: StoredTensors) -> Iterator[None]:
    """Say of a source that is refused in the block what other libraries made of its weights."""
    try:
        yield
    except WeightsError as error:
        for name in sorted(source.shapes):
            for pattern, what in ALTERED.items():
                if re.search(pattern, name):
                    raise WeightsError(f"{source.path}: {name} is of {what}") from error
        raise


def with_adapter(
    source: StoredTensors,
    given: object,
    locate: Callable[[str | Path, Any], StoredTensors],
    identify: Callable[[Path], str],
) -> StoredTensors:
    """Return the tensors of an adapter's base with its products added; any other source as it is.

    Args:
        source: perhaps an adapter, or a state dict of a model with one
        given: where the base is, if the user says so
        locate: opens a base: a path or a name on the Hub, and its revision
        identify: returns the fingerprint of the model at a path

    Raises:
        WeightsError: it is of an unsupported kind, the base is not there, or does not fit.
    """
    if "peft_type" not in source.adapter and not any(map(MATRIX.fullmatch, source.shapes)):
        return source
    pairs, beside = _parts(source)
    whole = any(f"{layer}.weight" in beside for layer in pairs)
    base = (
        replace(source, shapes={}, stored={}) if whole else _base(source, given, locate, identify)
    )
    if base.config.get("format") == NAMED and any(".body." in layer for layer in pairs):
        base = in_own_names(base)
    names = {_usual(name): name for name in base.shapes}
    own = {_place(name, names): stored for name, stored in beside.items()}
    shapes = base.shapes | {place: source.shapes[stored] for place, stored in own.items()}
    products: dict[str, tuple[str, str, float]] = {}
    for layer, pair in pairs.items():
        place = _place(f"{layer}.weight", names)
        a, b = (source.shapes.get(pair.get(which, ""), ()) for which in "AB")
        shape = shapes.get(place, ())
        fits = len(a) > 1 and (b[:2], a[1:]) == ((*shape[:1], a[0]), shape[1:])
        if not fits or place in products:
            raise WeightsError(
                f"{source.path}: {layer} fits no layer of {base.path}: give the base that it "
                f"was trained on {with_base(source.path)}"
            )
        products[place] = (pair["B"], pair["A"], _scale(source, layer, a[0]))

    def numbers(name: str) -> Tensor:
        weight = source.numbers(own[name]) if name in own else base.numbers(name)
        if name not in products:
            return weight
        *matrices, scale = products[name]
        exact = torch.promote_types(weight.dtype, torch.float32)
        b, a = (source.numbers(each).to(exact).flatten(1) for each in matrices)
        return weight.to(exact) + scale * (b @ a).reshape(weight.shape)

    new = [shapes[place] for place in own if names and shapes[place] != base.shapes.get(place)]
    gone = (*SUMS, *LABELS) if new else SUMS
    config = {key: value for key, value in base.config.items() if key not in gone}
    if new and "num_classes" in config:
        config["num_classes"] = new[-1][0] if new[-1] else 1
    return replace(
        base,
        path=source.path,
        seen=np.union1d(source.seen, base.seen),
        shapes=shapes,
        numbers=numbers,
        config=source.config or config,
        preprocessor=source.preprocessor or base.preprocessor,
    )


def _parts(source: StoredTensors) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """The matrices of each layer, and all other tensors, by the layers' names without peft's."""
    about = source.adapter
    pairs = dict[str, dict[str, str]]()
    own = dict[str, str]()
    kind = str(about.get("peft_type", "LORA"))
    for name in sorted(source.shapes):  # `modules_to_save` behind what it stands for
        if match := MATRIX.fullmatch(name):
            pair = pairs.setdefault(WRAPPED.sub("", match[1]), {})
            kind = "several" if match[2] in pair else kind
            pair[match[2]] = name
        elif ".lora_" in name:
            kind = "DoRA" if "magnitude" in name else f"LoRA with {name.rpartition('.lora_')[2]}"
        elif ".original_module." not in name:
            own[WRAPPED.sub("", name)] = name
    start = about.get("init_lora_weights", True)
    if start not in STARTS:
        kind = f"LoRA from {start}"
    if kind != "LORA" or not pairs:
        raise WeightsError(f"{source.path}: unsupported adapter of peft ({kind}): {MERGE}")
    return pairs, own


def _base(
    source: StoredTensors,
    given: object,
    locate: Callable[[str | Path, Any], StoredTensors],
    identify: Callable[[Path], str],
) -> StoredTensors:
    """Open the base: where the user says, or where the adapter does, if it is the recorded one."""
    named = str(source.adapter.get("base_model_name_or_path") or "?")
    folder = source.path if source.path.is_dir() else source.path.parent
    where = [given] if isinstance(given, str | Path) else places(named, None, folder, folder.parent)
    where = where or [named]
    wanted = "" if where == [given] else source.metadata.get(BASE, "")
    others = list[str]()

    def read(place: str | Path) -> StoredTensors:
        base = locate(place, source.adapter.get("revision"))
        if wanted and identify(base.path) != wanted:
            others.append(str(place))
            raise WeightsError(f"{place} is another model")
        return base

    try:
        return read_agreeing(where, read, lambda _: True)[0]
    except UserError as error:
        there = f" ({others[0]} is another model)" if others else ""
        raise WeightsError(
            f"{source.path} is LoRA without its base {str(where[0])!r}{there}: give the base's "
            f"path or name on the Hub {with_base(source.path)}"
        ) from error


def _usual(name: str) -> str:
    """A name as files have it, whichever version of transformers it is of."""
    for spelling, usual in NEWER.items():
        name = re.sub(spelling.replace("^", r"(?<!\w)"), usual, name)
    return name


def _place(name: str, names: dict[str, str]) -> str:
    """The base's tensor of a name, either with a prefix of its own; the name if there is none."""
    words = _usual(name).split(".", 30)
    for start in range(len(words)):
        if found := names.get(".".join(words[start:])):
            return found
    end = "." + ".".join(words)
    longer = [own for usual, own in names.items() if usual.endswith(end) and "text" not in usual]
    return longer[0] if len(longer) == 1 else name


def _scale(source: StoredTensors, layer: str, rank: int) -> float:
    """By what a layer's product is multiplied."""
    about = source.adapter
    alpha = about.get("lora_alpha")
    for pattern, other in (about.get("alpha_pattern") or {}).items():
        end = pattern.removeprefix("^").replace("\\", "")
        plain = re.fullmatch(r"[\w.]+", end)  # no expression of the file is ever run
        if not plain or f".{layer}".endswith(f".{end}"):
            alpha = other if plain else None
            break
    if not isinstance(alpha, int | float):
        raise WeightsError(
            f"{source.path} does not state lora_alpha of {layer}: give a folder with it and its "
            "adapter_config.json, or save what model.merge_and_unload() returns"
        )
    return alpha / (math.sqrt(rank) if about.get("use_rslora") else rank)
