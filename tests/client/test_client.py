"""The client against a service made of functions: what is sent, and what comes of each reply."""

import threading
from collections import Counter
from email import message_from_bytes
from pathlib import Path

import httpx2
import numpy as np
import pytest

import vitlab
from client.conftest import URL, Make
from conftest import photo
from steady import PATIENCE
from vitlab.client import client as clients
from vitlab.errors import (
    BusyError,
    DataError,
    ImageError,
    LateError,
    OptionError,
    ServiceError,
    UserError,
)
from vitlab.evaluation.classified_image import ClassifiedImage


def sent(request: httpx2.Request) -> list[bytes]:
    """The images of a request, read by the mail parser of Python."""
    kind = request.headers["content-type"]
    if kind == "application/octet-stream":
        return [request.content]
    form = message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + request.content)
    assert form.is_multipart()
    return [part.get_payload(decode=True) for part in form.get_payload()]


class Service:
    """Names the first byte of an image as its class; `x` cannot be read."""

    def __init__(self, most: int = 4) -> None:
        self.most, self.requests = most, list[httpx2.Request]()
        self.lock, self.sizes = threading.Lock(), Counter[int]()

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        images = sent(request)
        with self.lock:
            self.requests.append(request)
            self.sizes[len(images)] += 1
        if len(images) > self.most:
            return refuse(413, f"{len(images)} images; at most {self.most} per request")
        if all(image[:1] == b"x" for image in images):
            return refuse(422, "image 0: not a JPEG")
        if request.url.path.endswith("/features"):
            bad = [n for n, image in enumerate(images) if image[:1] == b"x"]
            vectors = [None if n in bad else [float(each[0]), 0.1] for n, each in enumerate(images)]
            errors = [{"image": f"image {n}", "error": "no JPEG"} for n in bad]
            return httpx2.Response(
                200, json={"features": vectors, "errors": errors, "request": "r"}
            )
        rows = [
            {"image": f"image {n}", "error": f"image {n}: not a JPEG"}
            if image[:1] == b"x"
            else {"image": f"image {n}", "top": [{"class": chr(image[0]), "probability": 0.75}]}
            for n, image in enumerate(images)
        ]
        return httpx2.Response(200, json={"model": "m", "predictions": rows, "request": "r"})


def refuse(status: int, text: str, **headers: str) -> httpx2.Response:
    return httpx2.Response(status, json={"error": text, "request": "r7"}, headers=headers)


def test_one_image(make: Make, tmp_path: Path) -> None:
    service = Service()
    client = make(service, url=URL + "/", token="secret")
    assert client.predict(b"abc", model="two words", top=3) == ClassifiedImage(
        "image 0", (("a", 0.75),)
    )
    (request,) = service.requests
    assert (request.method, str(request.url)) == (
        "POST",
        f"{URL}/predict?top=3&model=two+words",
    )
    assert request.headers["authorization"] == "Bearer secret"
    assert request.headers["accept-encoding"] == "identity"
    file = tmp_path / "photo.jpg"
    file.write_bytes(b"cat")
    assert client.predict(file).image == str(file)
    assert str(tmp_path).encode() not in service.requests[1].content  # no path leaves
    assert client.predict(np.zeros((4, 4, 3), np.uint8)).classes == (("\x89", 0.75),)  # a PNG
    assert client.predict(photo(0)).classes == (("\x89", 0.75),)


def test_lists_are_split_and_keep_their_order(make: Make) -> None:
    service = Service(most=4)
    client = make(service, batch=4, parallel=3)
    images = [bytes([65 + number]) for number in range(18)]
    assert [each.classes[0][0] for each in client.predict(images)] == [chr(i[0]) for i in images]
    assert service.sizes == {4: 4, 2: 1}
    batch = np.zeros((3, 5, 5, 3), np.uint8)
    assert [each.image for each in client.predict(batch)] == ["image 0", "image 1", "image 2"]
    assert client.predict([b"a"]) == [
        ClassifiedImage("image 0", (("a", 0.75),))
    ]  # a list stays a list
    service = Service(most=3)  # requests are halved where the service takes fewer
    names = [each.classes[0][0] for each in make(service).predict([b"a", b"b", b"c", b"d", b"e"])]
    assert names == list("abcde")
    assert service.sizes == {5: 1, 2: 1, 3: 1}


def test_large_images_travel_in_requests_of_their_own(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "MOST_BYTES", 12)
    service = Service()
    sizes = [5, 5, 5, 20, 1, 6, 5]
    found = make(service, batch=16).predict(
        [bytes([65 + n]) * size for n, size in enumerate(sizes)]
    )
    assert [each.classes[0][0] for each in found] == list("ABCDEFG")
    assert service.sizes == {2: 1, 1: 2, 3: 1}


def test_an_image_that_cannot_be_read(make: Make, tmp_path: Path) -> None:
    service = Service()
    client = make(service)
    with pytest.raises(ImageError, match=r"^image 0: not a JPEG$"):
        client.predict(b"x")
    absent = tmp_path / "absent.jpg"
    found = client.predict([b"a", b"x", absent, b"b"])
    assert [each.error for each in found] == [
        "", "image 1: not a JPEG", f"{absent}: no such file", ""
    ]  # fmt: skip
    assert [each.image for each in found] == ["image 0", "image 1", str(absent), "image 3"]
    assert found[3].classes == (("b", 0.75),)
    service.sizes.clear()
    errors = [each.error for each in client.predict([b"x1", b"x2", b"x3"])]  # none can be read
    assert errors == [f"image {number}: not a JPEG" for number in range(3)]
    with pytest.raises(ImageError, match=r"absent\.jpg: no such file"):
        client.predict(absent)
    with pytest.raises(ImageError, match=r"absent\.jpg: no such file"):
        client.features([b"a", absent])
    with pytest.raises(DataError, match="no images given"):
        client.predict([])


def test_features(make: Make) -> None:
    service = Service(most=2)
    client = make(service, batch=2)
    found = client.features([b"a", b"b", b"c"])
    assert service.sizes == {2: 1, 1: 1}
    np.testing.assert_array_equal(found, np.array([[97, 0.1], [98, 0.1], [99, 0.1]], np.float32))
    assert found.dtype == np.float32
    assert client.features(b"a").shape == (1, 2)
    with pytest.raises(ImageError, match=r"^image 1: no JPEG$"):
        client.features([b"a", b"x"])


@pytest.mark.parametrize(
    ("reply", "kind", "text"),
    [
        (refuse(404, "unknown model 'b': choose from a"), OptionError, "^unknown model 'b'"),
        (refuse(401, "token"), ServiceError, r"needs a token: Client\('http://service.test"),
        (httpx2.Response(403, text="<html>"), ServiceError, "needs a token"),
        (refuse(403, "only to the Host a"), ServiceError, "status 403: only to the Host a$"),
        (refuse(404, "unknown address"), ServiceError, "status 404: unknown address$"),
        (refuse(400, "bad"), ServiceError, "answered with status 400: bad$"),
        (refuse(503, "full"), BusyError, r"is busy \(full\): try again later"),
        (refuse(413, "17 MiB"), ImageError, "^image 0: 17 MiB$"),
        (refuse(504, "after 30 s"), LateError, "took too long: after 30 s"),
        (refuse(500, "bug"), ServiceError, r"status 500: bug \(request r7\)$"),
        (httpx2.Response(404, json={"detail": "Not Found"}), ServiceError, r"\(status 404, '{\""),
        (httpx2.Response(413, text="<html>"), ImageError, "^image 0: status 413 from its proxy$"),
        (httpx2.Response(408, text=""), LateError, "took too long: status 408 from its proxy$"),
        (httpx2.Response(504, text="<html>"), LateError, "too long: status 504 from its proxy$"),
        (httpx2.Response(200, text="<html>"), ServiceError, "did not answer for each of 1 image"),
        (httpx2.Response(200, json={}), ServiceError, "did not answer for each of 1 image"),
        (httpx2.Response(200, json={"predictions": [{"top": 3}]}), ServiceError, "version does"),
        (httpx2.Response(200, json={"predictions": [None]}), ServiceError, "version does"),
        (httpx2.Response(200, content=b"[" * 100_000), ServiceError, "did not answer for each"),
        (httpx2.Response(301, text=""), ServiceError, r"\(status 301, ''\): check the address"),
    ],
)
def test_what_becomes_of_a_reply(
    make: Make, reply: httpx2.Response, kind: type[UserError], text: str
) -> None:
    def again(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(reply.status_code, headers=reply.headers, content=reply.content)

    with pytest.raises(kind, match=text) as caught:
        make(again, retries=0).predict(b"a", model="b")
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        (httpx2.ConnectError("refused"), ServiceError, r"cannot reach a service at .* \(refused\)"),
        (httpx2.ConnectTimeout(""), ServiceError, r"cannot reach .* \(ConnectTimeout\)"),
        (httpx2.ReadTimeout(""), LateError, "did not answer within 2 s"),
        (httpx2.ReadError("reset"), ServiceError, "broke after 2 tries: reset"),
        (httpx2.RemoteProtocolError("gone"), ServiceError, "broke after 2 tries: gone"),
        (httpx2.LocalProtocolError("header"), ServiceError, "no answer from .*: header"),
        (httpx2.DecodingError("zip"), ServiceError, "no answer from .*: zip"),
    ],
)
def test_exceptions_of_the_network(
    make: Make, fault: Exception, kind: type[UserError], text: str
) -> None:
    def fail(request: httpx2.Request) -> httpx2.Response:
        raise fault

    with pytest.raises(kind, match=text) as caught:
        make(fail, timeout=2, retries=1).predict(b"a")
    assert type(caught.value) is kind


def test_one_failure_ends_a_list(make: Make) -> None:
    seen, over = list[int](), threading.Event()

    def fail(request: httpx2.Request) -> httpx2.Response:
        seen.append(1)
        over.wait(0.1 * (len(seen) > 2))  # 20 s in all, unless the first failure ends it
        return refuse(401, "no")

    client = make(fail, batch=1, parallel=2, token="secret")
    with pytest.raises(ServiceError, match="does not accept this token") as caught:
        client.predict([b"a"] * 200)
    assert len(seen) < 200
    assert "secret" not in str(caught.value) + repr(client)


def test_values_that_cannot_be(make: Make) -> None:
    for url in (
        "localhost:8000",
        "",
        "ftp://a",
        "http://",
        "http://a/?b=1",
        "http://u:p@a",
        "http://a:b",
        3,
    ):
        with pytest.raises(OptionError, match="url must be"):
            make(Service(), url=url)
    for name, value in (
        ("token", "a\nb"), ("batch", 0), ("timeout", 0), ("retries", -1), ("parallel", 65),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=f"{name} must be"):
            make(Service(), **{name: value})
    with pytest.raises(OptionError, match="top must be at least 1, not 0"):
        make(Service()).predict(b"a", top=0)


def test_an_image_that_a_proxy_refuses_leaves_the_others(make: Make) -> None:
    service = Service()

    def proxied(request: httpx2.Request) -> httpx2.Response:
        """As nginx with client_max_body_size does it."""
        large = len(request.content) > 2000
        return httpx2.Response(413, text="<html>") if large else service(request)

    found = make(proxied).predict([b"a", b"b" * 3000, b"c"])
    assert [each.error for each in found] == ["", "image 1: status 413 from its proxy", ""]


@pytest.mark.parametrize("reply", [{"object": "list", "data": []}, [], "alive"])
def test_another_service_at_the_address(make: Make, reply: object) -> None:
    client = make(lambda request: httpx2.Response(200, json=reply))
    for ask in (client.models, client.health):
        with pytest.raises(ServiceError, match=r"does not answer as a service .* check the addr"):
            ask()


def test_only_some_requests_are_under_way_at_once(make: Make) -> None:
    service, places, full = Service(), threading.Semaphore(3), list[int]()
    together = threading.Barrier(3)  # three that wait for each other, again and again

    def answer(request: httpx2.Request) -> httpx2.Response:
        if not places.acquire(blocking=False):
            full.append(1)
        together.wait(PATIENCE)
        places.release()
        return service(request)

    make(answer, batch=1, parallel=3).predict([b"a"] * 12)
    assert full == []


def test_both_clients_have_the_same_methods() -> None:
    faces = [
        {name for name in vars(kind) if not name.startswith("_")}
        for kind in (vitlab.Client, vitlab.AsyncClient)
    ]
    assert faces[0] == faces[1] == {"close", "features", "health", "models", "predict"}
    assert repr(vitlab.AsyncClient(URL)) == f"AsyncClient({URL!r})"
