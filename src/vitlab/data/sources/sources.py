"""Where images come from: a source knows its length, its bytes, its labels and its classes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.decode import BadImage
from vitlab.data.labels import Labels, index_labels, is_multi
from vitlab.data.sources.filenames import Names
from vitlab.errors import UserError

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"}


class Source(Protocol):
    """Labeled images by number. Cheap to pickle: worker processes get a copy each."""

    @property
    def classes(self) -> tuple[str, ...]:
        """Their names; a label is a place in this list."""

    @property
    def labels(self) -> Labels:
        """The label of every image, int64 (n,); of several a table of 0 and 1, uint8 (n, K)."""

    def __len__(self) -> int:
        """How many images there are."""

    def read(self, index: int) -> bytes | NDArray[np.uint8]:
        """An encoded image, or pixels (H, W, C) where they come decoded; may raise `BadImage`."""

    def name(self, index: int) -> str:
        """What to call an image when speaking to the user."""


@dataclass(frozen=True)
class Arrays:
    """Pixels in memory: uint8 (n, H, W, C), with their labels (n,) and the names of the classes."""

    images: NDArray[np.uint8]
    labels: Labels
    classes: tuple[str, ...]
    title: str = "image"

    def __post_init__(self) -> None:
        """Say early what would fail late."""
        if self.images.dtype != np.uint8 or self.images.ndim != 4:
            raise UserError("images must be uint8 of shape (n, H, W, channels)")
        if len(self.images) != len(self.labels):
            raise UserError(f"{len(self.images)} images have {len(self.labels)} labels")
        if len(self.labels) and not 0 <= self.labels.min() <= self.labels.max() < len(self.classes):
            raise UserError(f"labels must lie in 0 … {len(self.classes) - 1}")

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> NDArray[np.uint8]:
        """Pixels, (H, W, C)."""
        return self.images[index]

    def name(self, index: int) -> str:
        """The title and the number."""
        return f"{self.title} {index}"


def digits() -> Arrays:
    """The 1,797 scanned digits that scikit-learn ships (UCI, optical recognition), 8x8 gray."""
    with as_file(files("vitlab.data.sources") / "digits.npz") as file, np.load(file) as stored:
        gray, labels = stored["images"], stored["labels"]
    pixels = np.round(gray * (255 / 16)).astype(np.uint8)[..., None]
    return Arrays(pixels, labels.astype(np.int64), tuple("0123456789"), "digit")


@dataclass(frozen=True)
class Files:
    """Image files, each with its label."""

    root: Path
    paths: Sequence[str]  # relative to the root
    labels: Labels
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, index: int) -> bytes:
        """The file's bytes."""
        try:
            return (self.root / self.paths[index]).read_bytes()
        except OSError as error:
            raise BadImage(
                f"{self.name(index)}: {(error.strerror or str(error)).lower()}"
            ) from None

    def name(self, index: int) -> str:
        """The file's path."""
        return str(self.root / self.paths[index])


def class_folders(root: Path, classes: Sequence[str] | None = None) -> tuple[Files, list[str]]:
    """A folder whose sub-folders are classes, and remarks on what was left out.

    The class index is the sorted order of the folder names, or the one given, by name.

    Raises:
        ValueError: no class folders, no images in them, or a class that is not among those given.
    """
    notes = []
    folders = sorted(each for each in root.iterdir() if each.is_dir() and each.name[0] != ".")
    found = {each.name: _image_files(each) for each in folders}
    for name in [name for name, paths in found.items() if not paths]:
        notes.append(f"class folder {root / name} holds no images: left out")
        del found[name]
    if not found:
        loose = " (images lie in it directly)" if _image_files(root) else ""
        raise UserError(
            f"{root} has no class folders with images{loose}: put each class's images into a "
            f"folder of its name; read are {', '.join(sorted(SUFFIXES))}"
        )
    if strange := sorted(set(found) - set(classes or found)):
        raise UserError(f"{root} has the class {strange[0]!r}, which the training images have not")
    index = {name: number for number, name in enumerate(classes or found)}
    notes += [f"{root} has no images of the class {name!r}" for name in index if name not in found]
    paths = [path for name in found for path in found[name]]
    labels = [index[name] for name, own in found.items() for _ in own]
    names = Names.of(str(path.relative_to(root)) for path in paths)
    return Files(root, names, np.array(labels, np.int64), tuple(index)), notes


def _image_files(folder: Path) -> list[Path]:
    inside = (path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    return sorted(p for p in inside if p.is_file() and not p.name.startswith("."))


@dataclass(frozen=True)
class Table:
    """Rows of a Hugging Face data set, memory-mapped: an image column and a label column."""

    rows: Any  # datasets.Dataset in Arrow format
    image: str
    labels: Labels
    classes: tuple[str, ...]
    title: str

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, index: int) -> bytes:
        """The encoded image of a row."""
        cell = self.rows[index][self.image][0].as_py()
        if cell is None or (cell["bytes"] is None and not cell["path"]):
            raise BadImage(f"{self.name(index)}: no image in this row")
        return cell["bytes"] if cell["bytes"] is not None else Path(cell["path"]).read_bytes()

    def name(self, index: int) -> str:
        """The table and the row."""
        return f"{self.title} row {index}"


def table(rows: Any, title: str, classes: Sequence[str] | None = None) -> Table:
    """A source from a `datasets.Dataset` whose columns say which is the image and which the label.

    Labels map to `classes` by name where given, as for a test split.

    Raises:
        ValueError: no image column, no label column, or labels that fit no class.
    """
    import datasets

    features = rows.features
    images = [key for key, kind in features.items() if _is_image(kind)]
    if not images:
        raise UserError(f"{title} has no image column; its columns are {', '.join(features)}")
    label = _label_column(features, title)
    kind = features[label]
    if isinstance(kind, datasets.List) and isinstance(kind.feature, datasets.ClassLabel):
        told = rows.select_columns([label])[:][label]
        own, order = index_labels(
            [tuple(map(str, each or ())) for each in told], title, classes, kind.feature.names
        )
        plain = rows.cast_column(images[0], datasets.Image(decode=False)).with_format("arrow")
        return Table(plain, images[0], own, order, title)
    values = rows.select_columns([label]).with_format("numpy")[:][label]
    names = list(kind.names) if isinstance(kind, datasets.ClassLabel) else None
    if names is None:  # plain numbers or words: a class for each that occurs
        distinct = sorted(set(values.tolist()))
        names = [str(value) for value in distinct]
        values = np.searchsorted(np.array(distinct), values)
    values = np.asarray(values, np.int64)
    if len(values) and not 0 <= values.min() <= values.max() < len(names):
        raise UserError(f"{title}: label {int(values.min())} is none of its {len(names)} classes")
    if classes is not None:
        values = _by_name(values, names, classes, title)
    plain = rows.cast_column(images[0], datasets.Image(decode=False)).with_format("arrow")
    return Table(plain, images[0], values, tuple(classes or names), title)


def _is_image(kind: Any) -> bool:
    import datasets

    return isinstance(kind, datasets.Image) or (
        isinstance(kind, dict) and {"bytes", "path"} <= set(kind)
    )


def _label_column(features: Any, title: str) -> str:
    import datasets

    named = [key for key in ("label", "labels", "class", "target", "fine_label") if key in features]
    typed = [key for key, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    for key in named + typed:
        return key
    raise UserError(f"{title} has no label column; its columns are {', '.join(features)}")


def _by_name(
    values: NDArray[np.int64], names: list[str], classes: Sequence[str], title: str
) -> NDArray[np.int64]:
    index = {name: number for number, name in enumerate(classes)}
    used = np.unique(values)
    if strange := [names[value] for value in used if names[value] not in index]:
        raise UserError(f"{title} has the class {strange[0]!r}, which the training images have not")
    remap = np.array([index.get(name, -1) for name in names], np.int64)
    return remap[values] if len(values) else values


@dataclass(frozen=True)
class Subset:
    """Some images of another source."""

    whole: Source
    indices: NDArray[np.int64]

    @property
    def classes(self) -> tuple[str, ...]:
        """Those of the whole."""
        return self.whole.classes

    @property
    def labels(self) -> Labels:
        """The labels of these images."""
        return self.whole.labels[self.indices]

    def __len__(self) -> int:
        return len(self.indices)

    def read(self, index: int) -> bytes | NDArray[np.uint8]:
        """As the whole has it."""
        return self.whole.read(int(self.indices[index]))

    def name(self, index: int) -> str:
        """As the whole calls it."""
        return self.whole.name(int(self.indices[index]))


def counts(source: Source) -> dict[str, int]:
    """How many images each class has."""
    labels = source.labels
    if is_multi(labels):
        return dict(zip(source.classes, labels.sum(axis=0, dtype=np.int64).tolist(), strict=True))
    tally = Counter(labels.tolist())
    return {name: tally[number] for number, name in enumerate(source.classes)}
