"""A training-ready copy of a data set: no larger than training needs, without damaged images.

Every image is decoded once, completely. One whose shorter side is longer than wanted is shrunk
(bicubic, antialiased) and stored as JPEG; one that is small enough stays byte for byte as it is if
it is a JPEG, PNG or WebP. Gray stays gray, transparency is composited over white.
"""

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from torch.utils.data import Dataset

from vitlab.data.composed import read_ahead
from vitlab.data.learning import open_to_learn
from vitlab.data.loading.loader import choose_workers, in_order
from vitlab.data.loading.writers import WRITERS
from vitlab.data.settings import Columns
from vitlab.data.sources.protocol import Source
from vitlab.errors import DataError, ImageError, OptionError
from vitlab.files import is_empty, staged_folder

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
