"""Bodies of requests: images, as a form or one file, and models."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, BinaryIO

from starlette.requests import Request

from vitlab.errors import UserError
from vitlab.models.model import Model
from vitlab.serve.exchange import MEBI, Exchange, Refused, exchange_of
from vitlab.serve.limits import Limits
from vitlab.weights.deltas import Delta
from vitlab.weights.load import load
from vitlab.weights.load_delta import load_delta

FORM, BYTES = "multipart/form-data", "application/octet-stream"
BINARY = {"type": "string", "format": "binary"}
FIELDS = 8  # of a form, none of which is allowed; beyond them it is not read on
NAME = 255  # characters of a file's name that are kept
FILE = "model.safetensors"
WRITTEN = 2**20  # bytes of a model that are written at once
PATIENCE = 600.0  # seconds in which a model must arrive
FILES = {
    "type": "object",
    "properties": {"image": {"type": "array", "items": BINARY, "minItems": 1}},
    "required": ["image"],
    "additionalProperties": False,
}


def _body(*kinds: str, **content: object) -> dict[str, Any]:
    """Return a body of bytes of some types, and others, as OpenAPI describes it."""
    plain = {kind: {"schema": BINARY} for kind in kinds}
    return {"requestBody": {"required": True, "content": plain | content}}


IMAGES, MODEL = _body("image/*", BYTES, **{FORM: {"schema": FILES}}), _body(BYTES)


async def photos(request: Request, limits: Limits) -> tuple[list[str], list[bytes]]:
    """Return the images of a request, whose body has not been read, after their names.

    The names are from the request, and only ever shown.

    Raises:
        Refused: 415, an unsupported type; 400, a bad body; 413, a large one; 408, a slow one;
            503, no memory is left.
    """
    exchange, most = exchange_of(request), min(limits.max_images, limits.queue)
    exchange.expect(limits.max_body * MEBI)
    kind = request.headers.get("content-type", BYTES).partition(";")[0].strip().lower()
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "compressed bodies are unsupported: send it without Content-Encoding")
    if kind == FORM:
        found = await _files(request, exchange, most, limits.patience)
    elif kind == BYTES or kind.startswith("image/"):
        body = await exchange.arrived(request.body(), limits.patience)
        found = [("", body)] if body else []
    else:
        raise Refused(
            415,
            f"unsupported Content-Type {kind[:80]!r}: send {FORM} (curl -F image=@FILE), image/* "
            f"or {BYTES}",
            {"Accept-Post": f"{FORM}, image/*, {BYTES}"},
        )
    if not found:
        raise Refused(400, "the body has no image")
    names = [name or f"image {number}" for number, (name, _) in enumerate(found)]
    return names, [data for _, data in found]


async def _files(
    request: Request, exchange: Exchange, most: int, patience: float
) -> list[tuple[str, bytes]]:
    """Return the files of a form, without those that browsers send for none."""
    form = await exchange.arrived(request.form(max_files=most, max_fields=FIELDS), patience)
    try:
        boundary = request.headers["content-type"].partition("boundary=")[2].partition(";")[0]
        if not exchange.tail.rstrip().endswith(boundary.strip(' "').encode("latin-1") + b"--"):
            raise Refused(400, "the multipart body ends before its last boundary")
        found = []
        for name, each in form.multi_items():
            if isinstance(each, str):
                raise Refused(
                    400,
                    f"the form field {name[:NAME]!r} is not a file: send files alone, and the "
                    "rest in the URL, as ?top=3",
                )
            if each.filename or each.size:
                found.append(((each.filename or "")[:NAME], await each.read()))
        return found
    finally:
        await form.close()


@asynccontextmanager
async def model(request: Request, most: float) -> AsyncIterator[Model | Delta]:
    """Yield the model in a request's body; until then it is in a private folder under our name.

    Args:
        request: whose body has not been read
        most: bytes of the model

    Raises:
        Refused: 413, 408 or 400, as for every body; 507, no space; 422, not a model.
    """
    exchange = exchange_of(request)
    exchange.expect(most, in_memory=False)
    folder = tempfile.TemporaryDirectory(prefix="vitlab-serve-")
    try:
        place = Path(folder.name) / FILE
        await exchange.arrived(_stream(request, place), PATIENCE)
        yield await asyncio.to_thread(_read, place)
    finally:
        await asyncio.to_thread(folder.cleanup)


async def _stream(request: Request, place: Path) -> None:
    """Write a body to a file, in threads: a disk may be slow."""
    with place.open("xb") as stream:
        held = bytearray()
        async for piece in request.stream():
            held += piece
            if len(held) >= WRITTEN:
                await asyncio.to_thread(stream.write, held)
                held = bytearray()
        await asyncio.to_thread(_write_last, stream, held)


def _write_last(stream: BinaryIO, data: bytes | bytearray) -> None:
    """Write the end of a file, so that it can be read."""
    stream.write(data)
    stream.flush()


def _read(place: Path) -> Model | Delta:
    """Load a model; or a delta without its base, whose place is not followed."""
    try:
        delta = load_delta(place)
        return load(place) if delta is None else delta
    except UserError as error:
        said = str(error).replace(str(place), "the model").replace(str(place.parent), "the model")
        raise Refused(422, said) from None
