"""Features of images, memory-mapped from a cache in which they are computed once.

    FOLDER/KEY.safetensors     `features` (n, width), `indices` (n,), and a checksum of both
    FOLDER/.KEY.safetensors.parts/   the shards that an interrupted command had computed

KEY is a checksum of everything that decides the numbers. What is damaged is computed again. The
folder is VITLAB_CACHE/features, else XDG_CACHE_HOME/vitlab/features, else ~/.cache/vitlab/features.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from vitlab.data.images import Images
from vitlab.data.loading.loader import in_chunks
from vitlab.distributed.world import ALONE, World
from vitlab.errors import DataError, DiskError, ImageError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.features import FEATURES, ImageFeatures, features_in_memory
from vitlab.evaluation.infer import (
    Inferred,
    Vectors,
    batch_of,
    shape_taken,
    stacked,
)
from vitlab.evaluation.shards import ShardJob, Use, fill_file, group_of
from vitlab.files import explained
from vitlab.models.model import Model
from vitlab.packages import version_of
from vitlab.places import cache_folder
from vitlab.progress import Meter, say
from vitlab.runs.kept_arrays import read_arrays, write_arrays
from vitlab.units import storage
from vitlab.weights.identity import feature_fingerprint

LIMIT = 20 * 10**9  # bytes; the features that were not used for longest go first


CHUNK = 256  # images whose checksum is one number


PACKAGES = ("vitlab", "torch", "numpy", "pillow", "simplejpeg")  # they decide the numbers too


def default_cache() -> Path:
    """Return the folder of the user's cache in which features are kept."""
    return cache_folder("features")


def cache_of(choice: str | Path | None) -> Path | None:
    """Return the folder that a user chose: `auto` is the user's cache; `no`, or none, is None."""
    if choice == "auto":
        return default_cache()
    return Path(choice).expanduser() if choice and choice != "no" else None


def features_of(
    model: Model,
    source: Images,
    compute: Compute,
    taken: Vectors = FEATURES,
    *,
    world: World = ALONE,
    cache: Path | None = None,
    title: str = "computing features",
) -> ImageFeatures:
    """Return the features of a source: from the cache, or computed by all processes together.

    A cache that cannot be written is no reason to end: a line says why, and they are in memory.

    Args:
        model: any
        source: the images
        compute: where and how
        taken: what of the model, one vector per image
        world: the processes, which must see the same cache; the first one has the features
        cache: where features are kept; None to have them in memory alone
        title: of the progress

    Raises:
        DataError: not one image could be decoded, or a worker process died.
    """
    if cache is not None:
        found = _from_cache(model, source, compute, taken, CachePlace(cache, world, title))
        if world.broadcast(found is not None):
            no_features = np.empty((0, 0), np.float32)
            return found or ImageFeatures(no_features, np.empty(0, np.int64), [], cached=True)
    with Meter(0, 0, title, world.first) as meter:
        found = features_in_memory(model, source, compute, taken, world, meter.images)
    if not world.broadcast(len(found.indices)):
        raise world.shared(DataError(next(iter(found.bad), "there are no images")))
    return found


@dataclass(frozen=True)
class CachePlace:
    """Where features are kept.

    Attributes:
        cache: the folder
        world: the processes, which must see it
        title: of the progress
    """

    cache: Path
    world: World
    title: str


def _from_cache(
    model: Model, source: Images, compute: Compute, taken: Vectors, place: CachePlace
) -> ImageFeatures | None:
    """Return features from the cache, computed if need be, in the first process.

    None of a cache that cannot be written, after a line that says why.
    """
    cache = place.cache
    world = place.world
    refusal = world.from_first(lambda: _refusal(cache))
    if refusal and not world.from_first(lambda: _is_folder(cache)):
        _say_in_memory(refusal, place)
        return None
    key = world.from_first(lambda: key_of(model, source, compute, taken))
    file = cache / f"{key}.safetensors"
    kept = _read_by_first(file, world)
    if not world.broadcast(kept is not None):
        if refusal:
            _say_in_memory(refusal, place)
            return None
        job = _job(model, source, compute, taken, place.title, key)
        try:
            fill_file(file, job, world, _merge, ready=lambda: read_features(file) is not None)
        except DiskError as error:  # of all processes
            _say_in_memory(str(error), place)
            return None
        kept = _read_by_first(file, world)
        if not world.broadcast(kept is not None):
            _say_in_memory(f"{file} cannot be read back: check the disk", place)
            return None
    if kept is not None:
        with suppress(OSError):  # of a cache that can be read alone
            os.utime(file)
        prune(cache, LIMIT)
    return kept


def _read_by_first(file: Path, world: World) -> ImageFeatures | None:
    """Return the features of a file, if they are there, in the first process."""
    with world.agreed():
        return read_features(file) if world.first else None


def _refusal(cache: Path) -> str:
    """Return why a folder cannot be written to; empty if it can."""
    try:
        with explained(cache):
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=cache):
                return ""
    except DiskError as error:
        return str(error)


def _is_folder(cache: Path) -> bool:
    with suppress(OSError):
        return cache.is_dir()
    return False


def _say_in_memory(why: str, place: CachePlace) -> None:
    if place.world.first:
        other = "VITLAB_CACHE=FOLDER" if place.cache == default_cache() else "another cache"
        say(f"{why}: features are in memory alone; {other} keeps them")


def prune(cache: Path, limit: float) -> None:
    """Remove the features that were not used for longest until `limit` bytes are left."""
    with suppress(OSError):  # others may be removing too
        places = sorted(cache.iterdir(), key=lambda each: each.stat().st_mtime, reverse=True)
        total = 0
        for number, place in enumerate(places):
            total += _size(place)
            if total > limit and number:  # the newest are in use
                shutil.rmtree(place, ignore_errors=True) if place.is_dir() else place.unlink()


def described(cache: Path) -> str:
    """Return one line about the features that a folder keeps."""
    return f"features are kept in {cache} ({storage(_size(cache))}); --cache no turns that off"


def _size(place: Path) -> int:
    files = place.rglob("*") if place.is_dir() else [place]
    return sum(each.stat().st_size for each in files if each.is_file())


def key_of(model: Model, source: Images, compute: Compute, taken: Vectors) -> str:
    """Return a checksum of everything that decides the features, in hexadecimal.

    That is the bytes of every image, the weights and the configuration of the model, which says how
    images are prepared; what is taken, the precision, the engine, the kind of device, how many
    images go through the model at once, and the versions of the packages that compute.

    Raises:
        WeightsError: the model is fused.
    """
    parts = {
        "images": _content(source, compute.workers),
        "count": len(source),
        "weights": feature_fingerprint(model),
        "taken": taken.as_dict(),
        "precision": compute.precision,
        "engine": compute.engine,
        "device": compute.where.type,
        "batch": batch_of(model),
        "versions": {name: version_of(name) for name in PACKAGES},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _content(source: Images, workers: int | None) -> str:
    """Return a checksum of all images as they are stored."""
    sums = in_chunks(source, _digest, CHUNK, workers)
    return hashlib.sha256("".join(sums).encode()).hexdigest()


def _digest(source: Images, indices: range) -> str:
    """Return a checksum of some images."""
    digest = hashlib.sha256()
    for index in indices:
        try:
            image = source.image(index)
            content = image.content()
            shape = json.dumps(image.shape()) if source.in_memory else ""
        except ImageError:  # reported when it is decoded
            content, shape = b"", "unreadable"
        digest.update(f"{len(content)} {shape}\n".encode())
        digest.update(content)
    return digest.hexdigest()


def _job(
    model: Model, source: Images, compute: Compute, taken: Vectors, title: str, key: str
) -> ShardJob:
    """Return the job whose shards are put together into a file of the cache."""
    width = int(np.prod(shape_taken(model, taken)))
    about = {"job": "features", "key": key, "images": len(source)}
    what = model, {"all": source}, compute, taken, group_of(batch_of(model), 4 * width)
    table = partial(_shard, width)
    return ShardJob(title, about, *what, ".safetensors", table, warn=lambda message: None)


@contextmanager
def _shard(width: int, file: Path, split: str) -> Iterator[Use]:
    """Yield what keeps batches, and write them as one shard."""
    kept: list[Inferred] = []
    yield kept.append
    values, indices, bad = stacked(kept, (width,))
    write_arrays(file, {"features": values, "indices": indices}, [*bad.values()])


def _merge(files: Sequence[Path], out: Path) -> None:
    """Write shards, one after the other, as one file."""
    parts = [_present(each, read_features(each)) for each in files]
    values, indices = (
        np.concatenate(each)
        for each in zip(*((part.values, part.indices) for part in parts), strict=True)
    )
    bad = [text for part in parts for text in part.bad]
    write_arrays(out, {"features": values, "indices": indices}, bad)


def _present(file: Path, found: ImageFeatures | None) -> ImageFeatures:
    """Return what was read, or refuse a file that was written and is damaged."""
    if found is None:
        raise DiskError(f"what was written into {file} cannot be read back: check the disk")
    return found


def read_features(file: Path) -> ImageFeatures | None:
    """Return stored features, memory-mapped; None if there are none, or they are damaged."""
    if (found := read_arrays(file, tuple[str, ...], ("features", "indices"))) is None:
        return None
    arrays, bad = found
    if arrays["indices"].shape != arrays["features"].shape[:1]:
        return None
    return ImageFeatures(arrays["features"], arrays["indices"], bad, cached=True)
