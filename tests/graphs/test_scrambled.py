"""A graph whose matrices are scrambled is refused, at the export and by `check.py`, for every head.

Also where the answers hardly show it: probabilities far below the limit, of one class alone, or of
a head of zeros.
"""

import copy
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

import vitlab
from graphs.conftest import model_of
from graphs.test_check import checked
from made_heads import save_heads
from vitlab.errors import WeightsError
from vitlab.graphs.agreement import UNITS
from vitlab.graphs.agreement import check as compare
from vitlab.graphs.certificate import CertifiedParts, certify
from vitlab.graphs.complete import Traceable, traceable
from vitlab.graphs.headed_onnx import answering_with, export_headed
from vitlab.graphs.reference_images import normal_noise, raw_images
from vitlab.models.model import Model

pytestmark = pytest.mark.slow
HEAD = "module.model.head.classify"
BIASES = {"plain": 0.0, "low": -10.0, "high": 10.0, "certain": 40.0}


@dataclass(frozen=True)
class Made:
    """A folder, and how its file is compared at the export."""

    folder: Path
    model: Model
    form: Traceable
    how: dict[str, Any]


def scrambled(file: Path, way: str, only: str = "") -> None:
    """Shuffle the numbers of each matrix of a file, or draw others of their deviation."""
    proto, draw = onnx.load(file), np.random.default_rng(0)
    for tensor in proto.graph.initializer:
        numbers = numpy_helper.to_array(tensor)
        if numbers.dtype != np.float32 or sum(side > 1 for side in numbers.shape) < 2:
            continue
        if only in ("", tensor.name):
            spread = max(float(numbers.std()), 0.01)
            other = draw.normal(0, spread, numbers.shape)
            if way == "shuffled":
                other = draw.permutation(numbers.ravel()).reshape(numbers.shape)
            tensor.CopyFrom(numpy_helper.from_array(other.astype(np.float32), tensor.name))
    onnx.save(proto, file)


def matrices(file: Path) -> Iterator[str]:
    """Names of the matrices of a file."""
    for tensor in onnx.load(file).graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT and sum(side > 1 for side in tensor.dims) > 1:
            yield tensor.name


def with_head(made: Made, bias: float, spread: float, folder: Path) -> Made:
    """The same graph with another head, and with its own certificate."""
    model = copy.deepcopy(made.model)
    layer = model.head.classify
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        layer.weight.copy_(spread * torch.randn(layer.weight.shape, generator=draw))
        layer.bias.fill_(bias)
        layer.bias[1:] *= 1 if model.provenance["multi_label"] else 0  # of one class, by softmax
    shutil.copytree(made.folder, folder)
    proto = onnx.load(folder / "model.onnx")
    for tensor in proto.graph.initializer:
        if tensor.name.startswith(HEAD):
            own = layer.get_parameter(tensor.name.removeprefix(f"{HEAD}."))
            tensor.CopyFrom(numpy_helper.from_array(own.detach().numpy(), tensor.name))
    onnx.save(proto, folder / "model.onnx")
    form = traceable(model)
    certify(
        folder / "model.onnx", form, [*raw_images(model, (2,))], CertifiedParts([], 1e-4, UNITS)
    )
    return Made(folder, model, form, {})


@pytest.fixture(scope="module", params=["softmax", "sigmoid"])
def classifier(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    model = model_of()
    model.provenance["multi_label"] = request.param == "sigmoid"
    folder = tmp_path_factory.mktemp("classifier") / "made"
    vitlab.export(model, folder)
    return Made(folder, model, traceable(model), {})


@pytest.fixture(scope="module")
def headed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    root, made = tmp_path_factory.mktemp("heads"), {}
    for name, run in save_heads(root / "runs").items():
        kind = "masks" if name == "queries" else name
        answering = answering_with(kind, run)
        model = answering.module.model
        example = torch.from_numpy(normal_noise(model, 2))
        form = Traceable(answering, example, {}, "images", answering.outputs, answering.inner)

        def own(images: Any, answering: Any = answering) -> dict[str, Any]:
            with torch.inference_mode():
                return {key: each.numpy() for key, each in answering.answers(images).items()}

        export_headed(run, root / name, kind)
        how = {"own": own, "units": UNITS | answering.units}
        made[name] = Made(root / name, model, form, how)
    return made


def assert_refused(made: Made, folder: Path, way: str, run: Any, only: str = "") -> None:
    """By the export's own comparison, and by the script."""
    shutil.copytree(made.folder, folder)
    assert run(folder)[0] == 0
    compare(folder / "model.onnx", made.model, made.form, **made.how)
    scrambled(folder / "model.onnx", way, only)
    with pytest.raises(WeightsError, match=r"would differ from .* nothing is written"):
        compare(folder / "model.onnx", made.model, made.form, **made.how)
    assert run(folder)[0] == 1


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda folder, *words: checked(capsys, monkeypatch, folder, *words)


@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("spread", [0.02, 0.0])
def test_of_classifiers(
    classifier: Made, bias: str, spread: float, tmp_path: Path, run: Any
) -> None:
    """Also with a head of zeros, where only features tell."""
    own = with_head(classifier, BIASES[bias], spread, tmp_path / "own")
    assert_refused(own, tmp_path / "drawn", "drawn", run)
    assert_refused(own, tmp_path / "shuffled", "shuffled", run)


def test_of_each_matrix(classifier: Made, tmp_path: Path, run: Any) -> None:
    for number, name in enumerate(matrices(classifier.folder / "model.onnx")):
        assert_refused(classifier, tmp_path / str(number), "shuffled", run, name)


@pytest.mark.parametrize("name", ["masks", "queries", "boxes", "numbers"])
@pytest.mark.parametrize("way", ["shuffled", "drawn"])
def test_of_heads(headed: dict[str, Made], name: str, way: str, tmp_path: Path, run: Any) -> None:
    assert_refused(headed[name], tmp_path / "made", way, run)


@pytest.mark.parametrize("classes", [0, 3])
@pytest.mark.parametrize("kind", [{"gelu": "exact"}, {"gelu": "quick"}, {"ffn": "swiglu"}], ids=str)
def test_of_features_and_logits(
    classes: int, kind: dict[str, str], tmp_path: Path, run: Any
) -> None:
    model = vitlab.create(
        "ViT(width=16,depth=1,heads=2,mlp=16)/8", classes, 16, zero_head=False,
        generator=torch.Generator().manual_seed(0), **kind,
    )  # fmt: skip
    vitlab.export(model, tmp_path / "made", bare=True)
    made = Made(tmp_path / "made", model.eval(), traceable(model, bare=True), {})
    assert_refused(made, tmp_path / "scrambled", "shuffled", run)
