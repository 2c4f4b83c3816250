"""`vitlab prepare`: a training-ready copy of a data set, as Parquet files or WebDataset shards.

No larger than training needs, without damaged images. Every image is decoded once, completely. One
whose shorter side is longer than wanted is shrunk (bicubic, antialiased) and stored as JPEG; one
that is small enough stays byte for byte as it is if it is a JPEG, PNG or WebP. Gray stays gray,
transparency is composited over white.
"""

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from vitlab.data.images import Images
from vitlab.data.loading.loader import in_chunks
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Columns
from vitlab.data.sources.tar_shards import CLASSES
from vitlab.errors import DataError, ImageError
from vitlab.files import staged_folder
from vitlab.packages import needed
from vitlab.places import check_new_folder
from vitlab.progress import say

T = TypeVar("T")
ROWS = 100  # of a row group: what is read for one image where files cannot be mapped
BYTES = 2**28  # of a file, approximately
BAD = "bad.jsonl"
_CHUNK = 16  # images that a worker processes at a time


class Copied(NamedTuple):
    """One image as it goes into the copy, with its number there in its split."""

    number: int
    data: bytes
    ending: str
    classes: tuple[int, ...]


def _parquet(folder: Path, split: str, source: Images, images: Iterator[Copied]) -> None:
    """Write files `split-00000-of-00003.parquet` of columns image and label (labels, if several).

    Class names are in the schema, where Hugging Face's `datasets` and `open_data` look for them;
    the README.md assigns the files to splits, for `datasets`.
    """
    datasets = needed("datasets", "--format parquet", "use --format tar")
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    several = source.target.several
    column = source.target.column
    kind: Any = datasets.ClassLabel(names=list(source.classes))
    kind = datasets.List(kind) if several else kind
    schema = datasets.Features({"image": datasets.Image(), column: kind}).arrow_schema

    def row(image: Copied) -> dict[str, Any]:
        path = f"{split}-{image.number:08d}.{image.ending}"
        label = list(image.classes) if several else image.classes[0]
        return {"image": {"bytes": image.data, "path": path}, column: label}

    files: list[Path] = []
    for shard in _shards(images, lambda image: len(image.data)):
        files.append(folder / f"{split}-{len(files):05d}.parquet")
        with ParquetWriter(files[-1], schema, compression="none") as file:  # images are compressed
            while rows := list(map(row, islice(shard, ROWS))):
                file.write_table(pyarrow.Table.from_pylist(rows, schema))
    for path in files:
        path.rename(path.with_stem(f"{path.stem}-of-{len(files):05d}"))
    card = folder / "README.md"
    head = "---\nconfigs:\n- config_name: default\n  data_files:\n"
    text = card.read_text(encoding="utf-8") if card.exists() else head + "---\n"
    more = f"  - split: {split}\n    path: {split}-*.parquet\n---\n"
    card.write_text(text.removesuffix("---\n") + more, encoding="utf-8")


def _tar(folder: Path, split: str, source: Images, images: Iterator[Copied]) -> None:
    """Write shards `split-000000.tar` of `00000000.jpg` and `00000000.cls`, its class's index.

    With several labels per image, a `.json` names them. `classes.txt` has the names by index.
    """
    if unfit := [name for name in source.classes if name.splitlines() != [name]]:
        raise DataError(
            f"the class name {unfit[0]!r} is not one line of text, as {CLASSES} needs: "
            "use --format parquet"
        )
    lines = "".join(f"{name}\n" for name in source.classes)
    (folder / CLASSES).write_text(lines, encoding="utf-8")

    def members(image: Copied) -> dict[str, bytes]:
        if source.target.several:
            names = [source.classes[place] for place in image.classes]
            ending = "json"
            label = json.dumps({"labels": names}, ensure_ascii=False)
        else:
            ending = "cls"
            label = str(image.classes[0])
        key = f"{image.number:08d}"
        return {f"{key}.{image.ending}": image.data, f"{key}.{ending}": label.encode()}

    shards = _shards(map(members, images), lambda own: sum(map(len, own.values())))
    for number, shard in enumerate(shards):
        path = folder / f"{split}-{number:06d}.tar"
        with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as file:
            for name, content in chain.from_iterable(own.items() for own in shard):
                info = tarfile.TarInfo(name)  # no owner, no date: the same bytes every time
                info.size = len(content)
                file.addfile(info, io.BytesIO(content))


def _shards(items: Iterator[T], size: Callable[[T], int]) -> Iterator[Iterator[T]]:
    """Yield, one after the other, what goes into each file; to be consumed in this order."""

    def shard(item: T) -> Iterator[T]:
        room = BYTES - size(item)
        yield item
        while room > 0 and (following := next(items, None)) is not None:
            room -= size(following)
            yield following

    return map(shard, items)


def sources_to_copy(data: str, columns: Columns | None = None) -> dict[str, Images]:
    """Return the splits of DATA by name; data that comes unsplit stays so, as `train`.

    With groups, which a copy does not have, it is split now. When others are split later, a hash of
    the copies' bytes decides, so that other images are held out than of the original.

    Raises:
        DataError: as `open_data`.
    """
    splits = open_to_learn(data, options=columns)
    say(*(note for note in splits.notes if "held out" not in note))  # a copy is not split
    whole = splits.whole
    return splits.parts if whole is None or whole.group is not None else {"train": whole}


def copy(
    sources: dict[str, Images],
    out: str | Path,
    *,
    side: int = 256,
    layout: Literal["parquet", "tar"] = "parquet",
    quality: int = 92,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda images: None,
) -> dict[str, Any]:
    """Write a training-ready copy; the same bytes whatever the number of workers.

    Args:
        sources: from `sources_to_copy`
        out: a new or empty folder; it appears when the copy is complete
        side: limit of the shorter side, in pixels
        layout: Parquet files as Hugging Face's, or WebDataset shards with `classes.txt`
        quality: of JPEG, 1 to 95
        workers: processes; None to choose
        progress: called with the number of images processed

    Returns:
        images, damaged, bytes, out; damaged images are listed in `bad.jsonl` there.

    Raises:
        DataError: a folder that is not empty, or a split without any usable image.
        WorkerDiedError: a process that decodes images died.
    """
    out = Path(out)
    check_new_folder(out)
    done = damaged = size = 0
    with staged_folder(out) as draft, (draft / BAD).open("w", encoding="utf-8") as bad:

        def usable(split: str, source: Images) -> Iterator[Copied]:
            nonlocal done, damaged, size
            number = 0
            convert = partial(_converted, side=side, quality=quality)
            made = in_chunks(source, convert, _CHUNK, workers)
            for index, item in enumerate(chain.from_iterable(made)):
                done += 1
                if isinstance(item, str):
                    damaged += 1
                    say(f"skipped: {item}")
                    line = {"split": split, "index": index, "error": item}
                    bad.write(json.dumps(line, ensure_ascii=False) + "\n")
                else:
                    size += len(item[0])
                    yield Copied(number, *item, source.target.classes_of(index))
                    number += 1
                progress(done)
            if not number:
                raise DataError(f"no image of the {split} split can be used")

        for split, source in sources.items():
            write = _parquet if layout == "parquet" else _tar
            write(draft, split, source, usable(split, source))
    return {"images": done - damaged, "damaged": damaged, "bytes": size, "out": str(out)}


def _converted(
    source: Images, indices: range, side: int, quality: int
) -> list[tuple[bytes, str] | str]:
    """Return the bytes and the ending of some images for the copy, or what is wrong with one."""
    found: list[tuple[bytes, str] | str] = []
    for index in indices:
        try:
            found.append(source.image(index).compact(side, quality))
        except ImageError as error:
            found.append(str(error))
    return found
