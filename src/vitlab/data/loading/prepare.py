"""A training-ready copy of a data set: no larger than training needs, every image known to decode.

What is copied is decoded once, completely; an image whose shorter side is longer than wanted is
shrunk (bicubic, antialiased) and stored as JPEG, one that is small enough already is kept byte for
byte if it is a JPEG, PNG or WebP. Grays stay gray, transparency is laid over white.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from torch.utils.data import DataLoader, Dataset

from vitlab.data.decode import crop, decode
from vitlab.data.decode.decode import BadImage
from vitlab.data.loading import writers
from vitlab.data.loading.loader import choose_workers, leave_signals_to_parent
from vitlab.data.sources.sources import Source
from vitlab.data.sources.splits import open_data
from vitlab.errors import UserError
from vitlab.files import is_empty, staged_folder

BAD = "bad.jsonl"
_CHUNK = 16  # images that a worker does at a time


def parts(data: str) -> dict[str, Source]:
    """The splits of DATA by name; data that comes unsplit stays so, as `train`.

    Its split later holds out the same images as that of the original, if none was bad.
    """
    splits = open_data(data)
    if splits.whole is not None:
        return {"train": splits.whole}
    named = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    return {name: source for name, source in named.items() if source is not None}


def prepare(
    sources: dict[str, Source],
    out: str | Path,
    *,
    side: int = 256,
    layout: Literal["parquet", "tar"] = "parquet",
    quality: int = 92,
    workers: int | None = None,
    seen: Callable[[int], None] = lambda images: None,
    told: Callable[[str], None] = lambda message: None,
) -> dict[str, Any]:
    """Write a training-ready copy; the same bytes whatever the number of workers.

    Args:
        sources: from `parts`
        out: a new or empty folder; it appears when it is complete
        side: pixels of the shorter side that is kept at most
        layout: Parquet files as Hugging Face's, or WebDataset shards with `classes.txt`
        quality: of JPEG, 1 to 95
        workers: processes; None to choose
        seen: told the number of images done, now and then
        told: told of every image that cannot be used

    Returns:
        images, damaged, bytes, out; what is damaged is listed in `bad.jsonl` there.

    Raises:
        ValueError: a side or quality that cannot be, a folder in use, a split without any image
            that can be used.
    """
    out = Path(out)
    if side < 1 or not 1 <= quality <= 95:
        raise UserError(f"side must be at least 1 and quality 1 to 95, not {side} and {quality}")
    if not is_empty(out):
        raise UserError(f"{out} is there already: name a new folder")
    done, bad, total = 0, 0, 0
    with staged_folder(out) as draft, (draft / BAD).open("w", encoding="utf-8") as list_:
        for split, source in sources.items():
            with writers.WRITERS[layout](draft, split, source) as writer:
                for item in _made(source, side, quality, choose_workers(source, workers)):
                    done += 1
                    if item.error:
                        bad += 1
                        told(item.error)
                        line = {"split": split, "index": item.index, "error": item.error}
                        list_.write(json.dumps(line, ensure_ascii=False) + "\n")
                    else:
                        writer.add(item.data, item.suffix, source.labels[item.index])
                        total += len(item.data)
                    if done % _CHUNK == 0:
                        seen(done)
                if not writer.count:
                    raise UserError(f"not one image of the {split} split can be used")
    return {"images": done - bad, "damaged": bad, "bytes": total, "out": str(out)}


@dataclass(frozen=True)
class Made:
    """One image as it goes into the copy, or what is wrong with it."""

    index: int
    data: bytes = b""
    suffix: str = ""
    error: str = ""


def _made(source: Source, side: int, quality: int, workers: int) -> Iterator[Made]:
    """All images in order; at most two chunks a worker are waiting."""
    chunks = _Chunks(source, side, quality)
    loader = DataLoader(
        chunks,
        batch_size=None,
        num_workers=min(workers, len(chunks)),
        collate_fn=list,
        worker_init_fn=leave_signals_to_parent if workers else None,
    )
    for chunk in loader:
        yield from chunk


@dataclass(frozen=True)
class _Chunks(Dataset[list[Made]]):
    source: Source
    side: int
    quality: int

    def __len__(self) -> int:
        return -(-len(self.source) // _CHUNK)

    def __getitem__(self, k: int) -> list[Made]:
        last = min((k + 1) * _CHUNK, len(self.source))
        return [self._make(index) for index in range(k * _CHUNK, last)]

    def _make(self, index: int) -> Made:
        try:
            item = self.source.read(index)
            if isinstance(item, bytes):
                return Made(index, *smaller(item, self.source.name(index), self.side, self.quality))
            pixels = item[..., 0] if item.shape[2] == 1 else item
            return Made(index, _encoded(Image.fromarray(pixels), "PNG"), "png")
        except BadImage as error:
            return Made(index, error=str(error))


def smaller(data: bytes, name: str, side: int, quality: int) -> tuple[bytes, str]:
    """An image file with its shorter side limited, and the suffix of its format.

    Raises:
        BadImage: as `decode`.
    """
    rows, columns, channels = decode.shape(data, name)
    ratio = min(1.0, side / min(rows, columns))
    new = max(1, round(rows * ratio)), max(1, round(columns * ratio))
    least = 2.0 * new[0], 2.0 * new[1]
    pixels, box = decode.decode_box(data, channels, name, lambda r, c: (0, 0, c, r), least)
    kind = decode.kind_of(data)
    if ratio == 1 and kind in ("JPEG", "PNG", "WEBP"):
        return data, {"JPEG": "jpg"}.get(kind, kind.lower())
    made = crop.crop_resize(pixels, box, *new, "bicubic")
    image = Image.fromarray(made[..., 0] if channels == 1 else made)
    return _encoded(image, "JPEG", quality=quality), "jpg"


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()
