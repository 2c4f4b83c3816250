"""Models that come while the service runs, in a request or in a folder, and their names."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import vitlab
from serve.calling import Reply, ask
from serve.fakes import FakeEngine
from serve.made import until
from vitlab.errors import OptionError, WeightsError
from vitlab.serve.access import listen, read_token
from vitlab.serve.app import application
from vitlab.serve.limits import Limits, split
from vitlab.serve.service import Service
from vitlab.serve.watched import Watched
from vitlab.weights.deltas import VERSION, Delta
from vitlab.weights.identity import checksum

TOKEN = "a-token-of-more-than-16"
TINY = "ViT(width=16,depth=1,heads=2,mlp=32)/8"


@pytest.fixture(scope="module")
def delta(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A delta whose base is named by a path that nobody may follow."""
    folder = tmp_path_factory.mktemp("delta")
    base = vitlab.create(TINY, 3, 32, generator=torch.Generator().manual_seed(0))
    vitlab.save(base, folder / "base")
    base = vitlab.load(folder / "base")
    model = vitlab.load(folder / "base")
    with torch.no_grad():
        next(model.parameters()).add_(1)
    file = vitlab.delta(model, base).save(folder / "task.safetensors")
    with safe_open(file, "pt") as stored:
        content = json.loads(stored.metadata()[VERSION])["content"]
    place = str(folder / "base")  # a delta that is saved names no such path
    content["base"] |= {"source": place, "nearby": place}
    text = json.dumps({"content": content, "sha256": checksum(content)})
    save_file(load_file(file), file, metadata={VERSION: text})
    assert place.encode() in file.read_bytes()
    vitlab.load(file)  # it is intact, and its base is there for those who follow the path
    return file.read_bytes()


class Folders:
    """A fake engine and its application; what is made below the temporary folder is seen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(folder))
        self.folder, self.engine = folder, FakeEngine(limits=Limits(max_model=0.1))
        self.seen: list[list[str]] = []
        self.engine.read = self._read
        self.app = application(self.engine, token=TOKEN)

    def _read(self, source: object) -> object:
        self.seen.append(sorted(file.name for file in self.folder.rglob("*")))
        return source

    def put(self, name: str, body: bytes, **headers: str) -> Reply:
        token = f"Bearer {TOKEN}"
        return ask(self.app, "PUT", f"/models/{name}", body, authorization=token, **headers)


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Folders:
    return Folders(monkeypatch, tmp_path)


def test_a_delta_in_a_request_is_added_replaced_and_removed(folders: Folders, delta: bytes) -> None:
    added = folders.put("task", delta)
    assert (added.status, added.json["status"]) == (201, "added")
    assert folders.put("task", delta).json["status"] == "replaced"
    assert isinstance(folders.engine.sources["task"], Delta)  # without its base
    assert {name for names in folders.seen for name in names if "." in name} == {
        "model.safetensors"
    }
    assert list(folders.folder.iterdir()) == []
    gone = ask(folders.app, "DELETE", "/models/task", authorization=f"Bearer {TOKEN}")
    assert gone.json["status"] == "removed"
    again = ask(folders.app, "DELETE", "/models/task", authorization=f"Bearer {TOKEN}")
    assert (again.status, "unknown model" in again.error) == (404, True)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda delta: b"", 422),
        (lambda delta: b"junk", 422),
        (lambda delta: delta[:-3], 422),
        (lambda delta: delta[:200] + b"\0" + delta[201:], 422),
        (lambda delta: delta + bytes(2**17), 413),
    ],
)
def test_what_is_not_a_model(
    folders: Folders, delta: bytes, change: Callable[[bytes], bytes], status: int
) -> None:
    reply = folders.put("task", change(delta))
    assert reply.status == status
    assert str(folders.folder) not in reply.error
    assert list(folders.folder.iterdir()) == []
    assert "task" not in folders.engine.models


def test_names_in_addresses_are_never_paths(folders: Folders, delta: bytes) -> None:
    for name in ("..", "../x", "a b", "x" * 101, ".hidden", "%2e%2e", "a\\b", "\u00e9"):
        assert folders.put(name, delta).status in (400, 404, 405), name
    assert folders.seen == []


def test_what_the_engine_refuses(folders: Folders, delta: bytes) -> None:
    def refuse(source: object) -> Any:
        raise WeightsError("its base is not served")

    folders.engine.read = refuse
    reply = folders.put("task", delta)
    assert (reply.status, reply.error) == (422, "its base is not served")


def test_one_model_is_loaded_at_a_time(folders: Folders, delta: bytes) -> None:
    replies: dict[str, Reply] = {}

    def read(source: object) -> object:
        replies["second"] = folders.put("second", delta)  # while the first one is being loaded
        return source

    folders.engine.read = read
    assert folders.put("task", delta).status == 201
    busy = replies["second"]
    assert (busy.status, busy.headers["retry-after"]) == (503, "5")
    assert "another model is being loaded" in busy.error
    assert "second" not in folders.engine.models


def test_a_folder_that_is_watched(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "vitlab.serve")
    engine = FakeEngine(names=("other",))
    watched = Watched(tmp_path / "models", engine)
    file, run = tmp_path / "models" / "cats.safetensors", tmp_path / "models" / "run"

    def looked() -> list[str]:
        watched.look()
        return list(engine.models)

    assert looked() == ["other"]  # there is no folder yet
    file.parent.mkdir()
    file.write_bytes(b"half")
    assert looked() == ["other"]  # it may not be complete
    file.write_bytes(b"half and the rest")
    assert looked() == ["other"]
    assert looked() == ["other", "cats"]
    assert engine.sources == {"cats": file}
    (run / "model").mkdir(parents=True)
    (run / "model" / "config.json").write_text("{}")
    (tmp_path / "models" / ".draft").write_bytes(b"")
    looked()
    assert looked() == ["other", "cats", "run"]
    (run / "metrics.jsonl").write_text("")  # not of its model
    engine.sources.clear()
    os.utime(file, (1, 1))
    looked()
    looked()
    assert engine.sources == {"cats": file}
    (run / "segment.safetensors").write_bytes(b"")  # copied after its model
    looked()
    looked()
    assert engine.sources == {"cats": file, "run": run}
    file.unlink()
    assert looked() == looked() == ["other", "cats", "run"]  # a listing may lack it once
    assert looked() == ["other", "run"]
    events = [each.getMessage() for each in caplog.records]
    assert events[0] == "folder not read"  # it was not there
    changed = ["added", "added", "replaced", "replaced", "removed"]
    assert events[1:] == [f"model {each}" for each in changed]
    engine.remove("run")  # by a request, before its folder goes
    run.rename(tmp_path / "elsewhere")
    assert looked() == looked() == looked() == ["other"]
    assert caplog.records[-1].getMessage() == "model not removed"


def test_a_model_replaced_by_one_of_equal_size_and_time_is_noticed(tmp_path: Path) -> None:
    """As `cp -p`, `rsync -t` and reproducible images do it: in place, by a rename, in a folder."""
    engine, file, run = FakeEngine(names=()), tmp_path / "m" / "a.bin", tmp_path / "m" / "run"
    watched = Watched(tmp_path / "m", engine)  # type: ignore[arg-type]
    (run / "model").mkdir(parents=True)
    parts = [file, run / "model" / "model.safetensors", run / "segment.safetensors"]

    def write(path: Path, data: bytes) -> None:
        path.write_bytes(data)
        os.utime(path, (1, 1))

    def loaded() -> dict[str, object]:
        engine.sources.clear()
        for _ in range(3):
            watched.look()
        return dict(engine.sources)

    for path in parts:
        write(path, b"old")
    assert loaded() == {"a": file, "run": run}
    assert loaded() == {}
    for path in parts:
        other = tmp_path / "other"
        write(other, b"new")
        other.replace(path)
        assert list(loaded()) == ["a" if path is file else "run"], path
        before = path.stat().st_ctime_ns
        while path.stat().st_ctime_ns == before:  # the clock of a file system may be coarse
            write(path, b"odd")
        assert list(loaded()) == ["a" if path is file else "run"], path
    assert loaded() == {}


def test_a_name_that_cannot_be_served_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = FakeEngine(names=())
    watched = Watched(tmp_path, engine)  # type: ignore[arg-type]

    def write(*names: str) -> dict[str, object]:
        for name in names:
            (tmp_path / name).write_bytes(b"weights")
        for _ in range(3):
            watched.look()
        return dict(engine.sources)

    def said() -> list[tuple[str, str]]:
        found = [each for each in caplog.records if each.getMessage() == "model ignored"]
        fields = [vars(each)["fields"] for each in found]
        assert all("rename it" in each["reason"] for each in fields)
        return [(each["file"], each["reason"].partition(":")[0]) for each in fields]

    assert write("é.bin", "模型", "x-y.bin") == {"x-y": tmp_path / "x-y.bin"}
    plain = "its name has no ASCII letter or digit"
    assert said() == [("é.bin", plain), ("模型", plain)]
    # it would come first by its name, but the other one is served
    assert write("x y.bin", "x-y.pt") == {"x-y": tmp_path / "x-y.bin"}
    second = "its name would be x-y, as that of x-y.bin"
    assert said()[2:] == [("x y.bin", second), ("x-y.pt", second)]
    (tmp_path / "x-y.bin").unlink()
    assert write() == {"x-y": tmp_path / "x y.bin"}
    assert said()[4:] == [("x-y.pt", "its name would be x-y, as that of x y.bin")] or not said()[4:]


def test_what_is_in_the_folder_is_served_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(FakeEngine):
        async def start(self) -> None:
            seen.append(list(self.models))
            await super().start()

    seen: list[list[str]] = []
    engine = Slow(names=())
    monkeypatch.setattr("vitlab.serve.watched.PAUSE", 0.01)
    (tmp_path / "cats.safetensors").write_bytes(b"weights")

    async def run() -> None:
        service = Service(application(engine), engine, 1.0, Watched(tmp_path, engine))
        with listen("127.0.0.1", 0) as opened:
            serving = asyncio.create_task(service.run(opened))
            await until(lambda: seen)
            os.kill(os.getpid(), signal.SIGTERM)
            await serving

    asyncio.run(run())
    assert seen == [["cats"]]


def test_a_bad_file_in_the_folder_is_tried_once_until_it_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine, file = FakeEngine(names=()), tmp_path / "bad.safetensors"

    def refuse(source: object) -> Any:
        raise WeightsError("not a model")

    engine.read = refuse
    watched = Watched(tmp_path, engine)
    file.write_bytes(b"1")
    for _ in range(4):
        watched.look()
    assert [each.getMessage() for each in caplog.records] == ["model not loaded"]
    engine.read = lambda source: source
    file.write_bytes(b"22")
    for _ in range(2):
        watched.look()
    assert list(engine.models) == ["bad"]


def test_names_of_models() -> None:
    assert split("cats=runs/1") == ("cats", "runs/1")
    assert split("runs/my cats/") == ("my-cats", "runs/my cats/")
    assert split("user/vit_b.16") == ("vit_b.16", "user/vit_b.16")
    assert split("a/task.safetensors") == ("task", "a/task.safetensors")
    assert split("a/b=c.npz") == ("b-c", "a/b=c.npz")
    with pytest.raises(OptionError, match="write NAME=/"):
        split("/")


def test_token_files(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"  {TOKEN}\n")
    file.chmod(0o600)
    assert read_token(file) == TOKEN
    file.chmod(0o666)
    with pytest.raises(OptionError, match="anybody on this machine can write"):
        read_token(file)
    file.chmod(0o600)
    for bad in ("", "short", "two words that are long", "\u00e9" * 20, "x" * 5000, "ab\nc" * 9):
        file.write_text(bad)
        with pytest.raises(OptionError, match="openssl rand -hex 32"):
            read_token(file)
    for place in (tmp_path, tmp_path / "none", "\0"):
        with pytest.raises(OptionError, match="cannot read the token"):
            read_token(place)
