"""The folder of an export, and its script, which runs without ViTLab on the target."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import vitlab
from made_heads import regressor
from vitlab.graphs import check
from vitlab.graphs.headed_onnx import export_headed
from vitlab.models.model import Model

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("check") / "made"
    found = vitlab.export(model, folder)
    assert (found["folder"], found["file"]) == (str(folder), str(folder / "model.onnx"))
    assert {each.name for each in folder.iterdir()} == {"model.onnx", "reference.npz", "check.py"}
    return folder


def checked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path, *words: str
) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["check.py", *words, "--folder", str(folder)])
    status = check.main()
    return status, capsys.readouterr().out


def test_it_runs_by_itself(folder: Path) -> None:
    """In a process that cannot import ViTLab, PyTorch or onnx."""
    code = (
        "import runpy, sys; sys.argv = ['check.py']\n"
        "for each in ('vitlab', 'torch', 'onnx'): sys.modules[each] = None\n"
        "runpy.run_path('check.py', run_name='__main__')"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == [
        "onnxruntime: largest difference 0 (limit 0.0001)",
        "no block of 2 deviates: cosine at least 1.000000",
    ]


def test_the_reference_is_the_model(folder: Path, model: Model) -> None:
    stored = dict(np.load(folder / "reference.npz"))
    image = stored["input:image"]
    for row, answer in zip(
        stored["output:probabilities"], vitlab.classify(model, [*image], top=3), strict=True
    ):
        chances = dict(answer.classes)
        for name, chance in zip(model.config.labels, row, strict=True):
            assert abs(chances[name] - chance) < 1e-5
    wanted = model.intermediates(vitlab.preprocess(model)([*image]), [1, 2])
    blocks = [each for name, each in stored.items() if name.startswith("block:")]
    for own, found in zip(wanted, blocks, strict=True):
        torch.testing.assert_close(torch.from_numpy(found), own, rtol=1e-4, atol=1e-4)


def test_the_first_block_that_deviates_is_named(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    tmp_path: Path,
) -> None:
    """The weights of one block are spoilt, as a runtime with a wrong kernel would."""
    proto = onnx.load(folder / "model.onnx")
    names = [name for name in np.load(folder / "reference.npz") if name.startswith("block:")]
    made = [node.output[0] for node in proto.graph.node]
    place = made.index(names[0].removeprefix("block:"))
    weights = {each.name: each for each in proto.graph.initializer}
    product = next(
        node
        for node in proto.graph.node[place:]
        if node.op_type == "MatMul" and node.input[1] in weights
    )
    tensor = weights[product.input[1]]
    spoilt = numpy_helper.to_array(tensor)[::-1] * 3
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(spoilt), tensor.name))
    for name in ("reference.npz", "check.py"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    onnx.save(proto, tmp_path / "model.onnx")
    status, out = checked(capsys, monkeypatch, tmp_path)
    assert status == 1
    assert "block 2 of 2 deviates first: cosine" in out
    assert checked(capsys, monkeypatch, folder, "--limit", "-1")[0] == 1
    pytest.importorskip("openvino")
    words = ("openvino", "--set", "INFERENCE_PRECISION_HINT=f32")
    assert checked(capsys, monkeypatch, folder, *words)[0] == 0


def test_numbers_are_compared_in_their_own_units(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    head = replace(regressor(), scale=np.array([[1e-6, 170.0], [1e-6, 9.0]]))
    vitlab.save(head.model, tmp_path / "run" / "model")
    head.save(tmp_path / "run")
    export_headed(tmp_path / "run", folder := tmp_path / "made", "numbers")
    assert checked(capsys, monkeypatch, folder)[0] == 0
    stored = dict(np.load(folder / "reference.npz"))
    stored["output:values"][:, 0] += 1e-5  # ten deviations of that column
    np.savez(folder / "reference.npz", allow_pickle=False, **stored)
    assert checked(capsys, monkeypatch, folder)[0] == 1
