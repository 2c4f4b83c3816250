"""WebDataset shards: tar files in which an image and its label share a name.

    00000017.jpg  00000017.cls        00000018.jpg  00000018.json ({"label": …} or {"labels": […]})

Every shard is gone through once. Where each image lies is kept in the user's cache folder
(VITLAB_CACHE, else XDG_CACHE_HOME/vitlab, else ~/.cache/vitlab), so that any image can then be read
by its number, from a disk or over a network: batch k stays a pure function of (seed, k), which no
stream of shards through a shuffling buffer can be. Nothing is unpacked, unpickled or run.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.decode import MAX_BYTES, BadImage
from vitlab.data.labels import Label, Labels, index_labels
from vitlab.data.sources.filenames import Names
from vitlab.data.sources.lists import label_of
from vitlab.data.sources.remote import filesystem, is_url
from vitlab.data.sources.tar import Damaged, Read, members
from vitlab.errors import UserError
from vitlab.files import write_text

IMAGES = {"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"}
LABELS = ("cls", "json", "txt")  # the first that is there says the label
CLASSES = "classes.txt"  # beside the shards: the classes by number, a name a line
_MAX_LABEL = 2**20  # bytes
_VERSION = 1


@dataclass(frozen=True)
class Index:
    """Where the images of one shard lie, under which key, and what each is."""

    keys: list[str]
    offsets: list[int]
    sizes: list[int]
    labels: list[Label]


@dataclass(frozen=True, eq=False)
class Shards:
    """Images in tar files, read by place and size. Its arrays are shared with worker processes."""

    places: tuple[str, ...]
    shard: NDArray[np.int32]  # the place of each image, (n,)
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]
    keys: Names
    labels: Labels
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.shard)

    def read(self, index: int) -> bytes:
        """The bytes of one member."""
        offset, size = int(self.offsets[index]), int(self.sizes[index])
        if size > MAX_BYTES:
            raise BadImage(f"{self.name(index)}: {size:,} bytes; at most {MAX_BYTES:,} are read")
        try:
            data = _read_once(self.places[self.shard[index]], offset, size)
        except Exception as error:  # file systems elsewhere raise what they like
            raise BadImage(f"{self.name(index)}: {_reason(error)}") from None
        if len(data) != size:
            raise BadImage(f"{self.name(index)}: the shard is shorter than it was")
        return data

    def name(self, index: int) -> str:
        """The shard and the key."""
        return f"{self.places[self.shard[index]]} {self.keys[index]}"


def shards(places: Sequence[str], title: str, classes: Sequence[str] | None = None) -> Shards:
    """A source of all images in some tar files.

    Args:
        places: paths and URLs
        title: what to call them in an error
        classes: the class index to follow; None for the names in `classes.txt` beside the first
            shard, or for the labels found

    Raises:
        ValueError: a shard that cannot be read, is damaged or empty; images without a label, two of
            one name, labels of no class.
    """
    with ThreadPoolExecutor(16 if is_url(places[0]) else 1) as pool:  # elsewhere is far away
        found = list(pool.map(index_shard, places))
    count = [len(each.keys) for each in found]
    raw = [label for each in found for label in each.labels]
    labels, order = index_labels(raw, title, classes, _class_names(places[0]))
    return Shards(
        tuple(places),
        np.repeat(np.arange(len(places), dtype=np.int32), count),
        np.array([offset for each in found for offset in each.offsets], np.int64),
        np.array([size for each in found for size in each.sizes], np.int64),
        Names.of(key for each in found for key in each.keys),
        labels,
        order,
    )


def index_shard(place: str) -> Index:
    """Where the images of a shard lie: from the cache, or by going through it once.

    Raises:
        ValueError: it is not there, damaged or empty, or an image in it has no label.
    """
    try:
        with _opened(place) as (read, total, stamp):
            file = _cache_folder() / f"{hashlib.sha256(stamp.encode()).hexdigest()}.json"
            if (known := _load(file)) is not None:
                return known
            index = _scan(read, total, place)
    except UserError:
        raise
    except Damaged as error:
        raise UserError(f"{place} is {error}") from None
    except Exception as error:  # file systems elsewhere raise what they like
        raise UserError(f"cannot read {place}: {_reason(error)}") from None
    with suppress(UserError):  # without a cache it is gone through again
        write_text(file, json.dumps({"version": _VERSION, **vars(index)}))
    return index


def _scan(read: Read, total: int, place: str) -> Index:
    """Go through a shard."""
    images: dict[str, tuple[int, int]] = {}
    said: dict[str, dict[str, bytes]] = {}
    for member in members(read, total):
        path = PurePosixPath(member.name)
        stem, _, kind = path.name.partition(".")
        key, kind = str(path.parent / stem), kind.lower()
        if not stem or path.name.startswith("."):
            continue
        if kind in IMAGES:
            if key in images:
                raise UserError(f"{place} has two images of the name {key!r}")
            images[key] = member.offset, member.size
        elif kind in LABELS:
            if kind in said.setdefault(key, {}):
                raise UserError(f"{place} has {key}.{kind} twice")
            if member.size > _MAX_LABEL:
                raise UserError(f"{place}: {key}.{kind} has {member.size:,} bytes: no label")
            said[key][kind] = read(member.offset, member.size)
    if not images:
        raise UserError(f"{place} holds no images ({', '.join(sorted(IMAGES))})")
    labels = [_label(said.get(key, {}), f"{place} {key}") for key in images]
    offsets, sizes = zip(*images.values(), strict=True)
    return Index(list(images), list(offsets), list(sizes), labels)


def _label(said: dict[str, bytes], where: str) -> Label:
    """The label among an image's members."""
    for kind in (kind for kind in LABELS if kind in said):
        try:
            text = said[kind].decode("utf-8").strip()
            if kind != "json":
                if text and "\n" not in text:
                    return text
                continue
            row = json.loads(text)
        except (ValueError, RecursionError):
            raise UserError(f"{where}.{kind} is no UTF-8 text, or no JSON") from None
        if isinstance(row, dict) and {"label", "labels"} & set(row):
            return label_of(row, f"{where}.json")
    raise UserError(
        f"{where} has no label: a .cls or .txt of one line beside it, "
        'or a .json with "label" or "labels"'
    )


@contextmanager
def _opened(place: str) -> Iterator[tuple[Read, int, str]]:
    """How to read a file anywhere, its size, and what changes when it does."""
    if is_url(place):
        system, path = filesystem(place)
        size = int(system.info(path)["size"])
        with system.open(path, "rb") as stream:

            def read(offset: int, count: int) -> bytes:
                stream.seek(offset)
                return bytes(stream.read(count))

            yield read, size, f"{place} {size} {system.ukey(path)}"
        return
    with Path(place).open("rb", buffering=0) as file:
        state = os.fstat(file.fileno())
        stamp = f"{Path(place).resolve()} {state.st_size} {state.st_mtime_ns}"
        yield lambda offset, count: os.pread(file.fileno(), count, offset), state.st_size, stamp


def _read_once(place: str, offset: int, size: int) -> bytes:
    """Some bytes of a file anywhere; nothing stays open, so that processes may be forked."""
    if is_url(place):
        system, path = filesystem(place)
        return bytes(system.cat_file(path, start=offset, end=offset + size))
    with Path(place).open("rb", buffering=0) as file:
        return os.pread(file.fileno(), size, offset)


def _class_names(place: str) -> list[str] | None:
    """The lines of `classes.txt` beside a shard, if it is there."""
    beside = f"{place.rpartition('/')[0] or ('.' if not place.startswith('/') else '')}/{CLASSES}"
    try:
        if is_url(place):
            system, path = filesystem(beside)
            text = bytes(system.cat_file(path)).decode("utf-8")
        else:
            text = Path(beside).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{beside} is not UTF-8 text") from None
    except Exception:  # it need not be there
        return None
    names = text.replace("\r\n", "\n").removesuffix("\n").split("\n")
    if len(set(names)) != len(names) or not all(names):
        raise UserError(f"{beside} has a class twice, or an empty line")
    return names


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(os.environ.get("VITLAB_CACHE") or Path(home) / "vitlab") / "shards"


def _load(file: Path) -> Index | None:
    """A cached index; None where there is none, or one that makes no sense."""
    try:
        stored: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if stored.pop("version") != _VERSION:
            return None
        index = Index(**stored)
        lengths = {len(value) for value in vars(index).values()}
        whole = all(type(number) is int and number >= 0 for number in index.offsets + index.sizes)
        known = all(isinstance(label, str | list) for label in index.labels)
        return index if len(lengths) == 1 and whole and known else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _reason(error: Exception) -> str:
    reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, FileNotFoundError):  # elsewhere it says the name and nothing else
        reason = "no such file"
    return " ".join(str(reason).split())[:200]
