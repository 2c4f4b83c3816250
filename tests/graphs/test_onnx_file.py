"""ONNX files of every architecture: raw images in, the probabilities of `vitlab.classify` out."""

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper
from torch.nn import functional as F

import vitlab
from conftest import call
from graphs.conftest import CLASSES, model_of
from made_models import noisy
from models.test_architectures import CASES, a_model
from vitlab.commands import export as export_command
from vitlab.errors import DiskError, OptionError, PackageError, WeightsError
from vitlab.graphs import onnx_file
from vitlab.graphs.agreement import agree, check
from vitlab.graphs.complete import Complete, traceable
from vitlab.graphs.exporting import on_processor
from vitlab.graphs.headed_onnx import export_headed
from vitlab.graphs.onnx_file import keep_padding
from vitlab.models.heads.regress import Regressor, Targets
from vitlab.models.model import Model
from vitlab.weights.save_head import save_head


def pixels(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(sum(shape)).integers(0, 256, (*shape, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def exported(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("onnx") / "model.onnx"
    found = vitlab.export(model, file)
    assert found["batches"] == [1, 2, 7]
    assert found["difference"] < 5e-6
    assert found["bytes"] == file.stat().st_size
    assert [each.name for each in file.parent.iterdir()] == ["model.onnx"]
    return file


def test_images_of_any_size_have_the_probabilities_of_classify(
    exported: Path, model: Model
) -> None:
    session = onnxruntime.InferenceSession(str(exported))
    for count, *size in ((1, 32, 32), (7, 7, 300), (2, 300, 7), (1, 1, 1), (2, 240, 320)):
        images = pixels(count, *size)
        names = ["probabilities", "labels", "label", "distance"]
        found, labels, label, far = session.run(names, {"image": images})
        assert tuple(labels) == CLASSES
        answers = vitlab.classify(model, [*images], top=3)
        np.testing.assert_allclose(far, [e.distance for e in answers], rtol=1e-3, atol=1e-3)
        for row, name, answer in zip(found, label, answers, strict=True):
            assert name == answer.classes[0][0]
            for each, chance in answer.classes:
                assert abs(row[CLASSES.index(each)] - chance) < 5e-6
    images = np.zeros((30, 40, 40, 3), np.uint8)
    images[:] = np.random.default_rng(0).integers(0, 256, (30, 1, 1, 3))
    (label,) = session.run(["label"], {"image": images})
    assert [*label] == [e.classes[0][0] for e in vitlab.classify(model, [*images], top=1)]
    assert len({*label}) > 1


def test_the_file_says_what_it_is(exported: Path) -> None:
    proto = onnx.load(exported)
    onnx.checker.check_model(proto, full_check=True)
    (entry,) = [each for each in proto.metadata_props if each.key == "vitlab"]
    facts = json.loads(entry.value)
    assert facts["classes"] == [*CLASSES]
    assert (facts["mean"], facts["unlike"]) == ([0.5, 0.5, 0.5], "distance > 1")
    assert facts["image_size"] == [32, 32]
    assert (facts["crop"], facts["interpolation"], facts["fit"]) == (0.9, "bicubic", "crop")
    assert (facts["temperature"], facts["multi_label"]) == (1.3, False)
    assert (facts["recipe"], facts["license"], facts["source"]) == ("vit", "mit", "weights.npz")
    content = exported.read_bytes()
    for private in (b"/home/me", b"secret", str(Path(vitlab.__file__).parent).encode(), b".py"):
        assert private not in content


def test_several_labels_of_squashed_images() -> None:
    """Sigmoids instead of a softmax, before the graph is written."""
    model = model_of(fit="squash", interpolation="bilinear", crop=1.0)
    model.provenance["multi_label"] = True
    for size in ((50, 90), (200, 33), (32, 32)):
        images = pixels(3, *size)
        found = Complete(model).eval()(torch.from_numpy(images))
        for row, answer in zip(found, vitlab.classify(model, [*images]), strict=True):
            chances = dict(answer.classes)
            for name, chance in zip(CLASSES, row.tolist(), strict=True):
                assert abs(chance - chances[name]) < 1e-6


def test_the_command(capsys: pytest.CaptureFixture[str], model: Model, tmp_path: Path) -> None:
    """Bare: normalized images to logits, and not a word of PyTorch's exporter."""
    vitlab.save(model, tmp_path / "saved")
    out = str(tmp_path / "bare.onnx")
    line = ("export", str(tmp_path / "saved"), "--to", "onnx", "--out", out, "--bare", "--json")
    code, stdout, stderr = call(capsys, *line)
    assert code == 0
    facts = json.loads(stdout)
    assert facts["inputs"] == {"images": ["batch", 3, 32, 32]}
    assert facts["outputs"] == {"logits": ["batch", 3]}
    assert {each.partition(" …")[0] for each in stderr.splitlines()} <= {"exporting", "checking"}
    session = onnxruntime.InferenceSession(out)
    images = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    found = session.run(None, {"images": images.numpy()})[0]
    np.testing.assert_allclose(found, model(images).detach().numpy(), atol=1e-5)
    code, _, stderr = call(capsys, *line)
    assert code == 2
    assert stderr == f"vitlab export: {out} already exists: choose another --out\n"


def test_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    shapes = {"inputs": {"images": ["batch", 3, 32, 32]}, "outputs": {"logits": ["batch", 3]}}
    facts = {"model": "ViT-S/16", "format": "onnx", "file": "a.onnx", "bytes": 2_000_000}
    figures = {"batches": [1, 2, 7], "difference": 3.4e-7}
    export_command.show(facts | shapes | figures)
    out = capsys.readouterr().out
    assert "inputs: images (batch, 3, 32, 32)\noutputs: logits (batch, 3)\n" in out
    assert "checked with 1, 2, 7 images: within 3e-07 of the model" in out


Refused = tuple[Callable[[Model, Path], Any], type[Exception], str]
REFUSED: list[Refused] = [
    (lambda m, f: vitlab.export(m, f / "a.bin"), OptionError, "end in .onnx for onnx"),
    (lambda m, f: vitlab.export(m, f / "a.onnx", "onx"), OptionError, "did you mean onnx"),
    (lambda m, f: vitlab.export(m, "."), OptionError, "out must be the name of a file or folder"),
    (lambda m, f: vitlab.export(vitlab.fuse(m), f / "a.onnx"), WeightsError, "fused"),
    (lambda m, f: vitlab.export(torch.nn.Linear(2, 2), f / "a.onnx"), WeightsError, "a Linear"),
]


def test_what_is_refused(
    model: Model, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for spoil, error, words in REFUSED:
        with pytest.raises(error, match=words):
            spoil(model, tmp_path)
    before = exported.read_bytes()
    with pytest.raises(DiskError, match="already exists"):
        vitlab.export(model, exported)
    assert exported.read_bytes() == before
    monkeypatch.setattr(onnx_file, "LARGEST", 10_000)
    with pytest.raises(WeightsError, match="holds at most 10,000: export it with --to torch"):
        vitlab.export(model, tmp_path / "a.onnx")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PackageError, match=r"\.onnx files needs? .*vitlab\[export\]"):
        vitlab.export(model, tmp_path / "a.onnx")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"fit": "native", "pool": "mean"}, "fit=native cannot be computed inside a graph: pass"),
        ({"channels": 4, "mean": 0.5, "std": 0.5}, "images of 4 channels cannot be prepared"),
        ({"pool": "attention", "queries": 2}, "2 answers for each image"),
    ],
)
def test_what_can_be_exported_bare_only(
    tmp_path: Path, choices: dict[str, Any], words: str
) -> None:
    model = model_of(**choices)
    with pytest.raises(OptionError, match=words) as caught:
        vitlab.export(model, tmp_path / "a.onnx")
    assert "--bare (bare=True)" in str(caught.value)
    assert not [*tmp_path.iterdir()]
    images = torch.randn(2, model.config.channels, 32, 32)
    form = traceable(model, bare=True)
    torch.testing.assert_close(form.module(images), model(images), rtol=0, atol=1e-5)


def test_a_model_in_half_precision_becomes_one_in_float32(model: Model) -> None:
    half = copy.deepcopy(model).bfloat16()
    found = on_processor(half)
    assert {each.dtype for each in found.parameters()} == {torch.float32}
    assert {each.dtype for each in half.parameters()} == {torch.bfloat16}
    assert on_processor(model) is model


def test_a_file_that_differs_from_the_model_is_refused(model: Model, exported: Path) -> None:
    other = model_of(norm_eps=0.5)
    other.unlike = model.unlike
    with pytest.raises(WeightsError, match=r"would differ from ViT.* by .* nothing is written"):
        check(exported, other, traceable(other))


def test_a_file_that_gives_no_numbers_is_refused(model: Model) -> None:
    """NaN is not within any limit, not even where labeled images judge."""
    nothing = {"probabilities": np.full((2, 3), np.nan), "distance": np.full(2, np.nan)}
    for tolerance in (1e-4, math.inf):
        with pytest.raises(WeightsError, match=r"by nan of .* in onnxruntime"):
            agree(
                lambda images: nothing, model, bare=False, where="onnxruntime", counts=(2,),
                tolerance=tolerance,
            )  # fmt: skip


COMPLETE = ("BEiT", "Axial ResNet", "BiT", "EVA-02", "Perception Encoder", "relative")


def test_padding_before_a_maximum_is_kept() -> None:
    """Without the change to the graph, onnxruntime's defaults lose the zeros of BiT's root."""
    pads, value = [0, 0, 1, 1, 0, 0, 1, 1], 0.0
    graph = helper.make_graph(
        [
            helper.make_node("Pad", ["images", "pads", "value"], ["padded"]),
            helper.make_node("MaxPool", ["padded"], ["out"], kernel_shape=[3, 3], strides=[2, 2]),
        ],
        "root",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 2, 8, 8])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 2, 4, 4])],
        [
            helper.make_tensor("pads", TensorProto.INT64, [8], pads),
            helper.make_tensor("value", TensorProto.FLOAT, [], [value]),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    images = torch.randn(1, 2, 8, 8, generator=torch.Generator().manual_seed(0)) - 3
    want = F.max_pool2d(F.pad(images, (1, 1, 1, 1)), 3, 2)

    def difference() -> float:
        session = onnxruntime.InferenceSession(proto.SerializeToString())
        found = torch.from_numpy(session.run(None, {"images": images.numpy()})[0])
        return float((found - want).abs().max())

    before = difference()
    keep_padding(proto)
    assert difference() == 0
    assert before > 1, "onnxruntime is right by itself: keep_padding is no longer needed"


def test_numbers_of_a_resnet_with_padding_before_a_maximum(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    how = {"fit": "squash", "crop": 1.0, "generator": generator}
    model = noisy(vitlab.create("BiT-R(1)x1", 0, 32, **how))
    weight = np.random.default_rng(0).normal(size=(2, model.config.features))
    scale = np.array([[40.0, 170.0], [10.0, 9.0]])
    head = Regressor(model, Targets(("age", "height"), spread=False), weight, np.zeros(2), scale)
    vitlab.save(model, tmp_path / "run" / "model")
    save_head(head, tmp_path / "run")
    found = export_headed(tmp_path / "run", tmp_path / "numbers.onnx", "numbers")
    assert found["difference"] < 1e-5


FEW = (("BiT", True), ("relative", True))


@pytest.mark.parametrize(
    ("case", "bare"),
    [*FEW, *(pytest.param(case, bare, marks=pytest.mark.campaign) for bare, cases in
             ((True, CASES), (False, COMPLETE)) for case in cases)],
)  # fmt: skip
def test_an_architecture_at_one_two_and_seven_images(case: str, bare: bool, tmp_path: Path) -> None:
    shallow = {"depth": 1} if "ViT" in CASES[case][0] else {}
    found = vitlab.export(a_model(case, **shallow), tmp_path / "a.onnx", bare=bare)
    assert found["batches"] == [1, 2, 7]
    assert found["difference"] < 5e-5
