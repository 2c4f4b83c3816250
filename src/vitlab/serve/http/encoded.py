"""Images as base64 in JSON: `{"image": "…"}` or `{"images": ["…", …]}`."""

import asyncio
import base64
import binascii
import json
from typing import Any

from vitlab.serve.http.problems import Refused

PIECE = 2**20  # characters that are decoded before other requests get their turn; 4 are 3 bytes
SYNTAX = b"{[,:"  # base64 has none of these characters
SPARE = 8  # of them per image, and once more: `data:image/png;base64,` has two


async def decode(body: bytes | bytearray, most: int) -> list[bytes]:
    """Return the images in a JSON body.

    Args:
        body: UTF-8
        most: images

    Raises:
        Refused: 400, it is something else; 413, too many images.
    """
    # Before anything is made of it: what is not text of images is refused by counting.
    if sum(body.count(character) for character in SYNTAX) > SPARE * (most + 1):
        raise Refused(400, f"the JSON body is not one of at most {most} images in base64")
    texts = _texts(_parse(body))
    if len(texts) > most:
        raise Refused(413, f"the body has {len(texts)} images; at most {most} are allowed")
    return [await _decoded(text, number) for number, text in enumerate(texts)]


def _parse(body: bytes | bytearray) -> object:
    """Read JSON without making numbers of digits, however many there are."""
    try:
        return json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_once,
            parse_int=len,
            parse_float=len,
            parse_constant=len,
        )
    except (ValueError, RecursionError) as error:
        reason = "not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise Refused(400, f"the body is not JSON: {reason}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise Refused(400, "the JSON body has one field twice")
    return found


def _texts(content: object) -> list[str]:
    """Return the texts in base64."""
    if not isinstance(content, dict) or len(content) != 1 or not {"image", "images"} & set(content):
        raise Refused(400, 'the JSON body must be {"images": ["base64", …]} or {"image": "base64"}')
    (value,) = content.values()
    texts = [value] if "image" in content else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise Refused(400, 'the JSON body must have text in base64: {"images": ["base64", …]}')
    return texts


async def _decoded(text: str, number: int) -> bytes:
    """Decode one text, which may be a data URL and may have line breaks."""
    if text.startswith("data:"):
        text = text.partition(",")[2]
    text = "".join(text.split())
    pieces = []
    try:
        for start in range(0, len(text), PIECE):
            piece = text[start : start + PIECE]
            if piece.endswith("=") and start + PIECE < len(text):
                raise ValueError
            pieces.append(base64.b64decode(piece, validate=True))
            await asyncio.sleep(0)
    except (binascii.Error, ValueError):
        raise Refused(400, f"image {number} is not base64") from None
    return b"".join(pieces)
