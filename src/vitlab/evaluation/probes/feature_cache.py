"""Features on the disk: computed once, checked whenever they are read, and not kept without end.

    FOLDER/KEY/           features.npy, (n, width) float32, and manifest.json with its checksum
    FOLDER/KEY.parts/     the parts that an interrupted command had computed

KEY is the checksum of everything that decides the numbers (`content.key_of`). What is damaged is
computed again. The folder is VITLAB_CACHE/features, else XDG_CACHE_HOME/vitlab/features, else
~/.cache/vitlab/features.
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from vitlab.distributed.world import World
from vitlab.errors import DataError, DiskError
from vitlab.evaluation.probes.content import key_of
from vitlab.evaluation.probes.extraction import Extraction, Piece
from vitlab.files import Lock, explained, sha256, staged_file, staged_folder, tidy, write_text
from vitlab.places import cache_folder
from vitlab.units import storage

LIMIT = 20 * 10**9  # bytes; the features that were not used for longest go first
VALUES, MANIFEST = "features.npy", "manifest.json"


@dataclass(frozen=True)
class Features:
    """The features of a source's images that could be decoded.

    Attributes:
        values: float32 (n, width), memory-mapped
        indices: int64 (n,), numbers of the images in the source
        bad: message about each damaged image, by its number
    """

    values: NDArray[np.float32]
    indices: NDArray[np.int64]
    bad: dict[int, str]


def default_cache() -> Path:
    """Return the folder of the user's cache in which features are kept."""
    return cache_folder("features")


def features_of(
    extraction: Extraction,
    world: World,
    cache: Path | None,
    progress: Callable[[int], None] = lambda images: None,
) -> Features:
    """Return the features of a source: from the cache, or computed by all processes together.

    Args:
        extraction: of one vector per image
        world: the processes, which must see the same folder
        cache: where features are kept; None for a temporary folder
        progress: called after every batch with the number of images that this process has done

    Raises:
        DataError: not one image could be decoded, or a worker process died.
        DiskError: the folder cannot be written, or another process does not see it.
    """
    with ExitStack() as stack:
        if cache is None:
            own = stack.enter_context(tempfile.TemporaryDirectory()) if world.first else ""
            place = Path(world.broadcast(own)) / "features"
        else:
            place = cache / key_of(extraction, world)
        with world.agreed():
            if world.first:
                stack.enter_context(_held(place))
        found = _read(place, len(extraction.source)) if world.first else None
        if not world.broadcast(found is not None):
            _compute(extraction, world, place, progress)
            found = _read(place, len(extraction.source)) if world.first else None
        if not world.first:
            return Features(np.empty((0, *extraction.shape), np.float32), np.empty(0, np.int64), {})
        if found is None:
            raise DiskError(f"what was written into {place} cannot be read back: check the disk")
        if cache is not None:
            os.utime(place)
            prune(cache, LIMIT)
        return found


def prune(cache: Path, limit: float) -> None:
    """Remove the features that were not used for longest until `limit` bytes are left."""
    with suppress(OSError):  # others may be removing too
        places = sorted(cache.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
        total = 0
        for number, place in enumerate(each for each in places if each.is_dir()):
            total += sum(file.stat().st_size for file in place.iterdir())
            if total > limit and number:  # the newest are in use
                shutil.rmtree(place, ignore_errors=True)


def _compute(
    extraction: Extraction, world: World, place: Path, progress: Callable[[int], None]
) -> None:
    """Compute the parts that are missing, and put all of them together."""
    drafts = place.with_name(f"{place.name}.parts")
    files = [drafts / f"{number:06d}.safetensors" for number in range(extraction.parts)]
    with world.agreed():
        if world.first:
            with explained(drafts):
                drafts.mkdir(parents=True, exist_ok=True)
        todo = [n for n, file in enumerate(files) if _part(file) is None] if world.first else []
    todo = world.broadcast(todo)
    with world.agreed():
        if not drafts.is_dir():
            raise DiskError(
                f"process {world.rank} cannot see {drafts}: choose a --cache on storage shared by "
                "all machines"
            )
        for piece in extraction.pieces(todo[world.rank :: world.size], progress):
            _write_part(files[piece.number], piece)
    with world.agreed():
        if world.first:
            _assemble(files, place, extraction)
            shutil.rmtree(drafts, ignore_errors=True)


def _write_part(file: Path, piece: Piece) -> None:
    bad = json.dumps(piece.bad)
    about = {"bad": bad, "sha256": _checksum(piece.values, bad)}
    with staged_file(file) as draft:
        save_file({"values": piece.values}, draft, metadata=about)


def _part(file: Path) -> tuple[NDArray[np.float32], dict[int, str]] | None:
    """Return a part and its damaged images; None if it is missing or damaged."""
    try:
        with safe_open(file, framework="numpy") as stored:
            values, about = stored.get_tensor("values"), stored.metadata()
        if about["sha256"] != _checksum(values, about["bad"]):
            return None
        return values, _numbered(json.loads(about["bad"]))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return None


def _checksum(values: NDArray[np.float32], text: str) -> str:
    digest = hashlib.sha256(f"{values.shape} {text}\n".encode())
    digest.update(np.ascontiguousarray(values).data)
    return digest.hexdigest()


def _assemble(files: list[Path], place: Path, extraction: Extraction) -> None:
    """Write the parts, one after the other, as one file with its manifest."""
    bad: dict[int, str] = {}
    rows = 0
    for file in files:
        values, damaged = _sound(file)
        rows, bad = rows + len(values), bad | damaged
    if not rows:
        raise DataError(next(iter(bad.values()), "there are no images"))
    with staged_folder(place) as draft:
        whole = np.lib.format.open_memmap(
            draft / VALUES, "w+", np.dtype(np.float32), (rows, *extraction.shape)
        )
        start = 0
        for file in files:
            values, _ = _sound(file)
            whole[start : start + len(values)] = values
            start += len(values)
        whole.flush()
        content = {"values": sha256(draft / VALUES), "bad": bad}
        text = json.dumps(content)
        checked = {"content": text, "sha256": hashlib.sha256(text.encode()).hexdigest()}
        write_text(draft / MANIFEST, json.dumps(checked))


def _sound(file: Path) -> tuple[NDArray[np.float32], dict[int, str]]:
    """Return a part that was just written."""
    part = _part(file)
    if part is None:
        raise DiskError(f"{file} cannot be read back: check the disk, then run the command again")
    return part


def _read(place: Path, images: int) -> Features | None:
    """Return stored features; None if there are none, or they are damaged."""
    try:
        checked: dict[str, Any] = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
        if hashlib.sha256(checked["content"].encode()).hexdigest() != checked["sha256"]:
            return None
        content = json.loads(checked["content"])
        if sha256(place / VALUES) != content["values"]:
            return None
        values = np.load(place / VALUES, mmap_mode="r", allow_pickle=False)
        bad = _numbered(content["bad"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    indices = np.setdiff1d(np.arange(images), np.array([*bad], np.int64))
    return Features(values, indices, bad) if len(indices) == len(values) else None


def _numbered(messages: dict[str, str]) -> dict[int, str]:
    return {int(number): text for number, text in messages.items()}


@contextmanager
def _held(place: Path) -> Iterator[None]:
    """Wait until no other command computes these features, and remove what a killed one left."""
    lock = Lock(place.with_name(f".{place.name}.lock"), "some features may be computed twice")
    with lock.held(wait=True):
        if lock.supported:
            tidy(place.parent, re.escape(place.name))
        yield


def described(cache: Path) -> str:
    """Return one line about the features that a folder keeps."""
    size = sum(each.stat().st_size for each in cache.rglob("*") if each.is_file())
    return f"features are kept in {cache} ({storage(size)}); --cache no turns that off"
