"""Which distance says that an image is unlike the training images: scores, layers and pools.

    python benchmarks/unlike.py WEIGHTS --hands DATA --cifar10 DATA --photos FOLDER --side choose
    python benchmarks/unlike.py WEIGHTS … --side state [--out RESULT.json]
    python benchmarks/unlike.py WEIGHTS … --side "left out"

WEIGHTS are of a Vision Transformer; DATA are sign-digits and CIFAR-10, as `vitlab train` takes
them; FOLDER has photographs of ImageNet, named WNID_NAME.JPEG. A pair is a classifier's classes and
others, which it does not know. Score, layer and pool are chosen on the pairs of one side (the rule
is `CHOICE`) and stated on those of the other; the sides share neither classes nor photographs.

With `left out`, 160 images of a class are fitted to and 100 are new; three of the ten classes are
left out, in three draws.

Of each known class, 40 images are fitted to and 20 are new (of digits 15 and 10); of photographs, a
fifth is new in each of five fits. Each candidate gives a number, higher for stranger ones. `area`
is under the ROC curve: that a stranger has the higher number (0.5: chance). `found` is the share of
strangers above the 95th percentile of the new known images. For the form that is built, `flagged`
and `found at 1` are the shares of new known images and of strangers above its own threshold.
"""

import argparse
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.spatial.distance import cdist
from sklearn.covariance import ledoit_wolf
from sklearn.metrics import roc_auc_score
from torch import Tensor

import vitlab
from vitlab.data.boxes import scenes
from vitlab.data.images import Images
from vitlab.data.open_splits import open_to_learn
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import infer
from vitlab.evaluation.probes.few_shot import classes_of
from vitlab.evaluation.unlike import fit_unlike
from vitlab.models.model import Model
from vitlab.models.unlike import SHARE
from vitlab.models.vit import VisionTransformer

CHOICE = """The candidate with the highest area: the mean over the known sets of the side `choose`,
each the mean over its strangers. Of those within 0.01 of it, the one with the highest mean share
found; of equal ones the one of fewer numbers."""
Side = Literal["choose", "state", "left out"]
BEFORE = "relative Mahalanobis", 1.0, "mean"  # what was built until 2026-11-29
MOST = {
    "hands": (40, 20),
    "cifar10": (40, 20),
    "digits": (15, 10),
}  # images of a class: learned, new
FOLDS = 5  # of photographs
SHARES = (0.5, 0.58, 0.67, 0.75, 0.83, 0.92, 1.0)  # layers, as shares of the depth
POOLS = {"token": (0, 1), "mean": (1, 2), "mean and deviation": (1, 3)}  # parts of a vector
DATE = "2026-11-29"  # the sides and the rule were written down before anything was measured

# Known classes: data, classes of CIFAR-10 and of hands by number, of photographs by name.
KNOWN: dict[str, dict[str, tuple[str, tuple[Any, ...]]]] = {
    "choose": {
        "hands, 2": ("hands", (0, 1)),
        "hands, 5": ("hands", (0, 2, 4, 6, 8)),
        "bird, frog": ("cifar10", (2, 6)),
        "airplane, bird, deer, frog, ship": ("cifar10", (0, 2, 4, 6, 8)),
        "photographs of dogs, birds": ("photos", ("dogs", "birds")),
    },
    "state": {
        "hands, other 2": ("hands", (3, 7)),
        "hands, other 5": ("hands", (1, 3, 5, 7, 9)),
        "hands, 10": ("hands", tuple(range(10))),
        "cat, dog": ("cifar10", (3, 5)),
        "automobile, truck": ("cifar10", (1, 9)),
        "automobile, cat, dog, horse, truck": ("cifar10", (1, 3, 5, 7, 9)),
        "CIFAR-10": ("cifar10", tuple(range(10))),
        "digits, 10": ("digits", tuple(range(10))),
        "photographs of vehicles, clothes": ("photos", ("vehicles", "clothes")),
    },
}
# Strangers, beside classes left out; photographs at even places choose, those at odd ones state.
STRANGERS: dict[str, tuple[str, ...]] = {
    "choose": ("photos", "small photos", "digits", "hands", "cifar10"),
    "state": ("photos", "small photos", "scenes", "hands", "cifar10"),
}
BIRDS = (("n01503", "n01624"), ("n01790", "n01863"), ("n02000", "n02060"))
DOGS = (("n02085", "n02114"),)
VEHICLES = (
    "airship bobsled container_ship fire_engine freight_car golfcart lifeboat moped motor_scooter "
    "moving_van oxcart passenger_car schooner steam_locomotive tricycle unicycle warplane"
)
CLOTHES = (
    "academic_gown bikini bulletproof_vest cowboy_hat football_helmet gasmask jersey knee_pad "
    "Loafer miniskirt pickelhaube poncho running_shoe sarong"
)
Floats = NDArray[np.float64]
Vectors = NDArray[np.float32]  # (n, layers, 3 width): class token, mean, deviation of each layer
Score = Callable[[NDArray[np.float32]], Floats]


class Row(NamedTuple):
    """What a candidate gives: see above; the last two for the form that is built alone."""

    known: str
    strange: str
    candidate: str
    area: float
    found: float
    flagged: float = float("nan")
    found_at_one: float = float("nan")


@dataclass(frozen=True)
class VectorSet:
    """Vectors and classes (n,) of images; whether each is new; the side that each is of."""

    vectors: Vectors
    classes: NDArray[Any]
    new: NDArray[np.bool_]
    even: NDArray[np.bool_]


@dataclass(frozen=True)
class Trial:
    """What is fitted to, new images of these classes, and strangers by name."""

    known: str
    learned: Vectors
    classes: NDArray[np.int64]
    new: Vectors
    strange: dict[str, Vectors]


def main() -> None:
    """Measure the pairs of one side, and print one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("weights")
    for name in ("hands", "cifar10", "photos"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--side", choices=get_args(Side), required=True)
    parser.add_argument("--image-size", type=int, default=98)
    parser.add_argument("--cache", help="folder in which vectors are kept")
    parser.add_argument("--out")
    options = parser.parse_args()
    model = vitlab.load(options.weights, image_size=options.image_size)
    fast = vitlab.accelerate(model, device="cpu", engine="packed", precision="fp32")
    assert isinstance(fast, VisionTransformer)
    if options.side == "left out":
        chosen = left_out(
            all_images(fast, options, dict.fromkeys(("hands", "cifar10"), (160, 100)))
        )
    else:
        chosen = trials(all_images(fast, options, MOST), options.side)
    rows = [row for trial in chosen for row in measured(trial, options.side)]
    found = averaged(rows)
    for row in summary(found) if options.side == "choose" else found:
        print(*(f"{each:.3f}" if isinstance(each, float) else each for each in row), sep="\t")
    if options.out:
        own = [{key: v for key, v in row._asdict().items() if v == v} for row in found]  # no NaN
        Path(options.out).write_text(json.dumps(own, indent=1) + "\n", encoding="utf-8")


# Images to vectors


def all_images(
    model: VisionTransformer, options: argparse.Namespace, most: dict[str, tuple[int, int]]
) -> dict[str, VectorSet]:
    """Return all sets of images by their names; photographs and scenes where digits are wanted."""
    cache = Path(options.cache) if options.cache else None
    sets = {}
    for name in most:
        data = getattr(options, name, name)
        splits = open_to_learn(data)
        learned, new_ones = most[name]
        parts = [drawn(splits.train, learned), drawn(splits.test, new_ones)]
        vectors = [vectors_of(model, part, f"{name}{n}", cache) for n, part in enumerate(parts)]
        classes = np.concatenate([classes_of(part, "the data") for part in parts])
        new = np.repeat([False, True], [len(part) for part in parts])
        sets[name] = VectorSet(np.concatenate(vectors), classes, new, np.ones(len(new), bool))
    if "digits" not in most:
        return sets
    files = sorted(Path(options.photos).iterdir())
    kinds = np.array([kind_of(file.stem) for file in files])
    even = np.arange(len(files)) % 2 == 0
    for name, pictures in (("photos", files), ("small photos", [shrunk(each) for each in files])):
        vectors = [vectors_of(model, pictures, name, cache)]
        sets[name] = VectorSet(vectors[0], kinds, np.ones(len(files), bool), even)
    part = scenes("test").take(np.arange(50))
    none, all_new = np.zeros(50, np.int64), np.ones(50, bool)
    sets["scenes"] = VectorSet(vectors_of(model, part, "scenes", cache), none, all_new, all_new)
    return sets


def drawn(source: Images, most: int) -> Images:
    """Return at most so many images of each class, drawn."""
    labels = classes_of(source, "the data")
    rng = np.random.default_rng(0)
    chosen = [rng.permutation(np.flatnonzero(labels == each))[:most] for each in np.unique(labels)]
    return source.take(np.sort(np.concatenate(chosen)))


def kind_of(name: str) -> str:
    """Return the class of a photograph by its name."""
    number, _, word = name.partition("_")
    for kind, ranges in (("birds", BIRDS), ("dogs", DOGS)):
        if any(low <= number < high for low, high in ranges):
            return kind
    for kind, words in (("vehicles", VEHICLES), ("clothes", CLOTHES)):
        if word in words.split():
            return kind
    return ""


def shrunk(file: Path) -> NDArray[np.uint8]:
    """Return the middle square of a photograph at 32 pixels, as sharp as CIFAR-10."""
    with Image.open(file) as image:
        picture = image.convert("RGB")
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    box = (left, top, left + side, top + side)
    return np.asarray(picture.resize((32, 32), Image.Resampling.BICUBIC, box))


def vectors_of(
    model: VisionTransformer, images: Images | Sequence[Any], name: str, cache: Path | None
) -> Vectors:
    """Return class token, mean and deviation of the patches after each layer, (n, layers, 3 D)."""
    about = f"{name} {model.config.size} {len(images)} {SHARES}"
    file = cache and cache / f"{hashlib.sha256(about.encode()).hexdigest()[:16]}.npy"
    if file and file.is_file():
        kept: Vectors = np.load(file)
        return kept
    found = np.concatenate([pooled(model, batch).numpy() for batch in batches(model, images)])
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, found)
    return found


def batches(model: Model, images: Images | Sequence[Any]) -> Iterator[Tensor]:
    """Yield normalized images, as the commands see them."""
    if isinstance(images, Images):
        spec = model.config.images
        mean, std = (torch.tensor(each).view(1, -1, 1, 1) for each in (spec.mean, spec.std))
        for batch in infer(model, images, Compute(), ["pixels"]):
            assert isinstance(batch.pixels, Tensor)
            for part in batch.pixels.split(16):
                yield (part.permute(0, 3, 1, 2).float() / 255 - mean) / std
        return
    ready = vitlab.preprocess(model)
    for first in range(0, len(images), 16):
        yield ready(images[first : first + 16])


@torch.inference_mode()
def pooled(model: VisionTransformer, images: Tensor) -> Tensor:
    """Return the vectors of a batch; the last layer's follow the final norm."""
    last = model.last_layer
    numbers = [round(share * last) for share in SHARES]
    leaving = model.intermediates(images, numbers[:-1])
    leaving.append(model.intermediates(images, [last], norm=True)[0])
    found = []
    for tokens in leaving:
        patches = tokens[:, model.config.prefix :]
        parts = [tokens[:, 0], patches.mean(1), patches.std(1, correction=0)]
        found.append(torch.cat(parts, -1))
    return torch.stack(found, 1)


# Pairs


def trials(sets: dict[str, VectorSet], side: str) -> Iterator[Trial]:
    """Yield what is fitted and looked at, of each known set."""
    for known, (data, chosen) in KNOWN[side].items():
        own = sets[data]
        strange = strangers_of(sets, side, data, chosen)
        within = np.isin(own.classes, chosen)
        numbers = np.searchsorted(np.sort(chosen), own.classes[within])
        if data != "photos":
            learned, new = within & ~own.new, within & own.new
            y = numbers[~own.new[within]]
            yield Trial(known, own.vectors[learned], y, own.vectors[new], strange)
            continue
        parts = np.random.default_rng(0).permutation(len(numbers)) % FOLDS
        for each in range(FOLDS):
            part = parts == each
            vectors = own.vectors[within]
            yield Trial(known, vectors[~part], numbers[~part], vectors[part], strange)


def left_out(sets: dict[str, VectorSet]) -> Iterator[Trial]:
    """Yield three draws of seven classes of each set, with the others and the other set."""
    for name, own in sets.items():
        (other,) = sets.keys() - {name}
        for draw in range(3):
            out = np.random.default_rng(draw).choice(10, 3, replace=False)
            kept = ~np.isin(own.classes, out)
            learned, new = kept & ~own.new, kept & own.new
            strange = {
                "left-out classes": own.vectors[~kept & own.new],
                other: sets[other].vectors[sets[other].new],
            }
            _, numbers = np.unique(own.classes[learned], return_inverse=True)
            yield Trial(
                f"{name}, 7 of 10", own.vectors[learned], numbers, own.vectors[new], strange
            )


def strangers_of(
    sets: dict[str, VectorSet], side: str, data: str, chosen: tuple[Any, ...]
) -> dict[str, Vectors]:
    """Return strangers by name: classes left out, and other data."""
    found = {}
    for name in STRANGERS[side]:
        other = sets[name]
        if name == data or (name == "small photos" and data != "cifar10"):
            continue
        keep = other.new & (other.even == (side == "choose") if "photos" in name else True)
        rows = np.flatnonzero(keep)
        found[name] = other.vectors[rows[:: max(1, len(rows) // 200)]]
    own = sets[data]
    left = own.new & ~np.isin(own.classes, chosen)
    if data == "photos":
        left &= own.even == (side == "choose")
    if left.any():
        found["photos" if data == "photos" else "left-out classes"] = own.vectors[left]
    return found


def measured(trial: Trial, side: Side) -> Iterator[Row]:
    """Yield what each candidate gives on a known set and its strangers.

    But on `choose`, these are the form that is built, with its threshold, and the one before.
    """
    if side != "choose":
        yield from as_built(trial)
    for number, share in enumerate(SHARES):
        for pool, (first, end) in POOLS.items():
            if side != "choose" and (share, pool) != BEFORE[1:]:
                continue
            x = view(trial.learned, number, first, end)
            for score, distance in candidates(x, trial.classes):
                if side != "choose" and score != BEFORE[0]:
                    continue
                title = f"{score}; {share:g} of the depth; {pool}"
                usual = distance(view(trial.new, number, first, end))
                for name, vectors in trial.strange.items():
                    odd = distance(view(vectors, number, first, end))
                    yield Row(trial.known, name, title, *compared(usual, odd))


def as_built(trial: Trial) -> Iterator[Row]:
    """Yield what `fit_unlike` gives, with the threshold that it finds by five folds."""
    first, end = POOLS["token"]
    number = int(np.abs(np.array(SHARES) - SHARE).argmin())
    folds = np.random.default_rng(0).permutation(len(trial.classes)) % FOLDS
    kept = fit_unlike(view(trial.learned, number, first, end), trial.classes, folds, 1)

    def distance(vectors: Vectors) -> Floats:
        rows = np.ascontiguousarray(view(vectors, number, first, end), np.float64)
        found: Floats = kept.distances(torch.from_numpy(rows)).numpy()
        return found

    usual = distance(trial.new)
    for name, vectors in trial.strange.items():
        odd = distance(vectors)
        beyond = float((usual > 1).mean()), float((odd > 1).mean())
        yield Row(trial.known, name, "as built", *compared(usual, odd), *beyond)


def compared(usual: Floats, odd: Floats) -> tuple[float, float]:
    """Return the area under the ROC curve, and the share found where 5% of known are flagged."""
    both = np.concatenate([usual, odd])
    area = roc_auc_score(np.arange(len(both)) >= len(usual), both)
    return float(area), float((odd > np.quantile(usual, 0.95)).mean())


def view(vectors: Vectors, layer: int, first: int, end: int) -> NDArray[np.float32]:
    """Return parts of the vectors of one layer, (n, d)."""
    width = vectors.shape[2] // 3
    return vectors[:, layer, first * width : end * width]


def averaged(rows: list[Row]) -> list[Row]:
    """Return the mean over the fits of each pair and candidate."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.known, row.strange, row.candidate), []).append(row)
    return [Row(*key, *map(float, np.mean([own[3:] for own in each], 0)))
            for key, each in groups.items()]  # fmt: skip


def summary(rows: list[Row]) -> list[tuple[str, float, float]]:
    """Return each candidate's means over the known sets, the highest area first."""
    groups: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
        own = groups.setdefault(row.candidate, {}).setdefault(row.known, [])
        own.append((row.area, row.found))
    means = {
        name: np.mean([np.mean(each, 0) for each in sets.values()], 0)
        for name, sets in groups.items()
    }
    order = sorted(means, key=lambda name: -means[name][0])
    return [(name, float(means[name][0]), float(means[name][1])) for name in order]


# Scores


def candidates(x: NDArray[np.float32], y: NDArray[np.int64]) -> Iterator[tuple[str, Score]]:
    """Yield each candidate, fitted to features (n, d) and classes (n,), as a function of rows."""
    near = unit(x)
    yield "nearest by cosine", lambda rows: 1 - (unit(rows) @ near.T).max(1)
    z = x.astype(np.float64)
    means, middle = class_means(z, y), z.mean(0, keepdims=True)
    within = whitening(z - means[y])
    across = whitening(z - middle)
    yield "Mahalanobis", lambda rows: squares(rows, means, within).min(1)
    yield (
        "relative Mahalanobis",
        lambda rows: squares(rows, means, within).min(1) - squares(rows, middle, across)[:, 0],
    )
    scale = (z - means[y]).std(0) + 1e-6
    alike = whitening((z - means[y]) / scale) / scale[:, None]
    yield "Mahalanobis, standardized", lambda rows: squares(rows, means, alike).min(1)


def class_means(z: Floats, y: NDArray[np.int64]) -> Floats:
    """Return the mean of each class, (c, d)."""
    return np.stack([z[y == each].mean(0) for each in range(y.max() + 1)])


def whitening(apart: Floats) -> Floats:
    """Return what makes the covariance of rows the identity, (d, d), shrunk (Ledoit and Wolf)."""
    found: Floats = np.linalg.cholesky(np.linalg.inv(ledoit_wolf(apart, assume_centered=True)[0]))
    return found


def unit(rows: NDArray[np.floating]) -> NDArray[np.floating]:
    """Return rows of length 1."""
    found: NDArray[np.floating] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return found


def squares(rows: NDArray[np.float32], means: Floats, whiten: Floats) -> Floats:
    """Return the squared Mahalanobis distances of rows to means, (n, c)."""
    found: Floats = cdist(rows.astype(np.float64) @ whiten, means @ whiten, "sqeuclidean")
    return found


if __name__ == "__main__":
    main()
