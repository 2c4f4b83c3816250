"""The features of images as a folder of Parquet files."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from typing import Any

from vitlab.distributed.world import World
from vitlab.evaluation.parts.filling import Parts, fill, identity
from vitlab.evaluation.parts.part_folder import PartFolder
from vitlab.evaluation.probes.embedding_table import Layout, row_groups
from vitlab.evaluation.probes.extraction import ROWS, Extraction
from vitlab.weights.identity import feature_fingerprint

PART_BYTES = 2**30  # of a part's features, unless one row group has more


def embed_parts(
    out: Path, splits: dict[str, Extraction], world: World, images: int, timeout: float
) -> dict[str, Any]:
    """Write the features of all splits into a folder of parts; see `vitlab.embed`."""
    splits = {name: replace(each, most=min(ROWS, images)) for name, each in splits.items()}
    first = next(iter(splits.values()))
    fit = PART_BYTES // (4 * first.rows * math.prod(first.shape))
    groups = min(-(-images // first.rows), max(1, fit))
    counts = {name: len(each.source) for name, each in splits.items()}
    job = EmbedJob(splits, groups, Parts(counts, groups * first.rows))
    found = fill(out, job, world, timeout)
    if not found:
        return {}
    return found | {"shape": list(first.shape), "model": first.model.config.name}


@dataclass(frozen=True)
class EmbedJob:
    """Features, each part being some row groups of a Parquet file.

    Attributes:
        splits: what is computed
        groups: row groups of a part
        parts: which images they have
    """

    splits: dict[str, Extraction]
    groups: int
    parts: Parts
    title: str = "embedding"
    ending: str = ".parquet"

    @cached_property
    def about(self) -> dict[str, Any]:
        """What decides the features."""
        first = next(iter(self.splits.values()))
        sources = {name: each.source for name, each in self.splits.items()}
        return {
            "job": "embed",
            "model": first.model.config.name,
            "weights": feature_fingerprint(first.model),
            "data": {name: identity(source, labeled=True) for name, source in sources.items()},
            "images": sum(self.parts.splits.values()),
            **first.taken.as_dict(),
            "precision": first.precision,
            "part_images": self.parts.images,
        }

    @cached_property
    def layout(self) -> Layout:
        """The columns."""
        first = next(iter(self.splits.values()))
        return Layout(first.shape, first.source.labels.several, self.about)

    def write(
        self,
        folder: PartFolder,
        stretch: int,
        numbers: Iterable[int],
        progress: Callable[[int], None],
    ) -> Iterator[int]:
        """Write parts of one split, and yield the number of each."""
        split, first, before = list(self.splits)[stretch], self.parts.stretches[stretch].start, 0
        extraction = self.splits[split]
        pieces = extraction.pieces(
            self._row_groups(stretch, numbers), lambda images: progress(images - before)
        )
        for begin in pieces:
            number = first + begin.number // self.groups
            count = -(-self.parts.sizes[number] // extraction.rows)
            with folder.writing(number) as draft, row_groups(draft.file, self.layout) as add:
                for piece in chain([begin], islice(pieces, count - 1)):
                    add(self.layout.table(piece, extraction.source, split))
                    draft.take(len(piece.indices), piece.bad.values())
            before += self.parts.sizes[number]
            yield number

    def _row_groups(self, stretch: int, numbers: Iterable[int]) -> Iterator[int]:
        """Yield the numbers of the row groups of some parts."""
        first, count = (
            self.parts.stretches[stretch].start,
            list(self.splits.values())[stretch].parts,
        )
        for number in numbers:
            own = (number - first) * self.groups
            yield from range(own, min(own + self.groups, count))
