"""A folder of parts is the same whoever fills it, in whatever order, and however often killed."""

import json
import multiprocessing
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from pyarrow import dataset, parquet

import vitlab
from evaluation.shard_jobs import (
    all_of,
    content,
    embed,
    killed,
    predict,
    shards,
    small_batches,
    tiny,
)
from steady import PATIENCE
from vitlab.errors import DataError, DiskError, OptionError
from vitlab.evaluation import infer
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.shards import Shard, ShardJob
from vitlab.locks import Lock

few_at_a_time = pytest.fixture(scope="module", autouse=True)(small_batches)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    """ShardFolder of sixty images without labels; number five is damaged."""
    return shards(tmp_path_factory.mktemp("data") / "tars", 3, 20)


@pytest.fixture(scope="module")
def alone(data: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The features of all of them, by one process."""
    folder = tmp_path_factory.mktemp("alone") / "features"
    embed(data, folder)
    return folder


def test_the_folder_holds_what_the_single_file_does(data: str, alone: Path, tmp_path: Path) -> None:
    embed(data, tmp_path / "one.parquet")
    one = parquet.read_table(tmp_path / "one.parquet").to_pandas()
    assert len(one) == 59
    assert set(one["split"]) == {"all"}
    assert one["label"].isna().all()
    for found in (dataset.dataset(alone).to_table().to_pandas(), pd.read_parquet(alone)):
        assert list(found["path"]) == list(one["path"])
        np.testing.assert_array_equal(np.stack(found["features"]), np.stack(one["features"]))
    assert sorted(each.name for each in alone.glob("*.parquet")) == [
        f"all-{number:05d}.parquet" for number in range(8)
    ]
    for file in alone.glob("*.parquet"):
        parquet.read_table(file, page_checksum_verification=True)
    bad = parquet.read_metadata(alone / "all-00000.parquet").metadata[b"vitlab.damaged"]
    assert "00005: not a JPEG" in json.loads(bad)[0]
    assert len(parquet.read_table(alone / "all-00000.parquet")) == 7


@pytest.mark.workers
def test_processes_that_decode_change_nothing(data: str, alone: Path, tmp_path: Path) -> None:
    embed(data, tmp_path / "x", workers=2)
    assert content(tmp_path / "x") == content(alone)


def test_a_shard_has_its_own_parts_and_another_number_of_shards_goes_on(
    data: str, alone: Path, tmp_path: Path
) -> None:
    out = tmp_path / "x"
    found = embed(data, out, shard="1/4")
    assert sorted(each.name for each in out.glob("*.parquet")) == [
        "all-00001.parquet",
        "all-00005.parquet",
    ]
    assert [found[key] for key in ("images", "damaged", "parts", "left")] == [16, 0, 8, 6]
    assert embed(data, out, shard="0/3")["left"] == 3
    assert embed(data, out)["own_parts"] == 3
    assert content(out) == content(alone)
    for text in ("4/4", "5/4", "4", "a/b", "-1/4", "0/0"):
        with pytest.raises(
            OptionError, match="shard must be a number from 0 and how many there are"
        ):
            embed(data, out, shard=text)
    with pytest.raises(OptionError, match="shard applies only with a folder as out"):
        embed(data, tmp_path / "x.parquet", shard="0/2")


def test_killed_and_repeated_with_others(data: str, alone: Path, tmp_path: Path) -> None:
    out = tmp_path / "x"
    killed(partial(embed, data, out, workers=2), out, 3)
    there = {file: file.stat().st_mtime_ns for file in out.glob("*.parquet")}
    assert len(there) < 8
    found = embed(data, out, workers=2)
    assert content(out) == content(alone)
    kept = sum(file.stat().st_mtime_ns == before for file, before in there.items())
    assert found["own_parts"] == 8 - kept  # none is written again
    assert embed(data, out)["own_parts"] == 0


def test_a_stop_says_how_to_go_on(
    data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, taken = infer.take, []

    def interrupted(*given: object) -> torch.Tensor:
        taken.append(given)
        if len(taken) == 6:
            raise KeyboardInterrupt
        return take(*given)

    monkeypatch.setattr(infer, "take", interrupted)
    with pytest.raises(KeyboardInterrupt, match="stopped with 2 of 8 parts: run the same command"):
        embed(data, tmp_path / "x")
    names = [*(f"_parts/all-0000{n}.json" for n in (0, 1)), "_job.json"]
    assert {*content(tmp_path / "x")} == {*names, "all-00000.parquet", "all-00001.parquet"}


def test_a_damaged_part_is_made_once_more_and_drafts_go(
    data: str, alone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "x"
    embed(data, out)
    victim, receipt = out / "all-00003.parquet", out / "_parts" / "all-00003.json"
    whole = victim.read_bytes()
    damaged = f"{victim} is damaged: computing it again\n"
    harms: list[tuple[Callable[[], object], str]] = [
        (
            lambda: victim.write_bytes(whole[:1500] + bytes([whole[1500] ^ 1]) + whole[1501:]),
            damaged,
        ),
        (lambda: victim.write_bytes(whole[:-9]), damaged),
        (lambda: receipt.write_text("{"), damaged),
        (victim.unlink, f"{victim} is missing: computing it again\n"),
        (receipt.unlink, ""),
    ]
    for harm, words in harms:
        harm()
        capsys.readouterr()
        assert embed(data, out)["own_parts"] == 1
        assert content(out) == content(alone)
        lines = capsys.readouterr().err.splitlines(keepends=True)
        assert "".join(each for each in lines if not each.startswith("no labels: ")) == words
    receipt.unlink()
    for name in ("._job.json", ".all-00003.parquet", "_parts/.all-00003.json"):
        (out / f"{name}.draft-abcd1234").write_text("half")  # of a killed process
    (out / ".all-00003.parquet.mine").write_text("x")
    embed(data, out)
    assert content(out) == content(alone) | {".all-00003.parquet.mine": b"x"}


def test_another_job_is_refused_and_changes_nothing(data: str, tmp_path: Path) -> None:
    out = tmp_path / "x"
    embed(data, out)
    before = content(out)
    others = [
        (partial(embed, data, out, layer=1, what="mean"), "what=features there, mean here"),
        (partial(embed, data, out, part_images=12), "part_images=8 there, 12 here"),
        (partial(embed, data.replace("s-*", "s-000"), out), "other data; images=60 there, 20 here"),
        (partial(embed, data, out, precision="bf16"), "precision=fp32 there, bf16 here"),
        (partial(predict, data, out), "of vitlab embed"),
        (partial(vitlab.embed, tiny(1), data, out, part_images=8, workers=0), "other weights"),
    ]
    for work, words in others:
        with pytest.raises(DataError, match=f"parts of another job .*{words}"):
            work()
    assert content(out) == before
    (out / "_job.json").write_text("[")
    with pytest.raises(DiskError, match=r"_job\.json is damaged: .*: choose another --out"):
        embed(data, out)
    (out / "_job.json").write_text("[]")
    with pytest.raises(DiskError, match=r"_job\.json is damaged: it holds no object, but a list"):
        embed(data, out)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    with pytest.raises(DiskError, match="full contains other files: choose another --out"):
        embed(data, tmp_path / "full")
    assert [each.name for each in (tmp_path / "full").iterdir()] == ["thesis.tex"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(DiskError, match="file is a file"):
        embed(data, f"{tmp_path / 'file'}/")
    (tmp_path / "a.png").write_bytes(b"noise")
    for work in (embed, predict):
        with pytest.raises(DataError, match=r"a\.png: not a JPEG"):
            work(str(tmp_path / "*.png"), tmp_path / work.__name__)


def test_a_folder_that_is_being_filled_is_refused_but_to_shards(
    data: str, alone: Path, tmp_path: Path
) -> None:
    out = tmp_path / "x"
    words = "another process is writing .*x: wait for it, choose another --out, or give each"
    with Lock(out / "_lock", "").held():
        for shard in ("", "0/2"):
            with pytest.raises(DiskError, match=words):
                embed(data, out, shard=shard)
    with Lock(out / "_lock", "").held(shared=True):
        with pytest.raises(DiskError, match=words):
            embed(data, out)
        embed(data, out, shard="0/2")
        (out / ".all-00003.parquet.draft-abcd1234").mkdir()
        embed(data, out, shard="1/2")
        assert (out / ".all-00003.parquet.draft-abcd1234").exists()  # of whom else is here
    embed(data, out, shard="1/2")
    assert content(out) == content(alone)
    assert not (out / ".all-00003.parquet.draft-abcd1234").exists()


def test_without_locks_the_result_is_the_same(
    data: str, alone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise OSError(38, "not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    together = multiprocessing.get_context("fork").Barrier(2)
    meet = cache(partial(together.wait, PATIENCE))  # before the first pass of each
    work = partial(embed, data, tmp_path / "x", before=meet)
    said = all_of([work, work], tmp_path / "said")
    assert [each["value"]["images"] for each in said] == [59, 59]
    assert content(tmp_path / "x") == content(alone)


def test_splits_and_labels(tmp_path: Path) -> None:
    data = shards(tmp_path / "tars", 2, 12, lambda number: "abc"[number % 3])
    embed(data, tmp_path / "x")
    names = sorted(each.name for each in (tmp_path / "x").glob("*.parquet"))
    assert names == [f"test-{0:05d}.parquet", *(f"train-{n:05d}.parquet" for n in range(3))]
    table, chosen = dataset.dataset(tmp_path / "x"), dataset.field("split") == "train"
    batches = table.to_batches(columns=["features"], filter=chosen)
    vectors = [each["features"].flatten().to_numpy().reshape(len(each), -1) for each in batches
               if len(each)]  # fmt: skip
    found = table.to_table().to_pandas()
    expected = np.stack(found["features"][found["split"] == "train"])
    np.testing.assert_array_equal(np.concatenate(vectors), expected)
    assert len(found) == len(set(found["path"])) == 23
    numbers = [int(path.split()[-1]) for path in found["path"]]
    assert list(found["label"]) == ["abc"[number % 3] for number in numbers]


def test_predictions_in_each_format(data: str, tmp_path: Path) -> None:
    from vitlab.evaluation.classification import classify_into, classify_shards, unlabeled

    cpu = Compute("cpu", workers=0)
    classify_into(tmp_path / "one.csv", tiny(), unlabeled(tiny(), data), cpu)
    one = pd.read_csv(tmp_path / "one.csv")
    read = {"csv": pd.read_csv, "parquet": pd.read_parquet}
    read["jsonl"] = partial(pd.read_json, lines=True)
    for ending, reader in read.items():
        out = tmp_path / ending
        for number, images in enumerate((32, 28)):
            found = predict(data, out, ending=ending, shard=f"{number}/2")
            assert found["own_images"] == images
        found = pd.concat([reader(file) for file in sorted(out.glob(f"*.{ending}"))])
        assert list(found["image"]) == list(one["image"])
        assert list(found["predicted"].fillna("")) == list(one["predicted"].fillna(""))
        assert found["error"].notna().sum() == 1
        np.testing.assert_allclose(found["p(blue)"], one["p(blue)"], atol=1e-6)
    assert len(pd.read_parquet(tmp_path / "parquet")) == 60
    with pytest.raises(DataError, match="flips=False there, True here"):
        predict(data, tmp_path / "csv", ending="csv", flips=True)
    features = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=32)/4", classes=0, image_size=8)
    with pytest.raises(OptionError, match="no classifier"):
        classify_shards(tmp_path / "y", features, lambda: unlabeled(features, data), cpu)


def test_the_parts_of_unequal_splits() -> None:
    counts = {"train": range(17), "validation": range(0), "test": range(8)}
    job = ShardJob("", {}, tiny(), counts, Compute(), "pixels", 8, ".x", None)  # type: ignore[arg-type]
    assert job.shards == [
        Shard("train-00000", "train", range(2), 8),
        Shard("train-00001", "train", range(2, 4), 8),
        Shard("train-00002", "train", range(4, 5), 1),
        Shard("test-00000", "test", range(2), 8),
    ]
