"""Image files as a store: named one by one, or by their paths below a folder."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from vitlab.data.decode.media import stored_file
from vitlab.data.decode.stored import StoredImage
from vitlab.data.images import Images
from vitlab.data.sources.paths import Names, read_image, some
from vitlab.errors import DataError


@dataclass(frozen=True)
class ImageFiles:
    """Image files as a store; paths are relative to the root."""

    root: Path
    paths: Sequence[str]
    in_memory: ClassVar[bool] = False

    def __len__(self) -> int:
        return len(self.paths)

    def image(self, index: int) -> StoredImage:
        """Read one file.

        Raises:
            ImageError: it cannot be read, or is too large.
        """
        name = self.name(index)
        return stored_file(read_image(Path(name), name), name)

    def name(self, index: int) -> str:
        """Return the path of a file."""
        return str(self.root / self.paths[index])


def image_paths(paths: Sequence[str], root: Path = Path()) -> Images:
    """Return image files, relative to a root, without labels."""
    return Images.of(ImageFiles(root, Names.of(paths)))


def named_files(paths: Sequence[str], title: str) -> Images:
    """Return files that are named one by one, without labels.

    Raises:
        DataError: some of them do not exist.
    """
    whole = [str(Path(each).expanduser()) for each in paths]
    missing = [each for each in whole if not Path(each).is_file()]
    if len(missing) == 1:
        raise DataError(f"no such file: {missing[0]}")
    if missing:
        raise DataError(
            f"{len(missing):,} of the {len(paths):,} files of {title} do not exist: {some(missing)}"
        )
    return image_paths(whole)
