"""The two layouts of a copied data set: Parquet files, or WebDataset shards."""

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from vitlab.data.sources.protocol import Source
from vitlab.data.sources.tar_shards import CLASSES
from vitlab.errors import DataError
from vitlab.packages import needed

ROWS = 100  # of a row group: what is read for one image where files cannot be mapped
BYTES = 2**28  # of a file, approximately


class Parquet:
    """Files `split-00000-of-00003.parquet` with columns image and label (labels, if several).

    Class names are in the schema, where Hugging Face's `datasets` and `open_data` look for them;
    the README.md assigns the files to splits, for `datasets`.
    """

    def __init__(self, folder: Path, split: str, source: Source) -> None:
        datasets = needed("datasets", "--format parquet", "use --format tar")
        self.folder, self.split, self.count = folder, split, 0
        self.several, self.column = source.labels.several, source.labels.column
        kind: Any = datasets.ClassLabel(names=list(source.classes))
        if self.several:
            kind = datasets.List(kind)
        self.schema = datasets.Features({"image": datasets.Image(), self.column: kind}).arrow_schema
        self.rows: list[dict[str, Any]] = []
        self.files: list[Path] = []
        self.file: Any = None
        self.size = 0

    def add(self, data: bytes, ending: str, classes: tuple[int, ...]) -> None:
        """Add one image."""
        path = f"{self.split}-{self.count:08d}.{ending}"
        label = list(classes) if self.several else classes[0]
        self.rows.append({"image": {"bytes": data, "path": path}, self.column: label})
        self.count += 1
        self.size += len(data)
        if len(self.rows) == ROWS:
            self._flush()
        if self.size >= BYTES:
            self._close()

    def _flush(self) -> None:
        """Write a row group."""
        import pyarrow
        from pyarrow import parquet

        if self.file is None:
            self.files.append(self.folder / f"{self.split}-{len(self.files):05d}.parquet")
            # images are compressed already
            self.file = parquet.ParquetWriter(self.files[-1], self.schema, compression="none")
        self.file.write_table(pyarrow.Table.from_pylist(self.rows, self.schema))
        self.rows = []

    def _close(self) -> None:
        if self.rows:
            self._flush()
        if self.file is not None:
            self.file.close()
        self.file, self.size = None, 0

    def close(self) -> None:
        """Rename the files, now that their number is known."""
        self._close()
        for number, file in enumerate(self.files):
            file.rename(file.with_stem(f"{self.split}-{number:05d}-of-{len(self.files):05d}"))
        card = self.folder / "README.md"
        head = "---\nconfigs:\n- config_name: default\n  data_files:\n"
        text = card.read_text(encoding="utf-8") if card.exists() else head + "---\n"
        more = f"  - split: {self.split}\n    path: {self.split}-*.parquet\n---\n"
        card.write_text(text.removesuffix("---\n") + more, encoding="utf-8")


class Tar:
    """Shards `split-000000.tar` of `00000000.jpg` and `00000000.cls`, the index of its class.

    With several labels per image, a `.json` names them. `classes.txt` has the names by index.
    """

    def __init__(self, folder: Path, split: str, source: Source) -> None:
        self.folder, self.split, self.classes, self.count = folder, split, source.classes, 0
        self.several = source.labels.several
        self.file: tarfile.TarFile | None = None
        self.size = self.shards = 0
        if unfit := [name for name in source.classes if name.splitlines() != [name]]:
            raise DataError(
                f"the class name {unfit[0]!r} is not one line of text, as {CLASSES} needs: "
                "use --format parquet"
            )
        names = "".join(f"{name}\n" for name in source.classes)
        (folder / CLASSES).write_text(names, encoding="utf-8")

    def add(self, data: bytes, ending: str, classes: tuple[int, ...]) -> None:
        """Add one image."""
        if self.file is None:
            name = f"{self.split}-{self.shards:06d}.tar"
            self.file = tarfile.open(self.folder / name, "w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115
            self.shards += 1
        key = f"{self.count:08d}"
        self._put(f"{key}.{ending}", data)
        if self.several:
            names = [self.classes[place] for place in classes]
            self._put(f"{key}.json", json.dumps({"labels": names}, ensure_ascii=False).encode())
        else:
            self._put(f"{key}.cls", str(classes[0]).encode())
        self.count += 1
        if self.size >= BYTES:
            self.close()

    def _put(self, name: str, content: bytes) -> None:
        assert self.file is not None
        info = tarfile.TarInfo(name)  # no owner, no date: the same bytes every time
        info.size = len(content)
        self.file.addfile(info, io.BytesIO(content))
        self.size += len(content)

    def close(self) -> None:
        """Finish a shard."""
        if self.file is not None:
            self.file.close()
        self.file, self.size = None, 0


WRITERS: dict[str, type[Parquet] | type[Tar]] = {"parquet": Parquet, "tar": Tar}
