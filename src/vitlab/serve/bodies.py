"""Bodies of requests: images in each of the three forms that they may have, and models."""

import asyncio
import base64
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from starlette.datastructures import UploadFile
from starlette.requests import Request

from vitlab.errors import UserError
from vitlab.models.model import Model
from vitlab.serve.exchange import MEBI, Refused, exchange_of
from vitlab.serve.limits import Limits
from vitlab.weights.deltas import Delta
from vitlab.weights.load import load, load_delta

FORM, JSON, BYTES = "multipart/form-data", "application/json", "application/octet-stream"
BINARY = {"type": "string", "format": "binary"}
TEXT = {"type": "string", "format": "byte", "contentEncoding": "base64"}
SYNTAX = b"{[,:"  # base64 has none of these characters
SPARE = 8  # of them per image, and once more: `data:image/png;base64,` has two
FIELDS = 8  # of a form, none of which is allowed; beyond them it is not read on
NAME = 255  # characters of a file's name that are kept
FILE, CONFIG = "model.safetensors", "config.json"
PATIENCE = 600.0  # seconds in which a model must arrive


def _object(**properties: object) -> dict[str, Any]:
    """Return an object of exactly these properties as JSON Schema describes it."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _body(**content: object) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": content}}


IMAGES = _body(
    **{
        FORM: {"schema": _object(image={"type": "array", "items": BINARY, "minItems": 1})},
        JSON: {
            "schema": {
                "oneOf": [_object(images={"type": "array", "items": TEXT}), _object(image=TEXT)]
            }
        },
        "image/*": {"schema": BINARY},
        BYTES: {"schema": BINARY},
    }
)
MODEL = _body(
    **{
        BYTES: {"schema": BINARY},
        FORM: {
            "schema": _object(file={"type": "array", "items": BINARY, "minItems": 2, "maxItems": 2})
        },
    }
)


@dataclass(frozen=True)
class Photo:
    """An image as it was sent.

    Attributes:
        name: by which the answer calls it; from the request, and only ever shown
        data: its bytes
    """

    name: str
    data: bytes


async def photos(request: Request, limits: Limits) -> list[Photo]:
    """Return the images of a request, whose body has not been read.

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
        async with _files(request, most, limits.patience) as files:
            # those without name and content are what browsers send for none
            found = [Photo(name, await each.read()) for name, each in files if name or each.size]
    elif kind in (JSON, BYTES) or kind.startswith("image/"):
        body = await exchange.arrived(request.body(), limits.patience)
        images = await asyncio.to_thread(decode, body, most) if kind == JSON else [body]
        found = [Photo("", image) for image in images if image or kind == JSON]
    else:
        raise Refused(
            415,
            f"unsupported Content-Type {kind[:80]!r}: send {FORM} (curl -F image=@FILE), image/* "
            f"or {BYTES}, or JSON with base64",
            {"Accept-Post": f"{FORM}, {JSON}, image/*, {BYTES}"},
        )
    if not found:
        raise Refused(400, "the body has no image")
    return [Photo(each.name or f"image {number}", each.data) for number, each in enumerate(found)]


@asynccontextmanager
async def _files(
    request: Request, most: int, patience: float
) -> AsyncIterator[list[tuple[str, UploadFile]]]:
    """Yield the files of a form with their names."""
    exchange = exchange_of(request)
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
            found.append(((each.filename or "")[:NAME], each))
        yield found
    finally:
        await form.close()


def decode(body: bytes, most: int) -> list[bytes]:
    """Return the images in a JSON body: `{"image": "base64"}` or `{"images": ["base64", …]}`.

    Raises:
        Refused: 400, it is something else; 413, too many images.
    """
    # Before anything is made of it: what is not text of images is refused by counting.
    if sum(body.count(character) for character in SYNTAX) > SPARE * (most + 1):
        raise Refused(400, f"the JSON body is not one of at most {most} images in base64")
    try:
        content = json.loads(body.decode("utf-8"), parse_int=len)
    except (ValueError, RecursionError) as error:
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise Refused(400, f"the body is not JSON: {reason}") from None
    fields = content if isinstance(content, dict) else {}
    texts = [fields["image"]] if "image" in fields else fields.get("images")
    if len(fields) != 1 or not isinstance(texts, list):
        raise Refused(400, 'the JSON body must be {"images": ["base64", …]} or {"image": "base64"}')
    if len(texts) > most:
        raise Refused(413, f"the body has {len(texts)} images; at most {most} are allowed")
    found = []
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise Refused(400, "the JSON body must have text in base64")
        data = text.partition(",")[2] if text.startswith("data:") else text
        try:
            found.append(base64.b64decode("".join(data.split()), validate=True))
        except ValueError:
            raise Refused(400, f"image {number} is not base64") from None
    return found


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
    with tempfile.TemporaryDirectory(prefix="vitlab-serve-") as folder:
        place = Path(folder)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == FORM:
            async with _files(request, 2, PATIENCE) as files:
                names = sorted(name for name, _ in files)
                if names != [CONFIG, FILE]:
                    raise Refused(400, f"a saved model is one {CONFIG} and one {FILE}, not {names}")
                for name, each in files:
                    await exchange.arrived(asyncio.to_thread(_copy, each, place / name), PATIENCE)
        else:
            place = place / FILE
            await exchange.arrived(_stream(request, place), PATIENCE)
        yield await asyncio.to_thread(_read, place)


def _copy(file: UploadFile, place: Path) -> None:
    with place.open("xb") as stream:
        shutil.copyfileobj(file.file, stream)


async def _stream(request: Request, place: Path) -> None:
    with place.open("xb") as stream:
        async for piece in request.stream():
            stream.write(piece)


def _read(place: Path) -> Model | Delta:
    """Load a model or its folder; or a delta without its base, whose place is not followed."""
    try:
        delta = load_delta(place)
        return load(place) if delta is None else delta
    except UserError as error:
        said = str(error).replace(str(place), "the model").replace(str(place.parent), "the model")
        raise Refused(422, said) from None
