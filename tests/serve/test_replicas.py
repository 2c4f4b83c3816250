"""The service as a Ray Serve deployment: what Ray is told, and what runs in a replica."""

import asyncio
import json
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import vitlab
from serve.calling import ask
from serve.fakes import FakeEngine
from vitlab.errors import OptionError, PackageError, WeightsError
from vitlab.serve.limits import Limits
from vitlab.serve.ray_app import build, named, service


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A stand-in for Ray that keeps what it is told."""
    told: dict[str, Any] = {}
    fake, serve = ModuleType("ray"), ModuleType("ray.serve")

    def ingress(build: Any) -> Any:
        told["build"] = build
        return lambda kind: kind

    def deployment(kind: type, **options: Any) -> Any:
        told.update(options)
        return SimpleNamespace(bind=lambda: "bound")

    serve.ingress, serve.deployment = ingress, deployment  # type: ignore[attr-defined]
    fake.serve = serve  # type: ignore[attr-defined]
    fake.__spec__ = ModuleSpec("ray", None)
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray.serve", serve)
    return told


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "photos").mkdir()
    monkeypatch.chdir(tmp_path)
    return "photos"


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
    """The engines that are made, all of them fakes."""
    made: list[FakeEngine] = []

    def make(**options: Any) -> FakeEngine:
        made.append(FakeEngine(limits=options["limits"], names=()))
        made[-1].ready = False
        return made[-1]

    monkeypatch.setattr("vitlab.serve.engine.Engine", make)
    return made


def test_without_ray_its_extra_is_named(weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # whether it is installed or not
    with pytest.raises(PackageError, match=r"needs the package ray: pip install .vitlab\[ray\]"):
        vitlab.serve.deployment(weights)


def test_ray_is_told_what_a_replica_takes(weights: str, ray: dict[str, Any]) -> None:
    options = {"num_replicas": 2, "ray_actor_options": {"num_cpus": 4}}
    limits = Limits(queue=8)
    assert vitlab.serve.deployment(weights, limits=limits, options=options) == "bound"
    assert options.items() <= ray.items()
    assert ray["max_ongoing_requests"] > 8  # the queue is what sheds
    assert ray["max_queued_requests"] == 8
    vitlab.serve.deployment(weights, options={"max_queued_requests": 3})
    assert ray["max_queued_requests"] == 3


def test_a_replica_finds_what_was_named_elsewhere(weights: str, tmp_path: Path) -> None:
    assert named(weights) == {"photos": str(tmp_path / "photos")}
    assert named({"a": Path(weights), "b": "user/name"}) == {
        "a": str(tmp_path / "photos"), "b": "user/name"
    }  # fmt: skip
    with pytest.raises(OptionError, match="at least one model"):
        named({})
    with pytest.raises(WeightsError, match="no such file or folder: nothing"):
        named({"a": "nothing"})


def test_a_replica_starts_and_stops_with_its_server(
    weights: str, ray: dict[str, Any], engine: list[FakeEngine]
) -> None:
    vitlab.serve.deployment(weights)
    app = ray["build"]()
    (made,) = engine

    async def life() -> list[bool]:
        seen = [made.ready]
        async with app.router.lifespan_context(app):
            seen.append(made.ready)
        return [*seen, made.ready]

    assert asyncio.run(life()) == [False, True, False]
    assert [card.name for card in made.cards()] == ["photos"]


def test_no_request_changes_the_model_of_one_replica(
    weights: str, engine: list[FakeEngine], tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text("0123456789abcdef")
    file.chmod(0o600)
    app = service({"photos": weights}, Limits(), "cpu", "fp32", str(file))
    access = {"authorization": "Bearer 0123456789abcdef"}
    assert ask(app, "GET", "/models", **access).status == 200
    assert ask(app, "GET", "/models").status == 401
    assert ask(app, "PUT", "/models/other", b"x", **access).status == 404
    assert ask(app, "DELETE", "/models/photos", **access).status == 404


def test_rays_configuration_is_checked(weights: str, ray: dict[str, Any]) -> None:
    options = {"num_replicas": 3}
    assert build({"weights": weights, "limits": {"queue": 4}, "options": options}) == "bound"
    assert (ray["num_replicas"], ray["max_queued_requests"]) == (3, 4)
    with pytest.raises(TypeError, match="unexpected keyword argument 'replicas'"):
        build({"weights": weights, "replicas": 2})
    with pytest.raises(OptionError, match="unknown option 'que'"):
        build({"weights": weights, "limits": {"que": 4}})


ROOT = Path(__file__).parents[2]


@pytest.mark.campaign
def test_a_killed_replica_is_replaced_and_only_its_own_requests_fail(tmp_path: Path) -> None:
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    vitlab.save(vitlab.create("ViT-Ti/16", classes=3, image_size=64), tmp_path / "small")
    paths = [str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, ROOT / "tests/serve/ray_replicas.py", tmp_path / "small"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    killed = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(killed, indent=1))
    assert set(killed["statuses"]) <= {"200", "500"}
    assert killed["statuses"].get("500", 0) <= 6  # at most what every client had in flight
    assert killed["failed_after"] < 5
    assert killed["back"] < 60
    assert killed["orphans"] == []
