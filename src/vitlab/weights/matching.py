"""A file's tensors as a model's: names and shapes are checked before any number is read."""

import math
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.weights.adapters import unaltered
from vitlab.weights.assembly import empty
from vitlab.weights.formats.entry import Entry
from vitlab.weights.formats.format_api import Reading
from vitlab.weights.source import Shape, StoredTensors, readable
from vitlab.weights.state import StateDict, fits

THREADS = 4  # that read and hash: faster together than most disks


def collect(reading: Reading, source: StoredTensors) -> StateDict:
    """Return the tensors that a file gives a model: all of them, unless the reading has a base.

    Raises:
        WeightsError: the first tensor that is missing, unexpected, misshapen or damaged.
    """
    expected = empty(reading.config)
    together = reading.exact and source.kind == "safetensors"  # checksums take long
    threads = min(THREADS, torch.get_num_threads()) if together else 1

    def made(entry: Entry) -> StateDict:
        return _converted(entry, reading, source, expected)

    tensors: StateDict = {}
    with unaltered(source), ThreadPoolExecutor(threads) as pool:
        check(reading, source, expected)
        for each in (pool.map if threads > 1 else map)(made, reading.entries):
            tensors |= each
    return tensors


def _converted(
    entry: Entry, reading: Reading, source: StoredTensors, expected: StateDict
) -> StateDict:
    """The tensors of a model that one entry makes of a file's."""
    pairs = zip(entry.theirs, _their_shapes(entry, expected), strict=True)
    stored = [source.read(name, reading.exact).reshape(shape) for name, shape in pairs]
    names = ", ".join(entry.theirs)
    with readable(source.path, names):
        made = dict(zip(entry.ours, entry.read(stored), strict=True))
    for name, tensor in made.items():
        if not fits(tensor, want := expected[name]):
            raise WeightsError(
                f"{source.path}: {names} cannot be turned into {name}, {want.dtype} "
                f"{tuple(want.shape)}"
            )
    return {name: tensor.contiguous() for name, tensor in made.items()}


def with_channels(reading: Reading, source: StoredTensors) -> Reading:
    """Return a reading whose first kernel is made for as many channels as the model is to have.

    timm's rule (`adapt_input_conv`): a kernel for RGB is repeated and scaled by the number of
    channels, so that an image of equal channels gives what it gave; for one channel it is summed.
    """
    expected = empty(reading.config)
    name = next((name for name, tensor in expected.items() if tensor.ndim == 4), "")
    old = next((each for each in reading.entries if each.ours == (name,)), None)
    if old is None:
        return reading
    have = source.shape(old.theirs[0])
    want = _their_shapes(old, expected)[0]
    count = expected[name].shape[1]
    there = count * math.prod(have) // math.prod(want)
    if len(have) != 4 or there in (0, count):
        return reading
    new = old._replace(
        read=lambda tensors: [_for_channels(old.read(tensors)[0], count)],
        write=lambda tensors: old.write([_for_channels(tensors[0], there)]),
    )
    entries = [new if each is old else each for each in reading.entries]
    note = f"{source.path}: the kernel for {there} channels is made one for {count}, as by timm"
    return replace(reading, entries=entries, notes=(*reading.notes, note))


def _for_channels(kernel: Tensor, count: int) -> Tensor:
    """A kernel (D, C, P, P) for another number of channels."""
    if count == 1:
        return kernel.sum(1, keepdim=True)
    there = kernel.shape[1]
    repeated = kernel.repeat(1, -(-count // there), 1, 1)[:, :count]
    return repeated * (there / count)


def check(reading: Reading, source: StoredTensors, expected: StateDict) -> None:
    """Check names and shapes.

    Args:
        reading: of the source
        source: the file or folder
        expected: the model's state dict, of which only names and shapes matter

    Raises:
        WeightsError: the first tensor that is missing, unexpected or misshapen.
    """
    path = source.path
    format = reading.format
    config = reading.config
    made = {name for entry in reading.entries for name in entry.ours}
    if wrong := sorted(made - set(expected) if reading.base else made ^ set(expected)):
        raise WeightsError(f"{path}: {format} cannot represent {wrong[0]} of {config.name}")
    for entry in reading.entries:
        missing = [name for name in entry.theirs if name not in source.shapes]
        if missing:
            raise WeightsError(f"{path}: tensor {missing[0]} is missing ({format})")
        for name, want in zip(entry.theirs, _their_shapes(entry, expected), strict=True):
            have = source.shape(name)
            # Some of Google's norms are (1, 1, 1, C).
            squeezed = [[n for n in shape if n != 1] for shape in (have, want)]
            if have != want and not (source.kind == "npz" and squeezed[0] == squeezed[1]):
                raise WeightsError(f"{path}: tensor {name} has shape {have}, not {want}")
    for name, why in unused(reading, source).items():
        if not why:
            raise WeightsError(
                f"{path}: unexpected tensor {name} ({format}, {config.name}): if the model does "
                f"not need it, leave it out with --drop {name} (in training --weights-drop, in "
                "Python drop=…)"
            )


def unused(reading: Reading, source: StoredTensors) -> dict[str, str]:
    """Return the file's tensors that the model is not made of, each with why it may be left out.

    The reason is empty for those that may not.
    """
    used = {name for entry in reading.entries for name in entry.theirs}
    reasons = dict.fromkeys(sorted(set(source.shapes) - used), "")
    for name in reasons:
        fitting = (why for each, why in reading.left_out.items() if re.fullmatch(each, name))
        reasons[name] = next(fitting, "a counter" if name in source.counters else "")
    return reasons


def _their_shapes(entry: Entry, expected: StateDict) -> list[Shape]:
    """The shapes that an entry's tensors have in the other format."""
    written = entry.write([expected[name] for name in entry.ours])
    return [tuple(tensor.shape) for tensor in written]
