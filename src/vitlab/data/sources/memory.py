"""Images in memory: what a program holds, as `open_images` opens what a user names; and the digits.

(image, label) pairs, data sets of PyTorch, rows of a table, a `datasets.Dataset`, arrays, images
and paths without labels, a source of ours, or a dictionary of splits with any of them.
"""

import os
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import IterableDataset
from torch.utils.data import Subset as TorchSubset

from vitlab.data.cells import plain_value
from vitlab.data.decode.stored import PixelImage, StoredImage
from vitlab.data.holdout import SPLIT_SEED, split_off
from vitlab.data.identities import Numbered
from vitlab.data.images import Images
from vitlab.data.label_cells import read_label
from vitlab.data.labels import SingleLabels, classes_of_images
from vitlab.data.settings import Columns
from vitlab.data.sources.cell_table import CellTable, check_known_columns, open_rows
from vitlab.data.sources.image_files import named_files
from vitlab.data.sources.lists import Row, find_images, read_paths
from vitlab.data.sources.paths import Inside
from vitlab.data.sources.pictures import Picture, Pictures, as_picture, several, stored
from vitlab.data.sources.request import NO_LABELS, Found, Part, Request
from vitlab.data.sources.tables import open_dataset
from vitlab.data.split_words import SPLIT_WORDS
from vitlab.data.splits import Splits
from vitlab.data.target import Classes
from vitlab.errors import DataError, ImageError, UserError

DIGITS = "digits"
COLORS = 4  # channels of an image, at most: where there are more, its axes may be in another order


@dataclass(frozen=True)
class Arrays:
    """Pixels in memory, uint8 (n, rows, columns, channels)."""

    images: NDArray[np.uint8]
    title: str = "image"
    in_memory: ClassVar[bool] = True

    def __len__(self) -> int:
        return len(self.images)

    def image(self, index: int) -> PixelImage:
        """Return the pixels of one image."""
        return PixelImage(self.images[index], self.name(index))

    def name(self, index: int) -> str:
        """Return the title and the number."""
        return f"{self.title} {index}"


def digits() -> Images:
    """Return the 1,797 scanned digits that scikit-learn ships, 8x8 gray.

    Source: UCI, optical recognition of handwritten digits.
    """
    npz = files("vitlab.data.sources") / "digits.npz"
    with npz.open("rb") as file, np.load(file) as stored:
        gray = stored["images"]
        labels = stored["labels"]
    pixels = np.round(gray * (255 / 16)).astype(np.uint8)[..., None]
    return Images.of(
        Arrays(pixels, "digit"), SingleLabels(labels.astype(np.int64)), tuple("0123456789")
    )


def split_digits(own: Images) -> Splits:
    """Return the digits with a fifth of each class held out, by a permutation of their numbers."""
    generator = np.random.default_rng(SPLIT_SEED)
    test = list[int]()
    classes = classes_of_images(own.target)
    for label in np.unique(classes):
        members = generator.permutation(np.flatnonzero(classes == label))
        test += members[: min(round(0.2 * len(members)), len(members) - 1)].tolist()
    return split_off(own, np.sort(test), 0.2)


def open_digits(request: Request) -> Found | None:
    """Open `digits`, with a fixed split; None for other names."""
    if request.data != DIGITS:
        return None
    own = digits()
    if request.target == "none":
        return Found([Part(own)])
    splits = split_digits(own)
    return Found([Part(splits.train, "train"), Part(splits.test, "test")], splits.notes)


CLASSES = "classes"  # key of a dictionary
ARRAYS = (np.ndarray, Tensor)
ALONE = (str, Path, bytes, Image.Image, *ARRAYS)  # what an image without label is
WANTED = (
    "give (image, label) pairs, rows of a table, a datasets.Dataset, two arrays of images and "
    "labels, or a dictionary of splits"
)


@dataclass(frozen=True)
class Items(Numbered):
    """The images of a data set of PyTorch, made anew each time that they are needed.

    Attributes:
        items: gives an image, or (image, label), for a number
    """

    items: Any  # a torch.utils.data.Dataset with a length
    in_memory: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.items)

    def image(self, index: int) -> StoredImage:
        """Return one image.

        Raises:
            ImageError: the data set failed to give it, or gives something else.
        """
        name = self.name(index)
        try:
            found = self.items[index]
        except UserError:
            raise
        except Exception as error:  # whatever the user's code raises
            raise ImageError(f"{name}: {told(error)}") from error
        return stored(found[0] if isinstance(found, tuple | list) else found, name)

    def name(self, index: int) -> str:
        """Return the number."""
        return f"image {index}"


def open_memory(request: Request) -> Found | None:
    """Open images in memory, by split; None for names.

    Raises:
        DataError: no images, no labels where they are required, or unknown splits.
    """
    given = request.given
    if isinstance(given, str | Path):
        return None
    if isinstance(given, Images):
        return Found([Part(given, lacks="" if given.classes else "the images have no classes")])
    found, names = pieces(given)
    parts: list[Part] = []
    notes: list[str] = []
    for split, piece in found.items():
        if len(found) == 1:
            return _opened(piece, request.data, request, names)
        opened = _opened(piece, f"{request.data} ({split})", request, names)
        parts += [replace(part, split=split) for part in opened.parts]
        notes += opened.notes
    return Found(parts, notes)


def pieces(data: Any) -> tuple[dict[str, Any], Classes]:
    """Return the object of each split, training first, and the names of the classes if given.

    Raises:
        DataError: a dictionary with other keys, or without the training split.
    """
    if not isinstance(data, Mapping):
        return {"train": data}, ()
    given = {str(key): value for key, value in data.items()}
    names = tuple(map(str, given.pop(CLASSES, ())))
    found: dict[str, Any] = {}
    for split, spellings in SPLIT_WORDS.items():
        for key in [key for key in given if key.lower() in spellings][:1]:
            found[split] = given.pop(key)
    rooms = {type(each).__module__.partition(".")[0] for each in given.values()}
    if rooms == {"datasets"} and "train" in found:  # further splits of a `DatasetDict`
        return found | given, names
    if given:
        raise DataError(
            f"unknown key {next(iter(given))!r} of the dictionary of splits: choose from train, "
            f"validation, test and {CLASSES}"
        )
    if len(found) > 1 and "train" not in found:
        raise DataError(f"the data has {' and '.join(found)}, but no train: give one of them alone")
    if not found:
        raise DataError(f"the dictionary has no splits: {WANTED}")
    return found, names


def _opened(data: Any, title: str, request: Request, names: Classes) -> Found:
    """Open the object of one split."""
    sized = hasattr(data, "__len__")
    if sized and type(data).__module__.partition(".")[0] == "datasets":
        return open_dataset(data, title, Inside((Path(),), anywhere=True), request)
    if sized and not len(data):
        raise DataError(f"{title} has no images")
    if (pictures := _alone(data)) is not None:
        return Found([Part(_pictures(pictures, title), lacks=f"{title} has no labels: {WANTED}")])
    if (rows := _rows(data)) is not None:
        return _records(rows, title, request)
    if isinstance(data, IterableDataset) or not (sized and hasattr(data, "__getitem__")):
        raise DataError(f"{title} is of type {type(data).__name__}, without a length: {WANTED}")
    bare: Images
    if _are_arrays(data):
        bare = _arrays(data[0], data[1], title)
        return _label_all(bare, lambda: data[1], title, request, names)
    if isinstance(data, Sequence):
        pairs = [_pair(data, number, title) for number in range(len(data))]
        bare = _pictures([image for image, _ in pairs], title)
        return _label_all(bare, lambda: [label for _, label in pairs], title, request, names)
    bare = Images.of(Items(data))
    if request.target != "none":
        bare.image(0)  # what is wrong with it, such as ToTensor, is so with all
    return _label_all(bare, lambda: _labels(data, title), title, request, names or _names(data))


def _label_all(
    bare: Images,
    read_labels: Callable[[], Any],
    title: str,
    request: Request,
    names: Classes,
) -> Found:
    """Return images with a label each, as a table of one column has them."""
    if request.target == "none":
        return Found([Part(bare)])
    try:
        labels = read_labels()
    except DataError as error:
        if request.target != "optional":
            raise
        return Found([Part(bare, lacks=f"{NO_LABELS}{error}")])
    table = CellTable(
        title,
        ("image", "label"),
        lambda _: [_plain_label(label, number) for number, label in enumerate(labels)],
        lambda row: f"image {row}",
        {"label": names} if names else {},
    )
    own = Columns(label_separator=request.columns.label_separator)
    wanted = "label" if request.target == "numbers" else request.target
    found = open_rows(table, "image", bare, replace(request, columns=own, target=wanted))
    if not request.classes or names:
        return found
    try:
        for part in found.parts:
            _check_named(part.source.classes, request.classes, title)
    except DataError as error:
        if wanted == "label":
            raise
        return Found([Part(bare, lacks=f"{NO_LABELS}{error}")])
    return found


def _alone(data: Any) -> list[Picture] | None:
    """Return images without labels; None for anything else."""
    if isinstance(data, ALONE):
        return several(data)
    single = isinstance(data, list | tuple) and all(isinstance(each, ALONE) for each in data)
    return list(data) if single and not _are_arrays(data) else None


def _pictures(pictures: Sequence[Picture], title: str) -> Images:
    """Return images: of files, if all are paths."""
    paths = [str(each) for each in pictures if isinstance(each, str | Path)]
    files = named_files(paths, title) if paths else None
    if files is not None and len(files) == len(pictures):
        return files
    return Images.of(Pictures(pictures))


def _rows(data: Any) -> list[Row] | None:
    """Return the rows of a table in memory; None for other objects."""
    if type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns"):
        if not data.columns.is_unique:
            twice = data.columns[data.columns.duplicated()][0]
            raise DataError(f"the table has two columns of the name {str(twice)!r}: rename one")
        data = data.to_dict("records")
    if isinstance(data, Sequence) and all(isinstance(each, Mapping) for each in data):
        return [{str(key): value for key, value in row.items()} for row in data]
    return None


def _records(rows: list[Row], title: str, request: Request) -> Found:
    """Open rows with named columns: one holds images, or paths relative to the current folder."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    known = request.columns
    check_known_columns(names, title, (known.path_column,))
    table = CellTable(
        title,
        names,
        lambda name: [row.get(name) for row in rows],
        lambda row: f"row {row}",
    )
    held = [name for name in names if _holds_pictures(table.cells(name))]
    column = known.path_column or next(iter(held), "")
    if column not in held:
        column, places = find_images(table, Path(title), known)
        paths, notes = read_paths(table, column, places, Path(title), _anywhere(known))
        bare = _pictures([places.root / path for path in paths], title)
        found = open_rows(table, column, bare, request)
        return Found(found.parts, [*notes, *found.notes])
    pictures: list[Picture] = []
    for number, cell in enumerate(table.cells(column)):
        if (picture := _picture_in(cell)) is None:
            raise DataError(f"{title} {table.place(number)} has no image")
        pictures.append(picture)
    return open_rows(table, column, _pictures(pictures, title), request)


def _anywhere(known: Columns) -> Columns:
    """Return the same columns for rows of a program, which may name files anywhere."""
    return replace(known, allow_outside=True)


def _holds_pictures(cells: Sequence[Any]) -> bool:
    """Return whether the first cell that is not empty is an image."""
    first = next((cell for cell in cells if cell is not None), None)
    return _picture_in(first) is not None


def _picture_in(cell: object) -> Picture | None:
    """Return the image in a cell, also as in Parquet files; None for paths and others."""
    return None if isinstance(cell, str | os.PathLike) else as_picture(cell)


def _are_arrays(data: object) -> bool:
    """Whether data is a pair of arrays: all images, and all labels."""
    match data:
        case [np.ndarray() | Tensor() as images, Sized() as labels]:
            labeled = not isinstance(labels, str | Mapping) and getattr(labels, "ndim", 1) < 3
            return images.ndim >= 3 and labeled
    return False


def _arrays(images: Any, labels: Any, title: str) -> Images:
    """Return an array or a tensor of uint8 images.

    Args:
        images: uint8 (n, rows, columns) or (n, rows, columns, channels), of PyTorch (n, channels,
            rows, columns)
        labels: (n,)
        title: what to call the data in an error
    """
    array = images
    if isinstance(images, Tensor):
        array = (images.permute(0, 2, 3, 1) if images.ndim == 4 else images).cpu().numpy()
    pixels: NDArray[np.uint8] = array[..., None] if array.ndim == 3 else array
    if pixels.dtype != np.uint8 or pixels.ndim != 4 or not pixels.size:
        raise DataError(
            f"the images of {title} have shape {array.shape} and numbers of type {array.dtype}: "
            "give (n, rows, columns, channels), of PyTorch (n, channels, rows, columns), as uint8"
        )
    _, rows, columns, channels = pixels.shape
    if channels > COLORS and (min(rows, columns) <= COLORS or rows < columns == channels):
        axes = (
            "channels, rows, columns" if isinstance(images, Tensor) else "rows, columns, channels"
        )
        raise DataError(
            f"the images of {title} have shape {tuple(images.shape)}: give (n, {axes}) with 1, 3 "
            "or 4 channels"
        )
    if len(labels) != len(pixels):
        raise DataError(f"{title} has {len(pixels):,} images, but {len(labels):,} labels")
    return Images.of(Arrays(pixels))


def _pair(items: Any, number: int, title: str) -> tuple[Any, Any]:
    try:
        found = items[number]
    except Exception as error:
        raise DataError(
            f"item {number} of {title} cannot be read ({told(error)}): {WANTED}"
        ) from error
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise DataError(f"item {number} of {title} is of type {type(found).__name__}: {WANTED}")
    return found[0], found[1]


def _labels(items: Any, title: str) -> Sequence[object]:
    """The labels: from `targets`, as in torchvision, if these are what the items say."""
    if isinstance(items, TorchSubset):
        inner = _labels(items.dataset, title)
        return [inner[number] for number in items.indices]
    targets = getattr(items, "targets", None)
    if isinstance(targets, Sized) and len(targets) == len(items):
        found: Sequence[object] = list(targets)  # type: ignore[call-overload]
        ends = (0, len(items) - 1)
        if all(_same(_pair(items, each, title)[1], found[each]) for each in ends):
            return found
    return [_pair(items, number, title)[1] for number in range(len(items))]


def _same(one: object, other: object) -> bool:
    try:
        return read_label(plain_value(one)) == read_label(plain_value(other))
    except DataError:
        return False


def _names(items: Any) -> Classes:
    """The names of the classes, as torchvision has them."""
    while isinstance(items, TorchSubset):
        items = items.dataset
    classes = getattr(items, "classes", None)
    if isinstance(classes, Sequence) and not isinstance(classes, str):
        return tuple(map(str, classes))
    return ()


def _check_named(own: Sequence[str], classes: Sequence[str], title: str) -> None:
    """Refuse numbers without names where the classes have names: their order is not known."""
    if own and all(each.isdecimal() for each in own) and not {*own} & {*classes}:
        raise DataError(
            f"the labels of {title} are numbers, and the classes have names ({classes[0]}, …): "
            'say what the numbers index, {"test": data, "classes": ["cat", "dog"]}'
        )


def _plain_label(label: object, number: int) -> object:
    """Return the label or labels of an image, of NumPy or PyTorch too, as Python's own values."""
    if isinstance(label, ARRAYS) and label.ndim:
        raise DataError(
            f"image {number} has an array for a label: give its class, or a list of its classes"
        )
    return plain_value(label)


def told(error: Exception) -> str:
    """Return the kind and the message of an error, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
