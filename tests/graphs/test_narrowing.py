"""ONNX files in fewer bits: what is stored, what is computed, and what that is said to cost."""

import copy
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

import vitlab
from conftest import call
from made_models import tiny
from vitlab.commands.export import show
from vitlab.data.identities import identities
from vitlab.data.open import open_images
from vitlab.errors import DataError, OptionError, WeightsError
from vitlab.evaluation.choosing import choose
from vitlab.graphs.agreement import opened
from vitlab.graphs.narrowing import calibrated, halve, products_of, quantize
from vitlab.graphs.narrowing_cost import calibrating, draw, narrowing_cost
from vitlab.models.model import Model
from vitlab.models.seen import marked

PRODUCTS = 4  # of a block: queries with keys and values, projection, and two of the MLP


@pytest.fixture(scope="module")
def run(digits_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy: scales in int8 are kept in it."""
    return Path(shutil.copytree(digits_run, tmp_path_factory.mktemp("runs") / "run"))


@pytest.fixture(scope="module")
def model(run: Path) -> Model:
    return vitlab.load(run)


@pytest.fixture(scope="module")
def whole(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("narrow") / "fp32.onnx"
    vitlab.export(model, file)
    return file


def probabilities(file: Path, images: Any) -> Any:
    session = opened(file)
    return session.run(["probabilities"], {"image": images})[0]


def weights(file: Path) -> dict[str, Any]:
    return {each.name: numpy_helper.to_array(each) for each in onnx.load(file).graph.initializer}


def test_int8_and_its_cost_by_the_command(
    capsys: pytest.CaptureFixture[str], run: Path, model: Model, whole: Path, tmp_path: Path
) -> None:
    out = str(tmp_path / "int8.onnx")
    line = ["export", str(run), "--to", "onnx", "--out", out, "--precision", "int8"]
    code, stdout, stderr = call(capsys, *line, "--data", "digits", "--json")
    assert code == 0
    assert "unmeasured" not in stderr
    assert json.loads((run / "model" / "int8.json").read_text())["images"] == 359
    told = json.loads(stdout)
    show(told)
    shown = capsys.readouterr().out
    before, now = (f"{told[key]:.1%}" for key in ("accuracy_before", "accuracy"))
    for words in ("fp32", "int8", before, now, "on 359 images (test): "):
        assert words in shown, words
    source = choose(model, "digits", "auto").source
    images = np.stack([source.image(number).decode(1) for number in range(len(source))])
    truth = np.array([source.target.classes_of(number)[0] for number in range(len(source))])
    before, after = (probabilities(file, images) for file in (whole, Path(out)))
    assert told["accuracy_before"] == vitlab.evaluate(model, "digits")["accuracy"]
    assert told["accuracy"] == (after.argmax(1) == truth).mean()
    assert told["agreement"] == (after.argmax(1) == before.argmax(1)).mean()
    assert told["largest_change"] == pytest.approx(np.abs(after - before).max(), rel=1e-4)
    assert 0 < told["largest_change"] < 0.2
    alone = np.concatenate([probabilities(Path(out), images[n : n + 1]) for n in range(8)])
    np.testing.assert_allclose(alone, after[:8], rtol=0, atol=1e-6)  # whatever its batch
    about = json.loads({each.key: each.value for each in onnx.load(whole).metadata_props}["vitlab"])
    assert about["learned_from"] == len(model.seen) > 1000
    assert np.load(whole.with_name("fp32.seen.npy")).tolist() == model.seen.tolist()
    assert (told["images"], told["damaged"], told["split"]) == (len(source), 0, "test")
    assert (told["bytes"], told["bytes_before"]) == (
        Path(out).stat().st_size,
        pytest.approx(whole.stat().st_size, rel=0.01),
    )


def test_int8_by_hand(whole: Path, model: Model) -> None:
    """Steps from the smallest number to the largest, a scale per channel, a fifth left out."""
    old, made = weights(whole), onnx.load(whole)
    drawn = draw(model, "digits", 50, bare=False)
    measured = {drawn.asked.source.name(number) for number in drawn.numbers}
    source, numbers = drawn.others  # scales are never of images that are measured on
    assert len(numbers) > 50
    assert not measured & {source.name(number) for number in numbers}
    scales = calibrated(made, calibrating(model, drawn))
    inner = products_of(made.graph)
    quantize(made, scales)
    assert len(scales) == len(inner) == PRODUCTS * len(model.blocks)
    assert sum(each is None for each in scales) == round(len(inner) / 5)
    stored = {each.name: numpy_helper.to_array(each) for each in made.graph.initializer}
    for node, own in zip(inner, scales, strict=True):
        name = node.input[1].removesuffix(".weight")
        if own is None:
            assert stored[f"{node.input[1]}.fp16"].dtype == np.float16
            continue
        assert (stored[f"{name}.step"], stored[f"{name}.zero"]) == (np.float32(own[0]), own[1])
    codes = {name: each for name, each in stored.items() if name.endswith(".int8")}
    assert len(codes) == len(inner) - round(len(inner) / 5)
    for name, each in codes.items():
        base = name.removesuffix(".int8")
        scale = stored[f"{base}.scale"]
        assert (each.dtype, np.abs(each).max()) == (np.int8, 127)
        assert scale.shape == (old[base].shape[1],)
        assert (np.abs(each * scale - old[base]) <= scale * 0.501).all()
    (branches,) = [node for node in made.graph.node if node.op_type == "If"]  # preprocessing
    for attribute in branches.attribute:
        assert not {"QuantizeLinear"} & {node.op_type for node in attribute.g.node}
    assert [each.key for each in made.metadata_props] == ["vitlab"]


def test_fp16_stores_half_and_computes_whole(
    caplog: pytest.LogCaptureFixture, model: Model, whole: Path, tmp_path: Path
) -> None:
    file = tmp_path / "fp16.onnx"
    found = vitlab.export(model, file, precision="fp16")
    assert "what fp16 costs in accuracy is unmeasured: --data (data=…) measures it" in caplog.text
    assert "accuracy" not in found
    old, new = weights(whole), weights(file)
    large = {name for name, each in old.items() if each.size >= 256 and each.dtype == np.float32}
    for name in large:
        np.testing.assert_array_equal(new[f"{name}.fp16"], old[name].astype(np.float16))
    assert set() != large == {name.removesuffix(".fp16") for name in new if name.endswith(".fp16")}
    images = np.random.default_rng(0).integers(0, 256, (5, 12, 9, 1), dtype=np.uint8)
    np.testing.assert_allclose(
        probabilities(file, images), probabilities(whole, images), rtol=0, atol=1e-3
    )


def graph_of(weight: Any, kind: str) -> Any:
    """A graph of one operation."""
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", "y")]
    tensor = numpy_helper.from_array(weight, "model.w")
    node = helper.make_node(kind, ["x", "model.w"], ["y"], name="one")
    graph = helper.make_graph([node], "g", shapes[:1], shapes[1:], [tensor])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def test_large_weights_stay_and_convolutions_are_refused() -> None:
    proto = graph_of(np.full((32, 32), 1e6, np.float32), "MatMul")
    halve(proto.graph)
    assert proto.graph.initializer[0].data_type == TensorProto.FLOAT
    with pytest.raises(OptionError, match=r"hold 0% of this model's weights: choose --precision"):
        calibrated(graph_of(np.ones((32, 32, 3, 3), np.float32), "Conv"), [])


def test_scales_need_an_image(whole: Path) -> None:
    with pytest.raises(DataError, match="no image to take scales from can be decoded"):
        calibrated(onnx.load(whole), [])


def test_a_file_that_predicts_other_classes_is_refused(
    caplog: pytest.LogCaptureFixture, model: Model, whole: Path, tmp_path: Path
) -> None:
    """With the signs of the probabilities turned, the likeliest class is the unlikeliest."""
    proto = onnx.load(whole)
    for node in proto.graph.node:
        for number, name in enumerate(node.output):
            if name == "probabilities":
                node.output[number] = "turned"
    proto.graph.node.append(helper.make_node("Neg", ["turned"], ["probabilities"]))
    likeliest = [node for node in proto.graph.node if "probabilities" in node.input]
    for node in likeliest:
        node.input[0] = "turned"
    onnx.save(proto, tmp_path / "turned.onnx")
    learned = copy.deepcopy(model)
    learned.seen = marked(identities(open_images("digits").every()), labeled=True)
    with caplog.at_level(logging.WARNING, "vitlab"):
        drawn = draw(learned, "digits", 20, bare=False)
    assert drawn.asked.learned_from > 20  # of all test images
    assert "images were learned from: figures are too good" in caplog.text
    words = r"another class than ViT.* for 100.0% of 20 images, more than 2.0%: choose another"
    with pytest.raises(WeightsError, match=words):
        narrowing_cost(whole.read_bytes(), tmp_path / "turned.onnx", learned, drawn)


def pictures(root: Path, counts: dict[str, int], plain: bool) -> Path:
    """Folders of so many images a class, of one color each if they are plain."""
    draw = np.random.default_rng(0)
    for name, count in counts.items():
        (root / name).mkdir(parents=True)
        for number in range(count):
            size = (1, 1, 3) if plain else (16, 16, 3)
            image = np.broadcast_to(draw.integers(0, 256, size, np.uint8), (16, 16, 3))
            Image.fromarray(np.ascontiguousarray(image)).save(root / name / f"{number}.png")
    return root


FEW: list[tuple[dict[str, int], bool, str]] = [
    (
        {"a": 1, "b": 1},
        False,
        r"has 2 that count \(classes: 2; 0 more are of one color\): at least",
    ),
    ({"a": 20, "b": 20}, False, "has 40 that count"),
    ({"a": 120}, False, r"has 50 that count \(classes: 1;"),
    ({"a": 60, "b": 60}, True, r"has 0 that count \(classes: 2; 50 more are of one color\)"),
]


@pytest.mark.parametrize(("counts", "plain", "words"), FEW)
def test_scales_of_too_few_images_are_refused(
    counts: dict[str, int], plain: bool, words: str, tmp_path: Path
) -> None:
    model = tiny(classes=2, labels=("a", "b"))
    data = pictures(tmp_path / "data", counts, plain)
    with pytest.raises(DataError, match=f"int8 takes its scales from images, and .*{words}"):
        vitlab.export(model, tmp_path / "a.onnx", precision="int8", data=data)
    assert not (tmp_path / "a.onnx").exists()


def test_a_cost_of_too_few_images_is_left_out(
    model: Model,
    whole: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    drawn = draw(model, "digits", 20, bare=False)
    found = narrowing_cost(whole.read_bytes(), whole, model, drawn)
    assert "what fewer bits cost is left out; images to measure it on: 20 that count" in caplog.text
    assert not {"accuracy", "accuracy_before", "agreement", "largest_change"} & set(found)
    assert (found["images"], found["bytes_before"]) == (20, whole.stat().st_size)
    facts = {"model": "m", "format": "onnx", "file": "a", "bytes": 1, "precision": "int8"}
    show(facts | {"batches": [1], "difference": 0.0} | found)
    shown = capsys.readouterr().out
    assert "images/s" in shown
    assert "predictions" not in shown


REFUSED: dict[str, dict[str, Any]] = {
    "precision must be one of fp32, fp16, int8, not 'fp8'": {"precision": "fp8"},
    "precision=int8 applies only to onnx: leave": {"precision": "int8", "to": "torch"},
    r"precision=int8 needs data=… \(--data\): scales are taken": {"precision": "int8"},
    "int8 files take any number of": {"precision": "int8", "data": "digits", "batch": 2},
    "batch applies only to onnx: leave it out": {"to": "torch", "batch": 2},
    "data applies only with precision=fp16 or int8: leave it out": {"data": "digits"},
}


def test_what_is_refused(model: Model, tmp_path: Path) -> None:
    for words, options in REFUSED.items():
        ending = {"torch": "pt2"}.get(options.get("to", ""), "onnx")
        with pytest.raises(OptionError, match=words):
            vitlab.export(model, tmp_path / f"a.{ending}", **options)


def test_bare_files_are_measured_on_normalized_images(model: Model, tmp_path: Path) -> None:
    file = tmp_path / "bare.onnx"
    found = vitlab.export(
        model, file, bare=True, data="digits", images=50, precision="fp16", batch=3
    )
    assert found["images"] == 50
    assert found["agreement"] > 0.9
    assert found["largest_change"] < 0.2
    images = torch.rand(3, 1, 8, 8)
    logits = opened(file).run(["logits"], {"images": images.numpy()})[0]
    torch.testing.assert_close(torch.from_numpy(logits), model(images), rtol=0, atol=0.5)
