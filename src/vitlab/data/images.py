"""A table of images: a row for each; columns say where it lies, its target, group and content.

Every subset, split, fold, held-out share and move of copies is `take`; every join is `concat`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from vitlab.data.class_names import spell_name
from vitlab.data.decode.stored import StoredImage
from vitlab.data.hashes import Hashes, digests
from vitlab.data.labels import SingleLabels, check_classes
from vitlab.data.stores import Store, join_stores, numbers_in, read_ahead_in
from vitlab.data.target import Classes, Indices, Integers, Target


@dataclass(frozen=True, eq=False)
class Images:
    """Rows of images.

    Attributes:
        store: where they lie
        rows: the number of each image in the store, int64 (n,)
        target: what may be learned of each image: classes, numbers, boxes or classes of pixels
        classes: names of the classes or numbers, in the order that the target indexes; none where
            there are no labels
        group: hashes of the groups that stay on one side of a split, (n,); None without groups
        content: hashes of the images' bytes, (n,); None if they have not been computed
    """

    store: Store
    rows: Integers
    target: Target
    classes: Classes = ()
    group: Hashes | None = None
    content: Hashes | None = None

    @classmethod
    def of(
        cls, store: Store, target: Target | None = None, classes: Sequence[str] = ()
    ) -> "Images":
        """Return all images of a store, without labels unless a target is given."""
        target = SingleLabels.blank(len(store), 0) if target is None else target
        return cls(store, np.arange(len(store)), target, tuple(classes))

    def __len__(self) -> int:
        return len(self.rows)

    def __getstate__(self) -> dict[str, Any]:
        """Send rows that follow one another to worker processes as their first and last one."""
        first = int(self.rows[0]) if len(self) else 0
        follow = np.array_equal(self.rows, np.arange(first, first + len(self)))
        rows = range(first, first + len(self)) if follow else self.rows
        return vars(self) | {"rows": rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        rows = state["rows"]
        if isinstance(rows, range):
            rows = np.arange(rows.start, rows.stop)
        vars(self).update(state | {"rows": rows})

    @property
    def in_memory(self) -> bool:
        """Whether the images are pixels in memory, so that no process is needed to decode them."""
        return self.store.in_memory

    def image(self, row: int) -> StoredImage:
        """Return the image of a row, not yet decoded; may raise `ImageError`."""
        return self.store.image(int(self.rows[row]))

    def name(self, row: int) -> str:
        """Return the name of a row's image in a message."""
        return self.store.name(int(self.rows[row]))

    def take(self, places: Indices) -> "Images":
        """Return some of the rows, in the given order."""
        places = np.asarray(places, np.int64)
        return replace(
            self,
            rows=self.rows[places],
            target=self.target.take(places),
            group=None if self.group is None else self.group[places],
            content=None if self.content is None else self.content[places],
        )

    def without(self, places: Indices) -> "Images":
        """Return all rows but some."""
        if not len(places):
            return self
        return self.take(np.setdiff1d(np.arange(len(self)), places))

    def with_target(self, target: Target, classes: Sequence[str]) -> "Images":
        """Return the same images with another target."""
        return replace(self, target=target, classes=tuple(classes))

    def without_labels(self) -> "Images":
        """Return the same images without labels."""
        if not self.classes:
            return self
        return self.with_target(SingleLabels.blank(len(self), 0), ())

    def in_groups(self, names: Iterable[object]) -> "Images":
        """Return the same images in groups, named for each image."""
        return replace(self, group=digests(map(str, names)))

    def counts(self) -> dict[str, int]:
        """Count the images of each class."""
        return dict(zip(self.classes, self.target.counts(len(self.classes)), strict=True))

    def present(self) -> list[str]:
        """Return the classes that there are images of."""
        return [name for name, count in self.counts().items() if count]

    def reindexed(self, classes: Sequence[str], title: str) -> "Images":
        """Return the same images with a target that indexes other classes, matched by name.

        Args:
            classes: must have every class of which there are images
            title: what to call the images in an error

        Raises:
            UnknownClassError: they do not.
            DataError: several of them have the same name.
        """
        order = tuple(classes)
        if self.classes == order and len(set(order)) == len(order):
            return self
        check_classes(self.present(), order, title)
        place = {spell_name(name): number for number, name in enumerate(order)}
        moved = np.array([place.get(spell_name(name), -1) for name in self.classes], np.int64)
        return self.with_target(self.target.reindexed(moved, len(order)), order)

    def read_ahead(self, places: Indices) -> None:
        """Let a store on another machine read some rows' images together.

        Raises:
            SourceError: that machine did not give them.
        """
        read_ahead_in(self.store, self.rows[np.asarray(places, np.int64)])


def concat(tables: Sequence[Images]) -> Images:
    """Return the rows of several tables, which have the same classes, one after the other."""
    if len(tables) == 1:
        return tables[0]
    store = join_stores([table.store for table in tables])
    targets: list[Any] = [table.target for table in tables]
    return Images(
        store,
        np.concatenate([numbers_in(store, table.store, table.rows) for table in tables]),
        targets[0].concat(targets),
        tables[0].classes,
        _concat_column([table.group for table in tables]),
        _concat_column([table.content for table in tables]),
    )


def _concat_column(parts: Sequence[Hashes | None]) -> Hashes | None:
    """Return a column of several tables; None where one does not have it."""
    columns = [part for part in parts if part is not None]
    return np.concatenate(columns) if len(columns) == len(parts) else None


def places_in(part: Images, whole: Images) -> Integers:
    """Return where each of a part's images is in the table that it was taken from; -1: nowhere."""
    if not len(whole):
        return np.full(len(part), -1)
    rows = numbers_in(whole.store, part.store, part.rows)
    order = np.argsort(whole.rows, kind="stable")
    ranks = np.searchsorted(whole.rows, rows, sorter=order)
    places = order[np.minimum(ranks, len(order) - 1)]
    return np.where(whole.rows[places] == rows, places, -1)
