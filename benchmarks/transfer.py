"""Every way of fine-tuning on a small data set, with few and with all images; one table.

    python benchmarks/transfer.py BASE DATA --out FOLDER

BASE is anything `vitlab.load` takes, DATA any data with a test split. For each mode of `tune`, with
AdamW and with SGD, a learning rate is chosen on training images that are held out (25 per class to
learn from, the rest to compare); then each is trained on 1, 5 and 25 images per class and on all of
them, once per seed, which draws the images too. The same model from random weights is trained for
as many steps. Finished runs are kept in FOLDER/figures.jsonl and are not repeated.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import vitlab
from vitlab.data.images import Images
from vitlab.data.open_splits import open_to_learn
from vitlab.recipes.recipe import Host

MODES = ("all", "attention", "ffn", "head", "norms", "lora")
RATES = {"adamw": (1e-3, 3e-3, 1e-2), "sgd": (0.03, 0.1, 0.3)}
STEPS = {1: 50, 5: 80, 25: 150, 0: 400}  # by images per class; 0: all of them
CHOICE = 100  # steps of a run that helps to choose a learning rate
SCRATCH = "scratch"


@dataclass(frozen=True)
class Case:
    """One run: `shots` images per class (0: all), drawn by `seed`; `choice` has no test images."""

    tune: str
    optimizer: str
    lr: float
    shots: int
    seed: int
    choice: bool = False

    @property
    def name(self) -> str:
        kind = "choice" if self.choice else "run"
        return f"{kind}-{self.tune}-{self.optimizer}-{self.lr:g}-{self.shots}-{self.seed}"


def subset(source: Images, shots: int, seed: int) -> np.ndarray:
    """Return the numbers of the first `shots` images per class of a permutation; 0 for all."""
    if not shots:
        return np.arange(len(source))
    labels, generator = source.target.batch(), np.random.default_rng(seed)
    order = generator.permutation(len(source))
    return np.sort(np.concatenate([order[labels[order] == k][:shots] for k in np.unique(labels)]))


def write(source: Images, numbers: np.ndarray, folder: Path) -> None:
    """Write images as files in class folders, their bytes as they are."""
    labels = source.target.batch()
    for number in numbers.tolist():
        place = folder / source.classes[labels[number]]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number:06d}.jpg").write_bytes(source.image(number).content())


def data_of(case: Case, data: str, root: Path) -> str:
    """Return a folder with the images of a case, made when it is first needed."""
    folder = root / "data" / f"{case.shots}-{case.seed}{'-choice' if case.choice else ''}"
    if not folder.exists():
        splits = open_to_learn(data)
        chosen = subset(splits.train, case.shots, case.seed)
        write(splits.train, chosen, folder.with_suffix(".draft") / "train")
        rest = np.setdiff1d(np.arange(len(splits.train)), chosen)
        test = (splits.train, rest) if case.choice else (splits.test, np.arange(len(splits.test)))
        write(*test, folder.with_suffix(".draft") / "test")
        folder.with_suffix(".draft").rename(folder)
    return str(folder)


def run(case: Case, base: str, data: str, root: Path) -> dict[str, Any]:
    """Train one case; return its figures."""
    steps = CHOICE if case.choice else STEPS[case.shots]
    fields: dict[str, Any] = {
        "optimizer": case.optimizer,
        "lr": case.lr,
        "steps": steps,
        "warmup_steps": steps // 10,
        "batch": 10 if case.shots == 1 else 32,
        "seed": case.seed,
        "test_every": 1e6,
        "precision": "bf16",
    }
    if case.optimizer == "sgd":  # as in the ViT paper's fine-tuning
        fields |= {"weight_decay": 0.0, "layer_decay": 1.0}
    folder, where = root / "runs" / case.name, data_of(case, data, root)
    host = Host(checkpoint_every=1e6, workers=0, check_duplicates="no")
    if case.tune == SCRATCH:
        config = vitlab.load(base).config
        recipe = vitlab.recipe(
            "small", where, model=config.name, image_size=config.image_size, area=0.6, flip=True,
            **(fields | {"ema": 0.99}),
        )  # fmt: skip
        done = vitlab.train(recipe, folder, resume=True, host=host)
    else:
        zero = fields | {"head_start": "zero"}
        done = vitlab.finetune(where, base, folder, case.tune, resume=True, host=host, **zero)
    return {key: done.metrics[key] for key in ("accuracy", "nll", "seconds")}


def rows(base: str, data: str, root: Path, modes: tuple[str, ...], seeds: int) -> Iterator[Any]:
    """Yield each mode and optimizer, its learning rate, and its accuracies by images per class."""
    file = root / "figures.jsonl"
    root.mkdir(parents=True, exist_ok=True)
    known = {}
    if file.exists():
        known = {each["name"]: each for each in map(json.loads, file.read_text().splitlines())}

    def figures(case: Case) -> dict[str, Any]:
        if case.name not in known:
            known[case.name] = {"name": case.name} | run(case, base, data, root)
            with file.open("a") as stream:
                stream.write(json.dumps(known[case.name]) + "\n")
        return known[case.name]

    for tune in modes:
        for optimizer, rates in RATES.items():
            choices = [Case(tune, optimizer, lr, 25, 0, choice=True) for lr in rates]
            lr = max(choices, key=lambda case: (figures(case)["accuracy"], -case.lr)).lr
            cases = {
                k: [Case(tune, optimizer, lr, k, seed) for seed in range(seeds)] for k in STEPS
            }
            yield (
                tune,
                optimizer,
                lr,
                {k: [figures(c)["accuracy"] for c in cases[k]] for k in cases},
            )


def main() -> None:
    """Run everything that is missing and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base")
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tune", nargs="*", default=[*MODES, SCRATCH])
    args = parser.parse_args()
    print("| tune | optimizer | lr | 1 per class | 5 | 25 | all |\n| " + "--- | " * 7)
    for tune, optimizer, lr, found in rows(
        args.base, args.data, args.out, tuple(args.tune), args.seeds
    ):
        cells = [
            f"{statistics.mean(each):.1%} ± {100 * statistics.stdev(each):.1f}"
            if len(each) > 1
            else f"{each[0]:.1%}"
            for each in found.values()
        ]
        print(f"| {tune} | {optimizer} | {lr:g} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
