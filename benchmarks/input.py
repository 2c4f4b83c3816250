"""Images per second on one core, from the file to a 224x224 uint8 crop, beside timm and datasets.

`python benchmarks/input.py photos/`  (and `--parquet cifar10-train.parquet`)

Every contender reads the same files, decodes them, cuts a random resized crop (area 0.08 to 1,
aspect 3/4 to 4/3), flips half of them, and leaves uint8 pixels: ours as the workers of `vitlab
train` do, timm's as its train script does with its prefetcher (RandomResizedCropAndInterpolation
with `random` or `bilinear` interpolation, flip, ToNumpy), `datasets` with Pillow images and timm's
transforms. Ours is timed with repeated augmentation too, per crop: the others decode an image for
each of its crops. They take turns within each round; the figure is the median over rounds of the
process's CPU time, so that other work on the machine counts little. 12-megapixel files are made
here by enlarging the photos. Installed decoders are timed alone as well.
"""

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import peer
from PIL import Image

from vitlab.data.decode import jpeg
from vitlab.data.decode.formats import SUFFIXES
from vitlab.data.decode.jpeg import Frame, frame_of
from vitlab.data.images import Images
from vitlab.data.labels import SingleLabels
from vitlab.data.loading.training_batches import TrainingBatches
from vitlab.data.open import open_images
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Augment
from vitlab.data.sources.image_files import ImageFiles
from vitlab.models.config import ViTConfig

SIZE, AREA = 224, 0.08
Work = Callable[[], int]  # does a round; returns the number of images


def main() -> None:
    """Measure and print tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("photos", help="a folder of JPEG files")
    parser.add_argument("--parquet", help="a Parquet file of small images")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--images", type=int, default=200, help="photos per round")
    parser.add_argument("--large", type=int, default=8, help="12-megapixel files per round")
    args = parser.parse_args()
    torch.set_num_threads(1)
    load = f"{os.cpu_count()} cores, one used, load {os.getloadavg()[0]:.1f} at the start"
    print(f"{platform.processor() or platform.machine()}, {load}; {versions()}\n")
    files = sorted(p for p in Path(args.photos).rglob("*") if p.suffix.lower() in SUFFIXES)
    files = files[: args.images]
    table("photos as they are", contenders(files), 2 * args.rounds)
    table("their decoding alone", decoders(files), args.rounds)
    with tempfile.TemporaryDirectory() as folder:
        large = enlarged(files[: args.large], Path(folder))
        table("12 megapixels", contenders(large), args.rounds)
        table("their decoding alone", decoders(large), args.rounds)
    if args.parquet:
        table(Path(args.parquet).name, small(args.parquet), args.rounds)


def versions() -> str:
    """Return the installed libraries that are measured, with their versions."""
    names = ("torch", "pillow", "simplejpeg", "timm", "datasets", "opencv-python-headless")
    found = [name for name in names if importlib.util.find_spec(MODULES.get(name, name))]
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in found)


MODULES = {"pillow": "PIL", "opencv-python-headless": "cv2"}


def table(title: str, works: dict[str, Work], rounds: int) -> None:
    """Time the works in turns and print the medians; the ratio is to the first."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            start = time.process_time()
            images = work()
            if turn:  # the first warms up
                times[name].append((time.process_time() - start) / images)
    print(f"| {title} | ms per image | images/s | time over ours |")
    print("| --- | --- | --- | --- |")
    middle = {name: statistics.median(each) for name, each in times.items()}
    for name, seconds in middle.items():
        ratio = seconds / next(iter(middle.values()))
        print(f"| {name} | {1000 * seconds:.2f} | {1 / seconds:,.0f} | {ratio:.2f} |")
    print()


def ours(source: Any, repeats: int = 1) -> Work:
    """Make batches of up to 16 images as a worker does, new ones in every round, and flip them.

    No image is in a batch twice but for its repeats, since it is decoded once for them all.
    """
    config = ViTConfig(width=16, heads=2, patch=16, image_size=SIZE, classes=2)
    options = Augment(area=AREA, aspect=4 / 3, flip=True, repeats=repeats)
    images = next(n for n in range(16, 0, -1) if len(source) % n == 0)
    batches = TrainingBatches(source, config, options, seed=0, batch=images * repeats)
    count = max(1, len(source) // (images * repeats))
    position = 0

    def work() -> int:
        nonlocal position
        done = 0
        for k in range(position, position + count):
            batch = batches[k]
            for place in (batch.draws[:, 0] < 0.5).nonzero():  # as the device does
                batch.images[place[0]] = batch.images[place[0]].flip(1)
            done += len(batch) + len(batch.bad)
        position += count
        return done

    return work


def contenders(files: list[Path]) -> dict[str, Work]:
    """Return our work, then those of the installed peers."""
    labels = SingleLabels.blank(len(files), 2)
    source = Images.of(ImageFiles(Path(), [str(file) for file in files]), labels, ("a", "b"))
    works: dict[str, Work] = {
        "vitlab": ours(source),
        "vitlab, three copies of each image": ours(source, repeats=3),
    }
    transforms = timms()
    for name, transform in transforms.items():
        works[f"timm, {name}"] = partial(loop, files, transform)
    if transforms:
        works["datasets"] = table_of([file.read_bytes() for file in files], transforms["bilinear"])
    return works


def loop(files: list[Path], transform: Callable[[Image.Image], Any]) -> int:
    """Read as timm's ImageFolder does: open, convert, transform."""
    for file in files:
        with file.open("rb") as stream:
            transform(Image.open(stream).convert("RGB"))
    return len(files)


def timms() -> dict[str, Callable[[Image.Image], Any]]:
    """Return timm's training transforms up to uint8, by their interpolation."""
    if peer("timm") is None:
        return {}
    from timm.data.transforms import RandomResizedCropAndInterpolation, ToNumpy
    from torchvision import transforms

    return {
        mode: transforms.Compose(
            [
                RandomResizedCropAndInterpolation(SIZE, (AREA, 1.0), interpolation=mode),
                transforms.RandomHorizontalFlip(),
                ToNumpy(),
            ]
        )
        for mode in ("random", "bilinear")
    }


def table_of(items: list[bytes], transform: Callable[[Image.Image], Any]) -> Work:
    """Read a `datasets` table with a transform set on it, as its guides show."""
    import datasets

    rows = datasets.Dataset.from_dict(
        {"image": [{"bytes": item, "path": None} for item in items]},
        features=datasets.Features({"image": datasets.Image()}),
    )
    rows.set_transform(lambda batch: {"x": [transform(i.convert("RGB")) for i in batch["image"]]})

    def work() -> int:
        for index in range(len(rows)):
            rows[index]
        return len(rows)

    return work


def decoders(files: list[Path]) -> dict[str, Work]:
    """Decode JPEG to RGB: whole, and only what a crop of 0.7 of each side needs."""
    items = [file.read_bytes() for file in files]
    frames = [frame_of(item) for item in items]
    known = [(i, frame) for i, frame in zip(items, frames, strict=True) if frame]

    def cut(item: bytes, frame: Frame) -> None:
        scale = jpeg.scale_for(0.7 * frame.columns, 0.7 * frame.rows, SIZE, SIZE)
        jpeg.decode(item, frame, scale, int(0.85 * frame.rows))

    works: dict[str, Callable[..., object]] = {
        "simplejpeg, strict, what a crop needs": cut,
        "simplejpeg, strict": lambda data, frame: jpeg.decode(data, frame, 1, frame.rows),
        "Pillow": lambda d, *_: np.asarray(Image.open(BytesIO(d)).convert("RGB")),
    }
    if importlib.util.find_spec("cv2"):
        import cv2

        cv2.setNumThreads(0)
        flags = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_IGNORE_ORIENTATION
        works["OpenCV"] = lambda d, *_: cv2.imdecode(np.frombuffer(d, np.uint8), flags)
    if importlib.util.find_spec("kornia_rs"):
        import kornia_rs.io

        works["kornia-rs"] = lambda d, *_: kornia_rs.io.decode_image_jpegturbo(d, "rgb")

    def each(work: Callable[..., object]) -> int:
        for one in known:
            work(*one)
        return len(known)

    return {name: partial(each, work) for name, work in works.items()}


def enlarged(files: list[Path], folder: Path) -> list[Path]:
    """Write the photos at 4000x3000 pixels, as JPEGs of quality 90."""
    made = []
    for number, file in enumerate(files):
        made.append(folder / f"{number}.jpg")
        image = Image.open(file).convert("RGB").resize((4000, 3000), Image.Resampling.BICUBIC)
        image.save(made[-1], quality=90)
    return made


def small(file: str) -> dict[str, Work]:
    """Read 2,000 images of a Parquet file, from it and from tar shards made of it."""
    from vitlab.data.prepare import copy

    whole = open_to_learn(file).whole
    assert whole is not None
    some = whole.take(np.arange(min(2000, len(whole))))
    folder = Path(tempfile.mkdtemp()) / "tar"
    copy({"train": some}, folder, layout="tar", workers=0)
    tars = open_images(str(folder)).every()
    works = {"vitlab, Parquet": ours(some), "vitlab, tar shards": ours(tars)}
    for name, transform in timms().items():
        items = [some.image(index).content() for index in range(len(some))]
        if name == "bilinear":
            works["datasets and timm"] = table_of(items, transform)
    return works


if __name__ == "__main__":
    main()
