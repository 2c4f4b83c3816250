"""A pass over images on a real Ray cluster of two actors, which die. About two minutes."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vitlab
from evaluation.ray_jobs import embed, small_model, some_photos
from evaluation.shard_jobs import content, parts_in

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.usefixtures("cluster"),
    pytest.mark.filterwarnings("default"),  # Ray warns of itself
]
model = pytest.fixture(scope="module")(small_model)
photos = pytest.fixture(scope="module")(some_photos)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of this machine with room for two actors."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=8, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture(scope="module")
def alone(
    model: vitlab.VisionTransformer, photos: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "features"
    embed(model, photos, folder)
    return folder


def actors() -> list[Any]:
    psutil = pytest.importorskip("psutil")
    found = psutil.process_iter(["cmdline"])
    return [each for each in found if "ray::MapWorker" in " ".join(each.info["cmdline"] or [])]


def test_two_actors_write_what_one_process_does(
    model: vitlab.VisionTransformer, photos: str, alone: Path, tmp_path: Path
) -> None:
    seen, done = set[int](), threading.Event()

    def look() -> None:
        while not done.wait(0.05):
            seen.update(each.pid for each in actors())

    thread = threading.Thread(target=look)
    thread.start()
    found = embed(model, photos, tmp_path / "x", on="ray")
    done.set()
    thread.join()
    assert len(seen) == 2
    assert content(tmp_path / "x") == content(alone)
    assert [found[key] for key in ("images", "damaged", "parts", "left")] == [239, 1, 16, 0]
    assert embed(model, photos, tmp_path / "x", on="ray")["own_parts"] == 0
    for name, how in (("one", {}), ("two", {"on": "ray", "workers": 1})):
        embed(model, photos, tmp_path / f"{name}.parquet", **how)
    assert (tmp_path / "one.parquet").read_bytes() == (tmp_path / "two.parquet").read_bytes()


def test_killed_actors_lose_no_row_and_double_none(
    model: vitlab.VisionTransformer, photos: str, alone: Path, tmp_path: Path
) -> None:
    out, killed = tmp_path / "x", list[int]()

    def kill() -> None:
        while len(killed) < 3:
            time.sleep(0.01)
            busy = [each for each in actors() if drafts_of(each)]
            if busy and parts_in(out) > 2 * len(killed):
                os.kill(busy[0].pid, signal.SIGKILL)
                killed.append(busy[0].pid)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    embed(model, photos, out, on="ray")
    thread.join(1)
    assert len(killed) == 3
    assert content(out) == content(alone)


def drafts_of(process: Any) -> list[str]:
    import psutil

    try:
        return [each.path for each in process.open_files() if ".draft-" in each.path]
    except psutil.Error:
        return []
