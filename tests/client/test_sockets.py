"""The client over real sockets of this machine: what no function in the place of one can show."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest

from client.conftest import Make
from vitlab.errors import LateError
from vitlab.evaluation.classified_image import ClassifiedImage

GOOD = b'{"predictions": [{"top": [{"class": "a", "probability": 0.5}]}]}'
DRIPS = 1000  # of 20 ms
over = Event()


class Handler(BaseHTTPRequestHandler):
    """Answers by the first byte of the image."""

    protocol_version = "HTTP/1.1"
    dropped = 0

    def do_POST(self) -> None:
        first = self.rfile.read(int(self.headers["Content-Length"]))[:1]
        if first == b"d" and not Handler.dropped:
            Handler.dropped = 1
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(GOOD) + (DRIPS if first == b"s" else 0)))
        self.end_headers()
        for _ in range(DRIPS if first == b"s" else 0):
            over.wait(0.02)
            try:
                self.wfile.write(b" ")
            except OSError:
                return
        self.wfile.write(GOOD)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        over.set()
        server.shutdown()
        thread.join()


def test_an_answer_that_drips_is_late(make: Make, url: str) -> None:
    with pytest.raises(LateError, match=r"did not answer within 1 s: give a larger timeout"):
        make(None, url, timeout=1.0).predict(b"slow")


def test_a_dropped_connection_is_opened_again(make: Make, url: str) -> None:
    Handler.dropped = 0
    assert make(None, url).predict(b"drop me") == ClassifiedImage("image 0", (("a", 0.5),))
    assert Handler.dropped == 1


def test_a_proxy_of_the_environment_is_not_asked_about_this_machine(
    make: Make, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert make(None, url).predict(b"a").classes == (("a", 0.5),)
