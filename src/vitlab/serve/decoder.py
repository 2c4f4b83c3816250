"""A decoder process: bytes of an image in, pixels out, within limits that the kernel keeps.

A message, either way, is a JSON object and bytes. The service unpickles nothing from here: what a
hostile image makes of this process cannot reach further than its answers.
"""

import json
import os
import resource
import signal
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitlab.data.decode.crop import crop_resize
from vitlab.data.decode.crop_box import whole_box
from vitlab.data.decode.pixels import Box, Pixels
from vitlab.data.decode.stored import EncodedImage
from vitlab.data.loading.crops import center, fitted_image, whole_image
from vitlab.data.loading.loader import end_with_parent
from vitlab.errors import ImageError
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.weights.identity import described

FORMATS = ("JPEG", "PNG", "WEBP")
STATM = Path("/proc/self/statm")  # of Linux, the only system that bounds a process's memory
WHOLE: Box = (0.0, 0.0, 1.0, 1.0)
WARM = ViTConfig(image_size=16, patch=16, width=16, depth=1, heads=1, mlp=16)


@dataclass(frozen=True)
class Bounds:
    """What one image may take.

    Attributes:
        seconds: of computing, after which the process ends; they pass more slowly under load
        max_pixels: of the image
        memory: bytes beyond what the process has at its start; on Linux only
        formats: that are decoded
    """

    seconds: float = 10.0
    max_pixels: int = 25_000_000
    memory: int = 2**30
    formats: tuple[str, ...] = FORMATS


def serve_connection(connection: Connection, bounds: Bounds) -> None:
    """Say that all is ready, and decode what arrives until the other end closes."""
    for each in (signal.SIGINT, signal.SIGTERM):  # they reach whole groups; the service drains
        signal.signal(each, signal.SIG_IGN)
    with suppress(AttributeError, OSError):  # another system than Linux
        end_with_parent()
    os.dup2(os.open(os.devnull, os.O_RDWR), 2)  # libraries complain there, in the images' words
    torch.set_num_threads(1)
    for kind in bounds.formats:  # decode one of each, so that nothing is left to import
        file = BytesIO()
        Image.new("RGB", (40, 24)).save(file, kind)
        decoded(EncodedImage(file.getvalue(), "image", bounds.formats, 1000), WARM)
    confine(bounds.memory)
    connection.send_bytes(b"ready")
    with suppress(EOFError, OSError):
        while True:
            asked, data = json.loads(connection.recv_bytes()), connection.recv_bytes()
            signal.setitimer(signal.ITIMER_PROF, bounds.seconds)  # SIGPROF ends the process
            answer, pixels = _answered(asked, data, bounds)
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send_bytes(json.dumps(answer).encode())
            connection.send_bytes(pixels.tobytes())


def confine(memory: int) -> None:
    """Let the kernel bound this process: so many more bytes, no files written, no core dumped."""
    for each in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE):
        with suppress(ValueError, OSError):
            resource.setrlimit(each, (0, 0))
    with suppress(ValueError, OSError):
        pages = int(STATM.read_text(encoding="ascii").split()[0])
        limit = pages * os.sysconf("SC_PAGE_SIZE") + memory
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def decoded(image: EncodedImage, config: ModelConfig) -> tuple[Pixels, Box]:
    """Decode an image as `vitlab.predict` does.

    Returns:
        uint8 (rows, columns, channels), and the part of the upright image that it shows: left, top,
        right, bottom, as fractions.

    Raises:
        ImageError: it cannot be decoded.
    """
    pixels = fitted_image(image, config)
    rows, columns, _ = image.shape()
    left, top, right, bottom = center(config)(rows, columns)
    return pixels, (left / columns, top / rows, right / columns, bottom / rows)


def preview(image: EncodedImage, size: tuple[int, int], side: int) -> Pixels:
    """Decode a whole image of a size for a person: in RGB, its longer side at most `side` pixels.

    Raises:
        ImageError: it cannot be decoded.
    """
    share = min(1.0, side / max(size))
    rows, columns = (max(1, round(each * share)) for each in size)
    pixels, box = image.decode_box(3, whole_box, (rows, columns))
    return crop_resize(pixels, box, rows, columns)


def _answered(asked: dict[str, Any], data: bytes, bounds: Bounds) -> tuple[dict[str, Any], Pixels]:
    """Return the answer to a request, and pixels (none if it is an error)."""
    none = np.empty((0, 0, 0), np.uint8)
    name, most, formats = asked["name"], bounds.max_pixels, bounds.formats
    image, box = EncodedImage(data, name, formats, min(most, asked["pixels"])), WHOLE
    try:
        size = image.shape()[:2]
        if asked["side"]:
            pixels = preview(image, size, asked["side"])
        elif asked["scale"]:
            config = _config(asked["text"])
            area = asked["most"] // config.channels
            pixels, _ = whole_image(image, config, asked["scale"], area)
        else:
            pixels, box = decoded(image, _config(asked["text"]))
    except ImageError as error:
        return {"error": str(error)}, none
    except Exception as error:  # such as PyTorch's about memory
        text = f"{name}: damaged or unsupported image ({type(error).__name__})"
        return {"error": text}, none
    answer = {"error": "", "shape": pixels.shape, "box": box, "size": size}
    return answer, np.ascontiguousarray(pixels)


@lru_cache(64)
def _config(text: str) -> ModelConfig:
    return described(json.loads(text), {})
