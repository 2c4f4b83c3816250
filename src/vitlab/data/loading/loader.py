"""Batches of uint8 images, decoded in worker processes."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from vitlab.data.augment.policy import draws_needed
from vitlab.data.decode import crop, decode
from vitlab.data.decode.decode import BadImage
from vitlab.data.labels import is_multi
from vitlab.data.loading.cache import Kept
from vitlab.data.loading.order import batch_samples, draws, slice_of
from vitlab.data.settings import Augment
from vitlab.data.sources.sources import Arrays, Source, Subset
from vitlab.models.config import ModelConfig

PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal that comes when the parent dies
LEAVE = 30  # seconds a worker lives on after SIGTERM

Box = Callable[[int, int], tuple[float, float, float, float]]  # of an image's rows and columns


@dataclass(frozen=True)
class Batch:
    """Images that go through the model together; damaged ones are left out and told of.

    Attributes:
        images: uint8 (B, H, W, C)
        labels: int64 (B,); float32 (B, classes), 0 or 1, where images have several
        draws: float32 (B, `draws_needed`), what `augment` needs; empty rows when evaluating
        indices: int64 (B,), which images of the source these are
        bad: index and message of each image that could not be decoded
        total: images of the whole batch, where this is the slice of one of several processes
    """

    images: Tensor
    labels: Tensor
    draws: Tensor
    indices: Tensor
    bad: list[tuple[int, str]] = field(default_factory=list)
    total: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> "Batch":
        """The same batch on another device."""

        def move(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        images, labels = move(self.images), move(self.labels)
        return Batch(images, labels, move(self.draws), move(self.indices), self.bad)

    def pieces(self, size: int) -> Iterator["Batch"]:
        """The batch in pieces of at most `size` images, for gradient accumulation.

        An even number where that can be, so that neighbors, which are mixed, stay together.
        """
        if size < len(self):
            size = max(1, size - size % 2)
        for first in range(0, len(self), size):
            part = slice(first, first + size)
            yield Batch(self.images[part], self.labels[part], self.draws[part], self.indices[part])


@dataclass(frozen=True)
class TrainingBatches(Dataset[Batch]):
    """Batch k as a pure function of (seed, k), or the slice of it that process `rank` learns."""

    source: Source
    config: ModelConfig
    how: Augment
    seed: int
    batch: int
    rank: int = 0
    processes: int = 1

    def __getitem__(self, k: int) -> Batch:
        """Batch number k of the endless stream."""
        samples = batch_samples(self.seed, k, len(self.source), self.batch, self.how.repeats)
        own = slice_of(len(samples), self.rank, self.processes)
        samples = samples[own.start : own.stop]
        count = crop.DRAWS + draws_needed(self.how)
        randoms = np.stack([draws(self.seed, e, index, count, copy) for e, index, copy in samples])
        boxes = [self._box(row[: crop.DRAWS]) for row in randoms]
        indices = [index for _, index, _ in samples]
        others, quick = randoms[:, crop.DRAWS :], self.how.area < 1
        return _stack(self.source, indices, self.config, boxes, others, quick=quick)

    def _box(self, randoms: NDArray[np.float32]) -> Box:
        """Where to cut an image: at random where the recipe crops, else around the center."""
        if self.how.area == 1:
            return center(self.config)
        rows, columns = self.config.size
        return partial(
            crop.random_box,
            out_rows=rows,
            out_columns=columns,
            area=(self.how.area, 1.0),
            aspect=(1 / self.how.aspect, self.how.aspect),
            draws=randoms.tolist(),
        )


@dataclass(frozen=True)
class EvaluationBatches(Dataset[Batch]):
    """The images of a source in their own order, each cropped at its center."""

    source: Source
    config: ModelConfig
    batch: int

    def __len__(self) -> int:
        return -(-len(self.source) // self.batch)

    def __getitem__(self, k: int) -> Batch:
        """Batch number k, the last one shorter."""
        indices = range(k * self.batch, min((k + 1) * self.batch, len(self.source)))
        boxes = [center(self.config)] * len(indices)
        randoms = np.empty((len(indices), 0), np.float32)
        return _stack(self.source, list(indices), self.config, boxes, randoms)


def training_loader(
    batches: TrainingBatches, start: int, stop: int, workers: int
) -> "DataLoader[Batch]":
    """Batches start … stop - 1, in order whatever the number of workers."""
    return _loader(batches, range(start, stop), workers)


def evaluation_loader(batches: EvaluationBatches, workers: int) -> "DataLoader[Batch]":
    """All batches once."""
    return _loader(batches, range(len(batches)), workers)


def choose_workers(source: Source, asked: int | None, sharing: int = 1) -> int:
    """None asked for: no processes for pixels in memory, else one a core, at most eight.

    Where `sharing` processes train on one machine, each has its share of the cores.
    """
    if asked is not None:
        return asked
    whole = source.whole if isinstance(source, Subset) else source
    return (
        0 if isinstance(whole, Arrays | Kept) else min(max(1, (os.cpu_count() or 1) // sharing), 8)
    )


def _loader(batches: Dataset[Batch], order: range, workers: int) -> "DataLoader[Batch]":
    return DataLoader(
        batches,
        batch_size=None,  # the data set gives whole batches
        sampler=order,
        num_workers=min(workers, len(order)),
        worker_init_fn=leave_signals_to_parent if workers else None,
        pin_memory=torch.cuda.is_available(),
    )


def leave_signals_to_parent(worker: int) -> None:
    """Signals often reach whole groups of processes; the parent decides when the workers end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # the parent may need this worker to end its step; one that is not fetched leaves in the end
    signal.signal(signal.SIGTERM, lambda number, frame: signal.alarm(LEAVE))
    torch.set_num_threads(1)
    if sys.platform == "linux":  # orphans would keep the parent's connections open
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def load_image(
    source: Source, index: int, config: ModelConfig, box: Box, *, quick: bool = False
) -> NDArray[np.uint8]:
    """One image as the model is to see it: uint8 (H, W, channels).

    Args:
        source: where it comes from
        index: which one
        config: size, channels and interpolation
        box: where to cut it, given its rows and columns
        quick: for random boxes: cut at whole pixels, out of a JPEG decoded at as little as the size
            of the result (else at least twice that) and no further down than the box

    Raises:
        BadImage: it cannot be decoded.
    """
    item = source.read(index)
    rows, columns = config.size
    if isinstance(item, bytes):
        margin = 1 if quick else 2
        least = (margin * rows, margin * columns)
        name = source.name(index)
        pixels, place = decode.decode_box(item, config.channels, name, box, least, cut=quick)
    else:
        pixels = _with_channels(item, config.channels)
        place = box(*pixels.shape[:2])
    resize = crop.cut_resize if quick else crop.crop_resize
    return resize(pixels, place, rows, columns, config.interpolation)


def center(config: ModelConfig) -> Box:
    """The box that evaluation looks at."""
    if config.fit == "squash":
        return partial(crop.whole_box, crop=config.crop)
    rows, columns = config.size
    return partial(crop.center_box, out_rows=rows, out_columns=columns, crop=config.crop)


def _stack(
    source: Source,
    indices: list[int],
    config: ModelConfig,
    boxes: list[Box],
    randoms: NDArray[np.float32],
    *,
    quick: bool = False,
) -> Batch:
    """Decode the images; those that cannot be leave a shorter batch and a message."""
    images, kept, bad = [], [], []
    for place, (index, box) in enumerate(zip(indices, boxes, strict=True)):
        try:
            images.append(load_image(source, index, config, box, quick=quick))
            kept.append(place)
        except BadImage as error:
            bad.append((index, str(error)))
    pixels = np.stack(images) if images else np.empty((0, *config.size, config.channels), np.uint8)
    chosen = np.array(indices, np.int64)[kept]
    labels = source.labels[chosen]
    told = labels.astype(np.float32) if is_multi(labels) else labels
    tensors = [torch.from_numpy(each) for each in (pixels, told, randoms[kept], chosen)]
    return Batch(tensors[0], tensors[1], tensors[2], tensors[3], bad)


def _with_channels(pixels: NDArray[np.uint8], channels: int) -> NDArray[np.uint8]:
    """Pixels that came decoded, (H, W, C), with the channels the model wants."""
    have = pixels.shape[-1]
    if have == channels:
        return pixels
    if have == 1 and channels == 3:
        return np.repeat(pixels, 3, axis=-1)
    if have == 3 and channels == 1:  # ITU-R 601 luma, as Pillow computes it
        luma = pixels.astype(np.uint32) @ np.array([19595, 38470, 7471], np.uint32)
        return ((luma + 0x8000) >> 16).astype(np.uint8)[..., None]
    raise BadImage(f"images of {have} channels cannot be given to a model of {channels}")
