"""From the DATA a user names to training and test images."""

import hashlib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.sources import Source, Subset, class_folders, counts, digits, table
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
            file or a folder of them, or a Hugging Face data set `user/name`
        test_fraction: share of each class to hold out where the data comes unsplit
        classes: the class index to map labels to by name; none for the data's own

    Raises:
        ValueError: nothing there, no images, fewer than two classes, a class of unknown name.
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
    if path.is_dir():
        return _folder(path, test_fraction, classes)
    if path.is_file() and path.suffix == ".parquet":
        return _parquet([path], data, test_fraction, classes)
    if path.exists():
        raise UserError(f"{data} is neither a folder nor a Parquet file")
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

    def kind(path: Path) -> str:
        words = re.split(r"[^a-z]+", path.stem.lower())
        known = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
        return next((key for key, names in known.items() if set(words) & set(names)), "train")

    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(kind(path), []).append(str(path))
    if "train" not in groups:  # a single split by whatever name is all there is
        groups = {"train": [file for files in groups.values() for file in files]}
    loaded = _quietly(
        lambda: datasets.load_dataset("parquet", data_files=groups), f"cannot read {data}"
    )
    return _tables(loaded, data, test_fraction, classes)


def _hub(name: str, test_fraction: float, classes: tuple[str, ...] | None) -> Splits:
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
    remarks = [*(notes or []), f"{share}: {len(test):,} of {len(source):,} images"]
    remarks += [
        f"class {name!r} has one image only" for name, n in counts(source).items() if n == 1
    ]
    return Splits(Subset(source, train), Subset(source, test), whole=source, notes=remarks)


def held_out(labels: NDArray[np.int64], fraction: float) -> NDArray[np.int64]:
    """Which images are for testing: sorted indices, `fraction` of each class."""
    generator = np.random.default_rng(SPLIT_SEED)
    chosen = []
    for label in np.unique(labels):
        own = generator.permutation(np.flatnonzero(labels == label))
        chosen.append(own[: min(round(fraction * len(own)), len(own) - 1)])
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)


def fingerprint(source: Source) -> str:
    """A checksum of the labels, the classes and a few images: the same data, wherever it lies.

    It lets an evaluation recognise the data a model was trained on, and look at the part that was
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
