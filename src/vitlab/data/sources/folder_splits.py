"""Splits by folders: which folders of a tree are train, validation and test, and which are not.

    train/cat/1.jpg, val/cat/2.jpg                  by their usual names, in any case
    training_set/cat/1.jpg, test_set/cat/2.jpg      names that end or begin alike (Kaggle)
    train/cat/1.jpg, test/2.jpg                     a split without classes has no labels
    test_set/test_set/cat/1.jpg                     what has all images of a split is entered

The words of splits are those of `data/split_words.py`.
"""

import re
from collections import Counter

from vitlab.data.sources.class_levels import MOST_STRAY, Folder
from vitlab.data.sources.file_tree import FileTree
from vitlab.data.split_words import SPLIT_OF, SPLIT_WORDS, is_like_a_split
from vitlab.errors import DataError

GENERIC = frozenset({
    "images", "image", "imgs", "img", "photos", "pictures", "pics", "data", "dataset", "files",
    "all", "jpg", "jpeg", "png", "raw", "set", "split", "folder", "full",
})  # fmt: skip
"""Words that say nothing on what a folder has."""


def splits_inside(tree: FileTree) -> dict[str, FileTree]:
    """Return the folders that are named as splits, training first.

    By their usual names; else by names that have such a word and are otherwise the same, or say
    nothing else: `seg_train` and `seg_test`, not `train_station` and `test_tube`.
    """
    inside = {each.name.lower(): each for each in tree.folders()}
    found = {
        split: [name for name in names if name in inside] for split, names in SPLIT_WORDS.items()
    }
    plain = {split: inside[names[0]] for split, names in found.items() if names}
    return plain or _similar_splits(tree)


def _similar_splits(tree: FileTree) -> dict[str, FileTree]:
    """Return the folders whose names have the word of a split; none where it may be chance."""
    found = dict[str, FileTree]()
    rests = set[str]()
    for each in tree.folders():
        split, rest = _split_in(each.name)
        if split in found:
            return {}
        if split:
            found[split] = each
            rests.add(rest)
    is_sure = len(rests) == 1 or all({*rest.split()} <= GENERIC for rest in rests)
    if "train" not in found or len(found) < 2 or not is_sure:
        return {}
    return {split: found[split] for split in SPLIT_WORDS if split in found}


def _split_in(name: str) -> tuple[str, str]:
    """Return the split that a name has the word of, and its other words; empty if it has none."""
    words = re.findall(r"[a-z]+", re.sub(r"(set|data)\b", r" \1", name.lower().replace("_", " ")))
    splits = [word for word in words if word in SPLIT_OF]
    if len(splits) != 1:
        return "", ""
    return SPLIT_OF[splits[0]], " ".join(word for word in words if word != splits[0])


def is_flat(folder: FileTree) -> bool:
    """Return whether images lie in a folder itself, and not only a few beside those below."""
    if not folder.listing.has_pictures:
        return False
    counts = picture_folders(folder)
    return counts[()] > MOST_STRAY * sum(counts.values())


def picture_folders(tree: FileTree) -> Counter[Folder]:
    """Return the folders with images in them, and how many."""
    found = Counter[Folder]()
    for path in tree.below():
        listing = tree.listings[tree.path + path]
        clips = sum(map(len, (listing.clips or {}).values()))
        if count := len(listing.images) + clips:
            found[tuple(path.split("/")[:-1])] = count
    return found


def flat_splits(tree: FileTree) -> dict[str, FileTree]:
    """Return the folders of a root that has nothing but splits without class folders."""
    found = splits_inside(tree)
    alone = len(found) > 1 and len(found) == len(tree.listing.folders)
    first = found.get("train")
    return found if alone and all(map(is_flat, [first] if first else found.values())) else {}


def split_folders(tree: FileTree) -> tuple[dict[str, FileTree], list[FileTree]]:
    """Return the folders that are splits, training first, and those that are neither.

    A folder named as a split is one if its images are in class folders; else it is a class of that
    name (a train, beside a bus and a car).

    Returns:
        Nothing if the folders are classes.

    Raises:
        DataError: folders of classes beside a split, or other splits but none to learn from.
    """
    found = {split: each for split, each in splits_inside(tree).items() if not is_flat(each)}
    own = {each.path for each in found.values()}
    others = [each for each in tree.folders() if each.path not in own]
    if not found or (others and "train" not in found):
        _check_are_classes(tree)
        return {}, []
    if "train" not in found and len(found) > 1:
        names = " and ".join(each.name for each in found.values())
        raise DataError(
            f"{tree.title} has {names}, but no train folder: name one of them as the data"
        )
    doubtful = [each for each in others if not is_flat(each) and each.has_pictures_below()]
    if doubtful:
        train = found["train"]
        raise DataError(
            f"{tree.title} has {doubtful[0].name} beside {train.name}, and it may be a class or "
            f"a split: rename it test or val, move it away, or name {train.title} as the data"
        )
    return _enter_folders(found), others


def _check_are_classes(tree: FileTree) -> None:
    """Refuse folders such as trainval and test that have the same folders of classes.

    Raises:
        DataError: they would be the classes.
    """
    folders = [each for each in tree.folders() if each.has_pictures_below()]
    names = [each.name for each in folders]
    if len(folders) < 2 or not all(is_like_a_split(name.lower()) for name in names):
        return
    if not any("train" in name.lower() for name in names) or any(map(is_flat, folders)):
        return
    inside = [{own.name for own in each.folders() if own.has_pictures_below()} for each in folders]
    if len(set.intersection(*inside)) > 1:
        raise DataError(
            f"{tree.title} has {', '.join(names[:4])}, which are like splits and have the same "
            "folders: name them train, val and test, or name one of them as the data"
        )


def _enter_folders(splits: dict[str, FileTree]) -> dict[str, FileTree]:
    """Return splits by the folders inside that have all their images and say nothing else.

    Where those of the training split have no classes, all stay as they are.
    """
    found = {split: _enter_split(folder) for split, folder in splits.items()}
    return splits if any(is_flat(found[name]) for name in found if name == "train") else found


def _enter_split(folder: FileTree) -> FileTree:
    """Return the folder inside, at any depth, of a name such as `images` or the split's own."""
    inner = folder
    while not inner.listing.has_pictures:
        full = [each for each in inner.folders() if each.has_pictures_below()]
        if len(full) != 1:
            break
        name = full[0].name.lower()
        if name not in GENERIC and not _split_in(name)[0] and name != folder.name.lower():
            break
        inner = full[0]
    return inner
