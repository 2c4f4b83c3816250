"""Bodies that are malformed, too large or too many: the status and the words of each answer."""

import asyncio
import base64
import json

import pytest

from serve.calling import ask, form, send
from serve.fakes import FakeEngine, png
from vitlab.serve.app import application
from vitlab.serve.limits import Limits

LIMITS = Limits(max_images=3, max_body=0.125, patience=0.2)
APP = application(FakeEngine(limits=LIMITS), limits=LIMITS)
IMAGE = png()
TEXT = base64.b64encode(IMAGE).decode()
FORM, JSON = "multipart/form-data; boundary=xyz", "application/json"
FILE = 'Content-Disposition: form-data; name="image"; filename="a"'


def part(head: str, data: bytes = IMAGE) -> bytes:
    return f"--xyz\r\n{head}\r\n\r\n".encode() + data + b"\r\n--xyz--\r\n"


def dumped(content: object) -> bytes:
    return json.dumps(content).encode()


# Starlette leaves the file of a part without an end to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("body", "kind", "status", "words"),
    [
        (form(*[("a", IMAGE)] * 4)[0], FORM, 413, "Maximum number of files is 3"),
        (form(("", b""))[0], FORM, 400, "the body has no image"),
        (form(("a", IMAGE))[0][:-5], FORM, 400, "ends before its last boundary"),
        (form(("a", IMAGE))[0], "multipart/form-data", 400, "Missing boundary"),
        (
            form(("a", IMAGE))[0],
            FORM + "x" * 300,
            400,
            "Invalid multipart data",
        ),
        (b"junk", FORM, 400, "Invalid multipart data"),
        (part('Content-Disposition: form-data; name="top"', b"5"), FORM, 400, "in the URL"),
        (part("Content-Type: image/png"), FORM, 400, "Content-Disposition header field"),
        (part(FILE + "\r\nX: " + "y" * 5000), FORM, 400, "Invalid multipart data"),
        (
            part(FILE + "".join(f"\r\nX{n}: y" for n in range(9))),
            FORM,
            400,
            "Invalid multipart data",
        ),
        (b"x" * 200_000, "image/png", 413, "larger than 0.125 MiB"),
        (dumped({"images": [TEXT] * 4}), JSON, 413, "has 4 images; at most 3 are allowed"),
        (dumped({"images": []}), JSON, 400, "the body has no image"),
        (dumped({"images": [[]] * 40}), JSON, 400, "not one of at most 3 images in base64"),
        (dumped({"images": [5]}), JSON, 400, "must have text in base64"),
        (dumped({"image": TEXT, "images": []}), JSON, 400, 'must be {"images"'),
        (dumped({"picture": TEXT}), JSON, 400, 'must be {"images"'),
        (dumped({"images": [TEXT, TEXT[:-1]]}), JSON, 400, "image 1 is not base64"),
        (dumped({"image": "!" + TEXT}), JSON, 400, "image 0 is not base64"),
        (b"{", JSON, 400, "the body is not JSON"),
        (b'{"image": "\xff"}', JSON, 400, "not UTF-8"),
        (b'{"image": ' + b"9" * 99_999 + b"}", JSON, 400, "must have text"),
        (b"[" * 30, JSON, 400, "the body is not JSON"),
    ],
)
def test_the_answer_says_what_is_wrong(body: bytes, kind: str, status: int, words: str) -> None:
    reply = ask(APP, "POST", "/predict", body, content_type=kind)
    assert words in reply.error
    assert reply.status == status
    assert APP.state.serving.engine.metrics.value("body_bytes") == 0


def test_compressed_bodies_are_unsupported() -> None:
    reply = ask(APP, "POST", "/predict", IMAGE, content_encoding="gzip")
    assert (reply.status, "Content-Encoding" in reply.error) == (415, True)


def test_a_body_in_single_bytes_is_the_same() -> None:
    body, kind = form(("a", IMAGE), ("b", IMAGE))
    chunks = [body[place : place + 1] for place in range(len(body))]
    reply = asyncio.run(send(APP, "POST", "/predict", chunks, [("content-type", kind)]))
    assert [each["image"] for each in reply.json["predictions"]] == ["a", "b"]
    assert reply.json["predictions"][0]["top"] == reply.json["predictions"][1]["top"]


def test_a_slow_body() -> None:
    reply = asyncio.run(send(APP, "POST", "/predict", [b"x"] * 50, pause=0.05))
    assert (reply.status, "within 0.2 seconds" in reply.error) == (408, True)


def test_long_base64_is_decoded_in_pieces() -> None:
    """Pieces end between groups of four characters."""
    limits = Limits(max_body=4)
    app = application(FakeEngine(limits=limits), limits=limits)
    long = IMAGE + bytes(2 * 2**20 - 7)
    text = base64.b64encode(long).decode()
    assert ask(app, "POST", "/predict", dumped({"image": text}), content_type=JSON).status == 200
    inner = text[:400] + "====" + text[404:]
    reply = ask(app, "POST", "/predict", dumped({"image": inner}), content_type=JSON)
    assert (reply.status, reply.error) == (400, "image 0 is not base64")


def test_long_addresses_and_headers() -> None:
    assert ask(APP, "GET", "/" + "x" * 20_000).status == 414
    assert ask(APP, "GET", "/health?" + "x" * 20_000).status == 414
    assert ask(APP, "GET", "/health", x="y" * 20_000).status == 431
