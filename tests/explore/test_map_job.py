"""The map of a data set: made in a thread of its own, asked for over HTTP."""

import asyncio
import threading
import time
from typing import Any

import pytest

from explore.made import Exploring
from serve.calling import Reply, send
from serve.made import encoded, until
from vitlab.errors import DataError
from vitlab.explore.dataset_map import MapJob, Progress
from vitlab.explore.explore_routes import application


class Chart:
    """A map of one image."""

    points = ((0.5, 0.5),)
    sheet = b"a sheet"

    def as_dict(self) -> dict[str, Any]:
        return {"points": [[0.5, 0.5]]}

    def content(self, place: int) -> tuple[str, bytes]:
        return "a point", encoded(9)


def finished(map_job: MapJob) -> None:
    map_job.start()
    asyncio.run(until(lambda: not map_job._thread.is_alive()))


def test_errors_are_said_once_and_told_to_the_page() -> None:
    def make(progress: Progress) -> Chart:
        raise DataError("no images there")

    said: list[str] = []
    map_job = MapJob(make, said.append)
    assert map_job.state() == (None, 0.0, "beginning")
    finished(map_job)
    with pytest.raises(DataError, match="no images there"):
        map_job.state()
    assert said == ["no map: no images there"]


def test_a_bug_is_logged_and_the_page_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    map_job = MapJob(lambda progress: 1 / 0)
    finished(map_job)
    with pytest.raises(DataError, match="ZeroDivisionError"):
        map_job.state()
    assert "no map" in caplog.text


def test_it_stops_at_the_next_step() -> None:
    began, steps = threading.Event(), []

    def make(progress: Progress) -> Chart:
        while True:
            progress(0.5, "drawing")
            steps.append(time.sleep(0.001))
            began.set()

    map_job = MapJob(make)
    map_job.start()
    assert began.wait(10)
    assert map_job.state() == (None, 0.5, "drawing")
    map_job.stop()
    map_job._thread.join(10)
    assert not map_job._thread.is_alive()


def test_the_routes_of_the_map(exploring: Exploring, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def make(progress: Progress) -> Chart:
        progress(0.25, "looking")
        assert gate.wait(60)
        return Chart()

    map_job = MapJob(make)
    monkeypatch.setattr(exploring.explorer, "map_job", map_job)
    app = application(exploring.explorer)

    def ask(method: str, path: str) -> Reply:
        return exploring(send(app, method, path))

    map_job.start()
    exploring(until(lambda: map_job.state()[1] > 0))
    assert ask("GET", "/api/state").json["map"] is True
    reply = ask("GET", "/api/map")
    assert (reply.status, reply.json) == (202, {"progress": 0.25, "what": "looking"})
    assert ask("GET", "/api/map/sheet").status == 503
    gate.set()
    exploring(until(lambda: map_job.state()[0] is not None))
    assert ask("GET", "/api/map").json == {"points": [[0.5, 0.5]]}
    assert ask("GET", "/api/map/sheet").body == b"a sheet"
    opened = ask("POST", "/api/map/0")
    assert (opened.status, opened.json["name"]) == (201, "a point")
    assert ask("POST", "/api/map/1").status == 404
