"""What the page is answered: every route, for every kind of model, and what is refused."""

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import photo
from explore.made import Exploring, kinds
from serve.hostile import png_bomb
from serve.made import encoded
from vitlab import inspect, preprocess
from vitlab.data.augment.normalize import normalize
from vitlab.data.decode.stored import EncodedImage
from vitlab.explore.explore_routes import MOST_BODY
from vitlab.explore.views import has_classes
from vitlab.serve.decoder import decoded

KINDS = tuple(kinds())
FILE = encoded(0, rows=24, columns=32)


@pytest.fixture(scope="module")
def image(exploring: Exploring) -> str:
    """The id of an open image."""
    reply = exploring.ask("/api/images?name=red.png", FILE)
    assert reply.status == 201
    return str(reply.json["id"])


def look(exploring: Exploring, kind: str, image: str) -> str:
    return f"/api/look/{exploring.names.index(kind)}/{image}"


def prepared(model: Any) -> torch.Tensor:
    """The file as `vitlab.preprocess` makes it, but for images of their own size: not packed."""
    if model.config.fit != "native":
        return preprocess(model)(FILE)
    pixels, _ = decoded(EncodedImage(FILE, "the file"), model.config)
    return normalize(torch.from_numpy(pixels)[None], model.config)


def test_state(exploring: Exploring, image: str) -> None:
    state = exploring.ask("/api/state").json
    assert [each["name"] for each in state["models"]] == list(KINDS)
    assert set(state) == {"models", "images", "map", "limits"}
    first = state["models"][0]
    assert (first["notation"], first["image_size"], first["patch"]) == (
        "ViT(width=16,depth=2,heads=2,mlp=32)/4", [16, 16], 4,
    )  # fmt: skip
    assert set(first["views"].values()) == {""}
    views = {each["name"]: each["views"] for each in state["models"]}
    assert "no attention" in views["resnet"]["attention"]
    assert {name for name, why in views["features"].items() if why} == {
        "relevance", "gradcam",
    }  # fmt: skip
    assert {"id": image, "name": "red.png", "width": 32, "height": 24} in state["images"]
    assert (state["map"], state["limits"]) == (False, {"body": MOST_BODY})


@pytest.mark.parametrize("kind", KINDS)
def test_first_look(exploring: Exploring, image: str, kind: str) -> None:
    model = exploring.models[kind]
    found = exploring.ask(look(exploring, kind, image)).json
    images = prepared(model)
    if has_classes(model):
        expected = model(images)[0].double().softmax(-1)
        best = found["top"][0]
        assert best["class"] == int(expected.argmax())
        assert best["probability"] == pytest.approx(float(expected.max()), abs=1e-6)
        assert len(found["top"]) == 5
    else:
        assert found["top"] == []
    rows, columns = found["grid"]
    assert found["tokens"] == len(found["prefix"]) + rows * columns
    assert found["tokens"] == model.encode(images).shape[1]
    size = model.config.size[0]  # of a picture of 24 x 32, resized to whole pixels
    whole = 32 * size // 24
    left = round((whole - size) / 2)
    box = [0, 0, 1, 1] if kind == "native" else [left / whole, 0, (left + size) / whole, 1]
    assert found["box"] == pytest.approx(box)
    assert (rows, columns) == {"native": (3, 4)}.get(kind, (4, 4))
    if kind == "resnet":
        assert (found["layers"], found["heads"]) == ([], 0)
    else:
        maps = model.attention_maps(images)
        assert (len(found["layers"]), found["heads"]) == (len(maps), maps[0].shape[1])
    assert ("pool" in found) == (kind in ("pool", "queries"))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "resnet"])
def test_attention_from_every_token(exploring: Exploring, image: str, kind: str) -> None:
    model, path = exploring.models[kind], look(exploring, kind, image)
    maps = torch.stack(model.attention_maps(prepared(model)))[:, 0].detach().numpy()
    layers, heads, tokens = maps.shape[:3]
    for token in range(tokens):
        body = exploring.ask(f"{path}/attention/{token}").body
        assert len(body) == 4 * layers * heads + layers * heads * tokens
        largest = np.frombuffer(body, "<f4", layers * heads).reshape(layers, heads, 1)
        octets = np.frombuffer(body, np.uint8, offset=4 * layers * heads)
        values = largest * octets.reshape(layers, heads, tokens) / 255
        assert np.abs(values - maps[:, :, token]).max() <= largest.max() / 500
        np.testing.assert_allclose(largest[..., 0], maps[:, :, token].max(-1), rtol=1e-5)


@pytest.mark.parametrize("kind", ["pool", "queries"])
def test_attention_of_the_pool(exploring: Exploring, image: str, kind: str) -> None:
    model, path = exploring.models[kind], look(exploring, kind, image)
    body = exploring.ask(f"{path}/attention/pool").body
    heads = exploring.ask(path).json["pool"]
    expected = inspect.class_attention(model, prepared(model))[0].flatten(1).numpy()
    largest = np.frombuffer(body, "<f4", heads)[:, None]
    octets = np.frombuffer(body, np.uint8, offset=4 * heads).reshape(heads, -1)
    np.testing.assert_allclose(largest * octets / 255, expected, atol=float(largest.max()) / 500)


def views_of(model: Any, images: torch.Tensor, token: int) -> dict[str, Any]:
    """What the page may ask for, and what `vitlab.inspect` has of it."""
    last = model.last_layer
    return {
        "late": lambda: inspect.late_attention(model, images),
        "rollout": lambda: inspect.rollout(model, images),
        "relevance?class=3": lambda: inspect.relevance(model, images, torch.tensor([3])),
        "gradcam?class=3": lambda: inspect.gradcam(model, images, torch.tensor([3])),
        "norms?layer=0": lambda: inspect.norm_map(model, images, layer=0),
        "norms": lambda: inspect.norm_map(model, images),
        f"similarity?layer=1&token={token}": (
            lambda: inspect.similar_patches(model, images, token, layer=1)
        ),
        "similarity": lambda: inspect.similar_patches(model, images, 0, layer=last),
    }


@pytest.mark.parametrize("kind", KINDS)
def test_maps_are_those_of_inspect(exploring: Exploring, image: str, kind: str) -> None:
    model, path = exploring.models[kind], look(exploring, kind, image)
    first = exploring.ask(path).json
    token = len(first["prefix"]) + 11
    why = exploring.ask("/api/state").json["models"][exploring.names.index(kind)]["views"]
    for view, expected in views_of(model, prepared(model), token).items():
        reply = exploring.ask(f"{path}/map/{view}")
        if reason := why[view.partition("?")[0]]:
            assert (reply.status, reply.error) == (400, reason)
            continue
        if kind == "resnet" and view.startswith("similarity"):
            continue  # a cell stands for its center: see below
        got, want = torch.tensor(reply.json["values"]), expected()[0]
        assert reply.json["grid"] == list(want.shape)
        rtol = 5e-3 if kind == "resnet" else 1e-4
        torch.testing.assert_close(got, want, atol=2e-5, rtol=rtol, msg=view)
        assert exploring.ask(f"{path}/map/{view}").json == reply.json


def test_a_cell_of_a_resnet_stands_for_its_center(exploring: Exploring, image: str) -> None:
    """The last map has 4 x 4 cells, the first 8 x 8: that below and right of the center counts."""
    path = look(exploring, "resnet", image)
    values = np.array(exploring.ask(f"{path}/map/similarity?layer=0&token=5").json["values"])
    assert values.shape == (8, 8)
    assert values[3, 3] == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("kind", ["plain", "registers", "features"])
def test_colors_are_those_of_inspect(kind: str) -> None:
    """Of several images they share a basis: those that the model saw, this one last."""
    model = kinds()[kind]
    exploring = Exploring((kind, model))  # which has seen none
    image = exploring.ask("/api/images?name=red.png", FILE).json["id"]
    second = encoded(1, rows=16, columns=16)
    other = exploring.ask("/api/images?name=other", second).json["id"]
    alone = exploring.ask(f"{look(exploring, kind, image)}/colors").json
    assert alone["basis"] == [image]
    found = exploring.ask(f"{look(exploring, kind, other)}/colors?layer=1").json
    assert found["basis"] == [image, other]
    pair = torch.cat([prepared(model), preprocess(model)(second)])
    for got, images, layer in ((alone, prepared(model), None), (found, pair, 1)):
        expected = 255 * inspect.feature_colors(model, images, layer=layer)[-1]
        assert np.abs(np.array(got["colors"]) - expected.numpy()).max() <= 0.6
    assert exploring.ask(f"{look(exploring, kind, image)}/colors").json["basis"] == [other, image]
    exploring.close()


@pytest.mark.parametrize("kind", ["plain", "axial", "resnet"])
def test_without_patches(exploring: Exploring, image: str, kind: str) -> None:
    model, path = exploring.models[kind], look(exploring, kind, image)
    found = exploring.ask(path).json
    rows, columns = found["grid"]
    images = prepared(model)
    none = exploring.ask(f"{path}/without", {"patches": [], "classes": [0]}).json
    assert none["top"] == found["top"]
    high, wide = images.shape[2] // rows, images.shape[3] // columns
    mean = images.mean((2, 3), keepdim=True)  # the photo's own, whatever the model's pixels have
    images[:, :, :high, wide * (columns - 1) :] = mean
    expected = model(images)[0].double().softmax(-1)
    asked = {"patches": [columns - 1], "classes": [4, 0]}
    got = exploring.ask(f"{path}/without", asked).json
    assert got["chances"] == pytest.approx([float(expected[4]), float(expected[0])], abs=1e-6)
    assert got["top"][0]["class"] == int(expected.argmax())


def test_a_picture_is_upright_and_not_too_large(exploring: Exploring) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    file = encoded(2, "JPEG", rows=1500, columns=3000, exif=turned)
    opened = exploring.ask("/api/images?name=tall", file).json
    assert (opened["width"], opened["height"]) == (1500, 3000)
    reply = exploring.ask(f"/api/images/{opened['id']}")
    assert Image.open(io.BytesIO(reply.body)).size == (512, 1024)
    assert reply.headers["content-type"] == "image/png"
    opened = exploring.ask("/api/images?name=small", encoded(3, rows=5, columns=7)).json
    shown = Image.open(io.BytesIO(exploring.ask(f"/api/images/{opened['id']}").body))
    assert np.array_equal(np.array(shown), np.array(photo(3, 5, 7)))
    again = exploring.ask("/api/images?name=another", encoded(3, rows=5, columns=7))
    assert (again.status, again.json) == (201, opened)  # the same file is the same image


@pytest.mark.parametrize(
    ("file", "status", "says"),
    [
        (b"", 415, "not a JPEG"),
        (b"no image at all", 415, "not a JPEG, PNG, WEBP, GIF, BMP or TIFF image"),
        (encoded(0, "JPEG", 60, 80)[:500], 422, "damaged"),
        (png_bomb(20_000, 20_000), 422, "20000 x 20000 pixels exceed the limit of 25,000,000"),
        (encoded(0, "PNG", 60, 80)[:900], 422, "damaged"),
    ],
)
def test_bad_files_are_refused_in_one_line(
    exploring: Exploring, file: bytes, status: int, says: str
) -> None:
    reply = exploring.ask("/api/images?name=odd.png", file)
    assert reply.status == status
    assert reply.error.startswith("odd.png: ")
    assert says in reply.error
    assert exploring.ask("/api/state").status == 200


def test_odd_files_that_are_images(exploring: Exploring) -> None:
    one = exploring.ask("/api/images?name=dot", encoded(0, rows=1, columns=1)).json
    assert (one["width"], one["height"]) == (1, 1)
    assert exploring.ask(look(exploring, "plain", one["id"])).json["grid"] == [4, 4]
    frames = [Image.new("RGB", (20, 10), color) for color in ("red", "blue")]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    moving = exploring.ask("/api/images?name=moving", buffer.getvalue()).json
    shown = Image.open(io.BytesIO(exploring.ask(f"/api/images/{moving['id']}").body))
    assert shown.getpixel((0, 0)) == (255, 0, 0)
    assert exploring.ask(look(exploring, "plain", moving["id"])).status == 200


def test_a_body_beyond_the_limit_is_refused(exploring: Exploring) -> None:
    reply = exploring.ask("/api/images", b"x", content_length=str(MOST_BODY + 1))
    assert (reply.status, "64 MiB" in reply.error) == (413, True)


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/api/images/nobody", None, 404, "no longer open"),
        ("/api/look/99/IMAGE", None, 404, "no model 99"),
        ("/api/look/0/nobody", None, 404, "no longer open"),
        ("/api/look/0/IMAGE/attention/17", None, 400, "token 17 of 17"),
        ("/api/look/0/IMAGE/attention/-1", None, 400, "whole number"),
        ("/api/look/0/IMAGE/attention/pool", None, 400, "no attention pool"),
        ("/api/look/10/IMAGE/attention/0", None, 400, "no attention"),
        ("/api/look/0/IMAGE/map/magic", None, 404, "unknown view"),
        ("/api/look/0/IMAGE/map/gradcam?class=5", None, 400, "choose from 0 to 4"),
        ("/api/look/0/IMAGE/map/norms?layer=3", None, 400, "choose from 0 to 2"),
        ("/api/look/0/IMAGE/map/rollout?layer=3", None, 400, "layer 3: choose from 1 to 2"),
        ("/api/look/0/IMAGE/map/rollout?layer=0", None, 400, "layer 0: choose from 1 to 2"),
        ("/api/look/0/IMAGE/map/similarity?token=17", None, 400, "token 17 of 17"),
        ("/api/look/0/IMAGE/map/norms?layer=x", None, 400, "whole number"),
        ("/api/look/0/IMAGE/colors?layer=9", None, 400, "choose from 0 to 2"),
        ("/api/look/0/IMAGE/without", b"[", 400, "the body must be"),
        ("/api/look/0/IMAGE/without", {"patches": ["1"]}, 400, "the body must be"),
        ("/api/look/0/IMAGE/without", {"patches": [16]}, 400, "patch 16 of 16"),
        ("/api/look/0/IMAGE/without", {"patches": [0], "classes": [5]}, 400, "from 0 to 4"),
        ("/api/look/7/IMAGE/without", {"patches": [0]}, 400, "no classifier"),
        ("/api/map", None, 404, "--data"),
        ("/api/labels", None, 404, "--data"),
    ],
)
def test_what_cannot_be_asked(
    exploring: Exploring, image: str, path: str, body: object, status: int, says: str
) -> None:
    reply = exploring.ask(path.replace("IMAGE", image), body)
    assert (reply.status, says in reply.error) == (status, True), reply.error


def test_unknown_addresses(exploring: Exploring) -> None:
    paths = ("/api/nowhere", "/api/images", "/page/service.html")
    assert [exploring.ask(path).status for path in paths] == [404, 405, 404]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1:8765", "origin": "http://127.0.0.1:8765"}, 200),
        ({"host": "127.0.0.1:8765", "origin": "http://127.0.0.1:9999"}, 403),
        ({"host": "localhost", "origin": "null"}, 403),
        ({"host": "localhost", "sec_fetch_site": "cross-site"}, 403),
        ({"host": "localhost", "sec_fetch_site": "same-origin"}, 200),
    ],
)
def test_only_its_own_page_may_ask(
    exploring: Exploring, headers: dict[str, str], status: int
) -> None:
    assert exploring.ask("/api/state", **headers).status == status
