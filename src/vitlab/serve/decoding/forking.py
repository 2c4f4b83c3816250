"""The process that has loaded everything and forks decoders: one is ready in milliseconds.

It has one connection, to the service, and ends when that closes. It does two things: for a message
with a connection it starts a decoder that serves it, and answers with its number; for a message
with a number it ends that decoder, if it still runs, and answers with how it ended. On macOS, where
a process that has loaded PyTorch must not fork, a decoder is a program of its own and takes seconds
to start.
"""

import gc
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from io import BytesIO
from struct import Struct

import torch
from PIL import Image

from vitlab.data.loading.loader import end_with_parent
from vitlab.models.config import ViTConfig
from vitlab.serve.decoding.decoder import Bounds, decoded, serve_connection

NUMBER = Struct("<i")
_CODE = """import json, sys
sys.path[:] = json.loads(sys.argv[4])
from vitlab.serve.decoding import decoder, forking
getattr(forking, sys.argv[1])(int(sys.argv[2]), decoder.Bounds(**json.loads(sys.argv[3])))"""


def command(work: str, descriptor: int, bounds: Bounds) -> list[str]:
    """Return the command of a process that does `main`, `spawns` or `decodes` of this file."""
    told = [json.dumps(asdict(bounds)), json.dumps(sys.path)]
    return [sys.executable, "-P", "-c", _CODE, work, str(descriptor), *told]


def main(descriptor: int, bounds: Bounds, forks: bool = True) -> None:
    """Start decoders until the service is gone.

    Args:
        descriptor: of the connection to the service
        bounds: of every decoder
        forks: whether they are forked; else they are programs of their own
    """
    for each in (signal.SIGINT, signal.SIGTERM):  # they reach whole groups; the service drains
        signal.signal(each, signal.SIG_IGN)
    if forks:
        _make_ready(bounds)
        gc.freeze()  # pages stay shared with the decoders
    children: set[int] = set()
    with socket.socket(fileno=descriptor) as control:
        os.set_inheritable(descriptor, False)
        try:
            control.sendall(NUMBER.pack(0))  # ready
        except BrokenPipeError:  # the service was stopped while it started
            return
        while True:
            message, descriptors, _, _ = socket.recv_fds(control, NUMBER.size, 1)
            if not message:
                break
            if descriptors:
                begin = _forked if forks else _spawned
                number = begin(control, descriptors[0], bounds)
                children.add(number)
                control.sendall(NUMBER.pack(number))
            else:
                (number,) = NUMBER.unpack(message)
                control.sendall(NUMBER.pack(_ended(number) if number in children else 0))
                children.discard(number)
    for number in children:
        _ended(number)


def _forked(control: socket.socket, descriptor: int, bounds: Bounds) -> int:
    """Start a decoder; return its number."""
    number = os.fork()
    if number:
        os.close(descriptor)
        return number
    try:
        control.close()
        end_with_parent()
        _serve(descriptor, bounds)
    except BaseException:  # whatever it is, it must not return into the parent's loop
        os._exit(1)
    os._exit(0)


def _spawned(control: socket.socket, descriptor: int, bounds: Bounds) -> int:
    """Start a decoder as a program of its own; return its number."""
    os.set_inheritable(descriptor, True)
    number = os.posix_spawn(sys.executable, command("decodes", descriptor, bounds), os.environ)
    os.close(descriptor)
    return number


def decodes(descriptor: int, bounds: Bounds) -> None:
    """Decode what comes by a connection until it closes, in a program of its own."""
    _make_ready(bounds)
    _serve(descriptor, bounds)


def _serve(descriptor: int, bounds: Bounds) -> None:
    quiet = os.open(os.devnull, os.O_RDWR)
    os.dup2(quiet, 2)  # libraries complain of images there, in the images' own words
    serve_connection(socket.socket(fileno=descriptor), bounds)


def _ended(number: int) -> int:
    """End a decoder; return its exit status, or the negative signal that ended it before."""
    with suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)
    _, status = os.waitpid(number, 0)
    return os.waitstatus_to_exitcode(status)


def _make_ready(bounds: Bounds) -> None:
    """Decode an image of each format once, so that nothing is left to import."""
    torch.set_num_threads(1)
    config = ViTConfig(image_size=16, patch=16, width=16, depth=1, heads=1, mlp=16)
    for kind in bounds.formats:
        file = BytesIO()
        Image.new("RGB", (40, 24)).save(file, kind)
        decoded(file.getvalue(), "image", config, 1000, bounds.formats)


spawns = partial(main, forks=False)
