"""The folder of an export, and its script, which runs without ViTLab on the target."""

import subprocess
import sys
from collections.abc import Callable
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
from vitlab.weights.save_head import save_head

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
        "onnxruntime on CPU: largest difference 0 (limit 0.0001)",
        "no block of 2 deviates: cosine at least 1.000000",
    ]


def test_the_reference_is_the_model(folder: Path, model: Model) -> None:
    stored = dict(np.load(folder / "reference.npz"))
    image = stored["0:input:image"]
    for row, answer in zip(
        stored["0:output:probabilities"], vitlab.classify(model, [*image], top=3), strict=True
    ):
        chances = dict(answer.classes)
        for name, chance in zip(model.config.labels, row, strict=True):
            assert abs(chances[name] - chance) < 1e-5
    wanted = model.intermediates(vitlab.preprocess(model)([*image]), [1, 2])
    blocks = [each for name, each in stored.items() if name.startswith("0:block:")]
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
    names = [name for name in np.load(folder / "reference.npz") if name.startswith("0:block:")]
    made = [node.output[0] for node in proto.graph.node]
    place = made.index(names[0].removeprefix("0:block:"))
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
    save_head(head, tmp_path / "run")
    export_headed(tmp_path / "run", folder := tmp_path / "made", "numbers")
    assert checked(capsys, monkeypatch, folder)[0] == 0
    stored = dict(np.load(folder / "reference.npz"))
    stored["0:output:values"][:, 0] += 1e-5  # ten deviations of that column
    np.savez(folder / "reference.npz", allow_pickle=False, **stored)
    assert checked(capsys, monkeypatch, folder)[0] == 1


def test_a_text_that_is_another_is_refused(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    tmp_path: Path,
) -> None:
    """Names of classes in the graph, and every text of the metadata."""

    def told(spoil: Callable[[onnx.ModelProto], None]) -> str:
        proto = onnx.load(folder / "model.onnx")
        spoil(proto)
        for name in ("reference.npz", "check.py"):
            (tmp_path / name).write_bytes((folder / name).read_bytes())
        onnx.save(proto, tmp_path / "model.onnx")
        status, out = checked(capsys, monkeypatch, tmp_path)
        assert status == 1
        return out

    def swap(proto: onnx.ModelProto) -> None:
        (names,) = [each for each in proto.graph.initializer if each.name == "class_names"]
        names.string_data[0], names.string_data[1] = names.string_data[1], names.string_data[0]

    def rename(proto: onnx.ModelProto) -> None:
        proto.metadata_props[0].value = proto.metadata_props[0].value.replace("mit", "gpl")

    assert "strings 'class_names': number 1 is 'dog', at the export 'cat'" in told(swap)
    assert "metadata 'vitlab': differs from that of the export" in told(rename)
    assert "metadata 'vitlab': is missing" in told(lambda proto: proto.metadata_props.pop())
    more = {"key": "more", "value": "text"}
    assert "'more': was not there" in told(lambda proto: proto.metadata_props.add(**more))


REFUSED = {
    ("--device", "TPU"): "onnxruntime: no device 'TPU' here: --device",
    ("--set", "session.x64quantprecison=1"): "did you mean session.x64quantprecision",
    ("--set", "fast"): "onnxruntime: --set takes KEY=VALUE, not 'fast'",
    ("--device", "cpuexecutionprovider"): "onnxruntime on CPU: largest difference 0",
}


def test_devices_and_settings_that_there_are(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    folder: Path,
    tmp_path: Path,
) -> None:
    for words, line in REFUSED.items():
        status, out = checked(capsys, monkeypatch, folder, *words)
        assert (status, line in out) == ("largest" not in line, True), out
    for name in ("reference.npz", "check.py"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    proto = onnx.load(folder / "model.onnx")
    next(node for node in proto.graph.node if node.op_type == "MatMul").op_type = "Unknown"
    onnx.save(proto, tmp_path / "model.onnx")
    status, out = checked(capsys, monkeypatch, tmp_path)
    assert (status, len(out.splitlines())) == (1, 1)
    assert out.startswith("onnxruntime refuses the file: ")
    pytest.importorskip("openvino")
    status, out = checked(capsys, monkeypatch, folder, "openvino", "--set", "PRECISION=f32")
    assert (status, "unknown --set PRECISION: did you mean" in out) == (1, True)
    status, out = checked(capsys, monkeypatch, folder, "openvino", "--device", "XPU")
    assert (status, "no device 'XPU' here: --device AUTO, CPU" in out) == (1, True)
