"""The page of an exported model, from a disk and from a server, as people use it."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from playwright.sync_api import expect

import vitlab
from conftest import call
from pages.conftest import PHONE, dropped, fits_a_phone
from vitlab.errors import DiskError, OptionError
from vitlab.graphs.web_export import PART, check_size, write_page
from vitlab.models.model import Model
from vitlab.pages.runtime import RUNTIME, VENDORED

FILES = "input[type=file] >> nth=0"
NASTY = "</script><b>x</b>"
CLASSES = ("cat", NASTY, "Känguru 🦘")
vendored = pytest.mark.skipif(
    not (VENDORED / RUNTIME.folder).is_dir(), reason="make vendor has not fetched the runtime"
)


@pytest.fixture(scope="module")
def model() -> Model:
    generator = torch.Generator().manual_seed(1)
    name = "ViT(width=32,depth=1,heads=2,mlp=32)/16"
    made = vitlab.create(name, 3, image_size=224, labels=CLASSES, generator=generator)
    with torch.no_grad():
        for weight in made.parameters():  # so that photos differ in their classes
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
    made.provenance |= {"license": "mit"}
    return made.eval()


@pytest.fixture(scope="module")
def folder(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("web") / "page"
    found = vitlab.export(model, place, to="web")
    assert found["difference"] < 1e-5
    assert sorted(each.name for each in place.iterdir()) == found["files"]
    unseen = (place / "licenses.txt").stat().st_size + (place / "facts.js").stat().st_size
    assert found["bytes"] == sum(each.stat().st_size for each in place.iterdir()) - unseen
    return place


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *words: Any) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@vendored
@pytest.mark.slow
def test_from_a_disk_photos_have_the_probabilities_of_classify(
    opened: Callable[..., Any], folder: Path, pictures: Path, model: Model
) -> None:
    page = opened((folder / "index.html").as_uri())
    expect(page.get_by_role("heading", level=1)).to_contain_text("ViT")
    expect(page.locator("#about")).to_have_text(f"Tells apart: {', '.join(CLASSES)}")
    expect(page.locator("#facts")).to_contain_text("MB with ONNX Runtime Web 1.30.0")
    clear = Image.open(pictures / "china.jpg").convert("RGBA")
    clear.putalpha(Image.linear_gradient("L").resize(clear.size))
    clear.save(pictures / "clear.png")
    clear.convert("L").save(pictures / "gray.webp", lossless=True)
    first, second = (Image.open(pictures / f"{name}.jpg") for name in ("china", "flower"))
    first.save(pictures / "moving.gif", save_all=True, append_images=[second])
    names = ["china.jpg", "turned.jpg", "clear.png", "gray.webp", "moving.gif"]
    page.set_input_files(FILES, [pictures / name for name in names])
    expect(page.locator(".answer .bars")).to_have_count(len(names))
    answers = vitlab.classify(model, [str(pictures / name) for name in names])
    for answer, card in zip(answers, page.locator(".answer").all(), strict=True):
        shown = card.locator(".name").all_text_contents()
        assert shown == [name for name, _ in answer.classes]
        for (_, chance), value in zip(answer.classes, card.locator(".value").all(), strict=True):
            assert float(value.get_attribute("title") or "") == pytest.approx(chance, abs=1e-5)
    expect(page.locator(".answer").nth(1)).to_contain_text("640 × 427 pixels")


def large(route: Any) -> None:
    """Say that the page is larger than it is."""
    text = route.fetch().text()
    facts = json.loads(text.removeprefix("vitlab.facts = ").rstrip(";\n"))
    route.fulfill(body=f"vitlab.facts = {json.dumps(facts | {'bytes': 99e6})};")


@vendored
@pytest.mark.slow
def test_from_a_server_on_a_phone(
    opened: Callable[..., Any], served: str, pictures: Path, tmp_path: Path
) -> None:
    """What is large is loaded once that is said, by keyboard; a missing part is tried again."""
    page = opened("about:blank", color_scheme="dark", **PHONE)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.route("**/facts.js", large)
    page.route("**/model-001.js", lambda route: route.abort())
    page.goto(served)
    button = page.get_by_role("button", name="Load the model (99 MB)")
    expect(button).to_be_visible()
    assert page.locator("script[src^=model]").count() == 0
    button.focus()
    page.keyboard.press("Enter")
    status, wrong = page.get_by_role("status"), page.locator(".answer .wrong")
    expect(status).to_contain_text("model-001.js is missing beside this page or did not arrive")
    page.set_input_files(FILES, pictures / "china.jpg")
    expect(wrong).to_have_text("The model could not be loaded.")
    page.unroute("**/model-001.js")
    page.locator(".answer").get_by_role("button", name="Try again").click()
    expect(page.locator(".answer .bars")).to_be_visible(timeout=60_000)
    page.get_by_role("button", name="Clear").press("Enter")
    expect(page.locator(".answer")).to_have_count(0)
    flower = Image.open(pictures / "flower.jpg")
    flower.resize((2400, 1600)).save(tmp_path / "large.jpg")
    flower.resize((1, 40_000)).save(tmp_path / "thin.png")
    page.set_input_files("input[capture]", tmp_path / "large.jpg")
    expect(page.locator(".answer")).to_contain_text("2400 × 1600 pixels")
    dropped(page, [tmp_path / "thin.png", pictures / "broken.jpg", pictures / "notes.txt"])
    expect(page.locator(".answer").nth(0)).to_contain_text("1 × 40000 pixels")
    expect(wrong).to_have_text(
        ["This file is damaged, or is not an image that this browser can read."] * 2
    )
    fits_a_phone(page, dark=True)
    assert [each for each in asked if not each.startswith((served, "blob:", "data:"))] == []


# a model refuses U+2028 in the name of a class; the page is safe from it all the same
CARD = {
    "model": "ViT-Ti/16",
    "classes": [NASTY + "\u2028"] * 20,
    "channels": 3,
    "image_size": [32, 32],
}
CARD |= {"crop": 1.0, "multi_label": True, "thresholds": [0.3] * 20}


def test_names_cannot_leave_their_script(tmp_path: Path) -> None:
    """A large graph is in several parts, and every script is ASCII."""
    (tmp_path / "x.onnx").write_bytes(b"x" * (PART + 5))
    found = write_page(tmp_path / "x.onnx", CARD, tmp_path / "page", [b"a", b"b", b"c"])
    assert {"model-001.js", "model-002.js"} < set(found["files"])
    text = (tmp_path / "page" / "facts.js").read_text("ascii")
    assert "\\u2028" in text
    facts = json.loads(text.removeprefix("vitlab.facts = ").rstrip(";\n"))
    assert facts["classes"] == CARD["classes"]
    assert facts["about"].endswith("and 12 more")
    assert (facts["several"], facts["size"], len(facts["parts"])) == (True, PART + 5, 3)
    assert "MIT License" in (tmp_path / "page" / "licenses.txt").read_text()


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"classes": 0}, "no classifier, and the page shows classes"),
        (
            {"classes": 2, "channels": 5, "mean": 0.5, "std": 0.5},
            "images of 5 channels cannot be prepared",
        ),
        ({"classes": 2, "fit": "native", "tokens": 16}, r"a page cannot: use to='onnx'"),
    ],
)
def test_models_that_a_page_cannot_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choices: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr("vitlab.graphs.web_export.runtime_files", list)
    small = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=16)/8", image_size=16, **choices)
    with pytest.raises(OptionError, match=message):
        vitlab.export(small, tmp_path / "page", to="web")
    with pytest.raises(OptionError, match="has 5,000 MB, and a browser can hold 1,074 MB"):
        check_size(5 * 10**9)
    assert not (tmp_path / "page").exists()


def test_a_folder_that_is_taken(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "mine.txt").touch()
    small = vitlab.create("ViT(width=16,depth=1,heads=2,mlp=16)/8", classes=2, image_size=16)
    with pytest.raises(DiskError, match="already exists"):
        vitlab.export(small, tmp_path / "page", to="web")
    with pytest.raises(OptionError, match="bare is for ONNX files"):
        vitlab.export(small, tmp_path / "other", to="web", bare=True)
    code, _, stderr = call(
        capsys, "export", "x", "--to", "web", "--out", str(tmp_path / "y"), "--bare"
    )
    assert code == 2
    assert "bare" in stderr
