"""From the body of a request to its images, in each of the three forms that it may have."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from vitlab.serve.http import encoded
from vitlab.serve.http.arrival import MEBI, Arrival, Held
from vitlab.serve.http.form_files import Form
from vitlab.serve.http.problems import Refused
from vitlab.serve.limits import Limits

FORM, JSON, BYTES = "multipart/form-data", "application/json", "application/octet-stream"
BINARY = {"type": "string", "format": "binary"}
TEXT = {"type": "string", "format": "byte", "contentEncoding": "base64"}


@dataclass(frozen=True)
class Photo:
    """An image as it was sent.

    Attributes:
        name: by which the answer calls it; from the request, and only ever shown
        data: its bytes
    """

    name: str
    data: bytes


def described() -> dict[str, Any]:
    """Return the body of a request as OpenAPI describes it."""
    return {
        "required": True,
        "content": {
            FORM: {
                "schema": {
                    "type": "object",
                    "properties": {"image": {"type": "array", "items": BINARY, "minItems": 1}},
                    "required": ["image"],
                    "additionalProperties": False,
                }
            },
            JSON: {
                "schema": {
                    "oneOf": [
                        {
                            "type": "object",
                            "properties": {"images": {"type": "array", "items": TEXT}},
                            "required": ["images"],
                            "additionalProperties": False,
                        },
                        {
                            "type": "object",
                            "properties": {"image": TEXT},
                            "required": ["image"],
                            "additionalProperties": False,
                        },
                    ]
                }
            },
            "image/*": {"schema": BINARY},
            BYTES: {"schema": BINARY},
        },
    }


@asynccontextmanager
async def photos(request: Request, limits: Limits, held: Held) -> AsyncIterator[list[Photo]]:
    """Yield the images of a request; the memory that they take is counted until the end.

    Args:
        request: whose body has not been read
        limits: of the service
        held: what all requests share

    Raises:
        Refused: 415, an unsupported type; 400, a bad body; 413, a large one; 408, a slow one;
            503, no memory is left.
    """
    kind = request.headers.get("content-type", BYTES)
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "compressed bodies are unsupported: send it without Content-Encoding")
    most = min(limits.max_images, limits.queue)
    arrival = Arrival(request, limits.max_body * MEBI, limits.patience)
    name = kind.partition(";")[0].strip().lower()
    with held.share() as share:
        body = bytearray()
        if name == FORM:
            files: list[tuple[str, bytearray]] = []

            def keep(name: str) -> Callable[[bytes], object]:
                files.append((name, bytearray()))
                return files[-1][1].extend

            form = Form(kind, most, keep)
            await arrival.into(form.write, share)
            form.finish()
            # those without name and content are what browsers send for none
            found = [Photo(name, bytes(data)) for name, data in files if name or data]
        elif name in (JSON, BYTES) or name.startswith("image/"):
            await arrival.into(body.extend, share)
            images = await encoded.decode(body, most) if name == JSON else [bytes(body)]
            found = [Photo("", image) for image in images if image or name == JSON]
        else:
            raise _unsupported(name)
        del body
        if not found:
            raise Refused(400, "the body has no image")
        yield [
            Photo(photo.name or f"image {number}", photo.data) for number, photo in enumerate(found)
        ]


def _unsupported(name: str) -> Refused:
    """Return the answer to another type, with what works for the program that sends it."""
    return Refused(
        415,
        f"unsupported Content-Type {name[:80]!r}: send multipart/form-data (curl -F "
        "image=@FILE), image/* or application/octet-stream, or JSON with base64",
        {"Accept-Post": f"{FORM}, {JSON}, image/*, {BYTES}"},
    )
