"""Search by image: the nearest rows (cosine) of what `vitlab embed` wrote, exact and streamed.

Row groups are decoded a few at a time. Products in float32 find what is nearer than their rounding
can hide; these few are compared in float64, so that the answer is that of brute force. Of equals
the earlier row comes first.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from vitlab.data.open import open_images
from vitlab.data.settings import Columns
from vitlab.data.sources.pictures import Picture
from vitlab.data.sources.request import Given
from vitlab.errors import DataError, OptionError, WeightsError, one_line
from vitlab.evaluation.answers import Float32s, Floats, Integers
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.embedding import ABOUT, DAMAGED, SOURCE
from vitlab.evaluation.infer import infer, stacked
from vitlab.evaluation.probes.feature_options import Taken
from vitlab.files import check_regular
from vitlab.models.model import Model
from vitlab.packages import check_installed
from vitlab.progress import say
from vitlab.public_calls import public
from vitlab.recorded_paths import places, read_agreeing
from vitlab.weights.hub import is_hub_name
from vitlab.weights.identity import feature_fingerprint
from vitlab.weights.load import load

WIDEST = 2**17  # numbers of a vector
LARGEST = 2**27  # bytes of a row group's features in fp32; `embed` writes no larger ones
HIGHEST = 1e30  # norm of a vector, so that no product overflows
ASKED, AHEAD = 256, 4  # queries, and row groups in work, at once
EMBED = "`vitlab embed WEIGHTS DATA --out x.parquet` writes a table to search in"
ADVICE = "--from (in Python weights=…) names those it was computed with"


@dataclass(frozen=True)
class Neighbor:
    """A row of the table.

    Attributes:
        row: its number from 0; parts of a folder follow each other in the order of their names
        path: what the data that was embedded calls the image
        label: the name of its class, a list if images have several, None without labels
        split: that it is of
        score: cosine of the angle between its features and those asked for, from -1 to 1
        same: whether it is the very image asked for, by its path
    """

    row: int
    path: str
    label: str | list[str] | None
    split: str
    score: float
    same: bool = False


@dataclass(frozen=True)
class Nearest:
    """An image that was asked for and its nearest rows, nearest first; or why there are none."""

    image: str
    neighbors: tuple[Neighbor, ...] = ()
    error: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as JSON holds it."""
        found = [asdict(each) for each in self.neighbors]
        return {"image": self.image} | ({"error": self.error} if self.error else {"nearest": found})


class RowGroup(NamedTuple):
    """Rows of a file: its footer, their number there, the first of the whole table, how many."""

    file: Path
    footer: Any
    number: int
    first: int
    rows: int


RowBlock = tuple[int, Float32s, Float32s]
"""Rows of a table: the first one's number, features (n, dimension), their norms (n,).

A vector of zeros has norm 1; one that is not of finite numbers, or longer than 1e30, has NaN.
"""


@dataclass(frozen=True, eq=False)
class FeatureTable:
    """What `vitlab embed` wrote, one vector an image; `open` looks at it without reading vectors.

    Attributes:
        name: of the file or folder
        groups: its rows, as they are stored
        about: what the features are
        source: of the weights, as `vitlab.load` takes it; empty if unknown
    """

    name: str
    groups: tuple[RowGroup, ...]
    about: dict[str, Any]
    source: str = ""

    @classmethod
    def open(cls, table: str | Path) -> Self:
        """Open a Parquet file, or a folder of parts.

        Raises:
            DataError: nothing there, not a table of `vitlab embed`, several vectors an image, a
                damaged file.
            PackageError: pyarrow is not installed.
        """
        check_installed("pyarrow", "vitlab search")
        groups: list[RowGroup] = []
        about: dict[str, Any] = {}
        path = Path(table).expanduser()
        source = ""
        damaged = 0
        rows = 0
        files = sorted(path.glob("[!_.]*.parquet")) if path.is_dir() else [path]
        for file in files:
            with _opened(file) as opened:
                footer = opened.metadata
                facts = _about(file, opened.schema_arrow)
                source = source or footer.metadata.get(SOURCE.encode(), b"").decode()
                damaged += len(json.loads(footer.metadata.get(DAMAGED.encode(), b"[]")))
                for number in range(footer.num_row_groups):
                    own = _rows(file, footer.row_group(number), facts["dimension"])
                    groups.append(RowGroup(file, footer, number, rows, own))
                    rows += own
            if about not in ({}, facts):
                raise DataError(f"{file} is of another table than {files[0]}: {EMBED}")
            about = facts
        if not rows:
            raise DataError(f"{table} has no rows: {EMBED}")
        if isinstance(whole := about.get("images"), int) and rows + damaged < whole:
            say(f"{table} is unfinished: it has {rows + damaged:,} of {whole:,} images")
        return cls(str(table), tuple(groups), about, source)

    @property
    def rows(self) -> int:
        """How many images it has."""
        return self.groups[-1].first + self.groups[-1].rows

    def blocks(self) -> Iterator[RowBlock]:
        """Yield all rows in order.

        Raises:
            DataError: a damaged file.
        """
        with ThreadPoolExecutor(AHEAD) as pool:
            for start in range(0, len(self.groups), AHEAD):
                yield from pool.map(_decoded, self.groups[start : start + AHEAD])

    def texts(self, rows: Iterable[int]) -> dict[int, dict[str, Any]]:
        """Return path, label and split of some rows, which need not be sorted."""
        found: dict[int, dict[str, Any]] = {}
        wanted = np.unique(np.array([*rows], np.int64))
        for group in self.groups:
            own = wanted[(wanted >= group.first) & (wanted < group.first + group.rows)]
            if not len(own):
                continue
            with _opened(group.file, group.footer) as opened:
                table = opened.read_row_group(group.number, columns=["path", "label", "split"])
                lines = table.take(own - group.first).to_pylist()
            for row, line in zip(own.tolist(), lines, strict=True):
                found[row] = line | {key: str(line[key]) for key in ("path", "split")}
        return found

    def _list_weights(self) -> list[Model | str | Path]:
        """Where the weights may be that the table was computed with.

        Raises:
            OptionError: it is not known, or they are no longer there.
        """
        if not self.source:
            raise OptionError(f"{self.name} does not say where its weights are: {ADVICE}")
        folder = Path(self.name).expanduser().parent
        found = [*places(self.source, None, folder, folder)]
        if not found and not is_hub_name(self.source):
            shown = one_line(self.source[:200])
            raise OptionError(f"the weights {shown!r} of {self.name} are gone: {ADVICE}")
        return [*found] if found else [self.source]

    def model(self, weights: Model | str | Path | None = None, **choices: Any) -> Model:
        """Return the model that computed the table.

        Args:
            weights: the model, or where `vitlab.load` finds it; None for where it was
            choices: further arguments of `vitlab.load`

        Raises:
            OptionError: it is not known where the weights were, or they are no longer there.
            WeightsError: they are not those of the table.
        """
        where = [weights] if weights is not None else self._list_weights()

        def read(place: Model | str | Path) -> Model:
            model = place if isinstance(place, Model) else load(place, **choices)
            if [*model.config.size] != self.about["image_size"]:
                with suppress(OptionError):  # other weights may not take that size
                    model = model.resize(tuple(self.about["image_size"]))
            return model

        wanted = self.about.get("weights")
        try:
            model, agrees = read_agreeing(
                where, read, lambda each: feature_fingerprint(each) == wanted
            )
        except WeightsError as error:
            raise WeightsError(f"{error}; {ADVICE}") from None
        if weights is None:
            say(f"weights: {one_line(model.source[:200])}, as {self.name} says")
        if not agrees:
            raise WeightsError(
                f"{model.source or 'the model'} ({model.config.name}) has other weights than "
                f"{self.name} ({str(self.about.get('model'))[:80]}): {ADVICE}"
            )
        return model


@public(table=(str, Path, FeatureTable))
def search(
    table: str | Path | FeatureTable,
    images: Given | Picture | Sequence[Picture] | NDArray[np.floating],
    k: int = 10,
    *,
    weights: Model | str | Path | None = None,
    not_self: bool = False,
    columns: Columns | None = None,
    device: str = "auto",
    workers: int | None = 0,
    quiet: bool = False,
) -> list[Nearest]:
    """Return the nearest rows of what `vitlab embed` wrote, for each of some images.

    A few row groups at a time are in memory. Many images are best searched for at once.

    Args:
        table: the Parquet file or folder of parts, with one vector an image; or one that is open
        images: any DATA, whatever its labels, or several; images in memory; or features, an array
            of floating-point numbers (dimension,) or (n, dimension), which no model is needed for
        k: how many, at most the rows of the table
        weights: those that the table was computed with, a model or what `vitlab.load` takes; None
            for where they were
        not_self: leave out the very image asked for, found by its path
        columns: which column of a list or a table holds the images; None to find it
        device: auto, cpu, cuda, cuda:N or mps
        workers: processes that decode; None to choose
        quiet: print nothing but warnings

    Returns:
        An answer for each image, in their order, by cosine; of equals the earlier row comes first.
        A damaged image has an error instead. Rows that are not finite numbers are never found.

    Raises:
        OptionError: k beyond the rows, features of another dimension, weights that are gone.
        WeightsError: other weights than those of the table.
        DataError: no table of `vitlab embed`, or a damaged one; no image.
    """
    own = table if isinstance(table, FeatureTable) else FeatureTable.open(table)
    if not isinstance(k, int) or not 1 <= k <= own.rows:
        raise OptionError(f"k must be from 1 to {own.rows:,}, the rows of {own.name}, not {k}")
    bad: dict[int, str] = {}
    if isinstance(images, np.ndarray) and images.dtype.kind == "f" and images.ndim in (1, 2):
        vectors = np.atleast_2d(images)
        numbers = np.arange(len(vectors))
        names = [f"vector {number}" for number in numbers]
    else:
        opened = open_images(images, "none", columns=columns)
        model = own.model(weights)
        say(*opened.notes)
        source = opened.every()
        compute = Compute(device, own.about["precision"], workers=workers)
        batches = list(infer(model, source, compute, [_taken(own.about)]))
        vectors, numbers, bad = stacked(batches, (own.about["dimension"],))
        names = [source.name(number) for number in range(len(source))]
    if vectors.shape[1] != own.about["dimension"]:
        both = f"{vectors.shape[1]} numbers, those of {own.name} {own.about['dimension']}"
        raise OptionError(f"the features have {both}: take the same what and layer")
    if not np.isfinite(vectors).all():
        raise OptionError("features to search for must be finite numbers")
    found = nearest(own, vectors, min(k + not_self, own.rows))
    texts = own.texts(row for row in found[0].ravel().tolist() if row >= 0)
    answers = {n: Nearest(names[n], error=text) for n, text in bad.items()}
    for number, rows, scores in zip(*map(np.ndarray.tolist, (numbers, *found)), strict=True):
        place = Path(names[number]).absolute()
        neighbors = []
        for row, score in zip(rows, scores, strict=True):
            if row >= 0:
                same = score > 0.999 and place == Path(texts[row]["path"]).absolute()
                neighbors.append(Neighbor(row, score=score, same=same, **texts[row]))
        kept = [each for each in neighbors if not (not_self and each.same)][:k]
        answers[number] = Nearest(names[number], tuple(kept))
    return [answers[number] for number in range(len(names))]


def nearest(table: FeatureTable, vectors: NDArray[np.floating], k: int) -> tuple[Integers, Floats]:
    """Return the rows with the largest cosine, and the cosines, of vectors (m, dimension): (m, k).

    Products in float32 err by less than half of `slack` (Higham, Accuracy and Stability of
    Numerical Algorithms, 3.1); whatever may be among the best within that is computed in float64.
    Where there are fewer rows than k, the row is -1.
    """
    units = _units(vectors)
    asked = units.astype(np.float32)
    slack = 2.4e-7 * (units.shape[1] + 8)
    rows = np.full((len(units), k), -1)
    scores = np.full((len(units), k), -np.inf)
    for first, values, norms in table.blocks():
        lost = np.flatnonzero(np.isnan(norms))
        for start in range(0, len(units), ASKED):
            some = slice(start, start + ASKED)
            with np.errstate(invalid="ignore"):  # of rows that are lost
                found = asked[some] @ values.T  # (queries, n)
                found /= norms
            found[:, lost] = -np.inf
            limit = scores[some, -1]
            if np.isinf(limit).any():  # the first blocks
                place = max(0, len(norms) - k)
                limit = np.maximum(limit, np.partition(found, place, axis=1)[:, place])
            least = np.maximum(limit - slack, -2).astype(np.float32)  # no row that is lost
            asking, near = np.nonzero(found >= least[:, None])
            for number in np.unique(asking).tolist():
                own = near[asking == number]
                here = start + number
                # equal rows have equal sums, wherever they stand
                exact = np.clip((_units(values[own]) * units[here]).sum(1), -1, 1)
                every = np.append(rows[here], own + first)
                best = np.append(scores[here], exact)
                order = np.lexsort((every, -best))[:k]
                rows[here], scores[here] = every[order], best[order]
    return rows, scores


def _units(vectors: NDArray[np.floating]) -> Floats:
    """Return vectors of length one in float64; those of zeros as they are."""
    wide = vectors.astype(np.float64)
    norms = np.sqrt((wide**2).sum(1, keepdims=True))
    return wide / np.where(norms == 0, 1, norms)


def _decoded(group: RowGroup) -> RowBlock:
    """Read the features of a row group."""
    with _opened(group.file, group.footer) as opened:
        found = opened.read_row_group(group.number, columns=["features"], use_threads=False)
        chunks = found.column("features").chunks
        flat = [each.flatten() for each in chunks]
        if sum(each.null_count for each in (*chunks, *flat)) or len(found) != group.rows:
            raise DataError(f"{group.file} has rows without features: {EMBED}")
        whole = np.concatenate([each.to_numpy(zero_copy_only=False) for each in flat])
    values = whole.astype(np.float32, copy=False).reshape(group.rows, -1)
    norms = np.sqrt(np.einsum("nd,nd->n", values, values, dtype=np.float64))
    norms[norms == 0] = 1
    norms[~(norms < HIGHEST)] = np.nan
    return group.first, values, norms.astype(np.float32)


@contextmanager
def _opened(file: Path, footer: Any = None) -> Iterator[Any]:
    """Open a Parquet file, and turn whatever is wrong with it into one line.

    Of a file with a known footer, texts stay dictionaries: repeated ones take no room.
    """
    from pyarrow import parquet

    try:
        check_regular(file)
        leaves = [] if footer is None else map(footer.schema.column, range(footer.num_columns))
        texts = [each.path for each in leaves if each.physical_type == "BYTE_ARRAY"]
        how = {"page_checksum_verification": True, "read_dictionary": texts}
        with parquet.ParquetFile(file, metadata=footer, **how) as opened:
            yield opened
    except DataError:
        raise
    except (OSError, ValueError, LookupError, TypeError, RuntimeError, MemoryError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DataError(f"cannot read {file}: {' '.join(reason.split())[:200]}") from None


def _taken(about: dict[str, Any]) -> Taken:
    return Taken(what=about["what"], layer=tuple(about["layer"]), dtype=about["dtype"])


def _about(file: Path, schema: Any) -> dict[str, Any]:
    """Return what a table says of itself, once it is clear that it can be searched."""
    from pyarrow import types

    try:
        about: dict[str, Any] = json.loads(schema.metadata[ABOUT.encode()])
        kind, (height, width) = schema.field("features").type, about["image_size"]
        told = about["precision"] in ("fp32", "bf16") and _taken(about) is not None
        told = told and 0 < height < 2**13 and 0 < width < 2**13
        texts = [str(schema.field(name).type) for name in ("path", "label", "split")]
        told = told and all("string" in each for each in texts)
    except (LookupError, TypeError, ValueError, RecursionError):
        told = False
    if not told or not types.is_fixed_size_list(kind):
        raise DataError(f"{file} is not a table of vitlab embed: {EMBED}")
    if types.is_fixed_size_list(kind.value_type):
        raise DataError(
            f"{file} has {kind.list_size} vectors an image (--what {about['what']}): search in "
            "one of --what features, token, mean or both"
        )
    real = types.is_float32(kind.value_type) or types.is_float16(kind.value_type)
    if not real or kind.list_size != about.get("dimension") or not 0 < kind.list_size <= WIDEST:
        raise DataError(f"{file} has vectors of {str(kind)[:80]}, not as it says: {EMBED}")
    return about


def _rows(file: Path, group: Any, dimension: int) -> int:
    """Return the number of rows of a row group that fits into memory."""
    rows: int = group.num_rows
    if rows < 0 or 4 * rows * dimension > LARGEST or group.total_byte_size > 2 * LARGEST:
        most = f"{LARGEST // 2**20} MiB"
        raise DataError(f"{file} has row groups of more than {most}, as embed never does: {EMBED}")
    return rows
