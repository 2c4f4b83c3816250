"""The likeliest classes of images: `classify`, and `vitlab predict` into files and shards."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import numpy as np

from vitlab.data.images import Images
from vitlab.data.labels import kind_of
from vitlab.data.open import open_images
from vitlab.data.settings import Columns
from vitlab.data.sources.pictures import Picture
from vitlab.data.sources.request import Given
from vitlab.distributed.reading import read_in_order
from vitlab.errors import DataError
from vitlab.evaluation.answers import check_numbers
from vitlab.evaluation.classified_image import ClassifiedImage
from vitlab.evaluation.compute import Compute, FastForm
from vitlab.evaluation.infer import Progress, batch_of, check_classifier, infer, predict, silent
from vitlab.evaluation.on_ray import writers
from vitlab.evaluation.rows import WRITERS, RowLayout, table_to
from vitlab.evaluation.shards import ShardFolder, ShardJob, ShardNumber, Use, fill, identity
from vitlab.models.model import Model
from vitlab.packages import check_installed
from vitlab.places import PART, On
from vitlab.precision import Engine, Precision
from vitlab.progress import LOG
from vitlab.public_calls import public
from vitlab.weights.identity import feature_fingerprint


@public(model=Model)
def classify(
    model: Model,
    images: Given | Picture | Iterable[Picture],
    *,
    top: int = 5,
    device: str = "auto",
    workers: int | None = 0,
    flips: bool = False,
    columns: Columns | None = None,
    precision: Precision = "auto",
    engine: Engine = "auto",
    quiet: bool = False,
) -> list[ClassifiedImage]:
    """Return the likeliest classes of images.

    Args:
        model: from `vitlab.load` or a run
        images: any DATA, whatever its labels, or several; or images in memory, as
            `vitlab.preprocess` takes them
        top: number of classes per image
        device: auto, cpu, cuda, cuda:N or mps
        workers: processes that decode; None to choose
        flips: average the probabilities over each image and its mirror image
        columns: which column of a table holds the images; None to find it
        precision: fp32; bf16; or auto: bf16 for many images, where the device multiplies it faster
            and probabilities agree with those in fp32
        engine: auto: the fastest for many images; or one by its name, as `vitlab.accelerate`
        quiet: print nothing but warnings

    Raises:
        DataError: no such image, or a model whose probabilities are not finite.
        OptionError: the model has no classifier.
    """
    source = unlabeled(model, images, columns)
    compute = Compute(device, precision, engine, workers)
    return answers_of(compute.fast(model, source, 1 + flips), source, compute, top, flips)


def answers_of(
    form: FastForm, source: Images, compute: Compute, top: int, flips: bool
) -> list[ClassifiedImage]:
    """Return the likeliest classes of a source's images, as `classify` does."""
    model = form.model
    done = predict(model, source, compute.of(form), flips=flips)
    check_numbers(done.probabilities)
    names = [source.name(index) for index in range(len(source))]
    how = source.classes, top, model.thresholds if source.target.several else None
    answers = {index: ClassifiedImage(names[index], error=text) for index, text in done.bad.items()}
    rows = done.indices.tolist(), done.probabilities, done.distances
    for index, chances, far in zip(*rows, strict=True):
        answers[index] = ClassifiedImage.of(names[index], chances, *how, far)
    return [answers[index] for index in range(len(names))]


def classify_into(
    file: Path,
    model: Model,
    images: Images,
    compute: Compute,
    *,
    top: int = 5,
    flips: bool = False,
    warn: Callable[[str], None] = lambda message: None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write a row per image into a CSV or Parquet file; a batch at a time is in memory.

    Args:
        file: that `check_file` accepted
        model: from `vitlab.load` or a run
        images: of `unlabeled`
        compute: where and how
        top: classes per row, of a model with many
        flips: average over each image and its mirror image
        warn: called with a message about each image that cannot be decoded
        progress: called after every batch

    Returns:
        `images` and `damaged`, how many have a prediction and how many an error, and the
        `precision` and `engine` that they were computed in.

    Raises:
        DataError: no image can be read; the file is there, and says of each why.
        DiskError: the file cannot be written.
    """
    counts = {"images": 0, "damaged": 0}
    layout = _layout(model, images, top)
    with table_to(file, layout.kinds) as write:
        form = compute.fast(model, images, 1 + flips)
        what = form.model, images, compute.of(form)
        for batch in infer(*what, flips=flips, progress=progress):
            check_numbers(batch.probabilities)
            write(layout.rows(batch))
            for _, message in batch.bad:
                warn(message)
            counts["images"] += len(batch.indices)
            counts["damaged"] += len(batch.bad)
    if not counts["images"]:  # the rows, which say why, are there
        raise DataError(f"none of the {len(images):,} images can be read; {file} says why")
    return counts | form.about


def classify_shards(
    out: Path,
    model: Model,
    source: Callable[[], Images],
    compute: Compute,
    *,
    ending: Literal["parquet", "csv", "jsonl"] = "parquet",
    top: int = 5,
    flips: bool = False,
    timeout: float = 600.0,
    part_images: int = PART,
    shard: str = "",
    on: On = "",
) -> dict[str, Any]:
    """Write a row per image into a folder of shards.

    Args:
        out: the folder: new, or with shards of the same job
        model: from `vitlab.load` or a run
        source: opens the images, with labels of the model's kind
        compute: where and how; engines are not measured, so that all processes use the same
        ending: of the files
        top: classes per row, of a model with many
        flips: average over each image and its mirror image
        timeout: seconds that a process of torchrun waits for the others
        part_images: images of a shard, rounded up to whole batches
        shard: `0/8` for the first of eight independent processes
        on: ray: Ray's actors compute; `auto` is then fp32

    Returns:
        In the first process of torchrun: out, images, damaged, parts, left, bytes, notes,
        own_parts, own_images, seconds and images_per_second; nothing in the others.

    Raises:
        DataError: no such images, not one can be read, or the folder has the shards of another job.
        OptionError: the model has no classifier.
        DiskError: the folder cannot be written.
        PackageError: pyarrow, or Ray, is not installed.
    """
    if ending == "parquet":
        check_installed("pyarrow", "a folder of Parquet files", "pass --format csv")
    share = ShardNumber.of(shard)
    with writers(compute, on, share, timeout) as (world, here, write):

        def open_job() -> ShardJob:
            check_classifier(model)
            return _job(model, source(), here, top, flips, ending, part_images)

        job = read_in_order(world, open_job)
        found = fill(ShardFolder(out, job), world, share, write)
    return found and found | job.form.about | ({"engine": compute.engine} if on else {})


def _job(
    model: Model,
    source: Images,
    compute: Compute,
    top: int,
    flips: bool,
    ending: str,
    part_images: int,
) -> ShardJob:
    """Return the job of rows of predictions."""
    form = compute.fast(model, source, 1 + flips)
    batch = batch_of(model)
    images = -(-part_images // batch) * batch
    layout = _layout(model, source, top)
    decided = (model.thresholds, source.classes, source.target.several, layout.far)
    about = {
        "job": "predict",
        "model": model.config.name,
        "weights": feature_fingerprint(model),
        "classes": sha256(repr(decided).encode()).hexdigest(),
        "temperature": model.temperature,
        "data": identity(source, labeled=False),
        "images": len(source),
        "top": top,
        "flips": flips,
        "part_images": images,
        "format": ending,
        **({} if form.precision == "fp32" else {"precision": form.precision}),
    }

    @contextmanager
    def table(file: Path, split: str) -> Iterator[Use]:
        with WRITERS[f".{ending}"](file, layout.kinds) as write:
            yield lambda each: write(layout.rows(each))

    what = form.model, {"part": source}, compute.of(form), "probabilities", images, f".{ending}"
    return ShardJob("predicting", about, *what, table, flips)  # type: ignore[arg-type]


def _layout(model: Model, source: Images, top: int) -> RowLayout:
    """Return the columns of a model's answers."""
    above = np.array(model.thresholds)
    far = model.unlike is not None
    return RowLayout(source, False, top, threshold=above, far=far)


def unlabeled(
    model: Model, images: Given | Picture | Iterable[Picture], columns: Columns | None = None
) -> Images:
    """Return the images of any DATA as a source, with labels of the model's kind that say nothing.

    What is left out of the data is said on the package's log.

    Raises:
        DataError: no such image.
        OptionError: the model has no classifier.
    """
    check_classifier(model)
    opened = open_images(images, "none", columns=columns)
    for note in opened.notes:
        LOG.warning(note)
    source = opened.every()
    classes = model.config.class_names
    return source.with_target(kind_of(model.provenance).blank(len(source), len(classes)), classes)
