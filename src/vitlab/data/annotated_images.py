"""Images of COCO's annotations: where they are, and how what is drawn on them is turned.

Names of files come from strangers: they lead to no file outside of the data's folder.
"""

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from vitlab.data.annotations import Annotations, check_there, split_of_file
from vitlab.data.frames import Placed, Verdict, evidence_in, image_frames, place, verdicts_of
from vitlab.data.settings import Columns
from vitlab.data.sources.paths import Inside, some
from vitlab.data.split_words import SPLIT_OF

MOST_FOLDERS = 1000  # in which images are looked for by their names alone


def place_images(
    found: Mapping[str, Annotations], root: Path, columns: Columns
) -> dict[str, tuple[list[str], Placed]]:
    """Return where the images of each split are, and how what is drawn on them is turned.

    Args:
        found: what the file of each split says
        root: what the user named: a file, or a folder around the files
        columns: `images`, `allow_outside`, `annotation_frame`

    Returns:
        Of each split the paths of its images, empty where they are not there, and their `Placed`.

    Raises:
        DataError: no image of a file is there.
    """
    paths = dict[str, list[str]]()
    for split, own in found.items():
        paths[split], notes = find_annotated(own.file, root, own.images, columns)
        own.notes.extend(notes)
        check_there(own, sum(map(bool, paths[split])))
    frames = {split: image_frames(own) for split, own in paths.items()}
    verdicts = dict[str, list[Verdict]]()
    for split, own in found.items():
        wanted = columns.annotation_frame
        if wanted == "auto":
            wanted = own.frame
        verdicts[split] = verdicts_of(frames[split], own.sides, wanted)
        turned = sum(frame is not None and frame.orientation > 1 for frame in frames[split])
        if turned and wanted != columns.annotation_frame:
            own.notes.append(
                f"{own.file} is Label Studio's: its objects were drawn on the upright photos, of "
                f"which EXIF turns {turned:,}; else pass --annotation-frame stored"
            )
    evidence = set().union(*(evidence_in(frames[each], verdicts[each]) for each in found))
    return {
        split: (
            paths[split],
            place(own.file, own.images, frames[split], own.sides, verdicts[split], evidence),
        )
        for split, own in found.items()
    }


def find_annotated(
    file: Path, root: Path, names: Sequence[str], columns: Columns
) -> tuple[list[str], list[str]]:
    """Return where the images of a file of annotations are, and remarks.

    They are in the folder that the user named, beside the file or its `annotations/`, in `images/`
    or a folder called like the split. Where a path is not there, its backslashes are slashes; where
    none of all the images is there, the names of their files alone are looked for in the folders
    around.

    Args:
        file: of the annotations
        root: what the user named: that file, or a folder around it
        names: of the images, as the file has them
        columns: `images`, a further folder; `allow_outside`

    Returns:
        The path of each image, empty where it is not there.
    """
    home = root if root.is_dir() else file.parent
    if file.parent.name == "annotations":
        home = file.parents[1]
    stem = file.stem.split("_")[-1]
    folders = [file.parent, file.parent / "images", *(home / sub for sub in ("", "images", stem))]
    folders += [home / "images" / stem]
    homes = [home]
    if columns.images:
        homes.insert(0, Path(columns.images).expanduser())
        folders.insert(0, homes[0])
    inside = Inside(tuple(homes), columns.allow_outside)

    def path_of(name: str) -> str:
        for own in dict.fromkeys((name, name.replace("\\", "/"))):
            for folder in folders:
                # os.path: a name may be too long for a path, or hold what none may
                if os.path.isfile(each := folder / own) and inside.holds(each):  # noqa: PTH113
                    return str(each)
        return ""

    found = [path_of(name) if "\0" not in name else "" for name in names]
    if any(found):
        return found, []
    below = _below(homes, split_of_file(file), names)
    notes = list[str]()
    if below:
        found = [below.get(_last(name), "") for name in names]
        where = dict.fromkeys(str(Path(path).parent) for path in below.values())
        notes.append(
            f"{file}: {len(below):,} of {len(names):,} images were found by the names of their "
            f"files alone, in {some([*where])}"
        )
    return found, notes


def _last(name: str) -> str:
    """Return the last part of a path of any system."""
    return name.replace("\\", "/").rpartition("/")[2]


def _below(homes: Sequence[Path], split: str, names: Sequence[str]) -> dict[str, str]:
    """Return where files of these names are, in and two folders below some folders.

    Names that several images have, or several files, are none.
    """
    wanted = dict.fromkeys(map(_last, names))
    places = defaultdict[str, list[str]](list)
    if len(wanted) < len(names):
        return {}
    todo = [(home, 0) for home in homes]
    for folder, depth in todo:  # which grows
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            words = re.split(r"[^a-z]+", entry.name.lower())
            splits = {SPLIT_OF[word] for word in words if word in SPLIT_OF}
            if entry.is_dir(follow_symlinks=False):
                usual = not splits or split in splits
                if depth < 2 and usual and len(todo) < MOST_FOLDERS:
                    todo.append((Path(entry.path), depth + 1))
            elif entry.name in wanted and entry.is_file(follow_symlinks=False):
                places[entry.name].append(entry.path)
    return {name: own[0] for name, own in places.items() if len(own) == 1}
