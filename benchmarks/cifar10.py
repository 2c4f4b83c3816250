"""CIFAR-10 from scratch within a time: accuracy, wall time and images/s of one command.

    python benchmarks/cifar10.py DATA [--device cpu|cuda] [--minutes 20] [--out RESULT.json]

DATA is a folder with a train and a test file, Parquet (read by pyarrow) or .npz, or one .npz with
both. Without pyarrow, convert the files on a machine that has it:

    python benchmarks/cifar10.py DATA --convert cifar10.npz

whose arrays are x_train, y_train, x_test and y_test: uint8 (N, H, W, C) and integers (N).

A CPU trains by the recipe `cifar10-cpu-long`, a GPU by `cifar10-gpu` (docs/recipes.md), through the
package's own training step. The clock starts with the program: reading, compiling and the final
test are within the time. The learning rate follows the time that is gone instead of a number of
steps, so a busy machine takes fewer steps and still ends on time. With --epochs, the schedule
follows the steps, and the same seed gives the same bits on a CPU. --held-out 5000 tests on the
last of the training images, as a choice of settings must. The test images are used once, at the
end. Needs PyTorch, NumPy and Pillow.
"""

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cifar_images import Images, convert, read
from measuring import machine

import vitlab
from vitlab.data.augment.draws import draws_needed
from vitlab.data.augment.normalize import normalize
from vitlab.data.loading.batch import Batch
from vitlab.models.create import build
from vitlab.models.model import Model
from vitlab.optim import optimizers
from vitlab.optim.averaging import WeightAverage
from vitlab.optim.schedule import learning_rate
from vitlab.recipes.recipe import Recipe
from vitlab.training.guard import Figures
from vitlab.training.state import RunState
from vitlab.training.step import Trainer, step_seed

EVERY = 30.0  # seconds between two lines of progress
TESTED = 1000  # images per batch of a test
SPARE = 0.01  # of the time, for imports before the clock and for what follows the test
FIRST = 2  # steps before the schedule begins: a GPU compiles in them
FINE = 1_000_000  # parts of the time that the schedule tells apart
Numbers = dict[str, Any]


@dataclass(frozen=True)
class Length:
    """How long a run is: a time, or a number of steps where there is no time.

    Attributes:
        steps: most steps
        until: by `time.monotonic()`; None for as many steps as that
    """

    steps: int
    until: float | None = None

    def gone(self, step: int, began: float) -> float:
        """Return the share of the run that is over before a step, from 0 to 1."""
        if self.until is None:
            return min(1.0, step / max(1, self.steps - 1))
        return min(1.0, (time.monotonic() - began) / max(1e-9, self.until - began))

    def over(self, step: int) -> bool:
        """Return whether no step follows."""
        return step >= self.steps or (self.until is not None and time.monotonic() >= self.until)


def batches(images: Images, recipe: Recipe, seed: int) -> Iterator[Batch]:
    """Yield batches without end, every epoch in a new order, each image with its random numbers."""
    generator = torch.Generator().manual_seed(seed)
    most, needed = recipe.batch, draws_needed(recipe.augment)
    while True:
        order = torch.randperm(len(images), generator=generator)
        for begin in range(0, max(1, len(images) - most + 1), most):
            indices = order[begin : begin + most]
            where = indices.to(images.labels.device)
            draws = torch.rand(len(indices), needed, generator=generator)
            pixels, labels = images.pixels[where], images.labels[where]
            yield Batch(pixels, labels, draws, indices, total=len(indices))


def fit(recipe: Recipe, images: Images, device: str, length: Length, compiled: bool) -> RunState:
    """Train a model from random weights by a recipe; the state afterwards."""
    generator = torch.Generator().manual_seed(recipe.seed)
    rows, columns = images.pixels.shape[1:3]
    classes = int(images.labels.max()) + 1
    config = recipe.model.config(classes=classes, image_size=(rows, columns))
    model = build(config, generator).to(device).train()
    average = None
    if recipe.average.ema:
        average = WeightAverage(model, recipe.average.ema, recipe.average.ema_warmup)
    state = RunState(model, average, optimizers.build(model, recipe.optimizer))
    trainer = Trainer(model, recipe, compiled=compiled)
    began, epoch = time.monotonic(), FINE / recipe.epochs
    said, before = began, None
    for batch in batches(images, recipe, recipe.seed):
        if length.over(state.step):
            return state
        began = time.monotonic() if state.step <= FIRST else began
        gone = round(length.gone(state.step, began) * (FINE - 1))
        rate = learning_rate(gone, FINE, epoch, recipe.optimizer.lr, recipe.schedule)
        figures = trainer.step(state, batch, rate, step_seed(recipe.seed, state.step))
        if before is not None:  # a GPU is at most one step behind
            check(before)
        before = figures
        if time.monotonic() - said > EVERY:
            said = time.monotonic()
            say(f"step {state.step:,}, {gone / FINE:.0%}, loss {figures.loss / len(batch):.3f}")
    raise AssertionError("batches never end")


def check(figures: Figures) -> None:
    """Stop where a loss is not a number; reading it waits for the step.

    Raises:
        SystemExit: it is not.
    """
    if not math.isfinite(figures.loss):
        sys.exit(f"the loss of step {figures.step} is not finite: lower the learning rate")


@torch.no_grad()
def accuracy(model: Model, images: Images, recipe: Recipe) -> float:
    """Return the share of images that a model classifies correctly."""
    model.eval()
    config, right = model.config, 0
    kind = images.pixels.device.type
    for begin in range(0, len(images), TESTED):
        part = images.part(begin, begin + TESTED)
        pixels = normalize(part.pixels, config)
        with torch.autocast(kind, torch.bfloat16, enabled=recipe.precision != "fp32"):
            scores = model(pixels)
        right += int((scores.argmax(1) == part.labels).sum())
    return right / len(images)


def recipe_for(device: str, args: argparse.Namespace) -> Recipe:
    """Return the recipe of a device, as the command line changes it."""
    name = args.recipe or ("cifar10-gpu" if device == "cuda" else "cifar10-cpu-long")
    given: dict[str, Any] = {"model": args.model} if args.model else {}
    chosen = vitlab.recipe(name, data="cifar10", seed=args.seed, **given)
    for word in args.set:
        key, _, value = word.partition("=")
        chosen = chosen.changed(**{key: literal(value)})
    return chosen if args.epochs is None else chosen.lasting(args.epochs)


def literal(text: str) -> Any:
    """Return a number or a truth value if the text is one; else the text."""
    try:
        return json.loads(text.lower())
    except ValueError:
        return text


def run(args: argparse.Namespace, start: float) -> Numbers:
    """Train and test within the time since `start`; return the figures."""
    device = args.device
    compiled = args.compile == "yes" or (args.compile == "auto" and device == "cuda")
    recipe, data = recipe_for(device, args), read(args.data)
    train, test = data["train"], data["test"]
    if args.held_out:
        cut = len(train) - args.held_out
        train, test = train.part(0, cut), train.part(cut, len(train))
    train, test = train.to(device), test.to(device)
    steps = round(recipe.epochs * len(train) / recipe.batch)
    length = Length(steps)
    if args.epochs is None:
        end = start + (1 - SPARE) * 60 * args.minutes
        length = Length(sys.maxsize, end - time_of_test(recipe, test))
    began, cpu = time.monotonic(), time.process_time()
    state = fit(recipe, train, device, length, compiled)
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    right = accuracy(state.evaluated, test, recipe)
    seen = state.step * recipe.batch
    return {
        "accuracy": right, "tested": len(test), "held_out": bool(args.held_out),
        "recipe": recipe.recipe, "model": state.model.config.name, "device": device,
        "machine": machine(device), "python": platform.python_version(), "numpy": np.__version__,
        "params": sum(each.numel() for each in state.model.parameters()), "steps": state.step,
        "epochs": seen / len(train), "seed": recipe.seed, "images_per_second": seen / seconds,
        "training_seconds": seconds, "cpu_seconds": cpu, "seconds": time.monotonic() - start,
        "load": os.getloadavg()[0], "date": str(date.today()),
    }  # fmt: skip


def time_of_test(recipe: Recipe, test: Images) -> float:
    """Return the seconds of a test, by a part of it, with a model that knows nothing."""
    size = (test.pixels.shape[1], test.pixels.shape[2])
    model = build(recipe.model.config(classes=10, image_size=size)).to(test.pixels.device)
    part, seconds = test.part(0, TESTED), 0.0
    for _ in range(2):  # the first call is slower
        begun = time.monotonic()
        accuracy(model, part, recipe)
        seconds = time.monotonic() - begun
    return seconds * len(test) / len(part)


def markdown(seen: Numbers) -> str:
    """Return the figures as a table of one row, and what they were measured on."""
    cells = {
        "recipe": seen["recipe"],
        "model": f"{seen['model']}, {seen['params'] / 1e6:.2f} M parameters",
        "accuracy": f"{seen['accuracy']:.2%}" + (" held out" if seen["held_out"] else ""),
        "epochs": f"{seen['epochs']:.1f}",
        "images/s": f"{seen['images_per_second']:,.0f}",
        "training": f"{seen['training_seconds']:.0f} s",
        "whole command": f"{seen['seconds']:.0f} s",
    }
    rows = [list(cells), ["---"] * len(cells), list(cells.values())]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    where = f"{seen['machine']}, Python {seen['python']}, load {seen['load']:.1f}"
    return f"{table}\n\n{seen['date']}, {where}, seed {seen['seed']}, {seen['steps']:,} steps."


def say(line: str) -> None:
    """Print a line of progress."""
    print(line, file=sys.stderr, flush=True)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, metavar="DATA")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--minutes", type=float, default=None, help="20 on a CPU, 10 on a GPU")
    parser.add_argument("--epochs", type=float, help="a fixed length in place of the time")
    parser.add_argument("--recipe", default="")
    parser.add_argument("--model", default="")
    parser.add_argument("--set", nargs="*", default=[], metavar="OPTION=VALUE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", type=int, default=0)
    parser.add_argument("--compile", choices=("auto", "yes", "no"), default="auto")
    parser.add_argument("--convert", type=Path, help="only write the images as .npz")
    parser.add_argument("--out", type=Path, help="JSON of the figures")
    args = parser.parse_args(words)
    if args.minutes is None:
        args.minutes = 10.0 if args.device == "cuda" else 20.0
    return args


def main(words: list[str] | None = None) -> None:
    """Run what the command line says."""
    start, args = time.monotonic(), arguments(words)
    if args.convert:
        return convert(read(args.data), args.convert)
    seen = run(args, start)
    if args.out:
        args.out.write_text(json.dumps(seen, indent=1) + "\n")
    print(markdown(seen))
    return None


if __name__ == "__main__":
    main()
