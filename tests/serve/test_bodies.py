"""Bodies that are malformed, too large or too many: the status and the words of each answer."""

import asyncio

import pytest

from serve.calling import ask, form, send
from serve.fakes import FakeEngine, png
from serve.made import figure
from vitlab.serve.app import application
from vitlab.serve.limits import Limits

LIMITS = Limits(max_images=3, max_body=0.125, patience=0.2)
APP = application(FakeEngine(limits=LIMITS))
IMAGE = png()
FORM = "multipart/form-data; boundary=xyz"
FILE = 'Content-Disposition: form-data; name="image"; filename="a"'


def part(head: str, data: bytes = IMAGE) -> bytes:
    return f"--xyz\r\n{head}\r\n\r\n".encode() + data + b"\r\n--xyz--\r\n"


# Starlette leaves the file of a part without an end to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("body", "kind", "status", "words"),
    [
        (form(*[("a", IMAGE)] * 4)[0], FORM, 413, "Maximum number of files is 3"),
        (form(("", b""))[0], FORM, 400, "the body has no image"),
        (form(("a", IMAGE))[0][:-5], FORM, 400, "ends before its last boundary"),
        (form(("a", IMAGE))[0], "multipart/form-data", 400, "Missing boundary"),
        (form(("a", IMAGE))[0], FORM + "x" * 300, 400, "Invalid multipart data"),
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
        (b'{"image": "AAAA"}', "application/json", 415, "unsupported Content-Type"),
        (b"x" * 200_000, "image/png", 413, "larger than 0.125 MiB"),
    ],
)
def test_the_answer_says_what_is_wrong(body: bytes, kind: str, status: int, words: str) -> None:
    reply = ask(APP, "POST", "/predict", body, content_type=kind)
    assert words in reply.error
    assert reply.status == status
    assert figure(APP.state.serving.engine, "body_bytes") == 0


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


def test_long_addresses_and_headers() -> None:
    assert ask(APP, "GET", "/" + "x" * 20_000).status == 414
    assert ask(APP, "GET", "/health?" + "x" * 20_000).status == 414
    assert ask(APP, "GET", "/health", x="y" * 20_000).status == 431
