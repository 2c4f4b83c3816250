"""Refusals of archives, tables and arrays that are not read: one line each, with what to do."""

from collections.abc import Sequence
from pathlib import Path

from vitlab.data.sources.file_tree import FileTree, suffix_of
from vitlab.data.sources.paths import some
from vitlab.data.sources.request import Request
from vitlab.errors import DataError

LISTS = (".csv", ".tsv", ".jsonl", ".ndjson")
_ARRAYS = "write its images as files in class folders, or give the arrays in Python: data=(images, "
_ADVICE = {
    (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tbz", ".tar.xz", ".txz", ".tar.zst", ".tzst"): (
        "a compressed tar, whose members can only be read from its beginning: unpack it "
        "(tar -xf {name}) and name the folder"
    ),
    (".7z", ".rar", ".lzh", ".gz", ".bz2", ".xz", ".zst", ".z01"): (
        "an archive that is not read: unpack it and name the folder, or make a .zip of that"
    ),
    (".xlsx", ".xls", ".xlsm", ".ods", ".numbers"): (
        "a spreadsheet: save it as CSV UTF-8 and name that"
    ),
    (".json",): (
        "no list of images: write one object a line into a .jsonl file; COCO's annotations are "
        "read with --task detect"
    ),
    (".yaml", ".yml"): "no list of images: of YOLO's layout name the folder, with --task detect",
    (".npy", ".npz", ".mat"): f"a file of arrays: {_ARRAYS}labels)",
    (".h5", ".hdf5", ".hdf", ".pkl", ".pickle", ".pt", ".pth", ".joblib"): (
        f"not opened as data: {_ARRAYS}labels)"
    ),
    (".tfrecord", ".tfrecords", ".rec", ".lmdb", ".mdb", ".beton", ".msgpack", ".sqlite"): (
        "records of another library: write its images as files in class folders, as tar shards or "
        "as Parquet"
    ),
    (".arrow", ".feather", ".ipc"): (
        "a table in memory's format: write it as Parquet, or load it in Python: data=table"
    ),
}
"""What to do with files of some endings."""

REFUSED = tuple(suffix for suffixes in _ADVICE for suffix in suffixes)


def ending_of(name: str, endings: Sequence[str]) -> str:
    """Return the longest of some endings that a name has, in any case; empty if it has none."""
    lower = name.lower()
    return max((each for each in endings if lower.endswith(each)), key=len, default="")


def explain_file(path: Path) -> None:
    """Refuse a file of a kind that is not read.

    Raises:
        DataError: it is of such a kind; the line says what works.
    """
    ending = ending_of(path.name, REFUSED)
    for suffixes, advice in _ADVICE.items():
        if ending in suffixes:
            raise DataError(f"{path} is {advice.format(name=path.name)}")


def explain_data(request: Request) -> None:
    """Refuse a file of a kind that no opener reads; None for other data.

    Raises:
        DataError: as `explain_file`.
    """
    if request.path.exists():
        explain_file(request.path)


def list_hint(tree: FileTree) -> str:
    """Return what to do with a list that lies in a folder; empty if there is none."""
    lists = sorted(name for name in tree.listing.beside if suffix_of(name) in LISTS)
    if not lists:
        return ""
    if tree.place.is_archive:
        return f", or unpack it and name its list, such as {lists[0]}"
    return f", or name a list of them as the data, such as {tree.title}/{lists[0]}"


def explain_no_images(tree: FileTree) -> None:
    """Refuse a folder without images in which something else is, if that is known.

    Raises:
        DataError: archives, or tables and arrays that are not read; the line says what works.
    """
    paths = [*tree.below()]
    archives = sorted(
        path + name for path in paths for name in tree.listings[tree.path + path].archives or ()
    )
    if not archives or tree.has_pictures_below():
        return
    zips = [name for name in archives if name.lower().endswith(".zip")]
    inside = " from it" if tree.place.is_archive else ""
    advice = f"unpack them{inside}"
    if zips and not inside:
        advice += f", or name one, such as {tree.place.title(tree.path + zips[0])}"
    raise DataError(f"{tree.title} has no images but archives ({some(archives)}): {advice}")
