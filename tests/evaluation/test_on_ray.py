"""`on="ray"`: what is refused before a cluster is started, and how the work is described."""

import importlib.util
from pathlib import Path

import pytest

import vitlab
from conftest import call
from evaluation.ray_jobs import PART, embed, small_model, some_photos
from vitlab.errors import OptionError, PackageError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.on_ray import check_on, shared_out
from vitlab.evaluation.shards import ShardFolder, ShardJob, ShardNumber

model = pytest.fixture(scope="module")(small_model)
photos = pytest.fixture(scope="module")(some_photos)


@pytest.fixture
def without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    absent = lambda name, *more: None if name == "ray" else real(name, *more)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", absent)


@pytest.mark.usefixtures("without_ray")
def test_without_ray_every_command_names_the_extra(
    model: vitlab.VisionTransformer, photos: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = str(vitlab.save(model, tmp_path / "weights"))
    for words in (
        ("embed", weights, photos, "--out", str(tmp_path / "x.parquet")),
        ("predict", weights, photos, "--out", str(tmp_path / "x")),
    ):
        code, out, err = call(capsys, *words, "--on", "ray")
        said = f'vitlab {words[0]}: on=ray needs the package ray: pip install "vitlab[ray]"\n'
        assert (code, out, err) == (2, "", said)
    with pytest.raises(PackageError, match="needs the package ray"):
        embed(model, photos, tmp_path / "x", on="ray")
    assert [each.name for each in tmp_path.iterdir()] == ["weights"]


def test_who_shares_the_work_already_is_refused(
    model: vitlab.VisionTransformer, photos: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not check_on("")
    with pytest.raises(OptionError, match="on must be ray, or empty for this process, not 'dask'"):
        embed(model, photos, tmp_path / "x", on="dask")
    with pytest.raises(OptionError, match="starts its own processes: leave out shard"):
        embed(model, photos, tmp_path / "x", on="ray", shard="0/2")
    torchrun = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in torchrun.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(OptionError, match="leave out torchrun") as found:
        check_on("ray", ShardNumber())
    assert found.value.quiet


def test_a_single_file_of_predictions_is_not_written_on_ray(
    model: vitlab.VisionTransformer, photos: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = str(vitlab.save(model, tmp_path / "weights"))
    code, _, err = call(capsys, "predict", weights, photos, "--on", "ray")
    assert (code, err) == (2, "vitlab predict: on=ray applies only with a folder as out\n")


def test_this_process_only_describes_the_work() -> None:
    here, theirs = shared_out(Compute("cuda", "auto", "compiled", workers=3))
    assert (here.device, here.engine, here.precision) == ("cpu", "plain", "fp32")
    assert (theirs.device, theirs.engine, theirs.precision) == ("cuda", "compiled", "fp32")
    assert not theirs.measure


def test_each_process_that_died_has_left_a_draft(
    model: vitlab.VisionTransformer, tmp_path: Path
) -> None:
    what = model, {"all": range(20)}, Compute(), "pixels", PART, ".x", None
    job = ShardJob("", {}, *what)  # type: ignore[arg-type]
    folder = ShardFolder(tmp_path, job)
    for letter in "ab":
        (tmp_path / f".all-00000.x.draft-{letter * 8}").touch()
    (tmp_path / "all-00001.x").touch()
    assert [folder.deaths(shard) for shard in job.shards] == [2, 0]
