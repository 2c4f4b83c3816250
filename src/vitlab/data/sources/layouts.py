"""Layouts of a folder of images, or of a zip: classes, splits, loose photographs, files of labels.

    photos/cat/1.jpg                       class folders, at any depth (`class_levels.py`)
    photos/train/cat/1.jpg, photos/val/…   the same in splits
    photos/1.jpg, photos/more/2.jpg        photographs, where no labels are needed
    photos/train/_classes.csv              beside images, and other exports (`companions.py`)

What a name means is decided here alone, on the names of a `FileTree`: a folder and a zip of it have
the same images, labels and splits.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from vitlab.data.class_names import merge_names
from vitlab.data.decode.formats import CLIPS, USUAL_SUFFIXES, unread_lines
from vitlab.data.folder_names import MASK_LAYOUTS
from vitlab.data.images import Images
from vitlab.data.labels import SingleLabels
from vitlab.data.sources.class_levels import (
    ClassFolder,
    ClassLevel,
    Folder,
    choose_class_level,
)
from vitlab.data.sources.companions import has_companions, open_companions
from vitlab.data.sources.file_tree import FileTree, suffix_of
from vitlab.data.sources.folder_splits import (
    flat_splits,
    is_flat,
    picture_folders,
    split_folders,
    splits_inside,
)
from vitlab.data.sources.folders import tree_of
from vitlab.data.sources.paths import some
from vitlab.data.sources.refusals import explain_no_images, list_hint
from vitlab.data.sources.request import Found, Part, Request, blank
from vitlab.data.split_words import SPLIT_OF, SPLIT_WORDS
from vitlab.errors import DataError

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")


def open_folder(request: Request) -> Found | None:
    """Open a folder of images; None for others.

    Its folders are classes, or splits that hold class folders; images beside class folders have no
    label. Where no label is required, it may also be a folder of photographs at any depth, or of
    splits that hold photographs.

    Raises:
        DataError: it is empty, or it cannot be told whether its folders are classes or splits.
    """
    root = request.path
    return open_tree(tree_of(root), request) if root.is_dir() else None


def open_tree(tree: FileTree, request: Request) -> Found:
    """Open the images of a folder or an archive by the names in it, as `open_folder`.

    Raises:
        DataError: as `open_folder`.
    """
    if request.target == "none":
        found = _without_labels(tree, {"": tree})
        return Found(found.parts, [*found.notes, *tree.content_lines()])
    inner = tree if request.columns.class_folder == "outer" else _enter(tree)
    notes = list[str]()
    if inner is not tree:
        notes.append(f"{tree.title} has all its images in {inner.path.rstrip('/')}: opened that")
    found = open_companions(inner, request) or _of_folders(inner, request)
    return Found(found.parts, [*notes, *found.notes, *tree.content_lines()])


def _enter(tree: FileTree) -> FileTree:
    """Return the folder that has everything, if it has splits or files of labels; else the same."""
    inner = tree
    while not inner.listing.has_pictures and not has_companions(inner):
        full = [each for each in inner.folders() if each.has_pictures_below()]
        if len(full) != 1 or full[0].name.lower() in SPLIT_OF or splits_inside(inner):
            break
        inner = full[0]
    splits = splits_inside(inner)
    is_split = "train" in splits and (len(splits) > 1 or not is_flat(splits["train"]))
    return inner if is_split or has_companions(inner) else tree


def _of_folders(tree: FileTree, request: Request) -> Found:
    """Return the images of class folders; of others, if no labels are required."""
    flat = flat_splits(tree)
    try:
        if flat:
            raise DataError(
                f"{tree.title} has images in {' and '.join(each.name for each in flat.values())}, "
                "which are names of splits, not of classes: put the images of each class into a "
                "folder of its name there, or name a CSV list of the images (path,label,split) as "
                "the data"
            )
        return _of_classes(tree, request.columns.class_folder)
    except DataError:
        if request.target == "label":
            raise
        splits = flat or splits_inside(tree)
        if "train" not in splits:
            return _without_labels(tree, {"": tree})
        own = {each.path for each in splits.values()}
        beside = [each.title for each in tree.folders() if each.path not in own]
        found = _without_labels(tree, splits)
        notes = [f"ignored {each}: it is beside {splits['train'].name}" for each in beside]
        return Found(found.parts, [*notes, *found.notes])


def _without_labels(tree: FileTree, folders: Mapping[str, FileTree]) -> Found:
    """Return all images below some folders, by split."""
    parts = list[Part]()
    notes = list[str]()
    for split, folder in folders.items():
        names, others = folder.pictures()
        notes += unread_lines(folder.title, others, not names)
        if names:
            bare = folder.source(names, blank(len(names)), ())
            parts.append(Part(bare, split, f"{tree.title} has no class folders"))
    if not parts or (folders.keys() > {"train"} and parts[0].split != "train"):
        where = folders.get("train", tree)
        explain_no_images(where)
        raise DataError(f"no images in {where.title}" + "".join(f"; {note}" for note in notes))
    return Found(parts, notes)


# Classes


UNLABELED = "_unlabeled"
"""A folder beside those of classes in which FiftyOne stores images without a label."""


@dataclass(frozen=True)
class LabeledFolder:
    """A folder whose images have one class.

    Attributes:
        path: from the folder that has all classes
        name: of the class
        split: that a folder in the path names; empty if none does
    """

    path: str
    name: str
    split: str = ""


def _of_classes(tree: FileTree, choice: ClassFolder) -> Found:
    """Return the images of class folders, and those beside them."""
    found, others = split_folders(tree)
    flat = splits_inside(tree) if found else {}
    blind = {split: each for split, each in {**flat, **found}.items() if is_flat(each)}
    blind_paths = {each.path for each in blind.values()}
    notes = [
        f"ignored {each.title}: neither a split nor a class"
        for each in others
        if each.path not in blind_paths
    ]
    notes += [
        f"{each.title} is the {split} split"
        for split, each in found.items()
        if each.name.lower() not in SPLIT_OF
    ]
    splits = {split: each for split, each in found.items() if split not in blind} or {"": tree}
    counts = Counter[Folder]()
    for folder in splits.values():
        counts.update(picture_folders(folder))
    del counts[()]
    level = choose_class_level(counts, choice, is_split=bool(found))
    notes += _level_lines(tree, level)
    is_guessed = choice == "auto" and level.level == 0
    parts = list[Part]()
    strays = list[Part]()
    for split, folder in splits.items():
        for inner_split, classes in _find_class_folders(folder, level).items():
            source, more = _label_by_folder(folder, classes, is_deep=level.level >= 0)
            parts.append(Part(source, split or inner_split))
            notes += [*more, *(_lines_on_nesting(folder, classes) if is_guessed else [])]
        strays += _strays(folder, level, split)
    for split, each in blind.items():
        names, unread = each.pictures()
        bare = each.source(names, blank(len(names)), ())
        strays.append(Part(bare, split, f"{each.title} has no class folders"))
        notes += unread_lines(each.title, unread)
    return Found([*parts, *strays], notes)


def _depth(level: ClassLevel) -> int:
    """Return how many folders lead to the images of a class, and of a split among them."""
    if level.split_level is None:
        return level.level + 1
    return max(level.level + 2, level.split_level + 1)


def _find_class_folders(tree: FileTree, level: ClassLevel) -> dict[str, list[LabeledFolder]]:
    """Return the folders of classes by the split that a folder inside of them names."""
    found: dict[str, list[LabeledFolder]] = {}
    for path in tree.below():
        names = path.split("/")[:-1]
        split = ""
        if level.level < 0:
            if not names or not tree.listings[tree.path + path].has_pictures:
                continue
            name = names[-1]
        elif len(names) != _depth(level):
            continue
        else:
            if level.split_level is not None:
                split = SPLIT_OF[names.pop(level.split_level).lower()]
            name = names[level.level]
        if name != UNLABELED:
            found.setdefault(split, []).append(LabeledFolder(path.rstrip("/"), name, split))
    return {
        split: sorted(found[split], key=lambda each: each.path.replace("/", "\0"))
        for split in ("", *SPLIT_WORDS)
        if split in found
    } or {"": []}


def _label_by_folder(
    tree: FileTree, folders: Sequence[LabeledFolder], *, is_deep: bool = True
) -> tuple[Images, list[str]]:
    """Return the images of some folders with the classes that these name, and lines.

    Args:
        tree: has them all
        folders: sorted
        is_deep: whether images in folders inside of them belong to the class

    Raises:
        DataError: no folders, no images in them, or they hold images and their masks.
    """
    listed = [(each, *tree.folder(each.path).pictures(deep=is_deep)) for each in folders]
    found = [(each, own) for each, own, _ in listed if own]
    others = sum((others for _, _, others in listed), Counter[str]())
    skipped = unread_lines(tree.title, others, not found)
    if not found:
        explain_no_images(tree)
        loose = " (its images are not in sub-folders)" if tree.has_pictures_below() else ""
        tables = [name for name in tree.listing.beside if name.lower().endswith(TABLES)]
        if loose and len(tables) == 1:
            loose += f"; if {tables[0]} has their labels, name it as the data"
        raise DataError(
            f"{tree.title} has no class folders with images{loose}: put the images of each class "
            f"into a folder of its name{list_hint(tree)}; supported are "
            f"{', '.join(USUAL_SUFFIXES)}" + "".join(f"; {line}" for line in skipped)
        )
    names = dict.fromkeys(each.name for each, _ in found)
    if len({CLIPS.get(suffix_of(own[0])) for _, own in found}) > 1:
        raise DataError(
            f"{tree.title} has classes of images, sounds or films together: keep one kind"
        )
    if any(names.keys() == {images, masks} for images, masks, _ in MASK_LAYOUTS):
        raise DataError(
            f"{tree.title} has {' and '.join(names)}, which are not classes: vitlab probe --task "
            "segment learns from images with masks; to tell the two apart all the same, rename one"
        )
    if names.keys() == {"images"} and "labels" in tree.listing.folders:
        raise DataError(
            f"{tree.title} has images and labels, as YOLO keeps boxes: pass --task detect to learn "
            "from these"
        )
    spelled, alike = merge_names(names, tree.title)
    classes = tuple(sorted({*spelled.values()}))
    place = {name: number for number, name in enumerate(classes)}
    labels = np.repeat(
        [place[spelled[each.name]] for each, _ in found], [len(own) for _, own in found]
    )
    paths = [f"{each.path}/{path}" for each, own in found for path in own]
    source = tree.source(paths, SingleLabels(labels), classes)
    empty = [tree.folder(each.path).title for each, own, _ in listed if not own]
    notes = [f"skipped class folder {title}: no images" for title in sorted(empty)]
    return source, [*notes, *alike, *skipped]


def _strays(tree: FileTree, level: ClassLevel, split: str) -> list[Part]:
    """Return the images that lie above the level of the classes, which have no label."""
    most = 1 if level.level < 0 else _depth(level)
    paths = list[str]()
    others = list[str]()
    for path in tree.below():
        folder = tree.folder(path.rstrip("/"))
        is_above = path.count("/") < most or UNLABELED in path.split("/")
        if is_above and (own := folder.pictures(deep=False)[0]):
            paths += [path + name for name in own]
            others += [folder.title] if path else []
    if not paths:
        return []
    where = f"{tree.title} itself, beside its class folders"
    if others:
        where = f"folders that name no class, such as {sorted(others)[0]}"
    paths.sort(key=lambda name: name.replace("/", "\0"))
    return [Part(tree.source(paths, blank(len(paths)), ()), split, f"they are in {where}")]


# Lines


def _level_lines(tree: FileTree, level: ClassLevel) -> list[str]:
    """Return lines about a level of classes that is not the outermost, and about splits inside."""
    lines = list[str]()
    if level.split_level is not None:
        lines.append(f"{tree.title} has its splits inside of the folders of its classes")
    if level.above:
        lines.append(
            f"{tree.title}: the classes are the folders {some(level.classes)}, not those above "
            f"them ({some(level.above)}); --class-folder outer takes the outermost"
        )
    return lines


def _lines_on_nesting(tree: FileTree, folders: Sequence[LabeledFolder]) -> list[str]:
    """Return a line about folders inside of classes, whose names say nothing to a model."""
    counts = {each: picture_folders(tree.folder(each.path)) for each in folders}
    full = [each for each, own in counts.items() if own]
    nested = [each for each in full if len(counts[each]) > 1 and () not in counts[each]]
    if not nested:
        return []
    return [
        f"{len(nested):,} of the {len(full):,} classes have their images in folders of their own: "
        f"every image in {tree.folder(nested[0].path).title} has the class "
        f"{nested[0].name}; if those folders are the classes, --class-folder inner "
        "takes them"
    ]
