"""`vitlab prepare`: a training-ready copy of a data set, as Parquet files or WebDataset shards.

No larger than training needs, without damaged images. Every image is decoded once, completely. One
whose shorter side is longer than wanted is shrunk (bicubic, antialiased) and stored as JPEG; one
that is small enough stays byte for byte as it is if it is a JPEG, PNG or WebP. Gray stays gray,
transparency is composited over white.
"""

import io
import json
import tarfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from torch.utils.data import Dataset

from vitlab.data.learning import open_to_learn
from vitlab.data.loading.loader import choose_workers, in_order
from vitlab.data.settings import Columns
from vitlab.data.sources.source import Source
from vitlab.data.sources.tar_shards import CLASSES, read_ahead
from vitlab.errors import DataError, ImageError, OptionError
from vitlab.files import is_empty, staged_folder
from vitlab.packages import needed

ROWS = 100  # of a row group: what is read for one image where files cannot be mapped
BYTES = 2**28  # of a file, approximately


class Parquet:
    """Files `split-00000-of-00003.parquet` with columns image and label (labels, if several).

    Class names are in the schema, where Hugging Face's `datasets` and `open_data` look for them;
    the README.md assigns the files to splits, for `datasets`.
    """

    def __init__(self, folder: Path, split: str, source: Source) -> None:
        datasets = needed("datasets", "--format parquet", "use --format tar")
        self.folder, self.split, self.count = folder, split, 0
        self.several, self.column = source.labels.several, source.labels.column
        kind: Any = datasets.ClassLabel(names=list(source.classes))
        if self.several:
            kind = datasets.List(kind)
        self.schema = datasets.Features({"image": datasets.Image(), self.column: kind}).arrow_schema
        self.rows: list[dict[str, Any]] = []
        self.files: list[Path] = []
        self.file: Any = None
        self.size = 0

    def add(self, data: bytes, ending: str, classes: tuple[int, ...]) -> None:
        """Add one image."""
        path = f"{self.split}-{self.count:08d}.{ending}"
        label = list(classes) if self.several else classes[0]
        self.rows.append({"image": {"bytes": data, "path": path}, self.column: label})
        self.count += 1
        self.size += len(data)
        if len(self.rows) == ROWS:
            self._flush()
        if self.size >= BYTES:
            self._close()

    def _flush(self) -> None:
        """Write a row group."""
        import pyarrow
        from pyarrow import parquet

        if self.file is None:
            self.files.append(self.folder / f"{self.split}-{len(self.files):05d}.parquet")
            # images are compressed already
            self.file = parquet.ParquetWriter(self.files[-1], self.schema, compression="none")
        self.file.write_table(pyarrow.Table.from_pylist(self.rows, self.schema))
        self.rows = []

    def _close(self) -> None:
        if self.rows:
            self._flush()
        if self.file is not None:
            self.file.close()
        self.file, self.size = None, 0

    def close(self) -> None:
        """Rename the files, now that their number is known."""
        self._close()
        for number, file in enumerate(self.files):
            file.rename(file.with_stem(f"{self.split}-{number:05d}-of-{len(self.files):05d}"))
        card = self.folder / "README.md"
        head = "---\nconfigs:\n- config_name: default\n  data_files:\n"
        text = card.read_text(encoding="utf-8") if card.exists() else head + "---\n"
        more = f"  - split: {self.split}\n    path: {self.split}-*.parquet\n---\n"
        card.write_text(text.removesuffix("---\n") + more, encoding="utf-8")


class Tar:
    """Shards `split-000000.tar` of `00000000.jpg` and `00000000.cls`, the index of its class.

    With several labels per image, a `.json` names them. `classes.txt` has the names by index.
    """

    def __init__(self, folder: Path, split: str, source: Source) -> None:
        self.folder, self.split, self.classes, self.count = folder, split, source.classes, 0
        self.several = source.labels.several
        self.file: tarfile.TarFile | None = None
        self.size = self.shards = 0
        if unfit := [name for name in source.classes if name.splitlines() != [name]]:
            raise DataError(
                f"the class name {unfit[0]!r} is not one line of text, as {CLASSES} needs: "
                "use --format parquet"
            )
        names = "".join(f"{name}\n" for name in source.classes)
        (folder / CLASSES).write_text(names, encoding="utf-8")

    def add(self, data: bytes, ending: str, classes: tuple[int, ...]) -> None:
        """Add one image."""
        if self.file is None:
            name = f"{self.split}-{self.shards:06d}.tar"
            self.file = tarfile.open(self.folder / name, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
            self.shards += 1
        key = f"{self.count:08d}"
        self._put(f"{key}.{ending}", data)
        if self.several:
            names = [self.classes[place] for place in classes]
            self._put(f"{key}.json", json.dumps({"labels": names}, ensure_ascii=False).encode())
        else:
            self._put(f"{key}.cls", str(classes[0]).encode())
        self.count += 1
        if self.size >= BYTES:
            self.close()

    def _put(self, name: str, content: bytes) -> None:
        assert self.file is not None
        info = tarfile.TarInfo(name)  # no owner, no date: the same bytes every time
        info.size = len(content)
        self.file.addfile(info, io.BytesIO(content))
        self.size += len(content)

    def close(self) -> None:
        """Finish a shard."""
        if self.file is not None:
            self.file.close()
        self.file, self.size = None, 0


WRITERS: dict[str, type[Parquet] | type[Tar]] = {"parquet": Parquet, "tar": Tar}


BAD = "bad.jsonl"
_CHUNK = 16  # images that a worker processes at a time


def sources_to_copy(data: str, columns: Columns | None = None) -> dict[str, Source]:
    """Return the splits of DATA by name; data that comes unsplit stays so, as `train`.

    When it is split later, the same images are held out as of the original, if none was damaged.

    Raises:
        DataError: as `open_data`.
    """
    splits = open_to_learn(data, columns=columns)
    return splits.parts if splits.whole is None else {"train": splits.whole}


def copy(
    sources: dict[str, Source],
    out: str | Path,
    *,
    side: int = 256,
    layout: Literal["parquet", "tar"] = "parquet",
    quality: int = 92,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda images: None,
    warn: Callable[[str], None] = lambda message: None,
) -> dict[str, Any]:
    """Write a training-ready copy; the same bytes whatever the number of workers.

    Args:
        sources: from `sources_to_copy`
        out: a new or empty folder; it appears when the copy is complete
        side: limit of the shorter side, in pixels
        layout: Parquet files as Hugging Face's, or WebDataset shards with `classes.txt`
        quality: of JPEG, 1 to 95
        workers: processes; None to choose
        progress: called now and then with the number of images processed
        warn: called with a message about each image that cannot be used

    Returns:
        images, damaged, bytes, out; damaged images are listed in `bad.jsonl` there.

    Raises:
        OptionError: a side or quality out of range.
        DataError: a folder that is not empty, or a split without any usable image.
        WorkerDiedError: a process that decodes images died.
    """
    out = Path(out)
    if side < 1 or not 1 <= quality <= 95:
        raise OptionError(f"side must be at least 1 and quality 1 to 95, not {side} and {quality}")
    if not is_empty(out):
        raise DataError(f"{out} already exists: choose a new folder")
    done = damaged = size = 0
    with staged_folder(out) as draft, (draft / BAD).open("w", encoding="utf-8") as bad:
        for split, source in sources.items():
            with closing(WRITERS[layout](draft, split, source)) as writer:
                chunks = _Chunks(source, side, quality)
                many = in_order(chunks, range(len(chunks)), choose_workers(source, workers))
                for item in chain.from_iterable(many):
                    done, size = done + 1, size + len(item.data)
                    if item.error:
                        damaged += 1
                        warn(item.error)
                        line = {"split": split, "index": item.index, "error": item.error}
                        bad.write(json.dumps(line, ensure_ascii=False) + "\n")
                    else:
                        writer.add(item.data, item.ending, source.labels.classes_of(item.index))
                    if done % _CHUNK == 0:
                        progress(done)
                if not writer.count:
                    raise DataError(f"no image of the {split} split can be used")
    return {"images": done - damaged, "damaged": damaged, "bytes": size, "out": str(out)}


@dataclass(frozen=True)
class Converted:
    """One image as it goes into the copy, or what is wrong with it."""

    index: int
    data: bytes = b""
    ending: str = ""
    error: str = ""


@dataclass(frozen=True)
class _Chunks(Dataset[list[Converted]]):
    source: Source
    side: int
    quality: int

    def __len__(self) -> int:
        return -(-len(self.source) // _CHUNK)

    def __getitem__(self, k: int) -> list[Converted]:
        own = range(k * _CHUNK, min((k + 1) * _CHUNK, len(self.source)))
        read_ahead(self.source, own)
        return [self._convert(index) for index in own]

    def _convert(self, index: int) -> Converted:
        try:
            return Converted(index, *self.source.image(index).compact(self.side, self.quality))
        except ImageError as error:
            return Converted(index, error=str(error))
