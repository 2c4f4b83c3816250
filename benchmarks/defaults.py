"""Fine-tuning by defaults: ours, transformers' and timm's, on the same weights and images.

    python benchmarks/defaults.py --data FOLDER --weights FOLDER --timm CHECKOUT --out FOLDER

Makes the table of `docs/defaults.md`: per set of images and seed, a classifier fitted to frozen
features (`vitlab probe`), then fine-tuning by the defaults of `vitlab finetune`, of transformers'
`Trainer` (with the crops of its own example, run_image_classification.py) and of timm's `train.py`
(a checkout of its repository, run as it is). Passes over the images are set, so that all take about
the processor time that ours took, from the start of the command to the tested model; everything
else is a default. Finished runs are kept in OUT/figures.jsonl and are not repeated; `--rows`,
`--ways` and `--seeds` name some, also `finetune@RATE`, our own run at another learning rate. The
peers need timm, transformers and accelerate installed.

DATA has `sign-digits` (train.parquet, test.parquet), `cifar10-train.parquet`,
`cifar10-test.parquet` and `photos`, one photograph of each fifth class of ImageNet, named after it.
"""

import argparse
import io
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
SEEDS = (0, 1, 2)
PIXELS = 98
START = 15.0  # CPU seconds of imports
WAYS = ("finetune", "transformers", "timm", "timm-adamw", "probe")
RATES = ("finetune@5e-5", "finetune@1e-4", "finetune@4e-4")  # of others than the default rate
# photographs by WordNet's order: the first name of each kind, and of what follows the last
KINDS = {
    "fish": ("n01440764", "n01496331", "n02526121", "n02641379"),
    "bird": ("n0153", "n0155", "n0160", "n0179", "n0180", "n0182", "n0184", "n0186",
             "n0200", "n0201", "n0202", "n0205"),
    "reptile": ("n0162", "n0164", "n0166", "n0168", "n0169", "n0172", "n0174", "n0175"),
    "invertebrate": ("n01770", "n01774", "n0192", "n0195", "n0198", "n0216", "n0217", "n0221",
                     "n0223", "n0226", "n0228"),
    "dog": ("n0208", "n0209", "n0210", "n02110", "n02111", "n02112", "n02113"),
    "mammal": ("n0188", "n02077", "n02114", "n02116", "n0212", "n0213", "n0232", "n0235", "n0239",
               "n0240", "n0241", "n0243", "n0244", "n0248", "n0249", "n0250"),
    "vehicle": ("n02692877", "n02860847", "n03095699", "n03345487", "n03393912", "n03445924",
                "n03662601", "n03785016", "n03791053", "n03796401", "n03868242", "n03895866",
                "n04147183", "n04310018", "n04482393", "n04552348"),
    "food": ("n07",),
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A set of images: where they come from, images of a class (0: all), passes of our run."""

    source: str
    each: int
    epochs: int
    words: str


ROWS = {
    "hands-10": Row("sign-digits", 1, 30, "hands, 1 of each of 10 classes"),
    "hands-200": Row("sign-digits", 20, 8, "hands, 20 of each class"),
    "hands-1653": Row("sign-digits", 0, 3, "hands, all 1,653"),
    "cifar-10": Row("cifar10", 1, 30, "CIFAR-10, 1 of each class"),
    "cifar-100": Row("cifar10", 10, 15, "CIFAR-10, 10 of each class"),
    "cifar-400": Row("cifar10", 40, 6, "CIFAR-10, 40 of each class"),
    "cifar-4000": Row("cifar10", 400, 1, "CIFAR-10, 400 of each class"),
    "photos": Row("photos", 0, 20, "photographs, 52 of 8 kinds"),
}
WAY_WORDS = {
    "start": "start of `finetune`",
    "probe": "`probe`",
    "finetune": "`finetune`",
    "transformers": "`Trainer`",
    "timm": "`train.py`",
    "timm-adamw": "`train.py`, our optimizer",
}
STORED = HERE.parents[1] / "docs" / "results" / "defaults.jsonl"
TESTED = {"sign-digits": 0, "cifar10": 100, "photos": 0}  # test images of a class; 0: all

Images = list[tuple[bytes, str]]


def images_of(row: Row, data: Path, seed: int) -> tuple[Images, Images]:
    """Return the training and the test images of a row: file contents and class names."""
    draw = np.random.default_rng(seed)
    if row.source == "photos":
        photos = sorted((data / "photos").iterdir())
        kinds = {
            file: kind for kind, names in KINDS.items() for file in photos
            if file.name.startswith(names)
        }  # fmt: skip
        files = [(file.read_bytes(), kind) for file, kind in kinds.items()]
        half = _drawn(files, 0, draw, share=0.5)
        chosen = set(half)
        return [files[k] for k in half], [files[k] for k in range(len(files)) if k not in chosen]
    place = {"sign-digits": "sign-digits/{}.parquet", "cifar10": "cifar10-{}.parquet"}[row.source]
    train, test = (_parquet(data / place.format(part)) for part in ("train", "test"))
    learned = [train[k] for k in _drawn(train, row.each, draw)]
    kept = _drawn(test, TESTED[row.source], np.random.default_rng(0))
    return learned, [test[k] for k in kept]


def _parquet(file: Path) -> Images:
    import pyarrow.parquet as pq

    table = pq.read_table(file)
    names = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]["label"]["names"]
    rows = zip(table["image"].to_pylist(), table["label"].to_pylist(), strict=True)
    return [(image["bytes"], names[label]) for image, label in rows]


def _drawn(images: Images, each: int, draw: np.random.Generator, share: float = 1.0) -> list[int]:
    """Return the numbers of some images of each class: `each` of them, or a share if it is 0."""
    classes = np.array([name for _, name in images])
    order, found = draw.permutation(len(images)), list[int]()
    for name in np.unique(classes):
        own = order[classes[order] == name]
        found += own[: each or round(share * len(own))].tolist()
    return sorted(found)


def folder_of(name: str, seed: int, data: Path, out: Path) -> Path:
    """Return a folder with train/ and test/ in folders of classes, made when first needed."""
    folder = out / "data" / f"{name}-{seed}"
    if not folder.exists():
        draft = folder.with_suffix(".draft")
        for part, images in zip(("train", "test"), images_of(ROWS[name], data, seed), strict=True):
            for number, (content, kind) in enumerate(images):
                place = draft / part / kind
                place.mkdir(parents=True, exist_ok=True)
                (place / f"{number:05d}.jpg").write_bytes(content)
        draft.rename(folder)
    return folder


def spent(command: list[str], **environment: str) -> tuple[str, float]:
    """Run a command; return what it printed, and its processor time with that of its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | environment, check=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def ours(way: str, row: Row, images: Path, seed: int, run: Path, weights: Path) -> dict[str, Any]:
    """Run `vitlab finetune` or `vitlab probe`; return its figures."""
    way, _, rate = way.partition("@")
    command = [sys.executable, "-m", "vitlab", way, str(images), "--from", str(weights)]
    command += ["--image-size", str(PIXELS), "--out", str(run), "--workers", "0", "--json"]
    command += ["--lr", rate] if rate else []
    if way == "finetune" and row.epochs < 8:  # the recipe's three epochs are a tenth of its 30
        command += ["--warmup", f"{row.epochs / 10:g}"]
    if way == "finetune":
        command += ["--epochs", str(row.epochs), "--seed", str(seed), "--test-every", "1000"]
    printed, seconds = spent(command + (["--cache", "no"] if way == "probe" else []))
    found = json.loads(printed)
    kept = {"accuracy": found["accuracy"], "cpu_seconds": seconds}
    if way == "finetune":
        kept |= {"epochs": row.epochs, "start": (found.get("head_start") or {}).get("accuracy")}
    return kept


def by_transformers(images: Path, epochs: float, seed: int, run: Path, weights: Path) -> None:
    """Fine-tune by `Trainer`'s defaults; print the test accuracy as JSON. A process of its own."""
    from measuring import peer

    peer("torchvision")
    import torch
    from PIL import Image
    from torchvision import transforms as T
    from transformers import (
        AutoImageProcessor,
        AutoModelForImageClassification,
        Trainer,
        TrainingArguments,
    )

    names = sorted(each.name for each in (images / "train").iterdir())
    look = AutoImageProcessor.from_pretrained(weights)
    end = [T.ToTensor(), T.Normalize(look.image_mean, look.image_std)]
    crops = {
        "train": T.Compose([T.RandomResizedCrop(PIXELS), T.RandomHorizontalFlip(), *end]),
        "test": T.Compose([T.Resize(PIXELS), T.CenterCrop(PIXELS), *end]),
    }

    class Folder(torch.utils.data.Dataset):
        def __init__(self, part: str) -> None:
            self.part = part
            self.files = [
                (file, names.index(file.parent.name))
                for file in sorted((images / part).glob("*/*.jpg"))
            ]

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, number: int) -> dict[str, Any]:
            file, label = self.files[number]
            picture = Image.open(io.BytesIO(file.read_bytes())).convert("RGB")
            return {"pixel_values": crops[self.part](picture), "labels": label}

    given = TrainingArguments(
        str(run), num_train_epochs=epochs, seed=seed, save_strategy="no", report_to="none",
        disable_tqdm=True, remove_unused_columns=False,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = AutoModelForImageClassification.from_pretrained(weights, num_labels=len(names))
    trainer = Trainer(model, given, train_dataset=Folder("train"))
    trainer.train()
    found = trainer.predict(Folder("test"))
    right = (found.predictions.argmax(-1) == found.label_ids).mean()
    print(json.dumps({"accuracy": float(right)}))


TIMM = (
    "import sys, runpy; sys.path.insert(0, {tests!r}); "
    "from oracles.peers import prepare_torchvision as p; kept = p(); "
    "sys.argv = {arguments!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
)
ADAMW = (
    "--opt adamw --lr 2e-4 --weight-decay 0.05 --layer-decay 0.75 --warmup-epochs 1 --batch-size 32"
)


def by_timm(
    images: Path, epochs: int, seed: int, run: Path, weights: Path, timm: Path, more: str
) -> tuple[float, float]:
    """Run timm's train.py on its own form of the weights; return accuracy and processor time."""
    own = run.parents[1] / "timm-weights"
    if not own.exists():
        export = [sys.executable, "-m", "vitlab", "export", str(weights), "--to", "timm"]
        subprocess.run([*export, "--out", str(own)], check=True)
    classes = len(list((images / "train").iterdir()))
    arguments = f"""{timm / "train.py"} {images} --train-split train --val-split test
        --model local-dir:{own} --pretrained --img-size {PIXELS} --num-classes {classes}
        --model-kwargs img_size={PIXELS} --epochs {epochs} --seed {seed} --device cpu
        --workers 1 --output {run.parent}
        --val-interval {epochs} --experiment {run.name} {more}""".split()
    program = TIMM.format(tests=str(HERE.parents[1] / "tests"), arguments=arguments)
    _, seconds = spent([sys.executable, "-c", program], PYTHONPATH=str(timm))
    last = (run / "summary.csv").read_text().split()
    column = last[0].split(",").index("eval_top1")
    return float(last[-1].split(",")[column]) / 100, seconds


def peers(
    way: str, epochs: float, images: Path, seed: int, run: Path, weights: Path, timm: Path
) -> dict[str, Any]:
    """Run a peer; return its figures."""
    if way == "transformers":
        command = [sys.executable, str(HERE), "--peer", str(images), str(epochs), str(seed)]
        printed, seconds = spent([*command, str(run), str(weights)])
        found = json.loads(printed.splitlines()[-1])
        return found | {"cpu_seconds": seconds, "epochs": epochs}
    more = ADAMW if way == "timm-adamw" else ""
    accuracy, seconds = by_timm(images, int(epochs), seed, run, weights, timm, more)
    return {"accuracy": accuracy, "cpu_seconds": seconds, "epochs": int(epochs)}


def passes(way: str, row: str, images: Path, known: list[dict[str, Any]]) -> float:
    """Return the passes that take a peer the processor time that ours took, by its own pace.

    The pace is that of its earlier runs, an image to test counted as a third of one to learn from,
    without the 15 seconds of a start; at first 0.08 seconds an image.
    """
    budget = statistics.mean(
        each["cpu_seconds"] for each in known if each["row"] == row and each["way"] == "finetune"
    )
    count, tested = (len(list((images / part).glob("*/*.jpg"))) for part in ("train", "test"))
    kind = way.split("-")[0]
    paces = [
        (each["cpu_seconds"] - START) / (each["seen"] + each["tested"] / 3)
        for each in known
        if each["way"].split("-")[0] == kind
    ]
    pace = statistics.mean(paces) if paces else 0.08
    found = ((budget - START) / pace - tested / 3) / count
    return round(max(found, 1.0), 1) if kind == "transformers" else max(1, round(found))


def cells(rows: list[str], ways: list[str], seeds: list[int]) -> Iterator[tuple[str, str, int]]:
    """Yield row, way and seed: all of a row before the next, ours first."""
    for row in rows:
        for way in sorted(ways, key=(*WAYS, *RATES).index):
            yield from ((row, way, seed) for seed in seeds)


def table(known: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table of `docs/defaults.md`: a row per set, means and deviations."""
    yield f"| training images | {' | '.join(WAY_WORDS.values())} | passes, CPU s of `finetune` |"
    yield "| --- |" + " --- |" * (len(WAY_WORDS) + 1)
    for row, about in ROWS.items():
        of_row = [each for each in known if each["row"] == row]
        found = {way: [each for each in of_row if each["way"] == way] for way in WAY_WORDS}
        found["start"] = [
            each | {"accuracy": each["start"]} for each in of_row if each.get("start")
        ]
        shown = {way: _spread(own) for way, own in found.items()}
        best = max(mean for mean, _ in shown.values())
        if not (ours := found["finetune"]):
            continue
        texts = [f"**{text}**" if mean == best else text for mean, text in shown.values()]
        seconds = statistics.mean(each["cpu_seconds"] for each in ours)
        texts.append(f"{ours[0]['epochs']:g}, {seconds:.0f}")
        yield f"| {about.words} | {' | '.join(texts)} |"


def _spread(own: list[dict[str, Any]]) -> tuple[float, str]:
    """Return the mean accuracy in percent, and it with its deviation as text; of none, nothing."""
    values = [100 * each["accuracy"] for each in own]
    if not values:
        return 0.0, ""
    mean = statistics.mean(values)
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return round(mean, 1), f"{mean:.1f}{deviation}"


def stored() -> list[dict[str, Any]]:
    """Return the figures of `docs/defaults.md`, a line for each run."""
    return [json.loads(line) for line in STORED.read_text().splitlines()]


def main() -> None:
    """Run what is missing, then print the table."""
    if sys.argv[1:2] == ["--peer"]:
        images, epochs, seed, run, weights = sys.argv[2:]
        by_transformers(Path(images), float(epochs), int(seed), Path(run), Path(weights))
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("data", "weights", "timm", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=ROWS)
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=WAYS + RATES)
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    given = parser.parse_args()
    data, weights, timm, out = (
        getattr(given, name).resolve() for name in ("data", "weights", "timm", "out")
    )
    out.mkdir(parents=True, exist_ok=True)
    file = out / "figures.jsonl"
    known = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {(each["row"], each["way"], each["seed"]) for each in known}
    for name, way, seed in cells(given.rows, given.ways, given.seeds):
        if (name, way, seed) in done:
            continue
        images, run = folder_of(name, seed, data, out), out / "runs" / f"{name}-{way}-{seed}"
        shutil.rmtree(run, ignore_errors=True)  # what was interrupted
        if way.startswith(("finetune", "probe")):
            found = ours(way, ROWS[name], images, seed, run, weights)
        else:
            epochs = passes(way, name, images, known)
            found = peers(way, epochs, images, seed, run, weights, timm)
        count, tested = (len(list((images / part).glob("*/*.jpg"))) for part in ("train", "test"))
        found |= {"seen": count * found.get("epochs", 0), "tested": tested}
        known.append({"row": name, "way": way, "seed": seed, "date": f"{date.today()}"} | found)
        with file.open("a") as end:
            end.write(json.dumps(known[-1]) + "\n")
        print(known[-1], file=sys.stderr)
    print("\n".join(table(known)))


if __name__ == "__main__":
    main()
