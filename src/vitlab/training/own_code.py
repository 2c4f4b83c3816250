"""Functions of the user's own in a run: a transform of the images, and a loss.

A run records the name of each and a digest of what it is. The digest covers the source text of the
function, its default values, and what it refers to outside itself as far as that is a number, a
string, a tuple of these, a tensor, an array, or another function of the same module. It does not
cover lists, dictionaries and objects, which may change while a run goes on, nor the code of
libraries, whose versions `run.toml` has.
"""

import hashlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitlab.data.target import Target
from vitlab.errors import OptionError, RunError, UserError, one_line
from vitlab.models.config import ModelConfig
from vitlab.objectives.classify import Classify, Loss, objective_of
from vitlab.recipes.recipe import Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.training.transform import Transform, transformed

TRIED = 8  # images of the trial before a run
OPTIONS = ("transform", "loss")
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


@dataclass(frozen=True)
class Hooks:
    """What takes part in every step besides the recipe.

    Attributes:
        transform: images uint8 (B, C, H, W) and a generator on the training device to such images
        loss: scores float32 (B, classes) and targets float32 (B, classes) to the loss of each
            image, (B,), or to their mean
    """

    transform: Transform | None = None
    loss: Loss | None = None

    def record(self) -> dict[str, str]:
        """Return the table `[code]` of `run.toml`.

        Raises:
            OptionError: one is not a plain function, or its source text cannot be read.
        """
        found: dict[str, str] = {}
        for name, value in vars(self).items():
            found |= {} if value is None else recorded(name, value)
        return found

    def check(self, recipe: Recipe, config: ModelConfig, labels: Target) -> None:
        """Refuse what cannot be recorded, or does not go with the recipe, the model or the labels.

        Raises:
            OptionError: the message says what would work.
        """
        self.record()
        if not recipe.pretext.unlabeled:
            objective_of(recipe.objective, own=self.loss).check(labels)
        elif self.loss is not None:
            task = recipe.pretext.task
            raise OptionError(f"loss takes labels, but task={task} has none: leave it out")
        if self.transform is not None and config.fit == "native":
            raise OptionError(
                "transform needs images of one size, which fit=native does not give: set fit=crop"
            )

    def check_same(self, folder: RunFolder) -> None:
        """Refuse to continue a run with other functions.

        Raises:
            RunError: the run had another function, or none, or one that is missing now.
        """
        old, new = folder.code, self.record()
        for name in OPTIONS:
            before, now = old.get(name), new.get(name)
            if before and not now:
                raise RunError(
                    f"{folder.path} was started with {name}={before}: continue it in Python with "
                    f"vitlab.train(..., {name}={before.split('.')[-1]}, resume=True)"
                )
            if old.get(f"{name}_sha256") != new.get(f"{name}_sha256"):
                raise RunError(
                    f"the source of {name}={now} has changed since {folder.path} was started with "
                    f"{before}: restore it, pass change=True, or choose another folder"
                )

    def try_out(
        self, config: ModelConfig, objective: Classify, labels: Target, device: torch.device
    ) -> None:
        """Call both functions as a step does, on random images and scores.

        Args:
            config: of the model
            objective: that has the loss
            labels: of the training images
            device: where to train

        Raises:
            OptionError: one fails, or what it returns cannot be used.
        """
        count = min(TRIED, len(labels))
        generator = torch.Generator().manual_seed(0)
        if self.transform is not None:
            shape = (count, *config.size, config.channels)
            images = torch.randint(256, shape, generator=generator, dtype=torch.uint8).to(device)
            with _explained("transform", self.transform):
                transformed(images, self.transform, seed=0)
        if self.loss is not None:
            truth = torch.from_numpy(labels.take(np.arange(count)).batch()).to(device)
            random = torch.randn(count, config.classes, generator=generator).to(device)
            zeros = torch.zeros_like(random)  # which a new classifier gives
            for size, scores in (("about 1", random), ("0", zeros)):
                scores.requires_grad_()
                with _explained("loss", self.loss):
                    mean = objective.mean(scores, truth)
                    mean.backward()
                for what, value in (("loss", mean), ("gradient", scores.grad)):
                    if value is None or not value.isfinite().all():
                        raise OptionError(
                            f"loss={self.loss.__name__} gives a {what} that is not finite for "
                            f"scores of {size}: avoid logarithms, roots and quotients of 0"
                        )


NONE = Hooks()


@contextmanager
def _explained(option: str, function: Callable[..., Any]) -> Iterator[None]:
    """Say in one line what fails in a function of the user's own."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # it may raise anything
        reason = " ".join(str(error).split()[:40])
        raise OptionError(
            f"{option}={function.__name__} fails on a trial batch: {type(error).__name__}: {reason}"
        ) from error


def recorded(option: str, function: object) -> dict[str, str]:
    """Return the lines of a function in the table `[code]` of `run.toml`.

    Args:
        option: `transform` or `loss`
        function: that was passed for it

    Raises:
        OptionError: it is not a plain function, or its source text cannot be read.
    """
    inner: Any = inspect.unwrap(function)  # type: ignore[arg-type]
    try:
        if not inspect.isfunction(inner) or inner.__name__ == "<lambda>":
            raise TypeError("it has no source of its own")
        text = "\0".join(_parts(inner, set()))
    except (OSError, TypeError) as error:
        raise OptionError(
            f"{option} must be a function that is written with def in a file or a notebook, since "
            f"a run records its source, not {one_line(repr(function))}; options of a recipe are "
            f"set there: vitlab.recipe(..., {option}=...)"
        ) from error
    name = f"{inner.__module__}.{inner.__qualname__}"
    return {option: name, f"{option}_sha256": hashlib.sha256(text.encode()).hexdigest()}


def _parts(function: Any, seen: set[Any]) -> Iterator[str]:
    """Yield the texts that make up a function, each function that it refers to once."""
    seen.add(function)
    yield textwrap.dedent(inspect.getsource(function))
    yield from _values(function.__defaults__ or (), function, seen)
    for known in (function.__kwdefaults__ or {}, _outside(function)):
        for name, value in sorted(known.items()):
            yield name
            yield from _values(value, function, seen)


def _outside(function: Any) -> dict[str, Any]:
    """Return what a function, or a comprehension or function within it, refers to outside it."""
    codes = [function.__code__]
    for code in codes:
        codes += filter(inspect.iscode, code.co_consts)
    names = {name for code in codes for name in code.co_names} & function.__globals__.keys()
    found = {name: function.__globals__[name] for name in names}
    return {**found, **inspect.getclosurevars(function).nonlocals}


def _values(value: Any, owner: Any, seen: set[Any]) -> Iterator[str]:
    """Yield what a value that a function refers to is, if it is a constant or a function."""
    if isinstance(value, PLAIN):
        yield repr(value)
    elif isinstance(value, tuple):
        for each in value:
            yield from _values(each, owner, seen)
    elif isinstance(value, Tensor | np.ndarray):
        yield f"{value.dtype} {tuple(value.shape)}"
        yield hashlib.sha256(repr(value.tolist()).encode()).hexdigest()
    elif inspect.isfunction(value) and value not in seen and value.__module__ == owner.__module__:
        yield from _parts(value, seen)
