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
from evaluation.ray_jobs import PART, embed, small_model, some_photos
from evaluation.shard_jobs import content, parts_in
from vitlab.errors import DataError, OptionError, RunError
from vitlab.evaluation.classification import classify_shards, unlabeled
from vitlab.evaluation.compute import Compute

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


def test_predictions_are_those_of_one_process(
    model: vitlab.VisionTransformer, photos: str, tmp_path: Path
) -> None:
    for name, on in (("one", ""), ("two", "ray")):
        classify_shards(
            tmp_path / name, model, lambda: unlabeled(model, photos), Compute("cpu", workers=0),
            part_images=PART, on=on,
        )  # fmt: skip
    assert content(tmp_path / "one") == content(tmp_path / "two")


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


def test_a_part_that_kills_every_actor_ends_the_pass_and_a_second_start_goes_on(
    model: vitlab.VisionTransformer, photos: str, alone: Path, tmp_path: Path
) -> None:
    out, done = tmp_path / "x", threading.Event()

    def kill() -> None:
        while not done.wait(0.01):
            for each in actors():
                if drafts_of(each):
                    each.kill()

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    with pytest.raises(RunError, match=r"4 processes died while they computed .*/x/train-"):
        embed(model, photos, out, on="ray")
    done.set()
    thread.join()
    assert parts_in(out) < 16
    assert embed(model, photos, out, on="ray")["left"] == 0
    assert content(out) == content(alone)


def test_errors_of_actors_keep_their_type(
    model: vitlab.VisionTransformer, photos: str, tmp_path: Path
) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    for number in range(3):
        (bad / f"{number}.png").write_bytes(b"x")
    with pytest.raises(DataError, match="not a JPEG"):
        embed(model, str(bad), tmp_path / "x", on="ray")
    with pytest.raises(OptionError, match="engine"):
        embed(model, photos, tmp_path / "y", on="ray", engine="nothing")
