"""Runs that segment, detect or regress, served: what `vitlab predict` says of the same images."""

import asyncio
import base64
import io
import json
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import photo
from made_heads import SHAPES, save_heads, segmenter
from serve.calling import ask, form, send
from serve.fakes import FakeEngine, FakeServed, card, png
from serve.made import Running, encoded, tiny
from steady import PATIENCE
from vitlab.errors import OptionError
from vitlab.evaluation.compute import Compute
from vitlab.evaluation.detection import find_objects
from vitlab.evaluation.estimates import estimate
from vitlab.evaluation.segmentation import write_masks
from vitlab.serve import replies
from vitlab.serve.answers import Question, answers
from vitlab.serve.app import application
from vitlab.serve.decoder import Bounds, _answered
from vitlab.serve.decoders import Decoded, _decoded, _Job
from vitlab.serve.engine import Engine
from vitlab.serve.heads import Head, load_head, wanted_by
from vitlab.weights.save_head import save_head

CPU = Compute("cpu", workers=0)
KINDS = ("masks", "boxes", "numbers")
SIZES = ((24, 32), (16, 16), (40, 23), (1, 1), (3, 40), (300, 200))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return save_heads(tmp_path_factory.mktemp("heads"))


@pytest.fixture(scope="module")
def running(runs: dict[str, Path]) -> Iterator[Running]:
    """An engine with a run of each kind, and a classifier."""
    each = Running(
        *((name, str(run)) for name, run in runs.items()), ("tiny", tiny()), timeout=PATIENCE
    )
    yield each
    each.close()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Pictures of several sizes, and one on its side with its orientation in EXIF."""
    folder = tmp_path_factory.mktemp("pictures")
    for number, size in enumerate(SIZES):
        photo(number, *size).save(folder / f"{number}.png")
    exif = Image.Exif()
    exif[0x112] = 6
    photo(9, 20, 50).save(folder / "turned.jpg", exif=exif)
    return sorted(folder.iterdir())


def served(running: Running, files: list[Path], kind: str) -> list[Any]:
    data = [each.read_bytes() for each in files]
    return [each.found for each in running.answer(*data, model=kind)]


@pytest.mark.parametrize("name", ["masks", "queries"])
def test_masks_are_those_of_predict(
    running: Running, runs: dict[str, Path], files: list[Path], tmp_path: Path, name: str
) -> None:
    known = write_masks(runs[name], [*map(str, files)], tmp_path / "masks", CPU)["masks"]
    for file, own, row in zip(files, served(running, files, name), known, strict=True):
        assert own["shares"] == row["shares"]
        data = base64.b64decode(own["mask"])
        assert data == Path(row["mask"]).read_bytes()
        with Image.open(io.BytesIO(data)) as mask, Image.open(file) as opened:
            sides = opened.size if file.suffix == ".png" else opened.size[::-1]
            assert (mask.size, mask.mode) == (sides, "P")
            assert {*np.unique(np.asarray(mask))} <= {0, 1, 7}


def test_objects_and_numbers_are_those_of_predict(
    running: Running, runs: dict[str, Path], files: list[Path]
) -> None:
    found = find_objects(runs["boxes"], [*map(str, files)], None, CPU)["detections"]
    for own, row in zip(served(running, files, "boxes"), found, strict=True):
        assert [each["class"] for each in own["objects"]] == [e["class"] for e in row["objects"]]
        assert len(own["objects"]) == 4
        for one, other in zip(own["objects"], row["objects"], strict=True):
            assert one["probability"] == pytest.approx(other["probability"], abs=1e-5)
            assert one["box"] == pytest.approx(other["box"], abs=1e-2)
    known = estimate(runs["numbers"], [*map(str, files)], CPU)["estimates"]
    for own, row in zip(served(running, files, "numbers"), known, strict=True):
        for key in ("values", "deviations"):
            assert own[key] == pytest.approx(row[key], rel=1e-4)


def test_the_application_answers_by_kind(running: Running) -> None:
    """In one event loop with the engine: JSON of each kind, a PNG, and refusals of one line."""
    app = application(running.engine)
    data, headers = encoded(4), [("content-type", "image/png")]

    def post(path: str, *more: tuple[str, str], body: bytes = data) -> Any:
        return running(send(app, "POST", path, [body], [*headers, *more]))

    for kind in KINDS:
        reply = post(f"/predict?model={kind}")
        assert reply.status == 200
        replies.Predictions.model_validate(reply.json)
        assert reply.json["model"] == kind
    mask = post("/predict?model=masks", ("accept", "image/png"))
    assert (mask.status, mask.headers["content-type"]) == (200, "image/png")
    own = running.answer(data, model="masks")[0].found["mask"]
    assert mask.body == base64.b64decode(own)
    assert len(post("/features?model=numbers").json["features"][0]) == 16
    cards = {each["name"]: each for each in running(send(app, "GET", "/models")).json["models"]}
    assert [cards[kind]["answers"] for kind in (*KINDS, "tiny")] == [*KINDS, "classes"]
    assert (cards["masks"]["classes"], cards["masks"]["numbers"]) == ([*SHAPES], [0, 1, 7])
    assert cards["numbers"]["targets"] == ["age", "height"]
    assert not any(cards[kind]["attention"] for kind in KINDS)
    for path, text in (
        ("/features?model=masks", "masks: it has no features; POST /predict gives them; the fold"),
        ("/attention?model=boxes", "boxes outputs boxes: it has no attention; POST /predict"),
        ("/predict?model=numbers&top=3", "top is of classes, and this model answers with numbers"),
    ):
        assert text in post(path).error
    reply = post("/predict?model=masks", body=encoded(1, rows=1, columns=40))
    assert (reply.status, "1 x 40 pixels become 16 x 640 for the model" in reply.error) == (422, 1)


def test_a_png_is_of_one_image() -> None:
    engine = FakeEngine(names=("masks", "first"))
    app = application(engine)  # type: ignore[arg-type]
    body, kind = form(("a", png()), ("b", png()))
    reply = ask(app, "POST", "/predict", body, content_type=kind, accept="image/png")
    assert (reply.status, "holds one mask" in reply.error) == (400, True)
    assert engine.asked == []  # nothing was computed
    reply = ask(app, "POST", "/predict?model=first", png(), accept="image/png, */*")
    assert reply.headers["content-type"] == "application/json"
    reply = ask(app, "POST", "/predict", b"none", accept="image/png")
    assert (reply.status, reply.error) == (422, "image 0: cannot be decoded")


def test_kinds_replace_each_other(runs: dict[str, Path]) -> None:
    engine = Engine(device="cpu")
    engine.add("one", str(runs["masks"]))
    engine.add("one", tiny(), replace=True)
    assert engine.cards()[0].answers == "classes"
    engine.add("one", str(runs["numbers"]), replace=True)
    assert engine.cards()[0].answers == "numbers"
    engine.add("bare", str(runs["boxes"] / "model"))
    assert engine.cards()[1].answers == "features"


def test_a_model_replaced_while_the_body_arrives_answers_what_it_was_asked() -> None:
    engine, data = FakeEngine(names=("masks",)), png()
    app = application(engine)  # type: ignore[arg-type]

    async def both() -> Any:
        head = [("content-type", "image/png"), ("accept", "image/png")]
        chunks = [data[:9], data[9:]]
        return await send(app, "POST", "/predict", chunks, head, last=swap)

    def swap() -> None:
        changed = card("first").model_copy(update={"name": "masks"})
        engine.models = {"masks": FakeServed(changed)}

    reply = asyncio.run(both())
    assert (reply.status, reply.headers["content-type"]) == (200, "image/png")


@pytest.mark.parametrize(
    ("kind", "how", "works"),
    [
        ("masks", {"precision": "int8"}, "auto or fp32, engine=auto or plain"),
        ("boxes", {"precision": "bf16"}, "auto or fp32, engine=auto or plain"),
        ("boxes", {"engine": "packed"}, "auto or fp32, engine=auto or plain"),
        ("numbers", {"precision": "int8"}, "auto, fp32 or bf16"),
    ],
)
def test_other_forms_are_refused(
    runs: dict[str, Path], kind: str, how: dict[str, Any], works: str
) -> None:
    with pytest.raises(OptionError, match=f"not for runs of {kind}: choose precision={works}$"):
        Engine(device="cpu", **how).add("one", str(runs[kind]))


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_are_not_finite_are_an_error(kind: str, tmp_path: Path) -> None:
    """Weights are checked as they are loaded, so that only sums can overflow."""
    run, engine = save_heads(tmp_path)[kind], Engine(device="cpu")
    head: Any = load_head(run)
    large = {"masks": "head.weight", "boxes": "head.classify.weight", "numbers": "scale"}[kind]
    attrgetter(large)(head)[:] = 1e308 if kind == "numbers" else 3e38
    save_head(head, run)
    engine.add("broken", str(run))
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    own, image = engine.find("broken"), Decoded(pixels, size=(16, 16))
    (seen,) = answers([Question(own, "classes", image)])
    assert seen.found is None
    with pytest.raises(Exception, match=r"a\.png: the model gives numbers that are not finite"):
        replies.answered(["a.png"], [seen], own.card, "classes", 5)


def test_images_of_too_many_scores_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of an image's own pixels has a score of each of three classes."""
    monkeypatch.setattr("vitlab.serve.heads.SCORES", 2300)
    head = segmenter()
    asked = wanted_by(head.model.config, head).asked("it")
    assert _answered(asked, encoded(1), Bounds())[0]["error"] == (
        "it: 32 x 24 pixels exceed the limit of 766"
    )
    assert not _answered(asked, encoded(1, columns=31), Bounds())[0]["error"]


class Pipe:
    """What a decoder answers, and perhaps makes up."""

    def __init__(self, **made_up: Any) -> None:
        self.made_up, self.sent = made_up, list[bytes]()

    def send_bytes(self, data: bytes) -> None:
        self.sent.append(data)

    def recv_bytes(self, most: int) -> bytes:

        if len(self.sent) == 2:
            answer, self.pixels = _answered(json.loads(self.sent[0]), self.sent[1], Bounds())
            self.sent.clear()
            return json.dumps(answer | self.made_up).encode()
        data: bytes = self.pixels.tobytes()
        assert len(data) <= most
        return data


@pytest.mark.parametrize("made_up", [{"size": [9, 10**7]}, {"size": [0, 32]}, {"shape": [8, 8, 3]}])
def test_what_a_decoder_makes_up_is_refused(made_up: dict[str, Any]) -> None:
    """A size decides how much memory a mask takes."""
    head: Head = segmenter(scale=1.5)
    wanted = wanted_by(head.model.config, head)

    async def read(pipe: Any) -> Decoded:
        job = _Job(encoded(1), "it", wanted, asyncio.get_running_loop().create_future())
        return _decoded(pipe, job, 25_000_000)[0]

    found = asyncio.run(read(Pipe()))
    assert (found.pixels.shape, found.size) == ((24, 32, 3), (24, 32))
    with pytest.raises(ValueError, match=r"a size that no image has|another shape"):
        asyncio.run(read(Pipe(**made_up)))
