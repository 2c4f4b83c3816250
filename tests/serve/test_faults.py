"""What goes wrong in production: lost devices, hanging batches, folders that vanish, overload."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from serve.calling import ask, form
from serve.fakes import FakeEngine, png
from serve.made import Gate, Running, encoded, figure, tiny, until
from steady import PATIENCE
from vitlab.errors import FailedError, LateError, ServiceError
from vitlab.serve.access import listen
from vitlab.serve.app import application
from vitlab.serve.batcher import FAILURES
from vitlab.serve.engine import Engine
from vitlab.serve.limits import Limits
from vitlab.serve.service import Service
from vitlab.serve.watched import LOOKS, Watched

IMAGE = encoded(0)


@pytest.fixture
def failing() -> Iterator[tuple[Running, list[str]]]:
    """An engine whose model fails at `any` image, or at `colored` ones, once that is said."""
    model, said = tiny(), list[str]()

    def fail(model: Any, inputs: Any) -> None:
        if said == ["any"] or (said == ["colored"] and inputs[0].std() > 1e-6):
            raise RuntimeError("CUDA error: device-side assert triggered")

    model.stem.register_forward_pre_hook(fail)
    running = Running(("tiny", model), max_batch=2)
    yield running, said
    said.clear()
    running.close()


def test_a_lost_device_is_no_longer_healthy(
    failing: tuple[Running, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """An error of CUDA that stays: every batch fails, and so does a blank image."""
    running, said = failing
    running.answer(IMAGE)
    said.append("any")
    for number in range(FAILURES):
        assert running.engine.ready, number
        with pytest.raises(FailedError, match=r"the model failed \(RuntimeError\)"):
            running.answer(IMAGE)
    assert running.engine.trouble == (
        "the device computes no more: CUDA error: device-side assert triggered"
    )
    assert not running.engine.ready
    assert figure(running.engine, "images_broken_total", model="tiny") == FAILURES
    records = [each for each in caplog.records if each.getMessage() == "batch failed"]
    assert len(records) == FAILURES
    assert all(each.exc_info for each in records)
    app = application(running.engine)
    assert ask(app, "GET", "/health").status == 500
    assert "device-side assert" in ask(app, "GET", "/health").error
    assert ask(app, "GET", "/ready").status == 503
    figures = generate_latest(running.engine.metrics.registry).decode()
    assert 'vitlab_images_broken_total{model="tiny"} 3.0' in figures
    assert "vitlab_models 1.0" in figures
    assert 'vitlab_request_seconds_bucket{le="0.005",method="GET",route="/ready"' in figures


def test_images_at_which_a_model_fails_do_not_end_the_service(
    failing: tuple[Running, list[str]],
) -> None:
    running, said = failing
    said.append("colored")
    for _ in range(2 * FAILURES):
        with pytest.raises(FailedError):
            running.answer(IMAGE)
    assert running.engine.ready
    assert figure(running.engine, "images_broken_total", model="tiny") == 2 * FAILURES


def test_a_batch_that_never_ends_is_noticed() -> None:
    model = tiny()
    gate, running = Gate(model), Running(("tiny", model), max_batch=2, timeout=PATIENCE)
    engine, (served,) = running.engine, running.engine.models.values()

    async def hang() -> None:
        gate.close()
        first = asyncio.ensure_future(engine.answer([IMAGE]))
        await until(gate.reached.is_set)
        served.form.pace = engine._decoders.pace = 0.0  # whatever this machine needs
        engine.limits = replace(engine.limits, timeout=0.2)
        with pytest.raises(LateError):
            await engine.answer([IMAGE])
        engine._batcher._timeout = 0.2
        await until(lambda: engine.trouble)
        assert "has been computing for" in engine.trouble
        gate.open.set()
        await until(lambda: not engine.trouble)  # it has ended after all
        assert (await first)[0].probabilities is not None

    running(hang())
    running.close()


def test_a_service_that_can_compute_no_more_ends_with_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vitlab.serve.service.NOTICED", 0.01)
    monkeypatch.setattr("vitlab.serve.service.PAUSE", 0.01)

    class Failing(FakeEngine):
        """Its device is lost at the fifth look."""

        looks = 0

        @property
        def trouble(self) -> str:
            self.looks += 1
            return "the device computes no more" if self.looks >= 5 else ""

        @trouble.setter
        def trouble(self, said: str) -> None:
            pass

    engine = Failing()

    async def run() -> None:
        service = Service(application(engine), engine, 1.0)  # type: ignore[arg-type]
        with listen("127.0.0.1", 0) as opened:
            await service.run(opened)

    with pytest.raises(ServiceError, match="computes no more: start the service anew") as ended:
        asyncio.run(run())
    assert ended.value.status == 75  # 2 would keep systemd from starting it again
    assert engine.stopped


def test_without_a_model_it_is_not_ready_unless_it_may_be_empty() -> None:
    for allowed in (False, True):
        engine = Engine(limits=Limits(decoders=1), allow_empty=allowed, device="cpu")

        async def run(engine: Engine = engine, allowed: bool = allowed) -> None:
            await engine.start()
            assert engine.ready is allowed
            if not allowed:
                with pytest.raises(ServiceError, match="it has no model"):
                    await engine.answer([IMAGE])
            engine.add("tiny", tiny())
            assert engine.ready
            await engine.stop()

        asyncio.run(run())


def test_a_folder_that_cannot_be_read_or_is_not_mounted_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine, folder, away = FakeEngine(names=()), tmp_path / "models", tmp_path / "away"
    folder.mkdir()
    for name in ("cats", "dogs"):
        (folder / f"{name}.safetensors").write_bytes(b"weights")
    engine.allow_empty = False
    watched = Watched(folder, engine)  # type: ignore[arg-type]

    def looked(times: int = 2 * LOOKS) -> list[str]:
        for _ in range(times):
            watched.look()
        return list(engine.models)

    assert looked() == ["cats", "dogs"]
    folder.rename(away)
    assert looked() == ["cats", "dogs"]
    folder.mkdir()  # where nothing is mounted yet
    assert looked() == ["cats", "dogs"]
    said = [each for each in caplog.records if each.getMessage() == "folder not read"]
    assert len(said) == 2  # once for each reason
    folder.rmdir()
    away.rename(folder)
    (folder / "cats.safetensors").unlink()
    assert looked(LOOKS - 1) == ["cats", "dogs"]
    assert looked(1) == ["dogs"]
    engine.allow_empty = True
    (folder / "dogs.safetensors").unlink()
    assert looked(LOOKS) == []


def test_what_will_not_be_done_in_time_is_not_begun() -> None:
    model = tiny()
    gate, running = Gate(model), Running(("tiny", model), max_batch=1, timeout=PATIENCE)
    (served,) = running.engine.models.values()

    async def crowd() -> None:
        gate.close()
        waiting = [asyncio.ensure_future(running.engine.answer([IMAGE])) for _ in range(2)]
        await until(lambda: figure(running.engine, "decoded_images") == 2)
        await until(gate.reached.is_set)
        served.form.pace = 2 * PATIENCE  # it has become slow
        gate.open.set()
        first, second = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(first, list)
        assert isinstance(second, LateError)

    running(crowd())
    assert len(gate.sizes) == 1
    assert figure(running.engine, "images_late_total", model="tiny") == 1
    running.close()


def test_a_full_disk_is_said_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A model that is added, and a form whose large file does not fit into memory."""

    async def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    engine = FakeEngine()
    app = application(engine, token="0123456789abcdef")  # type: ignore[arg-type]
    access = {"authorization": "Bearer 0123456789abcdef"}
    body, kind = form(("a.png", png() + bytes(2**21)))
    monkeypatch.setattr("starlette.datastructures.UploadFile.write", full)
    reply = ask(app, "POST", "/predict", body, content_type=kind, **access)
    assert (reply.status, "No space left" in reply.error) == (507, True)
    monkeypatch.setattr("vitlab.serve.bodies._stream", full)
    reply = ask(app, "PUT", "/models/new", b"weights", **access)
    assert (reply.status, "No space left" in reply.error) == (507, True)
    assert "new" not in engine.models
    assert list(tmp_path.iterdir()) == []
