"""Which of two models a fine-tuning run should keep where there are fewer than 500 training images.

    python benchmarks/kept_model.py WEIGHTS --photos DATA --cifar10 DATA --out FOLDER

A run has two classifiers: one fitted to the frozen features before the first step, and the
fine-tuned one. Three rules say which is kept:

- `fine-tuned`: always the fine-tuned one. Nothing is spent on a choice.
- `folds`: the training images are dealt out to two halves. For each, both classifiers learn from
  the other half in the same number of epochs. The kind that classified more of all images
  correctly is kept, learned from all images; the fine-tuned one if they are equal. This doubles the
  steps of a run (three folds would triple them).
- `fifth`: a fifth of the training images is held out, both classifiers learn from the rest, and
  the better of the two on that fifth is kept: higher accuracy, then lower loss; the fitted one if
  they are equal. This is what a run does from 500 images on, with a tenth.

Sets, seeds, settings and the decision below were written down before the first run. A seed draws
the training images of a set (the same number of each class), its halves, its fifth, and the run.
The test images of a set are the same for all seeds, and never learned from.

The decision: of each rule, the test accuracy of the kept model minus that of `fine-tuned`, one
difference per set and seed; their mean and its 95% interval (Student's t, 14 degrees of freedom).
A rule replaces `fine-tuned` if the interval lies above 0. If those of both do, the one with the
higher mean does; unless the interval of the difference between the two holds 0, then `fifth`, which
adds no steps. If neither does, `fine-tuned` stays.

Finished runs are kept in FOLDER/figures.jsonl and are not repeated. Seconds are CPU time.
"""

import argparse
import json
import math
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import vitlab
from vitlab.data.images import Images
from vitlab.data.open_splits import open_to_learn
from vitlab.recipes.recipe import Host

SEEDS = (0, 1, 2)
FIELDS: dict[str, Any] = {"image_size": 42, "epochs": 8, "test_every": 1e6, "micro_batch": 0}
T_95 = 2.145  # Student's t, 14 degrees of freedom


@dataclass(frozen=True)
class Set:
    """Training images of a data set, as many of each class, and test images of the same classes."""

    data: str
    classes: tuple[str, ...]  # empty: all
    images: int
    tested: int


SETS = {
    "cars-trucks": Set("cifar10", ("automobile", "truck"), 100, 600),
    "hands-10": Set("photos", (), 150, 400),
    "cats-dogs": Set("cifar10", ("cat", "dog"), 200, 600),
    "hands-5": Set("photos", ("0", "1", "2", "3", "4"), 250, 400),
    "cifar-10": Set("cifar10", (), 400, 600),
}


class Pool:
    """All labeled images of a data set by class."""

    def __init__(self, data: str) -> None:
        splits = open_to_learn(data)
        self.classes = splits.classes
        self.images: dict[str, list[tuple[Images, int]]] = {each: [] for each in self.classes}
        for source in (splits.train, splits.test):
            for number, label in enumerate(source.target.batch().tolist()):
                self.images[self.classes[label]].append((source, number))

    def drawn(self, wanted: Set, seed: int) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Return training images in a random order, and test images, by class."""
        learn: dict[str, list[Any]] = {}
        test: dict[str, list[Any]] = {}
        classes = wanted.classes or self.classes
        for number, name in enumerate(classes):
            images = self.images[name]
            order = np.random.default_rng((0, number)).permutation(len(images))
            apart = wanted.tested // len(classes)
            test[name] = [images[each] for each in order[:apart]]
            rest = np.random.default_rng((1, seed, number)).permutation(order[apart:])
            learn[name] = [images[each] for each in rest[: wanted.images // len(classes)]]
        return learn, test


def write(images: dict[str, list[Any]], folder: Path) -> None:
    """Write images as files in class folders, their bytes as they are."""
    for name, own in images.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for source, number in own:
            content = source.image(number).content()
            file = folder / name / f"{number:06d}-{len(content)}.jpg"
            file.write_bytes(content)


def parts(images: dict[str, list[Any]], first: int, step: int) -> list[dict[str, list[Any]]]:
    """Return every image number `first`, `first + step`, ... of each class, and all others."""
    own = {name: each[first::step] for name, each in images.items()}
    rest = {
        name: [one for number, one in enumerate(each) if number % step != first]
        for name, each in images.items()
    }
    return [own, rest]


def layouts(learn: dict[str, list[Any]], test: dict[str, list[Any]]) -> dict[str, Any]:
    """Return what each of the four runs of a set learns from, chooses by and is tested on."""
    fifth, others = parts(learn, 0, 5)
    first, second = parts(learn, 0, 2)
    return {
        "all": {"train": learn, "test": test},
        "half-0": {"train": second, "test": first},
        "half-1": {"train": first, "test": second},
        "fifth": {"train": others, "val": fifth, "test": test},
    }


def run(folders: dict[str, Any], weights: str, seed: int, root: Path, name: str) -> dict[str, Any]:
    """Fine-tune on some images; return the figures."""
    data = root / "data" / name
    for split, images in folders.items():
        write(images, data / split)
    host = Host(checkpoint_every=1e6, workers=0, check_duplicates="no", report="no")
    began = time.process_time()
    done = vitlab.finetune(
        str(data), weights, root / "runs" / name, host=host, quiet=True, seed=seed, **FIELDS
    )
    spent = time.process_time() - began
    about = done.metrics["head_start"]
    images = sum(map(len, folders["test"].values()))
    return {
        "kept": done.metrics["accuracy"], "fitted": about["accuracy"], "test_images": images,
        "trained": "gain" in about, "seconds": spent, "training_seconds": done.metrics["seconds"],
    }  # fmt: skip


def row_of(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return what each rule keeps, and what it costs, of the four runs of a set and a seed."""
    whole, fifth = found["all"], found["fifth"]
    halves = [found["half-0"], found["half-1"]]
    fitted, tuned = (
        sum(round(each[key] * each["test_images"]) for each in halves) for key in ("fitted", "kept")
    )
    return {
        "fitted": whole["fitted"], "fine-tuned": whole["kept"],
        "folds": whole["fitted"] if fitted > tuned else whole["kept"],
        "folds_kept": "fitted" if fitted > tuned else "fine-tuned",
        "fifth": fifth["kept"], "fifth_kept": "fine-tuned" if fifth["trained"] else "fitted",
        "seconds": whole["seconds"], "folds_seconds": sum(each["seconds"] for each in halves),
        "fifth_seconds": fifth["seconds"],
    }  # fmt: skip


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return the mean of differences, and its 95% interval."""
    center = statistics.mean(values)
    half = T_95 * statistics.stdev(values) / math.sqrt(len(values))
    return center, center - half, center + half


def decide(rows: list[dict[str, Any]]) -> str:
    """Print the mean differences to `fine-tuned`; return the rule that is adopted."""
    gains = {rule: [row[rule] - row["fine-tuned"] for row in rows] for rule in ("folds", "fifth")}
    found = {rule: interval(each) for rule, each in gains.items()}
    for rule, (center, low, high) in found.items():
        print(f"{rule} - fine-tuned: {100 * center:+.2f} ({100 * low:.2f} to {100 * high:.2f})")
    better = sorted(rule for rule, each in found.items() if each[1] > 0)
    if len(better) == 2:
        pairs = zip(gains["folds"], gains["fifth"], strict=True)
        _, low, high = interval([one - other for one, other in pairs])
        if low <= 0 <= high:
            return "fifth"
        return max(better, key=lambda rule: found[rule][0])
    return better[0] if better else "fine-tuned"


def main() -> None:
    """Run everything that is missing, and print the table and the decision."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights")
    parser.add_argument("--photos", required=True, help="sign-digits: ten classes, 0 to 9")
    parser.add_argument("--cifar10", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    file, known = args.out / "figures.jsonl", dict[str, Any]()
    if file.exists():
        known = {each["name"]: each for each in map(json.loads, file.read_text().splitlines())}
    pools = {"photos": Pool(args.photos), "cifar10": Pool(args.cifar10)}
    rows = []
    for seed in SEEDS:
        for name, wanted in SETS.items():
            found = {}
            for kind, folders in layouts(*pools[wanted.data].drawn(wanted, seed)).items():
                place = f"{name}-{seed}-{kind}"
                if place not in known:
                    figures = run(folders, args.weights, seed, args.out, place)
                    known[place] = {"name": place} | figures
                    with file.open("a") as stream:
                        stream.write(json.dumps(known[place]) + "\n")
                found[kind] = known[place]
            rows.append({"set": name, "seed": seed} | row_of(found))
            print(json.dumps(rows[-1]), flush=True)
    heads = ("set", "seed", "fitted", "fine-tuned", "folds keep", "", "fifth keeps", "", "CPU s")
    print("| " + " | ".join(heads) + " |\n" + "| --- " * len(heads) + "|")
    for row in rows:
        costs = (row[key] for key in ("seconds", "folds_seconds", "fifth_seconds"))
        cells = [
            row["set"], str(row["seed"]), f"{row['fitted']:.1%}", f"{row['fine-tuned']:.1%}",
            row["folds_kept"], f"{row['folds']:.1%}", row["fifth_kept"], f"{row['fifth']:.1%}",
            " + ".join(f"{each:.0f}" for each in costs),
        ]  # fmt: skip
        print("| " + " | ".join(cells) + " |")
    print("adopted:", decide(rows))


if __name__ == "__main__":
    main()
