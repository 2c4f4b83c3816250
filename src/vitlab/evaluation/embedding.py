"""`vitlab.embed`: the features of any number of images as Parquet, or as an array in memory."""

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from vitlab import device as devices
from vitlab.data.images import Images
from vitlab.data.open import Opened, open_images
from vitlab.data.open_splits import group_by_split
from vitlab.data.settings import Columns
from vitlab.data.sources.pictures import Picture
from vitlab.data.sources.request import NO_LABELS, Given
from vitlab.distributed.launch import read_environment
from vitlab.distributed.reading import read_in_order
from vitlab.errors import DataError, OptionError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.infer import Inferred, batch_of, infer, shape_taken, stacked
from vitlab.evaluation.on_ray import writers
from vitlab.evaluation.probes.feature_options import Taken
from vitlab.evaluation.records import EmbeddedImages, EmbeddingRecord, unicode
from vitlab.evaluation.shards import (
    ROWS,
    ShardFolder,
    ShardJob,
    ShardNumber,
    Use,
    fill,
    fill_file,
    group_of,
    identity,
)
from vitlab.models.model import Model
from vitlab.packages import check_installed
from vitlab.places import PART, On, check_new, is_folder
from vitlab.precision import Engine
from vitlab.progress import Meter, say
from vitlab.public_calls import PLACE, public
from vitlab.units import storage
from vitlab.weights.identity import feature_fingerprint

DAMAGED = "vitlab.damaged"  # key of the file's metadata: a JSON list of messages
ABOUT = "vitlab.embedding"
SOURCE = "vitlab.source"  # where the weights were: the argument of `vitlab.load`
PART_BYTES = 2**30  # of a part's features, unless one row group has more
IN_MEMORY = 10**9  # bytes of features that are returned
What = Literal["features", "token", "mean", "both", "patches", "tokens"]
OF_A_FILE = ("out", "images", "damaged", "bytes", "notes", "seconds", "images_per_second")


@overload
def embed(
    model: Model,
    data: Given | Sequence[Picture],
    out: None = None,
    *,
    what: What = "features",
    layer: int | Sequence[int] | None = None,
    dtype: Literal["fp32", "fp16"] = "fp32",
    columns: Columns | None = None,
    device: str = "auto",
    precision: Literal["fp32", "bf16"] = "fp32",
    engine: Engine = "auto",
    workers: int | None = None,
    quiet: bool = False,
) -> EmbeddedImages: ...


@overload
def embed(
    model: Model,
    data: Given | Sequence[Picture],
    out: str | Path,
    *,
    what: What = "features",
    layer: int | Sequence[int] | None = None,
    dtype: Literal["fp32", "fp16"] = "fp32",
    columns: Columns | None = None,
    device: str = "auto",
    precision: Literal["fp32", "bf16"] = "fp32",
    engine: Engine = "auto",
    workers: int | None = None,
    timeout: float = 600.0,
    part_images: int = PART,
    shard: str = "",
    on: On = "",
    quiet: bool = False,
) -> EmbeddingRecord: ...


@public(model=Model, out=PLACE)
def embed(
    model: Model,
    data: Given | Sequence[Picture],
    out: str | Path | None = None,
    *,
    what: What = "features",
    layer: int | Sequence[int] | None = None,
    dtype: Literal["fp32", "fp16"] = "fp32",
    columns: Columns | None = None,
    device: str = "auto",
    precision: Literal["fp32", "bf16"] = "fp32",
    engine: Engine = "auto",
    workers: int | None = None,
    timeout: float = 600.0,
    part_images: int = PART,
    shard: str = "",
    on: On = "",
    quiet: bool = False,
) -> EmbeddingRecord | EmbeddedImages:
    """Return the features of all images of DATA, or write them into Parquet: a file, or a folder.

    Its columns are `path` (what the data calls the image), `label` (the name of its class, a list
    of names if images have several, null without labels), `split` and `features` (float32 or
    float16, lists of fixed length: of `width` numbers, or of `tokens` lists of them). Its metadata
    (`vitlab.embedding`, JSON) says what they are: model, weights, data, layer, dimension, norm. A
    row group holds at most 2,048 images and is all that is in memory; each is written into a hidden
    folder beside the file, so that the same command goes on where a killed one stopped. Under
    torchrun, the processes share the row groups, whose order in the file is that of the data.

    A folder, which is for any number of images and of processes, has a file for each 10,000 images
    or so (`part_images`), with the same columns. Processes of torchrun share the parts that are
    missing. Independent processes, on any machines that see the folder, are given a `shard` each,
    and may end, be killed or come again in any order.

    Args:
        model: from `vitlab.load` or a run; its device and mode are the same afterwards
        data: as for training, all splits; or images without labels: a folder that holds nothing
            else, an image file, or a glob pattern of them; or images in memory, labeled as for
            `vitlab.evaluate` or not
        out: the file, which must not exist yet; a name without an ending, or that of a folder, is
            that of a folder of parts, new or unfinished; None for the columns in memory, up to
            1 GB of features
        what: features: what the classifier sees; token: the class token; mean: the mean of the
            patch tokens; both: class token and mean, one after the other; patches: each patch
            token, row by row; tokens: class token and registers too
        layer: the block (of a ResNet: stage) whose output is taken, 0 for the input of the first
            one; several are put one after the other in each vector; None for the last one, after
            the final norm
        dtype: of the numbers in the file: fp32; or fp16, half the bytes and 3 digits
        columns: the columns of a list or a table; None to find them
        device: auto, cpu, cuda, cuda:N or mps
        precision: fp32; or bf16, whose features are less exact, so that nothing chooses it
        engine: auto: the fastest for many images, or where processes share them the packed form;
            or one by its name, as `vitlab.accelerate`
        workers: processes that decode; None to choose
        timeout: seconds that a process waits for the others
        part_images: images of a part, of a folder; rounded up to whole row groups, of at most 1 GiB
        shard: of a folder, `0/8` for the first of eight processes, each of which writes every
            eighth part
        on: ray: Ray's actors compute, on the cluster that RAY_ADDRESS names, or on this machine
        quiet: print nothing but warnings

    Returns:
        Without `out`, the columns path, label and split as lists and features as one array,
        (images, width) or (images, tokens, width); a line names damaged images, which are left
        out. With `out`, in the first process: out, images, damaged, shape (of one image's
        features), model, bytes, seconds, images_per_second and notes; nothing in the others.
        Damaged images are left out; `notes` and the file's metadata (`vitlab.damaged`) name them.
        Of a folder, also `parts`, `left` (those that other shards have not written yet), and
        `own_parts` and `own_images`, which this process has computed.

    Raises:
        OptionError: a layer of what the classifier sees, or one that the model does not have; more
            than 1 GB in memory, or several processes, which share a file.
        DataError: no such data, no usable image, or an unfinished file of something else.
        DiskError: the file exists, cannot be written, or is being written by another process.
        PackageError: pyarrow, or Ray, is not installed.
    """
    if out is None:
        _check_alone(shard, on)
        taken = take_from(what, layer, dtype)
        return _in_memory(model, data, taken, columns, Compute(device, precision, engine, workers))
    check_installed("pyarrow", "vitlab embed")
    parted = is_folder(out)
    out = Path(out).expanduser()
    taken = take_from(what, layer, dtype)
    mine = ShardNumber.of(shard)
    if mine.count > 1 and not parted:
        raise OptionError("shard applies only with a folder as out: give a name without an ending")
    asked = Compute(device, precision, engine, workers)
    with writers(asked, on, mine, timeout) as (world, compute, write):
        compute = replace(compute, measure=world.size == 1 and not parted)

        def open_job() -> tuple[Opened, EmbeddingTable, ShardJob]:
            check_new(out)
            images = open_images(data, "optional", columns=columns)
            shape = shape_taken(model, taken)
            table = EmbeddingTable(model, group_by_split(images), taken, compute, shape)
            return images, table, table.job(part_images if parted else None)

        opened, table, job = read_in_order(world, open_job)
        lacks = [opened.lacks] if opened.lacks.startswith(NO_LABELS) else []
        notes = [*opened.notes, *lacks]
        world.say(*notes)
        if parted:
            figures = fill(ShardFolder(out, job), world, mine, write)
        else:
            found = fill_file(out, job, world, table.merge, write=write)
            figures = {key: found[key] for key in OF_A_FILE if found}
    if not figures:
        return EmbeddingRecord()
    about = {"shape": list(table.shape), "model": model.config.name, **job.form.about}
    about |= {"engine": engine} if on else {}
    return EmbeddingRecord(figures | about | {"notes": [*notes, *figures["notes"]]})


def take_from(
    what: What, layer: int | Sequence[int] | None, dtype: Literal["fp32", "fp16"]
) -> Taken:
    """Return what is taken of a model, as `embed` is told."""
    layers = (layer,) if isinstance(layer, int) else tuple(layer or ())
    return Taken(what=what, layer=layers, dtype=dtype)


def _check_alone(shard: str, on: On) -> None:
    """Refuse to share out what stays in memory.

    Raises:
        OptionError: it is to be shared.
    """
    several = read_environment(os.environ).size > 1
    given = {f"shard={shard}": shard, f"on={on}": on, "torchrun": several}
    for name, is_on in given.items():
        if is_on:
            raise OptionError(f"{name} needs a file or folder to share: give out")


def _in_memory(
    model: Model,
    data: Given | Sequence[Picture],
    taken: Taken,
    columns: Columns | None,
    compute: Compute,
) -> EmbeddedImages:
    """Return the columns of all images.

    Raises:
        OptionError: more than 1 GB.
        DataError: no usable image.
    """
    opened = open_images(data, "optional", columns=columns)
    compute = replace(compute, device=devices.choose(str(compute.device)), measure=True)
    table = EmbeddingTable(model, group_by_split(opened), taken, compute, shape_taken(model, taken))
    say(*opened.notes)
    images = sum(map(len, table.splits.values()))
    size = images * math.prod(table.shape) * (2 if table.half else 4)
    if size > IN_MEMORY:
        raise OptionError(
            f"the features of {images:,} images take {storage(size)} of memory, more than "
            f"{storage(IN_MEMORY)}: give out='FILE.parquet', whose rows are read as they are needed"
        )
    return table.columns()


@dataclass(frozen=True, eq=False)
class EmbeddingTable:
    """The columns path, label, split and features of some splits, and how they are computed.

    Attributes:
        model: that computes
        splits: the images
        taken: what of the model
        compute: where and how
        shape: of one image's features: (width,) or (tokens, width)
    """

    model: Model
    splits: dict[str, Images]
    taken: Taken
    compute: Compute
    shape: tuple[int, ...]

    @property
    def half(self) -> bool:
        """Whether numbers in the file have two bytes, not four."""
        return self.taken.dtype == "fp16"

    @cached_property
    def about(self) -> dict[str, Any]:
        """What decides the numbers, which files say of themselves."""
        return {
            "job": "embed",
            "model": self.model.config.name,
            "weights": feature_fingerprint(self.model),
            "data": {name: identity(each, labeled=True) for name, each in self.splits.items()},
            "images": sum(map(len, self.splits.values())),
            **self.taken.as_dict(),
            "dimension": self.shape[-1],
            "norm": "none" if self.taken.layers else "final",
            "image_size": list(self.model.config.size),
            "precision": self.compute.precision,
        }

    def job(self, images: int | None) -> ShardJob:
        """Return what fills a folder.

        Args:
            images: of a part, rounded up to whole row groups; None for one row group a part
        """
        batch = batch_of(self.model)
        bytes_ = math.prod(self.shape) * (2 if self.half else 4)
        rows = group_of(batch, bytes_, images or ROWS)
        most = max(1, PART_BYTES // (bytes_ * rows))
        groups = 1 if images is None else min(-(-images // rows), most)
        about = self.about | {"part_images": rows * groups}
        table = partial(self.written, rows // batch)
        return ShardJob(
            "embedding",
            about,
            self.model,
            self.splits,
            self.compute,
            self.taken,
            rows * groups,
            ".parquet",
            table,
        )

    @cached_property
    def schema(self) -> Any:
        """The `pyarrow.Schema`: features are lists of fixed length."""
        import pyarrow

        kind = pyarrow.float16() if self.half else pyarrow.float32()
        for length in reversed(self.shape):
            kind = pyarrow.list_(kind, length)
        text = pyarrow.string()
        several = next(iter(self.splits.values())).target.several
        label = pyarrow.list_(text) if several else text
        columns = {"path": text, "label": label, "split": text, "features": kind}
        return pyarrow.schema(columns.items(), metadata={ABOUT: json.dumps(self.about)})

    @contextmanager
    def written(self, batches: int, file: Path, split: str) -> Iterator[Use]:
        """Yield what writes batches of a split into a file, so many as a row group.

        The file's metadata gets the messages about damaged images.
        """
        waiting: list[Inferred] = []
        bad: list[str] = []
        with self._writer(file) as writer:

            def flush() -> None:
                if any(len(each.indices) for each in waiting):
                    writer.write_table(self._rows(waiting, split))
                waiting.clear()

            def use(batch: Inferred) -> None:
                waiting.append(batch)
                bad.extend(unicode(message) for _, message in batch.bad)
                if len(waiting) == batches:
                    flush()

            yield use
            flush()
            writer.add_key_value_metadata(self._told(bad))

    def columns(self) -> EmbeddedImages:
        """Return the rows of all splits at once, as a file has them.

        Raises:
            DataError: not one image can be used.
        """
        names = list[str]()
        labels = list[Any]()
        splits = list[str]()
        images = sum(map(len, self.splits.values()))
        form = self.compute.fast(self.model, max(self.splits.values(), key=len), 1)
        compute = self.compute.of(form)
        found = np.empty((images, *self.shape), np.float16 if self.half else np.float32)
        bad = list[str]()
        with Meter(images, 0, "embedding") as meter:
            for split, source in self.splits.items():
                before = len(names) + len(bad)

                def progress(done: int, total: int, before: int = before) -> None:
                    meter.show(before + done, "images")

                passes = infer(form.model, source, compute, [self.taken], progress=progress)
                for batch in passes:
                    bad += (text for _, text in batch.bad)
                    if len(batch.indices):
                        texts, own, values = self._values([batch], split)
                        found[len(names) : len(names) + len(texts)] = values
                        names += texts
                        labels += own
                        splits += [split] * len(texts)
        say(*(f"skipped: {text}" for text in bad))
        if not names:
            raise DataError(next(iter(bad), "there are no images"))
        return EmbeddedImages(path=names, label=labels, split=splits, features=found[: len(names)])

    def merge(self, files: Sequence[Path], out: Path) -> None:
        """Write parts, one after the other, as row groups of one file."""
        from pyarrow import parquet

        bad: list[str] = []
        with self._writer(out) as writer:
            for file in files:
                with parquet.ParquetFile(file, page_checksum_verification=True) as part:
                    bad += json.loads(part.metadata.metadata[DAMAGED.encode()])
                    if part.metadata.num_rows:
                        table = part.read()
                        writer.write_table(table, row_group_size=len(table))
            writer.add_key_value_metadata(self._told(bad))

    def _told(self, bad: list[str]) -> dict[str, str]:
        """Return what a file says beside `about`: damaged images, and where the weights were."""
        source = {SOURCE: unicode(self.model.source)} if self.model.source else {}
        return {DAMAGED: json.dumps(bad), **source}

    def _writer(self, file: Path) -> Any:
        from pyarrow import parquet

        return parquet.ParquetWriter(
            file, self.schema, write_page_checksum=True, compression="zstd",
            use_dictionary=["label", "split"],
        )  # fmt: skip

    def _stored(self, values: NDArray[np.float32]) -> NDArray[np.floating]:
        """Return features as the file has them.

        Raises:
            DataError: they are too large for fp16.
        """
        if not self.half:
            return values
        with np.errstate(over="ignore"):
            found = values.astype(np.float16)
        if np.isinf(found).sum() > np.isinf(values).sum():
            raise DataError(
                f"a feature of {np.abs(values).max():.3g} is beyond fp16, which ends at 65,504: "
                "choose dtype=fp32"
            )
        return found

    def _values(
        self, batches: Sequence[Inferred], split: str
    ) -> tuple[list[str], list[Any], NDArray[np.floating]]:
        """Return paths, labels and features of batches; a label is None where there are none."""
        source = self.splits[split]
        features, numbers, _ = stacked(batches, self.shape)
        values = self._stored(features)
        indices = numbers.tolist()
        names = [unicode(source.name(index)) for index in indices]
        several = source.target.several
        labels: list[Any] = [None] * len(names)
        if source.classes:
            each = [[source.classes[c] for c in source.target.classes_of(n)] for n in indices]
            labels = [*each] if several else [one[0] for one in each]
        return names, labels, values

    def _rows(self, batches: Sequence[Inferred], split: str) -> Any:
        """Return the rows of batches as a `pyarrow.Table`."""
        import pyarrow

        names, labels, values = self._values(batches, split)
        columns = {"path": names, "label": labels, "split": [split] * len(names)}
        return pyarrow.Table.from_pydict(columns | {"features": _nested(values)}, self.schema)


def _nested(values: NDArray[np.floating]) -> Any:
    """Return an array as lists of fixed length: (n, width) or (n, tokens, width)."""
    import pyarrow

    array = pyarrow.array(np.ascontiguousarray(values).reshape(-1))
    for length in reversed(values.shape[1:]):
        array = pyarrow.FixedSizeListArray.from_arrays(array, length)
    return array
