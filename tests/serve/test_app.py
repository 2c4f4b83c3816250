"""Every route with an engine that answers at once: answers, errors, headers, log lines, figures."""

import asyncio
import json
import logging
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from serve.calling import Reply, ask, form, send
from serve.fakes import FakeEngine, card, png
from serve.made import figure, until
from steady import PATIENCE
from vitlab.errors import BusyError, FailedError, LateError, OptionError, ServiceError
from vitlab.serve import replies
from vitlab.serve.answers import Seen
from vitlab.serve.app import application
from vitlab.serve.limits import Limits
from vitlab.serve.logs import Lines

RED, GREEN = png((250, 20, 10)), png((10, 250, 20))
TOKEN = "a-token-of-more-than-16"


def app(engine: FakeEngine | None = None, **options: Any) -> Any:
    return application(engine or FakeEngine(), **options) if engine or options else plain()


@cache
def plain() -> Any:
    """One for all tests that change nothing: making it takes a tenth of a second."""
    return application(FakeEngine())


def checked(reply: Reply, kind: type[BaseModel]) -> Any:
    """The answer, which OpenAPI describes truly."""
    assert reply.status == 200, reply.body
    kind.model_validate_json(reply.body, strict=True)
    return reply.json


def test_images_in_each_form_of_body() -> None:
    body, kind = form(("a.png", RED), ("../../etc/passwd", GREEN), ("", b""))
    found = checked(ask(app(), "POST", "/predict?top=1", body, content_type=kind),
                    replies.Predictions)  # fmt: skip
    assert found["model"] == "first"
    assert [(each["image"], each["top"][0]["class"]) for each in found["predictions"]] == [
        ("a.png", "cat"), ("../../etc/passwd", "dog"),
    ]  # fmt: skip
    for kind in ("image/webp", "application/octet-stream"):
        reply = ask(app(), "POST", "/predict", GREEN, content_type=kind)
        last = checked(reply, replies.Predictions)["predictions"][-1]
        assert last["top"][0]["class"] == "dog"
        assert len(last["top"]) == 3
    assert ask(app(), "POST", "/predict", GREEN).status == 200  # without a type
    cards = checked(ask(app(), "GET", "/models"), replies.Models)["models"]
    assert [(each["name"], each["several"]) for each in cards] == [
        ("first", False), ("labels", True),
    ]  # fmt: skip


def test_features_attention_and_several_labels() -> None:
    body, kind = form(("a", RED), ("b", b"no image"))
    found = checked(ask(app(), "POST", "/features", body, content_type=kind), replies.Features)
    assert found["features"][0][3] == 1
    assert found["features"][1] is None
    assert found["errors"] == [{"image": "b", "error": "b: cannot be decoded"}]
    found = checked(ask(app(), "POST", "/attention?model=labels", body, content_type=kind),
                    replies.Predictions)  # fmt: skip
    first, second = found["predictions"]
    assert first["attention"] == [[0, 0.5], [1, 0.25]]
    assert (first["box"], first["predicted"]) == ([0, 0, 1, 0.5], ["cat"])
    assert second["error"] == "b: cannot be decoded"


def test_an_answer_says_that_an_image_is_unlike_the_training_images() -> None:
    chances, first = np.array([0.7, 0.2, 0.1]), card("first")
    seen = [Seen(chances, 1.5), Seen(chances, 0.5), Seen(chances), Seen(chances * np.nan)]
    rows = replies.answered(["a", "b", "c", "d"], seen, first, "classes", 1)["predictions"]
    assert [(row.get("unlike"), row.get("distance")) for row in rows] == [
        (True, 1.5), (False, 0.5), (None, None), (None, None),
    ]  # fmt: skip
    assert rows[3] == {"image": "d", "error": "d: the model gives numbers that are not finite"}
    whole = {"model": "first", "predictions": rows, "request": "1"}
    replies.Predictions.model_validate_json(json.dumps(whole), strict=True)


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [
        (BusyError("full", 2.2), 503, "3"),
        (LateError("late"), 504, None),
        (ServiceError("removed"), 503, "1"),
        (asyncio.CancelledError("the service is ending"), 503, "1"),  # the engine gives up
        (OptionError("no classifier"), 400, None),
        (FailedError("the model failed"), 500, None),
    ],
)
def test_errors_of_the_engine(error: Any, status: int, retry: str | None) -> None:
    reply = ask(app(FakeEngine(error=error)), "POST", "/predict", RED)
    log = ": the log describes it" * (status == 500)
    assert (reply.status, reply.error) == (status, f"{error}{log}")
    assert reply.headers.get("retry-after") == retry


def test_what_nobody_expected_is_one_line_and_one_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reply = ask(app(FakeEngine(error=KeyError("/secret/path"))), "POST", "/predict", RED)
    assert reply.status == 500
    assert "id" in reply.error
    assert b"secret" not in reply.body
    assert b"Traceback" not in reply.body
    records = [json.loads(Lines().format(each)) for each in caplog.records]
    (failed,) = (each for each in records if each["event"] == "error")
    assert "KeyError: '/secret/path'" in failed["traceback"]
    assert failed["request"] == reply.headers["x-request-id"]


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "status", "words"),
    [
        ("POST", "/predict?model=ghost", RED, "image/png", 404, "unknown model 'ghost'"),
        ("POST", "/predict?top=0", RED, "image/png", 400, "top: "),
        ("POST", "/predict?top=many", RED, "image/png", 400, "top: "),
        ("POST", "/predict?tpo=1", RED, "", 400, "unknown parameter 'tpo': choose from model, top"),
        ("POST", "/predict?top=1&top=2", RED, "", 400, "the parameter 'top' is given twice"),
        ("GET", "/models?x=1", b"", "", 400, "unknown parameter 'x': this address has none"),
        ("POST", "/predict", RED, "text/html", 415, "curl -F"),
        ("POST", "/predict", b"", "image/png", 400, "no image"),
        ("POST", "/predict", b"junk", "image/png", 422, "image 0: cannot be decoded"),
        ("GET", "/predict", b"", "", 405, "other methods"),
        ("GET", "/nowhere", b"", "", 404, "unknown address"),
        ("OPTIONS", "/predict", b"", "", 405, "other methods"),
        ("PUT", "/models/new", RED, "image/png", 403, "--token-file"),
        ("DELETE", "/models/first", b"", "", 403, "--token-file"),
    ],
)
def test_what_is_refused(
    method: str, path: str, body: bytes, kind: str, status: int, words: str
) -> None:
    headers = {"content_type": kind} if kind else {}
    reply = ask(app(), method, path, body, **headers)
    assert reply.status == status
    assert words in reply.error


def test_headers_of_every_answer() -> None:
    for path in ("/health", "/nowhere", "/models", "/"):
        headers = ask(app(), "GET", path).headers
        assert "referrer-policy" in headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


def test_fields_of_answers_are_described() -> None:
    schemas = app().openapi()["components"]["schemas"]
    for name, field in (("ServedModel", "trunk"), ("Prediction", "distance")):
        assert schemas[name]["properties"][field]["description"]


def test_ids_of_requests() -> None:
    assert ask(app(), "GET", "/health", x_request_id="abc-1").headers["x-request-id"] == "abc-1"
    for bad in ("a b", "x" * 129, 'a"b', "ä"):
        made = ask(app(), "GET", "/health", x_request_id=bad).headers["x-request-id"]
        assert len(made) == 16
    ids = {ask(app(), "GET", "/health").headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


def test_a_line_of_the_log_says_what_happened_and_never_what_was_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "vitlab.serve")
    body, kind = form(("secret.png", RED), ("b.png", GREEN))
    ask(app(), "POST", "/predict?model=labels&top=1", body, content_type=kind, x_request_id="r1")
    ask(app(), "DELETE", "/models/a%0Asecret")
    lines = [Lines().format(each) for each in caplog.records]
    first, second = map(json.loads, lines)
    assert (first["route"], first["status"], first["images"]) == ("/predict", 200, 2)
    assert (first["model"], first["request"], first["method"]) == ("labels", "r1", "POST")
    assert first["milliseconds"] >= 0
    assert (second["route"], second["status"]) == ("/models/{name}", 403)
    assert "secret" not in "".join(lines)
    assert not any("\n" in line for line in lines)


def test_figures_for_prometheus() -> None:
    engine = FakeEngine()
    engine.metrics.count("shed", "first", 5)
    engine.metrics.batch_images.observe(3)
    served = app(engine)
    for path in ("/predict", "/predict?model=x", "/a", "/b", "/c"):
        ask(served, "POST", path, RED)
    ask(served, "BREW", "/health")
    text = generate_latest(engine.metrics.registry).decode()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    count = {
        tuple(each.labels[name] for name in ("route", "method", "status")): each.value
        for each in families["vitlab_request_seconds"].samples
        if each.name.endswith("_count")
    }
    assert count[("/predict", "POST", "200")] == 1
    assert count[("/predict", "POST", "404")] == 1
    assert count[("other", "POST", "404")] == 3
    assert count[("/health", "other", "405")] == 1
    assert families["process_resident_memory_bytes"].samples[0].value > 1e6
    assert figure(engine, "images_shed_total", model="first") == 5
    buckets = {s.labels.get("le"): s.value for s in families["vitlab_batch_images"].samples}
    assert (buckets["2.0"], buckets["4.0"], buckets["+Inf"]) == (0, 1, 1)


def test_readiness_and_health() -> None:
    engine = FakeEngine()
    served = app(engine)
    assert ask(served, "GET", "/ready").json == {"status": "ready"}
    assert {ask(served, "HEAD", path).status for path in ("/health", "/ready")} == {200}
    served.state.serving.ending = True
    assert "ending" in ask(served, "GET", "/ready").error
    served.state.serving.ending, engine.ready = False, False
    waiting = ask(served, "GET", "/ready")
    assert (waiting.status, waiting.headers["retry-after"]) == (503, "1")
    assert ask(served, "POST", "/predict", RED).status == 503
    assert ask(served, "HEAD", "/ready").status == 503
    assert ask(served, "GET", "/health").json == {"status": "alive"}


def test_a_token_is_needed_for_everything_but_the_state() -> None:
    """One asks, and perhaps another one changes models."""
    served, admin = app(token=TOKEN), "another-token-of-more-than-16"
    for path in ("/health", "/ready", "/openapi.json"):
        assert ask(served, "GET", path).status == 200
    wrong = ["", "Basic x", "Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer \xe4"]
    for given in wrong:
        reply = ask(served, "POST", "/predict", RED, authorization=given)
        assert (reply.status, "token" in reply.error) == (401, True)
        assert reply.headers["www-authenticate"].startswith("Bearer")
    for method, path in (("GET", "/models"), ("DELETE", "/models/first")):
        assert ask(served, method, path).status == 401
        assert ask(served, method, path, authorization=f"bearer {TOKEN}").status == 200
    assert ask(served, "GET", "/openapi.json").json["components"]["securitySchemes"]
    for token in (TOKEN, ""):
        served = app(token=token, admin_token=admin)
        for method, path, given, status in (
            ("GET", "/models", TOKEN, 200),
            ("GET", "/models", admin, 200),
            ("GET", "/models", "", 401 if token else 200),
            ("DELETE", "/models/first", "wrong", 401),
            ("DELETE", "/models/first", TOKEN, 403 if token else 401),
            ("DELETE", "/models/first", admin, 200),
        ):
            reply = ask(served, method, path, authorization=f"Bearer {given}")
            assert reply.status == status, (method, given)


def test_hosts_that_a_browser_was_tricked_into() -> None:
    served = app(hosts=("localhost", "127.0.0.1", "[::1]"))
    for host in ("localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]", "[::1]:8000"):
        assert ask(served, "GET", "/health", host=host).status == 200, host
    for host in ("evil.example", "localhost.evil.example", "evil:localhost", "", "[::1]x", "1.2:8"):
        reply = ask(served, "GET", "/health", host=host)
        assert (reply.status, "answers only to" in reply.error) == (403, True), host
    assert ask(app(), "GET", "/health", host="any.example").status == 200


def test_pages_of_other_sites_may_not_ask_without_a_token() -> None:
    """Programs say nothing of an origin, and the service's own page has the right one."""
    own = {"host": "localhost:8000"}
    tls = {"host": "127.0.0.1:8000", "origin": "https://photos.example"}  # behind a proxy
    for headers, status in (
        ({}, 200),
        (own | {"origin": "http://localhost:8000", "sec_fetch_site": "same-origin"}, 200),
        (own | {"origin": "http://LOCALHOST:8000"}, 200),
        (own | {"sec_fetch_site": "none"}, 200),
        (tls | {"sec_fetch_site": "same-origin"}, 200),
        (own | {"origin": "http://evil.example"}, 403),
        (own | {"origin": "http://localhost:8001"}, 403),
        (own | {"origin": "null"}, 403),
        (tls | {"sec_fetch_site": "cross-site"}, 403),
        (own | {"sec_fetch_site": "same-site"}, 403),
    ):
        for path in ("/predict", "/features", "/attention"):
            reply = ask(app(), "POST", path, RED, **headers)
            assert reply.status == status, (path, headers)
            assert status == 200 or "--token-file" in reply.error
        assert ask(app(), "GET", "/models", **headers).status == 200
        access = {"authorization": f"Bearer {TOKEN}"}  # which no other page can send
        assert ask(app(token=TOKEN), "POST", "/predict", RED, **headers, **access).status == 200


def test_a_client_that_leaves_is_not_computed_for() -> None:
    engine = FakeEngine(gate=asyncio.Event())
    served = app(engine)
    reply = asyncio.run(send(served, "POST", "/predict", [RED], cut=True))
    assert reply.status == 0
    ended: list[str] = []

    async def leave() -> None:
        engine.answer = noted  # type: ignore[method-assign]
        await send(served, "POST", "/predict", [RED, b""], leaves=0.02)
        await until(lambda: ended)

    async def noted(*args: Any) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    asyncio.run(leave())
    assert ended == ["cancelled"]
    assert served.state.serving.under_way == 0


def test_a_large_body_is_not_read_while_the_queue_is_full() -> None:
    engine = FakeEngine()
    served, engine.busy = app(engine), "the queue is full"
    reply = asyncio.run(send(served, "POST", "/predict", [RED] * 3))
    assert (reply.status, reply.error, reply.left) == (503, "the queue is full", 3)
    assert reply.headers["retry-after"] == "3"
    engine.busy = ""
    assert ask(served, "POST", "/predict", RED).status == 200
    assert served.state.serving.counts["requests"] == 1


LIMITS = Limits(max_images=3, max_body=0.125, patience=PATIENCE)
APP = application(FakeEngine(limits=LIMITS))
FORM = "multipart/form-data; boundary=xyz"
FILE = 'Content-Disposition: form-data; name="image"; filename="a"'


def part(head: str, data: bytes = RED) -> bytes:
    return f"--xyz\r\n{head}\r\n\r\n".encode() + data + b"\r\n--xyz--\r\n"


# Starlette leaves the file of a part without an end to the garbage collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("body", "kind", "status", "words"),
    [
        (form(*[("a", RED)] * 4)[0], FORM, 413, "Maximum number of files is 3"),
        (form(("", b""))[0], FORM, 400, "the body has no image"),
        (form(("a", RED))[0][:-5], FORM, 400, "ends before its last boundary"),
        (form(("a", RED))[0], "multipart/form-data", 400, "Missing boundary"),
        (form(("a", RED))[0], FORM + "x" * 300, 400, "Invalid multipart data"),
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
    reply = ask(APP, "POST", "/predict", RED, content_encoding="gzip")
    assert (reply.status, "Content-Encoding" in reply.error) == (415, True)


def test_a_body_in_single_bytes_is_the_same() -> None:
    body, kind = form(("a", RED), ("b", RED))
    chunks = [body[place : place + 1] for place in range(len(body))]
    reply = asyncio.run(send(APP, "POST", "/predict", chunks, [("content-type", kind)]))
    assert [each["image"] for each in reply.json["predictions"]] == ["a", "b"]
    assert reply.json["predictions"][0]["top"] == reply.json["predictions"][1]["top"]


def test_a_slow_body() -> None:
    impatient = app(FakeEngine(limits=replace(LIMITS, patience=0.2)))
    reply = asyncio.run(send(impatient, "POST", "/predict", [b"x"] * 50, pause=0.05))
    assert (reply.status, "within 0.2 seconds" in reply.error) == (408, True)


def test_long_addresses_and_headers() -> None:
    assert ask(APP, "GET", "/" + "x" * 20_000).status == 414
    assert ask(APP, "GET", "/health?" + "x" * 20_000).status == 414
    assert ask(APP, "GET", "/health", x="y" * 20_000).status == 431
