"""`vitlab.soup`: one model from the mean of several models' weights.

Source: Wortsman et al., Model soups: averaging weights of multiple fine-tuned models improves
accuracy without increasing inference time, 2022: the uniform soup, and the greedy one of their
Recipe 1. It works for models that were fine-tuned from the same weights; models trained from
different random starts do not average into anything.
"""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from vitlab.data.open_splits import open_to_learn
from vitlab.errors import OptionError, WeightsError
from vitlab.evaluation.evaluation import evaluate
from vitlab.files import head_of
from vitlab.models.create import assemble
from vitlab.models.model import Model
from vitlab.progress import say
from vitlab.public_calls import public
from vitlab.weights.assembly import whole_state
from vitlab.weights.formats.format_api import OF_TRAINING
from vitlab.weights.identity import fingerprint
from vitlab.weights.load import load

Split = Literal["auto", "train", "validation", "test", "all"]
Given = str | Path | Model
SAME_DATA = (
    "data",
    "fingerprint",
    "data_files",
    "held_out",
    "fold",
)  # which images a model learned from


@public(models=Sequence)
def soup(
    models: Sequence[Given],
    greedy: str | None = None,
    *,
    split: Split = "auto",
    device: str = "auto",
    workers: int | None = None,
) -> Model:
    """Average the weights of models of one configuration into one model.

    The mean is taken in float64 and rounded once to each tensor's type. Statistics of batch norms
    are averaged like weights, with a warning: those of the mean weights would differ a little.
    Integers, such as the count of batches that a batch norm has seen, are those of the first model.

    Args:
        models: at least two: anything that `vitlab.load` takes, or models in hand
        greedy: data to choose on; models are tried in the order of their accuracy on it (mAP for
            several labels per image), and each is kept if the soup's accuracy does not fall; None
            for a uniform soup of all of them
        split: of that data; `auto` is its validation split if it has one, else as `vitlab.evaluate`
        device: where to evaluate
        workers: processes that decode images; None to choose

    Returns:
        The model, in evaluation mode; `provenance["soup"]` lists the ingredients, and, if greedy,
        the accuracy of each and whether it was kept.

    Raises:
        OptionError: fewer than two models, one twice, or a run that does not classify.
        WeightsError: a model differs from the first one in its configuration or tensors.
        DataError: the data cannot be used, or has other classes.
    """
    if len(models) < 2:
        raise OptionError(f"a soup needs at least two models, not {len(models)}")
    first, sums = _model(models[0]), dict[str, Tensor]()
    parts, about, seen = list[dict[str, Any]](), list[dict[str, Any]](), []
    for number, each in enumerate(models):
        model = _model(each) if number else first
        _check_alike(first, model, _name(models[0]), _name(each))
        mark = fingerprint(model)
        if twin := next((part for part in parts if part["fingerprint"] == mark), None):
            raise OptionError(f"{_name(each)} is the same model as {twin['source']}: name it once")
        parts.append({"source": _name(each), "fingerprint": mark})
        about.append(model.provenance)
        seen.append(model.seen)
        if greedy is None:
            sums = _added(sums, model)
    common, union = _common(about), np.unique(np.concatenate(seen))
    if greedy is None:
        mixed, chosen = _mean(sums, len(models), first), {"kind": "uniform", "ingredients": parts}
    else:
        if split == "auto" and open_to_learn(greedy).validation is not None:
            split = "validation"

        def tested(model: Model) -> dict[str, Any]:
            """Test on images that none of the ingredients learned from, if there are any."""
            asked = copy.copy(model)
            asked.provenance, asked.seen = common, union
            return evaluate(asked, greedy, split=split, device=device, workers=workers)

        mixed, chosen = _greedy(models, parts, tested)
        chosen |= {"kind": "greedy", "data": greedy, "split": split}
    mixed.provenance, mixed.seen = common | {"soup": chosen}, union
    _warn(mixed, about)
    return mixed


def _added(sums: dict[str, Tensor], model: Model) -> dict[str, Tensor]:
    """Return the sums of the weights with those of one more model; integers are the first one's."""
    found = {}
    for name, tensor in whole_state(model).items():
        kind = torch.float64 if tensor.is_floating_point() else tensor.dtype
        own = tensor.detach().to("cpu", kind, copy=True)
        found[name] = own if not sums else sums[name] + own * tensor.is_floating_point()
    return found


def _mean(sums: dict[str, Tensor], count: int, like: Model) -> Model:
    """Return the model of the mean weights, in the types of one of the models."""
    types = {name: tensor.dtype for name, tensor in whole_state(like).items()}
    means = {n: total / count if total.is_floating_point() else total for n, total in sums.items()}
    return assemble(like.config, {name: mean.to(types[name]) for name, mean in means.items()})


def _greedy(
    models: Sequence[Given], parts: list[dict[str, Any]], tested: Callable[[Model], dict[str, Any]]
) -> tuple[Model, dict[str, Any]]:
    """Return the greedy soup, and how it came about; equal models are tried in the order given."""
    found: dict[str, Any] = {}

    def score(model: Model) -> float:
        found.update(tested(model))
        return float(found.get("accuracy", found.get("map", 0.0)))

    for part, each in zip(parts, models, strict=True):
        part["accuracy"] = score(_model(each))
        say(f"{part['source']}: {part['accuracy']:.2%}")
    order = sorted(range(len(models)), key=lambda number: -parts[number]["accuracy"])
    like = _model(models[order[0]])
    sums, count, best = _added({}, like), 1, parts[order[0]]["accuracy"]
    parts[order[0]]["kept"] = True
    for number in order[1:]:
        fuller = _added(sums, _model(models[number]))
        value = score(_mean(fuller, count + 1, like))
        kept = value >= best
        parts[number] |= {"kept": kept, "with_it": value}
        say(f"with {parts[number]['source']}: {value:.2%}, {'kept' if kept else 'left out'}")
        if kept:
            sums, count, best = fuller, count + 1, value
    about: dict[str, Any] = {"accuracy": best}
    if known := found.get("learned_from", 0):
        about["learned_from"] = known
        say(
            f"chosen by {known:,} images that the models learned from, since there are no others: "
            "these figures are too good"
        )
    return _mean(sums, count, like), about | {"ingredients": [parts[number] for number in order]}


def _model(source: Given) -> Model:
    """Return a model.

    Raises:
        OptionError: a run whose head answers with masks, boxes or numbers, which would be lost.
    """
    if isinstance(source, Model):
        return source
    if kind := head_of(source):
        raise OptionError(
            f"{source} answers with {kind}, which are not averaged: train with --ema, or name "
            f"{Path(source) / 'model'} for its features"
        )
    return load(source)


def _name(source: Given) -> str:
    return str(source.source or "a model") if isinstance(source, Model) else str(source)


def _check_alike(first: Model, other: Model, name: str, its: str) -> None:
    """Refuse a model that cannot be averaged with the first one; training alone may differ.

    Raises:
        WeightsError: the first difference.
    """
    one, two = ({"model": type(m).__name__} | vars(m.config) for m in (first, other))
    for key, mine in one.items():
        if key not in OF_TRAINING and mine != two[key]:
            raise WeightsError(
                f"{its} has {key}={two[key]!s:.60}, but {name} has {mine!s:.60}: a soup needs "
                "models of one configuration"
            )
    ours, others = (
        {n: (t.shape, t.dtype) for n, t in whole_state(m).items()} for m in (first, other)
    )
    if ours != others:
        odd = min(n for n in ours | others if ours.get(n) != others.get(n))
        raise WeightsError(f"{its} and {name} differ in the tensor {odd}: they cannot be averaged")


def _common(about: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the ingredients' provenances agree on."""
    first, *rest = about
    shared = {k: v for k, v in first.items() if all(each.get(k) == v for each in rest)}
    return shared if _same_images(about) else {k: shared[k] for k in shared if k not in SAME_DATA}


def _same_images(about: list[dict[str, Any]]) -> bool:
    known = all(
        each.get("fingerprint") or each.get("data_files") for each in about
    )  # whatever the data is called
    keys = [key for key in SAME_DATA if key != "data" or not known]
    return all(each.get(key) == about[0].get(key) for each in about for key in keys)


def _warn(mixed: Model, about: list[dict[str, Any]]) -> None:
    """Say what may be wrong with a soup."""
    if any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in mixed.modules()):
        say("batch-norm statistics were averaged: check the accuracy of the soup")
    if not _same_images(about):
        say(
            "the models learned from different images: test the soup only on images that none of "
            "them learned from"
        )
    if len({str(each.get("base_fingerprint", each.get("seed"))) for each in about}) > 1:
        say("the models did not start from the same weights: their mean may be worthless")
