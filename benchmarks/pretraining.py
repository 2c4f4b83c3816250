"""Learning without labels, then from few: every task beside training from scratch, equal compute.

    python benchmarks/pretraining.py DATA --out FOLDER [--seeds 3] [--images 200000]
        [--labels 0.01 …] [--only NAME …]

DATA has training and test images with labels, such as CIFAR-10. Each task pre-trains a ViT without
labels; the weights are then fine-tuned on 1%, 10% and 100% of the labels and tested. From scratch,
the same model gets as many multiply-adds in all, on the same labels: those of pre-training and of
fine-tuning together, of forward and backward passes, momentum teacher, decoder and tokenizer
included, as PyTorch's counter finds them. BEiT's tokenizer itself is trained once, with the first
seed, and what that costs is a line of its own. Every run is a run folder below FOLDER: the command
goes on where it was stopped, and prints the table of what is there.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

import vitlab
from vitlab.distributed.shares import counted
from vitlab.distributed.world import ALONE
from vitlab.recipes.recipe import Recipe
from vitlab.report import gather
from vitlab.runs.run_folder import RunFolder
from vitlab.training.plan import batches_of
from vitlab.training.setup.preparation import first_state, prepare
from vitlab.training.step.trainer import Trainer

MODEL = "ViT(width=96,depth=4,heads=3,mlp=192)/8"
SIZE = 48  # pixels: 6x6 patches of 8, the least that the hierarchical stem takes
BATCH = 128
LABELS = {0.01: 20_000, 0.1: 50_000, 1.0: 100_000}  # images of fine-tuning by the share of labels
TOKENIZER = "dVAE(codes=256,width=32,code_width=32)/8"
TOKENS = 100_000  # images that the tokenizer learns from


@dataclass(frozen=True)
class Method:
    """A task, the stem of its model, and the options that differ from the recipe's."""

    task: str
    stem: str = "linear"
    options: tuple[tuple[str, Any], ...] = ()


METHODS = {
    "masked-patch": Method("masked-patch"),
    "mae": Method(
        "mae", options=(("decoder_width", 64), ("decoder_depth", 2), ("decoder_heads", 2))
    ),
    "beit-linear": Method("beit", options=(("min_block", 4),)),
    "beit-conv": Method("beit", "conv", (("min_block", 4),)),
    "beit-hmlp": Method("beit", "hmlp", (("min_block", 4),)),
    "dino": Method(
        "dino",
        options=(
            ("local_crops", 4), ("local_size", 24), ("prototypes", 1024), ("head_width", 256),
            ("bottleneck", 64), ("momentum_teacher", 0.99), ("centering", "sinkhorn"),
            ("teacher_temperature", (0.02, 0.02)),
        ),
    ),
}  # fmt: skip


def pretraining(name: str, data: str, codes: str, seed: int) -> Recipe:
    """Return the recipe of a task but for its length."""
    method = METHODS[name]
    options = dict(method.options) | ({"tokenizer": codes} if method.task == "beit" else {})
    return vitlab.recipe(
        method.task, data, model=MODEL, image_size=SIZE, stem=method.stem, batch=BATCH, lr=1e-3,
        precision="bf16", seed=seed, test_every=1000.0, area=0.3, **options,
    )  # fmt: skip


def tokenizer(data: str) -> Recipe:
    """Return the recipe of BEiT's tokenizer but for its length."""
    return vitlab.recipe(
        "tokenizer", data, model=TOKENIZER, image_size=SIZE, batch=BATCH, test_every=1000.0
    )


def supervised(data: str, share: float, seed: int, weights: str = "") -> Recipe:
    """Return the recipe of learning from a share of the labels but for its length."""
    start = {"weights": weights, "layer_decay": 0.75} if weights else {"model": MODEL}
    recipe = vitlab.recipe(
        "cifar10", data, **start, image_size=SIZE, pool="mean", batch=BATCH, lr=1e-3, seed=seed,
        test_every=1000.0,
    )  # fmt: skip
    return recipe if share == 1 else recipe.changed(train_images=share)


def cost(recipe: Recipe, folder: Path) -> float:
    """Return the multiply-adds of a training step per image, by PyTorch's counter."""
    nowhere = RunFolder(folder / "nowhere", silent=True)
    task = prepare(recipe.changed(steps=1), HOST, nowhere, resume=False, world=ALONE)
    state = first_state(task, torch.device("cpu"), ALONE)
    trainer = Trainer(state.model, task.recipe, objective=state.task or task.objective)
    views = batches_of(task.recipe, task.splits.train, task.config, ALONE)
    with FlopCounterMode(display=False) as counter:
        trainer.gradient(counted(views[0], ALONE), seed=0)
    return counter.get_total_flops() / 2 / recipe.batch


HOST = vitlab.Host(check_duplicates="no", checkpoint_every=600.0)


def trained(recipe: Recipe, folder: Path, steps: int) -> dict[str, Any]:
    """Train, or go on, or return the figures of a run that is finished."""
    steps = max(1, steps)
    recipe = recipe.changed(steps=steps, warmup_steps=max(1, steps // 10))
    return vitlab.train(recipe, folder, resume=True, host=HOST).metrics


def campaign(
    data: str, out: Path, seeds: int, images: int, only: list[str], shares: list[float]
) -> Iterator[Any]:
    """Run everything; yield a row as it is known: method, seed, share of labels and accuracy."""
    unit = cost(supervised(data, 1.0, 0), out)
    if any(name.startswith("beit") for name in only):
        found = trained(tokenizer(data), out / "tokenizer", TOKENS // BATCH)
        yield "tokenizer", 0, 0.0, found | {"macs_per_image": cost(tokenizer(data), out)}
    for seed in range(seeds):
        at = out / f"seed-{seed}"
        if "scratch" in only:
            for share in shares:
                few = LABELS[share]
                steps = (images + few) // BATCH
                found = trained(supervised(data, share, seed), at / f"scratch-{share}", steps)
                yield "scratch", seed, share, found
        for name in (name for name in METHODS if name in only):
            recipe = pretraining(name, data, str(out / "tokenizer" / "model"), seed)
            step = cost(recipe, out)
            found = trained(recipe, at / name, round(images * unit / step / BATCH))
            yield name, seed, 0.0, found | {"macs_per_image": step, "supervised": unit}
            for share in shares:
                few = LABELS[share]
                tuned = supervised(data, share, seed, str(at / name / "model"))
                own = cost(tuned, out)
                steps = round(few * unit / own / BATCH)
                yield name, seed, share, trained(tuned, at / f"{name}-{share}", steps)


def table(rows: list[tuple[str, int, float, dict[str, Any]]]) -> str:
    """Return mean and standard deviation of the accuracy by method and share of labels."""
    lines = ["| method | 1% of labels | 10% | 100% | seeds |", "| --- | --- | --- | --- | --- |"]
    for name in ("scratch", *METHODS):
        cells, seeds = [], 0
        for share in LABELS:
            own = [100 * row[3]["accuracy"] for row in rows if (row[0], row[2]) == (name, share)]
            seeds = max(seeds, len(own))
            spread = f" ± {np.std(own, ddof=1):.1f}" if len(own) > 1 else ""
            cells.append(f"{np.mean(own):.1f}%{spread}" if own else "")
        if seeds:
            lines.append(f"| {name} | {' | '.join(cells)} | {seeds} |")
    return "\n".join(lines)


def main() -> None:
    """Run the campaign, keep its rows, and print the table after each seed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--images", type=int, default=200_000, help="of pre-training")
    parser.add_argument("--labels", type=float, nargs="*", default=[*LABELS], help="shares")
    parser.add_argument("--only", nargs="*", default=["scratch", *METHODS])
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    gather.write = lambda file, facts: file  # a hundred reports would take longer than the runs
    gather.atlas = gather._inside = lambda *facts: None
    rows = []
    for row in campaign(given.data, given.out, given.seeds, given.images, given.only, given.labels):
        name, seed, share, found = row
        rows.append(row)
        known = ("accuracy", "loss", "seconds", "macs_per_image", "supervised", "steps")
        line = {key: found[key] for key in known if key in found}
        print(json.dumps({"method": name, "seed": seed, "labels": share} | line), flush=True)
        (given.out / "table.md").write_text(table(rows) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
