"""`vitlab.soup`: one model from the mean of several models' weights.

Source: Wortsman et al., Model soups: averaging weights of multiple fine-tuned models improves
accuracy without increasing inference time, 2022: the uniform soup, and the greedy one of their
Recipe 1. It works for models that were fine-tuned from the same weights; models trained from
different random starts do not average into anything.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from vitlab.data.learning import open_to_learn
from vitlab.errors import OptionError, WeightsError
from vitlab.evaluation.evaluation import evaluate
from vitlab.models.create import assemble
from vitlab.models.model import Model
from vitlab.models.seen import Seen
from vitlab.progress import public, say
from vitlab.weights.assembly import whole_state
from vitlab.weights.identity import fingerprint
from vitlab.weights.load import load
from vitlab.weights.save import OF_TRAINING

Split = Literal["auto", "train", "validation", "test", "all"]
SAME_DATA = ("data", "fingerprint", "held_out", "fold")  # which images a model learned from


@dataclass
class Pot:
    """The sum of the weights that are in the soup.

    Attributes:
        sums: of the floating-point tensors, float64; others are those of the first model
        count: number of models in it
        like: the first model
    """

    sums: dict[str, Tensor]
    count: int
    like: Model

    @classmethod
    def of(cls, model: Model) -> "Pot":
        """Return a pot with one model in it."""
        state = whole_state(model)
        sums = {name: tensor.detach().to("cpu", copy=True) for name, tensor in state.items()}
        wide = {n: t.double() for n, t in sums.items() if t.is_floating_point()}
        return cls(sums | wide, 1, model)

    def with_one_more(self, model: Model) -> "Pot":
        """Return a pot with another model in it."""
        state = whole_state(model)
        sums = {
            name: total + state[name].detach().cpu().double()
            if total.is_floating_point()
            else total
            for name, total in self.sums.items()
        }
        return Pot(sums, self.count + 1, self.like)

    def mean(self) -> Model:
        """Return the model of the mean weights, in the type of each of the first model's."""
        like, tensors = whole_state(self.like), {}
        for name, total in self.sums.items():
            mean = total / self.count if total.is_floating_point() else total
            tensors[name] = mean.to(like[name].dtype, copy=True)
        return assemble(self.like.config, tensors)


@public(models=Sequence)
def soup(
    models: Sequence[str | Path | Model],
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
        OptionError: fewer than two models, or one twice.
        WeightsError: a model differs from the first one in its configuration or tensors.
        DataError: the data cannot be used, or has other classes.
    """
    if len(models) < 2:
        raise OptionError(f"a soup needs at least two models, not {len(models)}")
    first = _model(models[0])
    pot = Pot.of(first)
    parts: list[dict[str, Any]] = []
    about: list[dict[str, Any]] = []
    seen: list[Seen] = []
    for number, each in enumerate(models):
        model = _model(each) if number else first
        _check_alike(first, model, _name(models[0]), _name(each))
        mark = fingerprint(model)
        if twin := next((part for part in parts if part["fingerprint"] == mark), None):
            raise OptionError(f"{_name(each)} is the same model as {twin['source']}: name it once")
        parts.append({"source": _name(each), "fingerprint": mark})
        about.append(model.provenance)
        seen.append(model.seen)
        if number and greedy is None:
            pot = pot.with_one_more(model)
    common, union = _common(about), np.unique(np.concatenate(seen))
    if greedy is None:
        mixed, chosen = pot.mean(), {"kind": "uniform", "ingredients": parts}
    else:
        how = _split(greedy, split), device, workers
        mixed, chosen = _greedy(models, parts, _Taste(greedy, *how, common, union))
    mixed.provenance, mixed.seen = common | {"soup": chosen}, union
    _warn(mixed, about)
    return mixed


@dataclass
class _Taste:
    """How good a model is on images that none of the ingredients learned from, if there are any.

    Attributes:
        provenance: what the ingredients have in common, as if it were the model's own
        seen: by all of them
        learned_from: images that decided and were learned from, since there were no others
    """

    data: str
    split: Split
    device: str
    workers: int | None
    provenance: dict[str, Any]
    seen: Seen
    learned_from: int = 0

    def __call__(self, model: Model) -> float:
        asked = copy.copy(model)
        asked.provenance, asked.seen = self.provenance, self.seen
        found = evaluate(
            asked, self.data, split=self.split, device=self.device, workers=self.workers
        )
        self.learned_from = found.get("learned_from", 0)
        return float(found.get("accuracy", found.get("map", 0.0)))


def _greedy(
    models: Sequence[str | Path | Model], parts: list[dict[str, Any]], taste: _Taste
) -> tuple[Model, dict[str, Any]]:
    """Return the greedy soup, and how it came about; equal models are tried in the order given."""
    for number, each in enumerate(models):
        parts[number]["accuracy"] = taste(_model(each))
        say(f"{parts[number]['source']}: {parts[number]['accuracy']:.2%}")
    order = sorted(range(len(models)), key=lambda number: -parts[number]["accuracy"])
    pot = Pot.of(_model(models[order[0]]))
    best: float = parts[order[0]]["accuracy"]
    parts[order[0]]["kept"] = True
    for number in order[1:]:
        fuller = pot.with_one_more(_model(models[number]))
        score = taste(fuller.mean())
        kept = score >= best
        parts[number] |= {"kept": kept, "with_it": score}
        say(f"with {parts[number]['source']}: {score:.2%}, {'kept' if kept else 'left out'}")
        if kept:
            pot, best = fuller, score
    about = {"kind": "greedy", "data": taste.data, "split": taste.split, "accuracy": best}
    if taste.learned_from:
        about["learned_from"] = taste.learned_from
        say(
            f"chosen by {taste.learned_from:,} images that the models learned from, since there "
            "are no others: these figures are too good"
        )
    return pot.mean(), about | {"ingredients": [parts[number] for number in order]}


def _model(source: str | Path | Model) -> Model:
    return load(source) if isinstance(source, str | Path) else source


def _name(source: str | Path | Model) -> str:
    return str(source) if isinstance(source, str | Path) else str(source.source or "a model")


def _split(data: str, split: Split) -> Split:
    """Return the split to choose on."""
    if split == "auto" and open_to_learn(data).validation is not None:
        return "validation"
    return split


def _check_alike(first: Model, other: Model, name: str, its: str) -> None:
    """Refuse a model that cannot be averaged with the first one; training alone may differ.

    Raises:
        WeightsError: the first difference.
    """
    one, two = first.config, other.config
    if type(one) is not type(two):
        raise WeightsError(f"{its} is {two.name}, but {name} is {one.name}: a soup needs one model")
    for each in fields(one):
        mine, theirs = getattr(one, each.name), getattr(two, each.name)
        if mine != theirs and each.name not in OF_TRAINING:
            raise WeightsError(
                f"{its} has {each.name}={_short(theirs)}, but {name} has {_short(mine)}: a soup "
                "needs models of one configuration"
            )
    ours, others = (
        {n: (t.shape, t.dtype) for n, t in whole_state(m).items()} for m in (first, other)
    )
    if ours != others:
        odd = sorted(n for n in ours | others if ours.get(n) != others.get(n))[0]
        raise WeightsError(f"{its} and {name} differ in the tensor {odd}: they cannot be averaged")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _common(about: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the ingredients' provenances agree on."""
    first, *rest = about
    shared = {k: v for k, v in first.items() if all(each.get(k) == v for each in rest)}
    if any(_images(each) != _images(first) for each in rest):
        return {key: value for key, value in shared.items() if key not in SAME_DATA}
    return shared


def _images(about: dict[str, Any]) -> list[Any]:
    return [about.get(key) for key in SAME_DATA]


def _warn(mixed: Model, about: list[dict[str, Any]]) -> None:
    """Say what may be wrong with a soup."""
    if any(isinstance(each, nn.modules.batchnorm._BatchNorm) for each in mixed.modules()):
        say("batch-norm statistics were averaged: check the accuracy of the soup")
    if any(_images(each) != _images(about[0]) for each in about):
        say(
            "the models learned from different images: test the soup only on images that none of "
            "them learned from"
        )
    if len({str(each.get("base_fingerprint", each.get("seed"))) for each in about}) > 1:
        say("the models did not start from the same weights: their mean may be worthless")
