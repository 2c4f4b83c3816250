"""Handing over what worker processes load: batches in memory of their own, and why there are none.

PyTorch moves a batch to /dev/shm in a thread of the worker: where that is full, the thread drops
the batch, and the parent waits without end. Here the worker itself writes a batch to anonymous
memory, which /dev/shm does not bound (64 MB in a container), and sends the file descriptor ahead of
the message that names it. So nothing of a batch waits for the worker once its message is there, a
message is never read in part, and every failure is an exception, which reaches the parent.
"""

import errno
import itertools
import mmap
import os
import pickle
import socket
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from multiprocessing.reduction import ForkingPickler
from tempfile import TemporaryFile
from typing import IO, Any, Generic, TypeVar
from weakref import WeakValueDictionary, finalize

import torch
from torch import Tensor
from torch._utils import ExceptionWrapper
from torch.utils.data import Dataset

from vitlab.errors import DataError

T = TypeVar("T")

SMALL = 2048  # bytes of what goes through the pipe: of at most PIPE_BUF, none is written in part
ALIGNED = 64  # bytes
WAIT = 10.0  # seconds for a descriptor, which was sent before the message that names it
NUMBER = struct.Struct("<QQ")  # a worker's process, and which of its batches


class WorkerDiedError(DataError):
    """A process that decodes images died, was stopped, or cannot hand over what it has loaded."""


class Carried(Dataset[T], Generic[T]):
    """Items of a data set, on their way to a worker that says why it cannot have one.

    Args:
        items: of which the worker loads some
    """

    def __init__(self, items: Dataset[T]) -> None:
        self.items = items
        self.refusal = ""

    def __getstate__(self) -> bytes:
        """Pickle the items apart: where a worker cannot read them, it still starts."""
        return bytes(ForkingPickler.dumps(self.items))

    def __setstate__(self, data: bytes) -> None:
        """Read the items, or keep why they cannot be read."""
        try:
            Carried.__init__(self, pickle.loads(data))  # of the parent
        except Exception as error:
            self.refusal = f"{type(error).__name__}: {error}"

    def __getitem__(self, index: int) -> T:
        """Return an item.

        Raises:
            DataError: a worker cannot read the items, or send the error that one of them raises.
            WorkerDiedError: there is no memory for one.
        """
        if self.refusal:
            raise DataError(
                f"worker processes cannot import what the data is made of ({self.refusal}): put "
                "its classes and functions into a module, a .py file beside the notebook or the "
                "program, or pass workers=0 (--workers 0)"
            )
        try:
            return self.items[index]
        except MemoryError as error:
            raise WorkerDiedError(
                f"a data-loading worker is out of memory ({error}): try fewer --workers, or a "
                "smaller --batch"
            ) from error
        except Exception as error:
            try:
                pickle.dumps(type(error))
            except Exception:
                name = type(error).__qualname__
                text = f"a data-loading worker raised {name}: {error}; --workers 0 shows where"
                raise DataError(text) from error
            raise


class Outbox:
    """The end of a worker: call it with what to hand over, and send on what it returns.

    Args:
        key: of the inbox
        socket: that descriptors go through; None where PyTorch sends them
    """

    def __init__(self, key: int, socket: socket.socket | None) -> None:
        self.key = key
        self.socket = socket
        self.count = 0

    def __call__(self, item: object) -> object:
        """Return what stands for an item in a message.

        Raises:
            WorkerDiedError: it cannot be handed over.
        """
        try:
            return self._stand_in(item)
        except Exception as error:
            raise WorkerDiedError(
                f"a data-loading worker cannot hand over what it has loaded ({error}): pass "
                "--workers 0; where memory is short, also a smaller --batch, or, in a container, "
                "more of it (docker run --shm-size 2g and a larger --memory)"
            ) from error

    def close(self) -> None:
        """Close this process's end."""
        if self.socket is not None:
            self.socket.close()

    def _stand_in(self, item: object) -> object:
        if self.socket is None:
            return _StandIn(pickle.loads, (bytes(ForkingPickler.dumps(item)),))
        buffers: list[pickle.PickleBuffer] = []
        parts = [_pickle_item(item, buffers), *(each.raw() for each in buffers)]
        if sum(map(len, parts)) <= SMALL:
            return _StandIn(pickle.loads, (bytes(_pickle_item(item, None)),))
        self.count += 1
        number = NUMBER.pack(os.getpid(), self.count)
        with _anonymous() as file:
            _write_parts(file, parts)
            socket.send_fds(self.socket, [number], [file.fileno()])
        return _StandIn(_take_item, (self.key, number))


class Inbox:
    """The end of the parent: descriptors of the batches that were handed over.

    Args:
        socket: that they come through
    """

    def __init__(self, socket: socket.socket) -> None:
        self.socket = socket
        self.waiting = dict[bytes, int]()  # by number
        finalize(self, _close, socket, self.waiting)

    def descriptor(self, number: bytes) -> int:
        """Return the descriptor of a batch.

        Raises:
            OSError: it did not come, as this process may open no more files.
        """
        while number not in self.waiting:
            name, descriptors, _, _ = socket.recv_fds(self.socket, NUMBER.size, 1)
            if not descriptors:
                raise OSError("too many open files: raise the limit, ulimit -n")
            (self.waiting[name],) = descriptors
        return self.waiting.pop(number)


def _close(socket: socket.socket, waiting: dict[bytes, int]) -> None:
    """Close a socket, and what came through it and nobody asked for."""
    socket.close()
    for each in waiting.values():
        os.close(each)


_KEYS = itertools.count()
_INBOXES: WeakValueDictionary[int, Inbox] = WeakValueDictionary()  # of this process


def channel() -> tuple[Inbox | None, Outbox]:
    """Return the ends of the parent and of its workers.

    On other systems than Linux, nothing has to be received: batches go as PyTorch sends them, in
    shared memory, which has no bound of its own there.
    """
    key = next(_KEYS)
    if sys.platform != "linux":
        return None, Outbox(key, None)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(WAIT)
    inbox = _INBOXES[key] = Inbox(ours)
    return inbox, Outbox(key, theirs)


@dataclass(frozen=True)
class _StandIn:
    """What a message has in place of an item: a function of the parent, and its arguments."""

    function: Any
    arguments: tuple[object, ...]

    def __reduce__(self) -> tuple[Any, tuple[object, ...]]:
        return self.function, self.arguments


class _Pickler(pickle.Pickler):
    """Pickles tensors as NumPy's arrays, whose memory may stay out of the stream."""

    def reducer_override(self, value: object) -> Any:
        """Return how a tensor is made again; other objects say it themselves."""
        if type(value) is not Tensor or value.device.type != "cpu" or value.requires_grad:
            return NotImplemented
        try:
            return torch.from_numpy, (value.contiguous().numpy(),)
        except TypeError:  # bfloat16
            return NotImplemented


def _pickle_item(item: object, buffers: list[pickle.PickleBuffer] | None) -> memoryview:
    """Return an item as a stream; the memory of its arrays goes to the buffers, if there are."""
    stream = BytesIO()
    callback = None if buffers is None else buffers.append
    _Pickler(stream, protocol=5, buffer_callback=callback).dump(item)
    return stream.getbuffer()


def _anonymous() -> IO[bytes]:
    """Return a file in memory that has no name; in a sandbox without these, a temporary one."""
    try:
        return os.fdopen(os.memfd_create("vitlab-batch"), "wb")
    except (AttributeError, PermissionError):
        pass
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    return TemporaryFile()


def _write_parts(file: IO[bytes], parts: Sequence[memoryview]) -> None:
    """Write how many parts there are, the bytes of each, and the parts, each aligned."""
    sizes = [len(each) for each in parts]
    file.write(struct.pack(f"<{1 + len(sizes)}Q", len(sizes), *sizes))
    for each in parts:
        file.write(bytes(-file.tell() % ALIGNED))
        file.write(each)
    file.flush()


def _read_parts(descriptor: int) -> list[memoryview]:
    """Return the parts of a batch, in its own memory."""
    memory = memoryview(mmap.mmap(descriptor, os.fstat(descriptor).st_size))
    (count,) = struct.unpack_from("<Q", memory)
    end = 8 * (1 + count)
    parts = list[memoryview]()
    for size in struct.unpack_from(f"<{count}Q", memory, 8):
        start = end + -end % ALIGNED
        end = start + size
        parts.append(memory[start:end])
    return parts


def _take_item(key: int, number: bytes) -> object:
    """Return a batch in the parent, or PyTorch's wrapper of the error that tells why not."""
    try:
        descriptor = _INBOXES[key].descriptor(number)
        try:
            stream, *buffers = _read_parts(descriptor)
        finally:
            os.close(descriptor)
        return pickle.loads(stream, buffers=buffers)  # of a worker of this process
    except Exception as error:
        try:
            raise WorkerDiedError(
                f"the batch of a data-loading worker does not arrive ({error}): pass --workers 0"
            ) from error
        except WorkerDiedError:
            return ExceptionWrapper(where="while a batch is received")
