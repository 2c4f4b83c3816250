"""The features of a source's images, part by part, so that any number of them needs little memory.

A part is a fixed stretch of the source. Several processes compute different parts, a part that was
kept is not computed again, and each comes out the same whoever computes it.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.augment.augment import normalize
from vitlab.data.loading.batches import Batch, EvaluationBatches
from vitlab.data.loading.loader import choose_workers, evaluation_loader
from vitlab.data.loading.workers import deaths_explained
from vitlab.data.sources.protocol import Source
from vitlab.device import autocast, behind, fetched
from vitlab.evaluation.borrowing import borrowed
from vitlab.evaluation.fast_form import Form, fast_form
from vitlab.evaluation.predictions import BATCH, PIXELS
from vitlab.evaluation.probes.taking import shape_taken, take
from vitlab.evaluation.probes.wanted import Pooled, Taken
from vitlab.models.model import Model
from vitlab.precision import Engine, fixed

ROWS = 2048  # most images of a part
BYTES = 2**25  # of a part's features, unless one batch has more


@dataclass(frozen=True)
class Piece:
    """The features of one part.

    Attributes:
        number: of the part
        values: float32 (n, width) or (n, tokens, width)
        indices: int64 (n,), numbers of the images in the source; damaged ones are missing
        bad: message about each damaged image, by its number
    """

    number: int
    values: NDArray[np.float32]
    indices: NDArray[np.int64]
    bad: dict[int, str]


@dataclass(frozen=True)
class Extraction:
    """What is computed, of which images, and how.

    Attributes:
        model: any; its device, and the mode of each of its modules, are the same afterwards
        source: the images
        taken: what of the model
        device: where to compute
        precision: fp32, or bf16 autocast
        workers: processes that decode; None to choose
        sharing: processes of the run on this machine, which share its cores
        most: images of a part; None for `ROWS`
        engine: that computes; auto is the fastest where there is work enough
        measure: whether `auto` may measure
    """

    model: Model
    source: Source
    taken: Pooled | Taken
    device: torch.device
    precision: str = "fp32"
    workers: int | None = None
    sharing: int = 1
    most: int | None = None
    engine: Engine = "plain"
    measure: bool = False

    @cached_property
    def form(self) -> Form:
        """What computes: for the whole source, so that every process computes the same."""
        how = self.device, fixed(self.precision), 1, self.engine, self.measure
        return fast_form(self.model, self.source, *how)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image's features."""
        return shape_taken(self.model, self.taken)

    @cached_property
    def batch(self) -> int:
        """Images per forward pass."""
        return max(1, min(BATCH, PIXELS // self.model.config.area))

    @cached_property
    def rows(self) -> int:
        """Images per part: whole batches."""
        fit = min(self.most or ROWS, BYTES // (4 * int(np.prod(self.shape))))
        return self.batch * max(1, fit // self.batch)

    @property
    def parts(self) -> int:
        """Number of parts."""
        return -(-len(self.source) // self.rows)

    def pieces(
        self, numbers: Iterable[int], progress: Callable[[int], None] = lambda images: None
    ) -> Iterator[Piece]:
        """Yield some of the parts, in the order given.

        Args:
            numbers: of the parts; an iterator is followed a few batches ahead of what is computed
            progress: called after every batch with the number of images processed

        Raises:
            DataError: a worker process died.
        """
        batches = EvaluationBatches(self.source, self.model.config, self.batch)
        workers = choose_workers(self.source, self.workers, self.sharing)
        asked: deque[tuple[int, int]] = deque()  # parts, and how many batches each has

        def order() -> Iterator[int]:
            each = self.rows // self.batch
            for number in numbers:
                own = range(number * each, min((number + 1) * each, len(batches)))
                asked.append((number, len(own)))
                yield from own

        chosen = list(order()) if isinstance(numbers, Sequence) else order()
        done = 0

        def count(batch: Batch) -> None:
            nonlocal done
            done += len(batch) + len(batch.bad)
            progress(done)

        with borrowed(self.form.model, self.device), deaths_explained():
            loader = iter(evaluation_loader(batches, workers, chosen))
            for first in loader:
                number, length = asked.popleft()
                yield self._piece(number, chain([first], islice(loader, length - 1)), count)

    def _piece(
        self, number: int, batches: Iterable[Batch], count: Callable[[Batch], None]
    ) -> Piece:
        """Compute the features of a part's batches."""
        values, indices = [np.empty((0, *self.shape), np.float32)], []
        bad: dict[int, str] = {}
        begun = (partial(_read, batch, self._begun(batch)) for batch in batches)
        for batch, rows in behind(begun, self.device):
            values += rows
            indices += batch.indices.tolist()
            bad |= dict(batch.bad)
            count(batch)
        return Piece(number, np.concatenate(values), np.array(indices, np.int64), bad)

    @torch.inference_mode()
    def _begun(self, batch: Batch) -> Callable[[], list[Tensor]]:
        """Begin to compute the features of a batch; the function returned waits for them."""
        if not len(batch):
            return list
        spec = self.model.config
        images = normalize(batch.to(self.device).images, spec.mean, spec.std)
        with autocast(self.device, self.form.autocast):
            return fetched([take(self.form.model, images, self.taken).float()])


def _read(
    batch: Batch, ready: Callable[[], list[Tensor]]
) -> tuple[Batch, list[NDArray[np.float32]]]:
    """Return a batch and its features, if it has images."""
    return batch, [each.numpy() for each in ready()]
