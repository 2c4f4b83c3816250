"""One decode and one preprocess: the same photograph has the same probabilities everywhere."""

import asyncio
import json
from pathlib import Path

import numpy as np
import onnxruntime
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_sample_images

import vitlab
from vitlab.data.decode.resized_box import resized_box
from vitlab.data.decode.stored import EncodedImage
from vitlab.models.model import Model
from vitlab.serve.engine import Engine
from vitlab.serve.limits import Limits

COUNT = 80
CLASSES = ("garden", "temple")
KINDS = ("jpg", "jpg", "jpg", "turned.jpg", "gray.jpg", "png", "clear.png", "webp")


def save(picture: Image.Image, file: Path, kind: str, random: np.random.Generator) -> None:
    """Write a photograph as cameras, phones and web pages do."""
    quality = int(random.integers(60, 96))
    if kind == "turned.jpg":
        exif = Image.Exif()
        exif[274] = int(random.integers(2, 9))
        picture.save(file, quality=quality, exif=exif.tobytes(), progressive=True)
    elif kind == "clear.png":
        picture.putalpha(int(random.integers(100, 256)))
        picture.save(file)
    elif kind.endswith("jpg"):
        picture.convert("L" if kind == "gray.jpg" else "RGB").save(file, quality=quality)
    else:
        picture.save(file)


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Parts of two photographs, of many sizes, aspect ratios and formats, in two classes."""
    folder, random = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0)
    scenes = dict(zip(CLASSES, reversed(load_sample_images().images), strict=True))
    for name in CLASSES:
        (folder / name).mkdir()
    for number in range(COUNT):
        name = CLASSES[number % 2]
        rows, columns = (int(side) for side in random.integers(40, 400, 2))
        top, left = random.integers(0, 427 - rows), random.integers(0, 640 - columns)
        part = scenes[name][top : top + rows, left : left + columns]
        kind = KINDS[number % len(KINDS)]
        save(Image.fromarray(part), folder / name / f"{number:03}.{kind}", kind, random)
    return folder


@pytest.fixture(scope="module")
def model() -> Model:
    """A model with a bicubic center crop of its own, a temperature and two classes."""
    torch.manual_seed(0)
    model = vitlab.create(
        "ViT(width=32,depth=2,heads=2,mlp=64)/8",
        classes=2,
        image_size=(32, 40),
        labels=CLASSES,
        zero_head=False,
        interpolation="bicubic",
        crop=0.875,
    )
    model.provenance["temperature"] = 0.02  # random weights differ little: this tells them apart
    return model.eval()


@pytest.fixture(scope="module")
def expected(photographs: Path, model: Model) -> NDArray[np.float64]:
    """Probabilities (COUNT, 2) of `vitlab.evaluate`, in the order of the files' names."""
    file = photographs.parent / f"{photographs.name}.jsonl"
    vitlab.evaluate(model, str(photographs), out=file, workers=0, device="cpu")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows.sort(key=lambda row: Path(row["image"]).name)
    found = np.array([[row[f"p({name})"] for name in CLASSES] for row in rows])
    assert found.shape == (COUNT, 2)
    assert found[:, 0].std() > 0.1, "a model that answers the same everywhere tests nothing"
    return found


def files(folder: Path) -> list[Path]:
    """The photographs in the order of their names."""
    return sorted(folder.glob("*/*"), key=lambda file: file.name)


def test_prediction(photographs: Path, model: Model, expected: NDArray[np.float64]) -> None:
    answers = vitlab.classify(model, files(photographs), top=2, device="cpu")
    chances = [[dict(each.classes)[name] for name in CLASSES] for each in answers]
    assert np.abs(np.array(chances) - expected).max() <= 1e-6


def test_preprocessing_in_a_loop_of_ones_own(
    photographs: Path, model: Model, expected: NDArray[np.float64]
) -> None:
    prepare = vitlab.preprocess(model)
    with torch.inference_mode():
        logits = torch.cat([model(prepare(each)) for each in files(photographs)])
    chances = torch.softmax(logits.double() / model.temperature, 1).numpy()
    assert np.abs(chances - expected).max() <= 1e-6


def test_embedding(
    photographs: Path, model: Model, expected: NDArray[np.float64], tmp_path: Path
) -> None:
    vitlab.embed(model, str(photographs), tmp_path / "f.parquet", workers=0, device="cpu")
    table = pq.read_table(tmp_path / "f.parquet").to_pydict()
    order = np.argsort([Path(each).name for each in table["path"]])
    features = torch.tensor(np.array(table["features"])[order], dtype=torch.float32)
    with torch.inference_mode():
        logits = model.get_submodule(model.head_names[0].rstrip("."))(features).double()
    chances = torch.softmax(logits / model.temperature, 1).numpy()
    assert np.abs(chances - expected).max() <= 1e-6


def test_service(photographs: Path, model: Model, expected: NDArray[np.float64]) -> None:
    async def ask() -> list[NDArray[np.float64]]:
        engine = Engine(limits=Limits(queue=COUNT, decoders=1, max_batch=8), device="cpu")
        engine.add("scenes", model)
        await engine.start()
        try:
            seen = await engine.answer([file.read_bytes() for file in files(photographs)])
        finally:
            await engine.stop()
        assert not [each.error for each in seen if each.error]
        return [each.probabilities for each in seen if each.probabilities is not None]

    assert np.abs(np.array(asyncio.run(ask())) - expected).max() <= 1e-6


@pytest.mark.slow
def test_exported_graph(
    photographs: Path, model: Model, expected: NDArray[np.float64], tmp_path: Path
) -> None:
    """The graph resizes from whole pixels, as a program that decodes by itself gives them.

    The commands decode a JPEG of at least four times the model's size at a reduced scale, which
    changes pixels by a few levels of 255: `Image.draft` of Pillow does the same for the graph.
    """
    vitlab.export(model, tmp_path / "model.onnx")
    graph = str(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])
    apart, large = np.zeros(COUNT), np.zeros(COUNT, bool)
    for number, file in enumerate(files(photographs)):
        pixels = EncodedImage(file.read_bytes(), file.name).decode(3)
        found = session.run(["probabilities"], {"image": pixels[None]})[0][0]
        apart[number] = np.abs(found - expected[number]).max()
        rows, columns = pixels.shape[:2]
        left, top, right, bottom = resized_box(rows, columns, model.config)
        times = min((bottom - top) / 32, (right - left) / 40)
        large[number] = file.suffix == ".jpg" and times >= 4
    assert 8 < large.sum() < 48
    assert apart[~large].max() <= 1e-5
    assert apart[large].max() <= 0.1
