"""From the DATA a user names to training and test images."""

import hashlib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.labels import Labels, index_labels, is_multi
from vitlab.data.sources import lists
from vitlab.data.sources.filenames import Names
from vitlab.data.sources.remote import expand, is_url
from vitlab.data.sources.sources import Files, Source, Subset, class_folders, counts, digits, table
from vitlab.data.sources.tar_shards import shards
from vitlab.errors import UserError

TRAIN, VALIDATION, TEST = ("train", "training"), ("val", "valid", "validation", "dev"), ("test",)
SPLIT_SEED = 0  # the split belongs to the data: every run and every evaluation sees the same one


@dataclass(frozen=True)
class Splits:
    """Training and test images under one class index, and remarks on how they were found.

    `test` is the test split where there is one, else the validation split, else what was held out
    here from the `whole`; `validation` is there beside a test split only.
    """

    train: Source
    test: Source
    validation: Source | None = None
    whole: Source | None = None  # of data that came unsplit
    notes: list[str] = field(default_factory=list)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names in the order of the labels."""
        return self.train.classes


def open_data(data: str, test_fraction: float = 0.2, classes: tuple[str, ...] = ()) -> Splits:
    """The images that DATA names, split.

    Args:
        data: `digits`, a folder of class folders, a folder with train/ and val/ or test/, a Parquet
            file or a folder of them, WebDataset shards (a `.tar` file or URL, a glob, a brace range
            such as `photos-{000..031}.tar`, or a folder of them), a `.csv` or `.jsonl` list, or a
            Hugging Face data set `user/name`
        test_fraction: share of each class to hold out where the data comes unsplit
        classes: the class index to map labels to by name; none for the data's own

    Raises:
        ValueError: nothing there, no images, fewer than two classes, a class of unknown name, a
            list that names missing files, a damaged shard.
    """
    if not data:
        raise UserError("name the data: digits, a folder of class folders, a Parquet file, …")
    splits = _open(data, test_fraction, classes or None)
    if not classes and len(splits.classes) < 2:
        raise UserError(f"{data} has one class only ({splits.classes[0]!r}): two are needed")
    if not len(splits.train) or not len(splits.test):
        raise UserError(f"{data} has too few images to hold some out for testing")
    return splits


def _open(data: str, test_fraction: float, classes: tuple[str, ...] | None) -> Splits:
    path = Path(data).expanduser()
    if data == "digits":
        return replace(hold_out(digits(), 0.2), whole=None)  # a fixed split, as if it came with one
    if path.is_dir() and any(path.glob("*.parquet")):
        return _parquet(sorted(path.glob("*.parquet")), data, test_fraction, classes)
    if path.is_dir() and (tars := sorted(path.glob("*.tar"))):
        return _shards([str(tar) for tar in tars], data, test_fraction, classes)
    if path.is_dir():
        return _folder(path, test_fraction, classes)
    if path.is_file() and path.suffix == ".parquet":
        return _parquet([path], data, test_fraction, classes)
    if path.is_file() and path.suffix.lower() in lists.SUFFIXES:
        return _list(path, test_fraction, classes)
    if data.endswith(".tar"):
        return _shards(expand(data if is_url(data) else str(path)), data, test_fraction, classes)
    if data.endswith(".parquet") and not is_url(data):
        return _parquet([Path(each) for each in expand(str(path))], data, test_fraction, classes)
    if path.exists():
        raise UserError(
            f"{data} is neither a folder nor a Parquet file, .tar shard, .csv or .jsonl"
        )
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", data):
        return _hub(data, test_fraction, classes)
    raise UserError(f"no such file or folder: {data}")


def _folder(root: Path, test_fraction: float, classes: tuple[str, ...] | None) -> Splits:
    inside = {each.name.lower(): each for each in root.iterdir() if each.is_dir()}
    if not any(root.iterdir()):
        raise UserError(f"{root} is empty: put each class's images into a folder of its name")

    def find(names: tuple[str, ...]) -> Path | None:
        return next((inside[name] for name in names if name in inside), None)

    train, others = find(TRAIN), [find(VALIDATION), find(TEST)]
    if train is None or not any(others):
        alone = train if len(inside) == 1 else None  # beside others it is a class of that name
        source, notes = class_folders(alone or root, classes)
        return hold_out(source, test_fraction, notes)
    source, notes = class_folders(train, classes)
    rest = []
    for folder in filter(None, others):
        extra, more = class_folders(folder, source.classes)
        rest.append(extra)
        notes += more
    return _named(source, rest, notes)


def _named(train: Source, rest: Sequence[Source], notes: list[str]) -> Splits:
    """Splits as the data names them: the last of the rest is what is reported on."""
    validation = rest[0] if len(rest) > 1 else None
    return Splits(train, rest[-1], validation, notes=notes)


def _parquet(
    paths: list[Path], data: str, test_fraction: float, classes: tuple[str, ...] | None
) -> Splits:
    import datasets

    groups = _by_split([(path.stem, str(path)) for path in paths])
    loaded = _quietly(
        lambda: datasets.load_dataset("parquet", data_files=groups), f"cannot read {data}"
    )
    return _tables(loaded, data, test_fraction, classes)


def _split_of(words: str) -> str:
    """The split that a file's name speaks of: train unless it says otherwise."""
    parts = set(re.split(r"[^a-z]+", words.lower()))
    known = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
    return next((key for key, names in known.items() if parts & set(names)), "train")


def _by_split(files: list[tuple[str, str]]) -> dict[str, list[str]]:
    """Files, each with the words that may name its split, by split."""
    groups: dict[str, list[str]] = {}
    for words, file in files:
        groups.setdefault(_split_of(words), []).append(file)
    if "train" not in groups:  # a single split by whatever name is all there is
        groups = {"train": [file for files in groups.values() for file in files]}
    return groups


def _shards(
    places: list[str], data: str, test_fraction: float, classes: tuple[str, ...] | None
) -> Splits:
    paths = [PurePosixPath(place) for place in places]
    groups = _by_split(
        [(f"{p.parent.name} {p.stem}", place) for p, place in zip(paths, places, strict=True)]
    )
    train = shards(groups["train"], f"{data} train", classes)
    rest = [
        shards(groups[split], f"{data} {split}", train.classes)
        for split in ("validation", "test")
        if split in groups
    ]
    return _named(train, rest, []) if rest else hold_out(train, test_fraction)


def _list(file: Path, test_fraction: float, classes: tuple[str, ...] | None) -> Splits:
    """Splits from a list of paths: those its lines name, or one for all of them."""
    entries = lists.read_list(file)
    several = any(not isinstance(entry.label, str) for entry in entries)
    groups: dict[str, list[lists.Entry]] = {}
    for entry in entries:
        known = {"train": ("", *TRAIN), "validation": VALIDATION, "test": TEST}
        split = next((key for key, names in known.items() if entry.split in names), None)
        if split is None:
            raise UserError(f"{file}: split {entry.split!r} of {entry.path}: train, val or test")
        groups.setdefault(split, []).append(entry)
    if "train" not in groups:
        groups = {"train": entries}
    sources: list[Files] = []
    for split in (each for each in ("train", "validation", "test") if each in groups):
        own = groups[split]
        raw = [(e.label,) if several and isinstance(e.label, str) else e.label for e in own]
        follow = sources[0].classes if sources else classes
        labels, names = index_labels(raw, f"{file} {split}", follow)
        sources.append(Files(file.parent, Names.of(e.path for e in own), labels, names))
    return (
        _named(sources[0], sources[1:], []) if sources[1:] else hold_out(sources[0], test_fraction)
    )


def _hub(name: str, test_fraction: float, classes: tuple[str, ...] | None) -> Splits:
    """A data set of the Hugging Face hub, downloaded once and memory-mapped.

    It is not streamed: a stream through a shuffling buffer knows no image by its number, so what a
    batch holds would depend on the workers, and of a Parquet file a whole row group would be read
    for every image. What is too large to download can be read in place from tar shards:
    `hf://datasets/user/name/*.tar`.
    """
    import datasets
    import huggingface_hub

    offline = False
    try:
        huggingface_hub.HfApi().dataset_info(name, timeout=10)
    except Exception:  # whatever the reason, a copy in the local cache will do
        offline = True
    local = datasets.DownloadConfig(local_files_only=offline)
    loaded = _quietly(
        lambda: datasets.load_dataset(name, download_config=local),
        f"no such folder: {name}; nor could the Hugging Face hub give a data set of this name",
    )
    return _tables(loaded, name, test_fraction, classes)


def _tables(
    loaded: Any, data: str, test_fraction: float, classes: tuple[str, ...] | None
) -> Splits:
    """Splits from a `datasets.DatasetDict`."""
    first = "train" if "train" in loaded else next(iter(loaded))
    train = table(loaded[first], f"{data} {first}", classes)
    rest: list[Source] = []
    for names in (VALIDATION, TEST):
        for name in (name for name in names if name in loaded and name != first):
            rest.append(table(loaded[name], f"{data} {name}", train.classes))
    return _named(train, rest, []) if rest else hold_out(train, test_fraction)


def _quietly(load: Callable[[], Any], failed: str) -> Any:
    """Call into `datasets`, with its bars on a terminal only and any failure as one line."""
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    level = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        return load()
    except Exception as error:  # the library raises dozens of kinds; each means the same here
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"{failed}: {reason[0]}") from error
    finally:
        datasets.logging.set_verbosity(level)
        datasets.enable_progress_bars()


def hold_out(source: Source, test_fraction: float, notes: list[str] | None = None) -> Splits:
    """Hold out a share of every class, always the same images, at least one left to train."""
    test = held_out(source.labels, test_fraction)
    train = np.setdiff1d(np.arange(len(source)), test)
    share = f"{test_fraction:.0%} of each class held out for testing (stratified, fixed)"
    if is_multi(source.labels):
        share = f"{test_fraction:.0%} held out for testing (at random, fixed)"
    remarks = [*(notes or []), f"{share}: {len(test):,} of {len(source):,} images"]
    remarks += [
        f"class {name!r} has one image only" for name, n in counts(source).items() if n == 1
    ]
    return Splits(Subset(source, train), Subset(source, test), whole=source, notes=remarks)


def held_out(labels: Labels, fraction: float) -> NDArray[np.int64]:
    """Which images are for testing: sorted indices, `fraction` of each class.

    Of images with several labels, `fraction` of them all.
    """
    generator = np.random.default_rng(SPLIT_SEED)
    if is_multi(labels):
        count = min(round(fraction * len(labels)), len(labels) - 1)
        return np.sort(generator.permutation(len(labels))[:count])
    chosen = []
    for label in np.unique(labels):
        own = generator.permutation(np.flatnonzero(labels == label))
        chosen.append(own[: min(round(fraction * len(own)), len(own) - 1)])
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)


def fingerprint(source: Source) -> str:
    """A checksum of the labels, the classes and a few images: the same data, wherever it lies.

    It lets an evaluation recognize the data a model was trained on, and look at the part that was
    held out only.
    """
    digest = hashlib.sha256(repr(source.classes).encode())
    digest.update(source.labels.tobytes())
    for index in np.linspace(0, len(source) - 1, num=8, dtype=int):
        try:
            item = source.read(int(index))
        except UserError:  # an unreadable image is told of when its turn comes
            continue
        digest.update(item if isinstance(item, bytes) else item.tobytes())
    return digest.hexdigest()
