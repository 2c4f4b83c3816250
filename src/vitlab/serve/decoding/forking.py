"""The process that has loaded everything and forks decoders: one is ready in milliseconds.

It has one connection, to the service, and ends when that closes. It does two things: for a message
with a connection it forks a decoder that serves it, and answers with its number; for a message with
a number it ends that decoder, if it still runs, and answers with how it ended.
"""

import ctypes
import gc
import os
import signal
import socket
import sys
from collections.abc import Collection
from contextlib import suppress
from io import BytesIO
from struct import Struct

import torch
from PIL import Image

from vitlab.models.config import ViTConfig
from vitlab.serve.decoding.decoder import Bounds, decoded, serve_connection

NUMBER = Struct("<i")
_PR_SET_PDEATHSIG = 1  # of Linux's prctl: the signal that a process gets when its parent dies


def main(descriptor: int, bounds: Bounds) -> None:
    """Fork decoders until the service is gone.

    Args:
        descriptor: of the connection to the service
        bounds: of every decoder
    """
    for each in (signal.SIGINT, signal.SIGTERM):  # they reach whole groups; the service drains
        signal.signal(each, signal.SIG_IGN)
    torch.set_num_threads(1)
    _warm(bounds.formats)
    gc.freeze()  # pages stay shared with the decoders
    children: set[int] = set()
    with socket.socket(fileno=descriptor) as control:
        try:
            control.sendall(NUMBER.pack(0))  # ready
        except BrokenPipeError:  # the service was stopped while it started
            return
        while True:
            message, descriptors, _, _ = socket.recv_fds(control, NUMBER.size, 1)
            if not message:
                break
            if descriptors:
                number = _forked(control, descriptors[0], bounds)
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
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        quiet = os.open(os.devnull, os.O_RDWR)
        os.dup2(quiet, 2)  # libraries complain of images there, in the images' own words
        serve_connection(socket.socket(fileno=descriptor), bounds)
    except BaseException:  # whatever it is, it must not return into the parent's loop
        os._exit(1)
    os._exit(0)


def _ended(number: int) -> int:
    """End a decoder; return its exit status, or the negative signal that ended it before."""
    with suppress(ProcessLookupError):
        os.kill(number, signal.SIGKILL)
    _, status = os.waitpid(number, 0)
    return os.waitstatus_to_exitcode(status)


def _warm(formats: Collection[str]) -> None:
    """Decode an image of each format once, so that nothing is left to import."""
    config = ViTConfig(image_size=16, patch=16, width=16, depth=1, heads=1, mlp=16)
    for kind in formats:
        file = BytesIO()
        Image.new("RGB", (40, 24)).save(file, kind)
        decoded(file.getvalue(), "image", config, 1000, formats)
