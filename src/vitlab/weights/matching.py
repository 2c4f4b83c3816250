"""A file's tensors as a model's: names and shapes are checked before any number is read."""

import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.weights.adapters import unaltered
from vitlab.weights.assembly import empty
from vitlab.weights.formats.entries import Entry
from vitlab.weights.formats.room import Reading
from vitlab.weights.source import Shape, Source, readable

THREADS = 4  # that read and hash: faster together than most disks


def collect(reading: Reading, source: Source) -> dict[str, Tensor]:
    """Return the tensors that a file gives a model: all of them, unless the reading has a base.

    Raises:
        WeightsError: the first tensor that is missing, unexpected, misshapen or damaged.
    """
    expected = empty(reading.config)

    def made(entry: Entry) -> dict[str, Tensor]:
        return _converted(entry, reading, source, expected)

    tensors: dict[str, Tensor] = {}
    together = reading.exact and source.kind == "safetensors"
    with unaltered(source):
        check(reading, source, expected)
        for each in _in_order(made, reading.entries, together):
            tensors |= each
    return tensors


def _converted(
    entry: Entry, reading: Reading, source: Source, expected: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Return the tensors of a model that one entry makes of a file's."""
    pairs = zip(entry.theirs, _their_shapes(entry, expected), strict=True)
    stored = [source.read(name, reading.exact).reshape(shape) for name, shape in pairs]
    with readable(source.path, ", ".join(entry.theirs)):
        made = entry.read(stored)
    for name, tensor in zip(entry.ours, made, strict=True):
        want = expected[name]
        if tensor.shape != want.shape or tensor.is_floating_point() != want.is_floating_point():
            raise WeightsError(
                f"{source.path}: {', '.join(entry.theirs)} cannot be turned into {name}, "
                f"{want.dtype} {tuple(want.shape)}"
            )
    return {name: each.contiguous() for name, each in zip(entry.ours, made, strict=True)}


def _in_order(
    make: Callable[[Entry], dict[str, Tensor]], entries: Iterable[Entry], together: bool
) -> Iterator[dict[str, Tensor]]:
    """Yield what each entry makes, several at once if asked: checksums take longer than reading."""
    threads = min(THREADS, torch.get_num_threads())
    if not together or threads == 1:
        yield from map(make, entries)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(make, entries)


def check(reading: Reading, source: Source, expected: dict[str, Tensor]) -> None:
    """Check names and shapes.

    Args:
        reading: of the source
        source: the file or folder
        expected: the model's state dict, of which only names and shapes matter

    Raises:
        WeightsError: the first tensor that is missing, unexpected or misshapen.
    """
    made = {name for entry in reading.entries for name in entry.ours}
    if wrong := sorted(made - set(expected) if reading.base else made ^ set(expected)):
        raise WeightsError(
            f"{source.path}: {reading.format} cannot represent {wrong[0]} of {reading.config.name}"
        )
    for entry in reading.entries:
        missing = [n for n in entry.theirs if n.partition("[")[0] not in source.shapes]
        if missing:
            raise WeightsError(f"{source.path}: tensor {missing[0]} is missing ({reading.format})")
        for name, want in zip(entry.theirs, _their_shapes(entry, expected), strict=True):
            have = source.shape(name)
            # Some of Google's norms are (1, 1, 1, C).
            squeezed = [[n for n in shape if n != 1] for shape in (have, want)]
            if have != want and not (source.kind == "npz" and squeezed[0] == squeezed[1]):
                raise WeightsError(f"{source.path}: tensor {name} has shape {have}, not {want}")
    for name in unused(reading, source):
        if not reason(reading, source, name):
            raise WeightsError(
                f"{source.path}: unexpected tensor {name} ({reading.format}, "
                f"{reading.config.name}): if the model does not need it, leave it out with --drop "
                f"{name} (in Python drop=[{name!r}])"
            )


def unused(reading: Reading, source: Source) -> list[str]:
    """Return the file's tensors that the model is not made of, in order."""
    used = {name.partition("[")[0] for entry in reading.entries for name in entry.theirs}
    return sorted(set(source.shapes) - used)


def reason(reading: Reading, source: Source, name: str) -> str:
    """Return why a tensor may be left out; empty if it may not."""
    why = next((why for p, why in reading.left_out.items() if re.fullmatch(p, name)), "")
    return why or ("a counter" if name in source.counters else "")


def _their_shapes(entry: Entry, expected: dict[str, Tensor]) -> list[Shape]:
    """The shapes that an entry's tensors have in the other format."""
    written = entry.write([expected[name] for name in entry.ours])
    return [tuple(tensor.shape) for tensor in written]
