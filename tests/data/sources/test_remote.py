"""Images on other machines: what fails on the way is tried again, and damages no image."""

import functools
import gc
import io
import json
import multiprocessing
import os
import random

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

import vitlab
from conftest import TINY, call, photo
from made_files import encoded, tarred
from object_server import Fault, Objects, served
from vitlab.data import shard_identities as numbering
from vitlab.data.duplicates.signatures import signatures
from vitlab.data.identities import NUMBERS, identities
from vitlab.data.images import concat
from vitlab.data.loading.loader import loader
from vitlab.data.loading.training_batches import TrainingBatches
from vitlab.data.open import open_images
from vitlab.data.open_splits import open_to_learn
from vitlab.data.settings import Augment, Columns
from vitlab.data.sources import remote
from vitlab.data.sources.remote import KeptParts
from vitlab.errors import DataError, DiskError, RefusedError, SourceError
from vitlab.models.config import ViTConfig
from vitlab.runs.run_folder import RunFolder

pytest.importorskip("aiohttp")
pytest.importorskip("s3fs")

SPEC = ViTConfig(width=16, heads=2, patch=4, image_size=8, classes=3)
ROUND = random.Random(0).randbytes(300_000)


@pytest.fixture(scope="module")
def one_server():
    """Sign with nobody's keys, and wait milliseconds."""
    with served() as had, pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "FIRST", 0.002)
        for name, value in {
            "AWS_ACCESS_KEY_ID": "own", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "eu-1",
            "AWS_EC2_METADATA_DISABLED": "true", "NO_PROXY": "127.0.0.1",
            "AWS_ENDPOINT_URL": had.url,
        }.items():  # fmt: skip
            patch.setenv(name, value)
        yield had
    remote._client.cache_clear()


@pytest.fixture
def server(one_server: Objects):
    one_server.anew({"b/x.bin": ROUND})
    yield one_server
    forget_lists()


def forget_lists() -> None:
    remote._client("s3://b", os.getpid()).invalidate_cache()


@pytest.fixture(params=["http", "s3"])
def root(request: pytest.FixtureRequest, server: Objects) -> str:
    return f"{server.url}/b" if request.param == "http" else "s3://b"


@functools.cache
def jpeg(seed: int) -> bytes:
    return encoded(photo(seed, 72, 72, seed % 3), "JPEG", quality=95)


def shard(first: int, count: int, pad: int = 0) -> bytes:
    """A tar of images and labels; `pad` zeros follow each image, which decoders ignore."""
    members = [
        ((f"{i:05d}.jpg", jpeg(i) + bytes(pad)), (f"{i:05d}.cls", str(i % 3).encode()))
        for i in range(first, first + count)
    ]
    return tarred(*sum(members, ()))


@pytest.fixture
def shards(server: Objects) -> str:
    """8 shards of 6 images."""
    server.objects |= {f"b/s-{n:02d}.tar": shard(6 * n, 6) for n in range(8)}
    return f"{server.url}/b/s-{{00..07}}.tar"


def once(fault: Fault, count: int = 1):
    """Let the first requests fail, and no other."""
    left = [fault] * count
    return lambda method, path: left.pop() if left else None


def unavailable(name: str, status: int = 503):
    """Let the requests for one object fail."""
    return lambda method, path: Fault(status) if path == f"b/{name}" else None


def now_and_then(seed: int = 3):
    """3% of requests fail with 503, 1% are reset, 1% end early, and one stalls."""
    draws, stalls = random.Random(seed), [Fault(stall=True)]
    kinds = [Fault(503, {"Retry-After": "0"})] * 3 + [Fault(reset=True), Fault(half=True)]

    def disturb(method: str, path: str) -> Fault | None:
        n = draws.randrange(100)
        if n == 5 and stalls and method == "GET":
            return stalls.pop()
        return kinds[n] if n < 5 else None

    return disturb


# one request

LOST = [Fault(reset=True), Fault(stall=True), Fault(half=True), Fault(half=True, stall=True)]


@pytest.mark.parametrize(
    "fault", [Fault(503, {"Retry-After": "0"}), Fault(500), Fault(429), Fault(408), *LOST],
    ids=lambda fault: f"{fault.status}-{fault.reset}-{fault.stall}-{fault.half}",
)  # fmt: skip
def test_what_fails_on_the_way_is_tried_again(server, root, fault, monkeypatch) -> None:
    if fault.stall:
        monkeypatch.setattr(remote, "ANSWER", 1.0)
    server.disturb = once(fault, 1 if fault.stall else 2)
    assert remote.read_part(f"{root}/x.bin", 1000, 20_000) == ROUND[1000:21_000]
    assert len(server.requests) == 3 or (fault.stall and len(server.requests) >= 2)


def test_the_state_of_a_file_has_its_deadline_too(server, monkeypatch) -> None:
    monkeypatch.setattr(remote, "ANSWER", 0.1)
    server.disturb = lambda method, path: Fault(stall=True)
    with pytest.raises(SourceError, match=r"no answer within 0 s \(5 tries\)"):
        remote.stamp("s3://b/x.bin")


def test_a_server_is_asked_as_often_and_as_late_as_said(server, root, monkeypatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("vitlab.data.sources.remote.time.sleep", waits.append)
    monkeypatch.setattr(remote, "FIRST", 0.5)
    for seconds in ("7", "9999"):
        server.disturb = once(Fault(503, {"Retry-After": seconds}))
        remote.read_part(f"{root}/x.bin", 0, 10)
    assert waits == [7, remote.LONGEST]
    waits.clear()
    server.forget()
    server.disturb = lambda method, path: Fault(503)
    with pytest.raises(SourceError) as caught:
        remote.read_part(f"{root}/x.bin", 0, 10)
    assert str(caught.value) == (
        f"cannot read {root}/x.bin: 503 Service Unavailable (5 tries): try again later"
    )
    assert caught.value.status == 75
    assert not isinstance(caught.value, DataError)
    assert len(server.requests) == 5
    assert all(2**n / 4 <= wait <= 2**n * 3 / 4 for n, wait in enumerate(waits))


def test_what_is_refused_is_final(server, root) -> None:
    for status, said in ((403, "403 Forbidden"), (404, "no such file")):
        server.forget()
        server.disturb = unavailable("x.bin", status)
        with pytest.raises(RefusedError, match=f"cannot read {root}/x.bin: {said}") as caught:
            remote.read_part(f"{root}/x.bin", 0, 10)
        assert caught.value.status == 2
        assert len(server.requests) == 1
        with pytest.raises(RefusedError, match=said):
            remote.stamp(f"{root}/x.bin")
    server.anew({"b/x.bin": ROUND[:100]})
    with pytest.raises(SourceError, match=r"10 of 20 bytes came \(5 tries\): try again later"):
        remote.read_part(f"{root}/x.bin", 90, 20)  # a file that has become shorter
    with pytest.raises(RefusedError, match=r"x\.bin: 100 bytes exceed the limit of 99"):
        remote.read_whole(f"{root}/x.bin", 99)
    assert remote.read_whole(f"{root}/x.bin", 100) == ROUND[:100]
    server.forget()
    server.ranges = False
    with pytest.raises(RefusedError, match=r"the server gives no parts of files \(Range\)"):
        remote.read_part(f"{root}/x.bin", 90, 10)
    assert len(server.requests) == 1


def test_what_cannot_be_reached_is_not_called_missing(server) -> None:
    for url, said in (
        ("http://127.0.0.1:1/s.tar", "Connect call failed"),
        (server.url.replace("http:", "https:") + "/s.tar", "SSL"),
    ):
        with pytest.raises(SourceError, match=said) as caught:
            open_images(url)
        assert caught.value.status == 75
        assert "no such file" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_neighbors_are_read_together(server, root) -> None:
    url = f"{root}/x.bin"
    wanted = [(url, 200_000, 50), (url, 0, 10_000), (url, 10_512, 10_000), (url, 500, 100)]
    found = remote.read_parts(wanted)
    assert found == [ROUND[first : first + size] for _, first, size in wanted]
    assert len(server.requests) == 2
    if root == "s3://b":  # signed with the usual variables
        assert "Credential=own/" in server.signed[-1]
        assert "/eu-1/s3/" in server.signed[-1]


def test_the_library_of_the_hub_reads_nothing_ahead(monkeypatch) -> None:
    class Hub:
        async_impl, protocol = False, "hf"

        def cat_file(self, path: str, start: int, end: int, cache_type: str = "ahead") -> bytes:
            return cache_type.encode()[start:end]

    monkeypatch.setattr(remote, "_system", lambda url: (Hub(), "x"))
    assert remote.read_part("hf://datasets/x", 0, 4) == b"none"
    monkeypatch.setattr(Hub, "protocol", "ftp")
    assert remote.read_part("ftp://x", 1, 4) == b"head"


# shards


@pytest.mark.parametrize(
    ("root", "pad", "most", "share"), [("http", 100_000, 24, 0.05), ("s3", 0, 6, 1.01)],
    indirect=["root"],
)  # fmt: skip
def test_a_shard_is_indexed_by_its_headers(server, root, pad, most, share) -> None:
    server.objects["b/y.tar"] = shard(0, 20, pad)
    assert open_to_learn(f"{root}/y.tar").whole is not None
    asked = [method for method, path in server.requests if path == "b/y.tar"]
    assert asked.count("HEAD") == 1
    # 20 more identify the images
    assert asked.count("GET") <= most + (20 if pad > remote.NEAR else 1)
    server.forget()
    forget_lists()
    assert len(open_to_learn(f"{root}/y.tar").train)
    assert [each for each in server.requests if each[1] == "b/y.tar"] == [("HEAD", "b/y.tar")]
    server.objects["b/y.tar"] = shard(0, 19, pad)  # has changed: nothing of it is known
    server.forget()
    forget_lists()
    assert len(open_images(f"{root}/y.tar").every()) == 19
    assert server.sent <= share * len(server.objects["b/y.tar"])


def test_images_of_parts_are_read_together(server, shards) -> None:
    """Whichever sources they lie in."""
    whole = open_images(shards).every()
    both = concat((whole, whole.take(np.arange(4, 9)))).take(np.arange(len(whole) + 5)[::-1])
    server.forget()
    both.read_ahead([0, 2, 3])  # of the second part
    asked = len(server.requests)
    found = [both.image(each).content() for each in (0, 2, 3)]
    assert 0 < asked == len(server.requests)
    assert found == [whole.image(each).content() for each in (8, 6, 5)]


@pytest.mark.parametrize(("s3", "workers"), [(False, 2), (True, 0)])
def test_faults_change_no_batch(server, shards, s3, workers, monkeypatch, capfd) -> None:
    def batches(workers: int) -> list:
        batches = TrainingBatches(source, SPEC, Augment(area=0.5), seed=1, batch=16)
        return list(loader(batches, range(3), workers))

    source = open_to_learn(shards.replace(f"{server.url}/", "s3://") if s3 else shards).train
    server.forget()
    calm = batches(0)
    gets = len(server.requests)
    assert gets <= 3 * 16
    monkeypatch.setattr(remote, "ANSWER", 2.0)
    server.disturb = now_and_then()
    for a, b in zip(calm, batches(workers), strict=True):
        assert torch.equal(a.images, b.images)
        assert torch.equal(a.labels, b.labels)
        assert not b.bad
    assert len(server.requests) > 2 * gets
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("workers", [0, 1])
def test_what_did_not_come_is_neither_damaged_nor_left_out(server, shards, workers) -> None:
    source = open_to_learn(shards).train
    server.disturb = unavailable("s-05.tar")
    batches = TrainingBatches(source, SPEC, Augment(), seed=1, batch=16)
    said = r"^cannot read http://.*s-05.tar: 503 Service Unavailable \(5 tries\): try again later$"
    with pytest.raises(SourceError, match=said):
        signatures(source, workers=workers)
    if workers:  # what else waited for its signal for half a minute, at the end of a command too
        gc.collect()
        assert not multiprocessing.active_children()
        return
    with pytest.raises(SourceError, match="s-05"):
        list(loader(batches, range(3), 0))
    with pytest.raises(SourceError, match="s-05"):
        open_to_learn(shards)  # which images are held out depends on their bytes
    server.disturb = unavailable("s-05.tar", 403)
    with pytest.raises(RefusedError, match="403 Forbidden"):
        list(loader(batches, range(3), 0))
    server.objects["b/classes.txt"] = b"x\ny\nz\n"
    server.disturb = once(Fault(503))
    assert open_to_learn(shards).classes == ("x", "y", "z")
    server.disturb = unavailable("classes.txt")
    with pytest.raises(SourceError, match=r"classes.txt: 503"):
        open_to_learn(shards)


# commands


@pytest.mark.parametrize(("command", "out"), [("embed", "x"), ("predict", "x.parquet")])
def test_faults_lose_no_row(server, shards, tmp_path, command, out, capsys, monkeypatch) -> None:
    made = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", classes=3, image_size=8)
    vitlab.save(made, tmp_path / "model")
    more = ["--part-images", "16"] if out == "x" else []
    more += ["--workers", "0", "--engine", "plain"]
    words = [command, str(tmp_path / "model"), shards, *more, "--json", "--out"]
    status, _, err = call(capsys, *words, str(tmp_path / "calm" / out))
    assert status == 0, err
    server.disturb = unavailable("s-06.tar")
    status, _, err = call(capsys, *words, str(tmp_path / out))
    assert status == 75
    assert "s-06.tar: 503 Service Unavailable" in err.splitlines()[-1]
    monkeypatch.setattr(remote, "ANSWER", 2.0)
    server.disturb = now_and_then()
    status, text, err = call(capsys, *words, str(tmp_path / out))
    assert status == 0, err
    assert json.loads(text)["images"] == 48
    one, other = (parquet.read_table(file) for file in (tmp_path / out, tmp_path / "calm" / out))
    assert one.to_pydict() == other.to_pydict()


def test_a_run_is_saved_and_goes_on_to_the_same_bits(server, shards, tmp_path, capsys) -> None:
    words = ["train", shards, "--model", TINY["model"], "--batch", "16", "--epochs", "3"]
    words += ["--recipe", "small", "--workers", "0", "--check-duplicates", "no", "--image-size"]
    words += ["16", "--report", "no", "--out"]
    status, _, err = call(capsys, *words, str(tmp_path / "calm"))
    assert status == 0, err
    asked = len(server.requests)
    server.forget()
    late = Fault(503)
    server.disturb = lambda method, path: late if len(server.requests) > asked * 0.6 else None
    status, _, err = call(capsys, *words, str(tmp_path / "run"))
    assert status == 75, err
    said = "503 Service Unavailable (5 tries): try again later; saved after step"
    assert said in err.splitlines()[-1]
    assert "damaged" not in err
    server.disturb = lambda method, path: None
    again = [*words, str(tmp_path / "run"), "--resume", "--cache-data", str(tmp_path / "kept")]
    status, _, err = call(capsys, *again)
    assert status == 0, err
    files = [tmp_path / name / "model" / "model.safetensors" for name in ("calm", "run")]
    assert len({file.read_bytes() for file in files}) == 1
    assert RunFolder(tmp_path / "run").order == "keyed"


# what is kept


def test_what_is_kept_is_not_asked_for_again(server, shards, tmp_path) -> None:
    columns = Columns(cache_data=str(tmp_path / "kept"))
    before = open_to_learn(shards, options=columns).train
    server.forget()
    source = open_to_learn(shards, options=columns).train
    found = [source.image(each).content() for each in range(len(source))]
    assert {method for method, path in server.requests if path.endswith(".tar")} == {"HEAD"}
    assert len(server.requests) <= 10  # and whether there is a classes.txt
    assert found == [before.image(each).content() for each in range(len(source))]
    for file in (tmp_path / "kept").rglob("*.part"):
        file.write_bytes(file.read_bytes()[:-9])  # a disk that lost some
    assert found == [source.image(each).content() for each in range(len(source))]
    gets = [path for method, path in server.requests if method == "GET" and path[-4:] == ".tar"]
    assert len(gets) == len(source)
    server.objects["b/s-00.tar"] = shard(500, 6)
    assert open_images(shards, columns=columns).every().image(0).content() == jpeg(500)


def test_what_is_kept_is_bounded_and_nothing_else_is_touched(server, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(remote, "_SHARE", 0.0)  # looks at the folder every time
    (tmp_path / "mine.part").write_bytes(bytes(100_000))
    kept = KeptParts.of(str(tmp_path), 50_000 / 1e9)
    url = f"{server.url}/b/x.bin"
    for n in range(20):
        kept.read([(url, 10_000 * n, 10_000)], ["state"])
        files = list(kept.folder.rglob("*.part"))
        assert sum(file.stat().st_size for file in files) <= 50_000
    server.forget()
    assert kept.read([(url, 190_000, 10_000)], ["state"]) == [ROUND[190_000:200_000]]
    assert not server.requests
    assert (tmp_path / "mine.part").stat().st_size == 100_000
    (tmp_path / "ring").symlink_to("ring")
    for name in ("mine.part", "ring", "ring/new"):
        with pytest.raises(DiskError, match="cannot write"):
            KeptParts.of(str(tmp_path / name), 1.0)


# other kinds


def test_parquet_files(server, tmp_path, monkeypatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "arrow")
    rows = [{"image": {"bytes": jpeg(i), "path": None}, "label": i % 3} for i in range(12)]
    stream = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows), stream)
    server.objects |= {f"b/t-{n}.parquet": stream.getvalue() for n in range(2)}
    server.disturb = once(Fault(503, {"Retry-After": "0"}), 2)
    opened = open_images("s3://b/t-*.parquet")
    assert len(opened.every()) == 24
    assert opened.every().image(1).content() == jpeg(1)
    server.forget()
    open_images("s3://b/t-{0..1}.parquet")
    assert [method for method, path in server.requests if path.endswith(".parquet")] == ["HEAD"] * 2
    with pytest.raises(RefusedError, match=r"nowhere.parquet: no such file"):
        open_images("s3://b/nowhere.parquet")
    with pytest.raises(DataError, match=r"x.csv: over a network DATA is tar shards or Parquet"):
        open_images("https://127.0.0.1/x.csv")


def test_many_bytes_are_not_read_to_identify_images(server, shards, monkeypatch, capsys) -> None:
    source, some = open_images(shards).every(), np.array([5, 2, 17])
    whole = identities(source)
    server.requests.clear()
    assert np.array_equal(identities(source.take(some)), whole[some])
    monkeypatch.setattr(numbering, "MOST_READ", 1000)
    found = identities(source)
    assert np.array_equal(identities(source.take(some)), found[some])
    assert not server.requests
    assert not np.array_equal(found, whole)
    assert len(np.unique(found)) == len(source)
    assert (found >= NUMBERS).all()
    assert np.array_equal(found, identities(open_images(shards).every()))
    assert "identified by their places in their shards" in capsys.readouterr().err
