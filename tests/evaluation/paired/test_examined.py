"""What a run keeps of its model's answers, and when they are computed again."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import vitlab
from six_runs import run_in
from vitlab.errors import DataError, UserError
from vitlab.evaluation.paired_tests import figures_of
from vitlab.evaluation.run_predictions import examine, kept, reopened
from vitlab.runs.kept_arrays import read_arrays, write_arrays
from vitlab.runs.run_folder import RunFolder
from vitlab.weights.save import save_provenance


@pytest.fixture
def run(digits_run: Path, tmp_path: Path) -> RunFolder:
    """A copy of a finished run."""
    return RunFolder(shutil.copytree(digits_run, tmp_path / "copy"))


def test_a_run_keeps_what_an_evaluation_finds(run: RunFolder) -> None:
    before, result = kept(run), run.result()
    assert before is not None
    assert result is not None
    for name, value in figures_of(before.answers).items():
        assert value == pytest.approx(result[name]), name
    assert before.classes == tuple("0123456789")
    run.predictions.unlink()
    shown: list[tuple[int, int]] = []
    again = examine(run, workers=0, progress=lambda images, total: shown.append((images, total)))
    assert shown[-1] == (359, 359)
    for name, values in before.arrays.items():
        np.testing.assert_allclose(again.arrays[name], values, err_msg=name)
    run.path.joinpath("model", "model.safetensors").unlink()
    assert examine(run).arrays.keys() == before.arrays.keys()  # without the model


def test_they_are_computed_again_where_model_or_data_have_changed(run: RunFolder) -> None:
    model = vitlab.load(run.path)
    model.provenance["temperature"] = 2.0
    save_provenance(model, run.model)
    before = read_arrays(run.predictions, dict)
    assert before is not None
    assert kept(run) is None
    again = examine(run, workers=0)
    assert again.answers.confidence.mean() < before[0]["confidence"].mean()
    assert kept(run) is not None
    text = run.path.joinpath("run.toml").read_text()
    run.path.joinpath("run.toml").write_text(text.replace('fingerprint = "', 'fingerprint = "0'))
    other = RunFolder(run.path)
    assert kept(other) is None
    with pytest.raises(DataError, match="digits has changed since the run was trained"):
        examine(other)
    with pytest.raises(DataError):
        reopened(other)


def test_a_damaged_file_is_as_good_as_none(run: RunFolder) -> None:
    content = run.predictions.read_bytes()
    assert kept(run) is not None
    for damaged in (b"", content[:-9], content[:-1] + bytes([content[-1] ^ 1]), b"\xff" * 99):
        run.predictions.write_bytes(damaged)
        assert kept(run) is None
    run.predictions.unlink()
    run.predictions.mkdir()
    assert kept(run) is None
    shutil.rmtree(run.model)
    with pytest.raises(UserError, match="contains no model"):
        examine(run)


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "predictions.safetensors"
    arrays = {"a": np.arange(6).reshape(2, 3).T, "b": np.array([0.1, np.nan])}
    write_arrays(file, arrays, {"classes": ["é", "\udce9"]})
    found = read_arrays(file, dict)
    assert found is not None
    for name, values in arrays.items():
        np.testing.assert_array_equal(found[0][name], values)
    assert found[1] == {"classes": ["é", "\udce9"]}


def test_of_several_labels(tags_run: Path) -> None:
    run = run_in(tags_run)
    found = kept(RunFolder(run.folder))
    assert found is not None
    own = figures_of(found.answers)
    for name in ("map", "micro_f1", "macro_f1", "bce"):
        assert own[name] == pytest.approx(run.metrics[name]), name
