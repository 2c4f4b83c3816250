"""How many wrong labels are found: a share of them is flipped, and the true ones are known.

    python benchmarks/label_errors.py DATA --out FOLDER [--flip 0.05] [--folds 5] [--epochs 30]

The labels of a share of the training images (of all images of data without splits) are replaced by
another class at random. Then `vitlab.cross_validate` predicts every image by a model that did not
learn from it, and ways to choose the images to look at again are compared, each by its precision
(share of what is listed that was flipped) and its recall (share of the flipped that is listed):
confident learning, as many images with the lowest self-confidence, all whose prediction is another
class, and as many at random. Run again, the command continues in FOLDER.
"""

import argparse
import csv
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import vitlab
from vitlab.data.images import Images
from vitlab.data.labels import SingleLabels
from vitlab.data.open_splits import open_to_learn
from vitlab.evaluation.label_errors import find_label_errors


def write_flipped(source: Images, channels: int, share: float, seed: int, folder: Path) -> Path:
    """Write images and a list of them, a share of the labels flipped; return the list."""
    generator = np.random.default_rng(seed)
    truth = source.target.batch()
    flipped = generator.permutation(len(truth))[: round(share * len(truth))]
    given = truth.copy()
    given[flipped] = (truth[flipped] + generator.integers(1, len(source.classes), len(flipped))) % (
        len(source.classes)
    )
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["path,label"]
    for index in range(len(source)):
        pixels = source.image(index).decode(channels)
        shown = pixels[..., 0] if channels == 1 else pixels
        name = f"{index:06d}-{source.classes[truth[index]]}.png"
        Image.fromarray(shown).save(folder / name)
        lines.append(f"{name},{source.classes[given[index]]}")
    (folder / "list.csv").write_text("\n".join(lines) + "\n")
    return folder / "list.csv"


def figures(listed: NDArray[np.int64], flipped: NDArray[np.bool_]) -> dict[str, float]:
    """Return precision and recall of the images listed."""
    hits = int(flipped[listed].sum())
    return {"precision": hits / max(len(listed), 1), "recall": hits / int(flipped.sum())}


def compare(predictions: Path, seed: int) -> dict[str, object]:
    """Return precision and recall of each way, from out-of-fold predictions."""
    with predictions.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    classes = [name[2:-1] for name in rows[0] if name.startswith("p(")]
    chances = np.array([[float(row[f"p({name})"]) for name in classes] for row in rows])
    given = np.array([classes.index(row["label"]) for row in rows])
    true = np.array([classes.index(Path(row["image"]).stem.split("-", 1)[1]) for row in rows])
    flipped = given != true
    found = find_label_errors(chances, SingleLabels(given))
    listed = np.array([each.place for each in found.suspects], np.int64)
    own = chances[np.arange(len(given)), given]
    chance = np.random.default_rng(seed).permutation(len(given))
    right = np.array([each.better == (true[each.place],) for each in found.suspects])
    return {
        "images": len(given),
        "flipped": int(flipped.sum()),
        "listed": len(listed),
        "estimated": found.estimated,
        "accuracy": float((chances.argmax(1) == true).mean()),
        "confident learning": figures(listed, flipped),
        "its first half": figures(listed[: len(listed) // 2], flipped),
        "as many as flipped": figures(listed[: flipped.sum()], flipped),
        "lowest self-confidence": figures(np.argsort(own, kind="stable")[: len(listed)], flipped),
        "unlike the prediction": figures(np.flatnonzero(chances.argmax(1) != given), flipped),
        "at random": figures(chance[: len(listed)], flipped),
        "true class proposed": float(right[flipped[listed]].mean()),
    }


def main() -> None:
    """Flip, train, compare; the figures are printed as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--flip", type=float, default=0.05)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--recipe", default="digits")
    parser.add_argument("--model", default="ViT(width=64,depth=4,heads=4,mlp=128)/2")
    parser.add_argument("--image-size", type=int, default=8)
    parser.add_argument("--channels", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    splits = open_to_learn(options.data)
    source, images = splits.whole or splits.train, options.out / "images"
    if not (images / "list.csv").exists():
        write_flipped(source, options.channels, options.flip, options.seed, images)
    recipe = vitlab.recipe(
        options.recipe,
        str(images / "list.csv"),
        model=options.model,
        epochs=options.epochs,
        seed=options.seed,
        image_size=options.image_size,
        channels=options.channels,
    )
    done = vitlab.cross_validate(recipe, options.out / "folds", options.folds, resume=True)
    print(json.dumps(compare(Path(str(done["predictions"])), options.seed), indent=1))


if __name__ == "__main__":
    main()
