"""The client and the real service: what `vitlab.classify` says here, the service says there."""

import asyncio
from base64 import b64encode
from pathlib import Path
from typing import Any, cast

import httpx2
import numpy as np
import pytest
import torch

import vitlab
from conftest import photo
from made_files import png_of
from serve.fakes import FakeEngine, png
from serve.made import encoded, tiny
from serve.sockets import head, served, status, talk
from steady import PATIENCE, wait_until
from vitlab.client.reading import HeadAnswer, answers
from vitlab.errors import ImageError, OptionError, ServiceError
from vitlab.evaluation.classified_image import ClassifiedImage
from vitlab.serve.app import application
from vitlab.serve.engine import Engine
from vitlab.serve.limits import Limits

RED, BLUE = png((250, 0, 0)), png((0, 0, 250))
TOKEN = "a-token-of-some-length"


class InProcess(httpx2.BaseTransport):
    """The application without a socket."""

    def __init__(self, app: Any) -> None:
        self.app = httpx2.ASGITransport(app)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        request.read()

        async def answered() -> httpx2.Response:
            response = await self.app.handle_async_request(request)
            return httpx2.Response(
                response.status_code, headers=response.headers, content=await response.aread()
            )

        return asyncio.run(answered())


def client_of(engine: FakeEngine | None = None, token: str = "", given: str = "") -> vitlab.Client:
    """A client of the application."""
    engine = engine or FakeEngine(limits=Limits(max_images=2))
    app = application(cast(Any, engine), token=token)
    return vitlab.Client("http://localhost", given, retries=0, transport=InProcess(app))


def test_questions_and_answers() -> None:
    client = client_of(token=TOKEN, given=TOKEN)
    (first, wrong, last) = client.predict([RED, b"no image", BLUE], top=1)
    assert (first.classes[0][0], last.classes[0][0]) == ("cat", "<b>owl</b>")
    assert (wrong.image, wrong.error) == ("image 1", "image 1: cannot be decoded")
    assert len(client.predict(RED).classes) == 3
    assert client.predict(RED, model="labels").predicted == ("cat",)
    found = client.features([RED, BLUE, RED])
    assert (found.shape, found.dtype) == ((3, 4), np.float32)
    assert [each["name"] for each in client.models()] == ["first", "labels"]
    assert client.health() == {"status": "alive"}
    with pytest.raises(OptionError, match="unknown model 'cats': choose from first, labels"):
        client.predict(RED, model="cats")
    with pytest.raises(ServiceError, match="does not accept this token"):
        client_of(token=TOKEN, given="another").models()
    for refused in (client.predict, client.features):
        with pytest.raises(ImageError, match=r"^image 0: cannot be decoded$"):
            refused(b"no")
    with pytest.raises(ImageError, match=r"^image 1: cannot be decoded$"):
        client.features([RED, b"no image", BLUE])


def test_masks_objects_and_numbers_have_types() -> None:
    client = client_of(FakeEngine(names=("masks", "boxes", "numbers")))
    mask, wrong = client.predict([RED, b"no image"], model="masks")
    assert isinstance(mask, HeadAnswer)
    assert mask.mask is not None
    assert (mask.mask.shape, mask.mask.dtype) == ((10, 12), np.uint8)
    assert [int((mask.mask == number).sum()) for number in range(3)] == [0, 90, 30]
    assert mask.as_dict() == {"image": "image 0", "shares": {"dog": 0.75, "<b>owl</b>": 0.25}}
    assert wrong.error == "image 1: cannot be decoded"
    found = client.predict(BLUE, model="boxes")
    assert isinstance(found, HeadAnswer)
    assert found.objects is not None
    assert found.objects[0] == {
        "class": "<b>owl</b>", "probability": 0.9, "box": (3.0, 2.0, 9.0, 7.0),
    }  # fmt: skip
    assert found.as_dict()["objects"][1]["class"] == "cat"
    numbers = client.predict(BLUE, model="numbers")
    assert isinstance(numbers, HeadAnswer)
    assert numbers.values == {"age": 41.5, "height": 170.25}
    assert numbers.as_dict()["deviations"] == {"age": 2.0, "height": 3.0}
    assert (numbers.shares, numbers.mask, numbers.objects) == (None, None, None)
    with pytest.raises(ServiceError, match="top is of classes, and this model answers with boxes"):
        client.predict(RED, model="boxes", top=1)


def test_an_answer_keeps_its_distance_from_the_training_images() -> None:
    known = ClassifiedImage("photo.jpg", (("cat", 0.75),), distance=1.5)
    found = answers({"predictions": [known.as_dict()]}, ["photo.jpg"], "http://localhost")
    assert found == [known]


@pytest.mark.parametrize(
    "entry",
    [
        *({}, {"objects": [3]}, {"mask": "%", "shares": {}}, {"mask": "UE5H"}, {"values": []}),
        {"mask": b64encode(png_of(30_000, 30_000, 8, 0, [b""])).decode(), "shares": {}},
    ],
)
def test_answers_that_make_no_sense_are_an_error(entry: dict[str, object]) -> None:
    with pytest.raises(ServiceError, match="answered what this version does not understand"):
        answers({"predictions": [entry]}, ["photo.jpg"], "http://localhost")


def test_over_a_socket_the_answers_are_those_of_this_machine(tmp_path: Path) -> None:
    model, engine = tiny(), Engine(limits=Limits(decoders=1, max_images=3, timeout=PATIENCE))
    engine.add("tiny", model)
    file = tmp_path / "photo.jpg"
    photo(7).save(file)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    images: list[Any] = [file, photo(1), encoded(2), pixels, photo(3).convert("L"), pixels[..., 0]]
    images += [torch.from_numpy(pixels).permute(2, 0, 1), photo(4).convert("P")]

    def script(port: int) -> Any:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: status(talk(port, [head("GET", "/ready")])) == 200)
        with vitlab.Client(url, timeout=PATIENCE) as client:
            here = client.predict(images), client.features(images)

        async def main() -> Any:
            async with vitlab.AsyncClient(url, timeout=PATIENCE) as client:
                return await client.predict(images), await client.features(images)

        return here, asyncio.run(main())

    both, _ = served(script, cast(Any, engine))
    want = vitlab.classify(model, images)
    with torch.inference_mode():
        features = model.features(vitlab.preprocess(model)(images))
    for found, vectors in both:
        assert [each.image for each in found] == [each.image for each in want]
        for got, right in zip(found, want, strict=True):
            assert dict(got.classes) == pytest.approx(dict(right.classes), abs=1e-6)
        np.testing.assert_allclose(vectors, features, atol=1e-5)
