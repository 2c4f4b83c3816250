"""The images of DATA to learn from without labels, and those held out to measure the loss."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vitlab.data.composed import Joined, Relabeled
from vitlab.data.decode.formats import SUFFIXES, unread_lines
from vitlab.data.labels import SingleLabels
from vitlab.data.pictures.listing import find_images
from vitlab.data.pictures.pictures import Picture
from vitlab.data.presence import PATTERN, is_hub_data
from vitlab.data.settings import Data
from vitlab.data.sources.folders import Files, holds_images, names_below, visible
from vitlab.data.sources.listed.listed_images import listed_images
from vitlab.data.sources.listed.lists import list_file
from vitlab.data.sources.memory.given import Given, title_of, unlabeled_images
from vitlab.data.sources.memory.unlabeled_given import given_images
from vitlab.data.sources.opening import open_data
from vitlab.data.sources.protocol import Source, Subset
from vitlab.data.sources.splits import NAMES, SPLIT_SEED, Splits
from vitlab.data.sources.tar_shards import unlabeled_shard_splits
from vitlab.data.sources.unlabeled import image_paths, is_flat, kind_of_images, unlabeled_splits
from vitlab.errors import DataError

SHARE, MOST = 0.1, 1000  # of images without labels: how many measure the loss
USUAL = Data().test_fraction  # another one is the user's own choice
LOOKED_AT = 8  # images, before training
Parts = dict[str, Source]
OF_LABELS = re.compile(r"\b(class|classes|labels?|held out)\b")  # notes that concern nobody here


def open_images(data: Given | Sequence[Picture], options: Data) -> Splits:
    """Open images for learning without labels: any DATA of training, or images without labels.

    Images without labels are a folder of photographs, at any depth, a glob pattern of them, tables,
    shards and lists without labels, or images in memory. Of data that comes in splits, only the
    training images are learned from. The held-out images of labeled data are those that training
    with labels holds out, so that weights can be fine-tuned on the same data and tested on images
    that they have never seen; of images without labels (and of data with one class), a tenth, at
    most 1,000, is held out at random, or `test_fraction` if it is not the usual one.

    Args:
        data: as a user names it, or in memory
        options: which columns hold what, and how much of unsplit data is held out

    Returns:
        Splits without classes; every label is 0.

    Raises:
        DataError: no such data, fewer than two images, or none that can be read.
    """
    title = title_of(data)
    parts, notes = _bare(data)
    if not parts:
        try:
            splits = open_data(data, options.test_fraction, columns=options, learning=False)
        except DataError as error:
            parts, notes = _without_labels(data, options, error)
        else:
            if splits.whole is None or (len(splits.classes) > 1 and len(splits.test)):
                return _checked(_of_labeled(splits, data, title), title)
            parts, notes = _everything(data, splits.whole)
    return _checked(_of_parts(parts, notes, options, title), title)


def _bare(data: Given | Sequence[Picture]) -> tuple[Parts, list[str]]:
    """Return images that cannot have labels, by split, and notes; nothing of other data."""
    if not isinstance(data, str | Path):
        found = unlabeled_images(data)
        return ({} if found is None else {"all": found}), []
    path = Path(data).expanduser()
    if path.is_dir():
        names = {each.name.lower() for each in visible(path)}
        known = {name for own in NAMES.values() for name in own}
        train = [each for each in visible(path) if each.name.lower() in NAMES["train"]]
        split = len(names) > 1 and names <= known and train and holds_images(train[0])
        return _of_folder(path) if is_flat(path) or split else ({}, [])
    kinds = path.suffix.lower()
    pattern = any(sign in str(data) for sign in PATTERN) and kinds not in (".tar", ".parquet")
    if (kinds in SUFFIXES or pattern) and "://" not in str(data):
        files = [each for each in find_images([str(data)]) if Path(each).suffix.lower() in SUFFIXES]
        return {"all": image_paths(files)}, []
    return {}, []


def _without_labels(data: Given, options: Data, error: DataError) -> tuple[Parts, list[str]]:
    """Return the images of data that cannot be opened with labels; raise `error` if none can."""
    if not isinstance(data, str | Path):
        return given_images(data, title_of(data), options), []
    name, path = str(data), Path(data).expanduser()
    if (file := list_file(path)) is not None:
        return dict(listed_images(file, options)), []
    kind = kind_of_images(name)
    if kind == "shards":
        return dict(unlabeled_shard_splits(name)), []
    # a table of the Hub that could not be loaded is not asked for again
    if kind == "tables" or (is_hub_data(name) and not error.__cause__):
        return unlabeled_splits(name, options), []
    if not path.is_dir():
        raise error
    return _of_folder(path)


def _everything(data: Given, whole: Source) -> tuple[Parts, list[str]]:
    """Return all images of data with one class, or with too few to hold out some of each."""
    if isinstance(data, str | Path) and Path(data).is_dir() and isinstance(whole, Files):
        return _of_folder(Path(data))
    return {"all": whole}, []


def _of_folder(root: Path) -> tuple[Parts, list[str]]:
    """Return the images at any depth below a folder; in train/ and others, those of each."""
    inside = {each.name.lower(): each for each in visible(root)}
    folders = {
        split: next(inside[name] for name in names if name in inside)
        for split, names in NAMES.items()
        if any(name in inside for name in names)
    }
    notes = [
        f"ignored {each}: it is beside {folders['train'].name}, and not a split"
        for each in inside.values()
        if "train" in folders and each not in folders.values()
    ]
    parts: Parts = {}
    for split, folder in (folders if "train" in folders else {"all": root}).items():
        names, others = names_below(folder)
        notes += unread_lines(str(folder), others)
        if names:
            parts[split] = image_paths(names, folder)
    if not parts.keys() & {"train", "all"}:
        raise DataError(
            f"no images in {folders.get('train', root)}" + "".join(f"; {n}" for n in notes)
        )
    return parts, notes


def _of_labeled(splits: Splits, data: Given, title: str) -> Splits:
    """Return the same splits without labels, with what lies beside class folders."""
    notes = [n for n in splits.notes if n.startswith("ignored") or not OF_LABELS.search(n)]
    train = _unlabeled(splits.train)
    if splits.whole is None:
        notes.append(_told(train, splits.validation or splits.test, title))
    else:
        notes.append(
            f"{len(splits.test):,} of {len(splits.whole):,} images held out to measure the loss: "
            "those that training with labels holds out of this data"
        )
        if (loose := _loose(data)) is not None:
            train = Joined((train, loose))
            notes.append(f"learning from {len(loose):,} images beside the class folders, too")
    validation = None if splits.validation is None else _unlabeled(splits.validation)
    whole = None if splits.whole is None else _unlabeled(splits.whole)
    return Splits(train, _unlabeled(splits.test), validation, whole, notes)


def _loose(data: Given) -> Files | None:
    """Return the images in a folder itself, beside its class folders."""
    if not isinstance(data, str | Path) or not (root := Path(data).expanduser()).is_dir():
        return None
    if list_file(root) is not None:
        return None
    names = sorted(
        each.name
        for each in root.iterdir()
        if each.suffix.lower() in SUFFIXES and not each.name.startswith(".") and each.is_file()
    )
    return image_paths(names, root) if names else None


def _of_parts(parts: Parts, notes: Sequence[str], options: Data, title: str) -> Splits:
    """Return splits of images without labels, by the names of the splits that they come in."""
    parts = {name: _unlabeled(part) for name, part in parts.items() if len(part)}
    named = {
        split: name for split, known in NAMES.items() for name in parts if name.lower() in known
    }
    others = [name for name in parts if name not in named.values()]
    if "train" in named and others:
        notes = [*notes, f"ignored what is not a split of {title}: {', '.join(others)}"]
    learned = [named.pop("train")] if "train" in named else others
    if not learned:  # a single split, whatever its name, is all there is
        learned, named = list(parts), {}
    if not learned:
        raise DataError(f"{title} has no images")
    sources = tuple(parts[name] for name in learned)
    train = sources[0] if len(sources) == 1 else Joined(sources)
    held_out = [parts[named[split]] for split in ("validation", "test") if split in named]
    if not held_out:
        return _random(train, notes, options)
    validation = held_out[0] if len(held_out) > 1 else None
    return Splits(train, held_out[-1], validation, notes=[*notes, _told(train, held_out[0], title)])


def _told(train: Source, held_out: Source, title: str) -> str:
    return (
        f"learning from the {len(train):,} training images of {title}; the {len(held_out):,} of "
        "its validation or test split only measure the loss"
    )


def _random(whole: Source, notes: Sequence[str], options: Data) -> Splits:
    """Hold images out whatever they show, always the same ones."""
    share = options.test_fraction
    wanted = min(MOST, round(SHARE * len(whole))) if share == USUAL else round(share * len(whole))
    count = min(max(1, wanted), len(whole) - 1)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(whole))
    test, train = np.sort(order[:count]), np.sort(order[count:])
    line = (
        f"{count:,} of {len(whole):,} images held out at random to measure the loss (always the "
        "same)"
    )
    return Splits(Subset(whole, train), Subset(whole, test), whole=whole, notes=[*notes, line])


def _unlabeled(source: Source) -> Source:
    return Relabeled(source, SingleLabels.blank(len(source), 0), ()) if source.classes else source


def _checked(splits: Splits, title: str) -> Splits:
    """Refuse data with too few images."""
    images = len(splits.train) + (len(splits.test) if splits.whole is not None else 0)
    if images < 2 or not len(splits.train):
        count = "only one image" if images else "no images"
        raise DataError(f"{title} has {count} to learn from: give at least 2")
    _check_readable(splits.train, title)
    return splits


def _check_readable(source: Source, title: str) -> None:
    """Refuse data of which none of a few images can be read."""
    places = np.unique(np.linspace(0, len(source) - 1, num=LOOKED_AT, dtype=int)).tolist()
    complaint = ""
    for number in places:
        try:
            source.image(number).shape()
            return
        except DataError as error:
            complaint = complaint or str(error)
    raise DataError(
        f"none of {len(places)} images of {title} that were looked at can be read, such as "
        f"{complaint}: is this a folder of images?"
    )
