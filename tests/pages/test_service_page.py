"""The service's page, as people use it."""

import re
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from pages.conftest import PHONE, dropped
from pages.fake_service import NASTY, application, refusal, serving
from serve.fakes import FakeEngine, png
from vitlab.serve.app import application as service

FILES = "input[type=file] >> nth=0"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serving(application()) as place:
        yield place


@pytest.fixture
def page(opened: Callable[..., Any], address: str) -> Any:
    page = opened(address)
    expect(page.locator("#about")).to_contain_text("first names what is in a photo")
    return page


def test_photos_are_classified_and_names_are_only_text(page: Any, pictures: Path) -> None:
    page.set_input_files(FILES, [pictures / "china.jpg", pictures / "notes.txt"])
    cards = page.locator(".answer")
    expect(cards.nth(0).locator("h2")).to_have_text("china.jpg")
    expect(cards.nth(0).locator(".bars li")).to_have_text([r"pagoda> 99.9%", f"{NASTY}< 0.1%"])
    expect(cards.nth(0)).to_contain_text("first · request id-1")
    assert (
        cards.nth(0).locator(".track > span").nth(0).evaluate("bar => bar.style.width") == "99.96%"
    )
    expect(cards.nth(1)).to_contain_text("This file cannot be read as a photo")
    expect(cards.nth(1)).to_contain_text("The service says: image 0: not an image")
    expect(cards.nth(1).locator("img")).not_to_be_visible()
    expect(page.get_by_role("status")).to_contain_text(re.compile(r"china.jpg: pagoda|notes.txt: "))
    page.get_by_role("button", name="Clear").click()
    expect(cards).to_have_count(0)


@pytest.mark.parametrize(("name", "columns"), [("china", 640), ("turned", 640)])
def test_the_map_lies_over_what_the_model_saw(
    page: Any, pictures: Path, name: str, columns: int
) -> None:
    page.set_input_files(FILES, pictures / f"{name}.jpg")
    page.wait_for_selector(".map")
    assert page.locator(".photo img").evaluate("image => image.naturalWidth") == columns
    photo, part = (page.locator(each).bounding_box() for each in (".photo img", ".map"))
    assert part["width"] == pytest.approx(part["height"], abs=1)  # the middle square
    assert part["height"] == pytest.approx(photo["height"], abs=0.1)
    middles = [each["x"] + each["width"] / 2 for each in (photo, part)]
    assert middles[0] == pytest.approx(middles[1], abs=0.1)
    corners = "canvas => [...canvas.getContext('2d').getImageData(0, 0, 2, 2).data]"
    colors = page.locator(".map canvas").evaluate(corners)
    brightness = [sum(colors[place : place + 3]) for place in (0, 4, 8, 12)]
    assert brightness[0] > brightness[1] == brightness[2] > brightness[3]


def test_the_map_can_be_hidden_and_made_stronger(page: Any, pictures: Path) -> None:
    page.set_input_files(FILES, pictures / "china.jpg")
    shown = page.locator(".map canvas")
    expect(shown).to_have_css("opacity", "0.65")
    page.get_by_label("Strength").focus()
    page.keyboard.press("End")
    expect(shown).to_have_css("opacity", "1")
    page.get_by_label("Where the model looked").uncheck()
    expect(shown).not_to_be_visible()
    expect(page.get_by_label("Strength")).to_be_disabled()


def test_another_model_answers_for_the_photos_that_are_there(page: Any, pictures: Path) -> None:
    page.set_input_files(FILES, pictures / "china.jpg")
    page.wait_for_selector(".map")
    page.get_by_label("Model", exact=True).select_option("second")
    expect(page.locator(".answer .value")).to_have_text("75.0%")
    expect(page.locator(".answer")).to_contain_text("no attention")
    expect(page.locator(".map")).to_have_count(0)


PASTE = """(body, text) => {
  const clipboardData = new DataTransfer();
  const bytes = Uint8Array.from(atob(text), each => each.charCodeAt(0));
  clipboardData.items.add(new File([bytes], "pasted.jpg"));
  dispatchEvent(new ClipboardEvent("paste", { clipboardData }));
}"""


def test_dropped_and_pasted_photos(page: Any, pictures: Path) -> None:
    dropped(page, [pictures / "china.jpg", pictures / "flower.jpg"])
    expect(page.locator(".answer h2")).to_have_text(["china.jpg", "flower.jpg"])
    expect(page.locator(".answer .bars")).to_have_count(2)
    expect(page.locator("body")).not_to_have_class("over")
    page.locator("body").evaluate(PASTE, b64encode((pictures / "flower.jpg").read_bytes()).decode())
    expect(page.locator(".answer h2").first).to_have_text("pasted.jpg")
    expect(page.locator(".answer .bars")).to_have_count(3)
    dropped(page, [])
    expect(page.get_by_role("status")).to_contain_text("That was not a file")


def test_by_keyboard_alone(page: Any, pictures: Path) -> None:
    page.on("filechooser", lambda chooser: chooser.set_files(pictures / "china.jpg"))
    page.keyboard.press("Tab")
    focused = page.locator(":focus")
    assert focused.get_attribute("type") == "file"
    outline = page.locator(".button:has(:focus)").evaluate("each => getComputedStyle(each).outline")
    assert "3px" in outline
    page.keyboard.press("Enter")
    page.wait_for_selector(".map")
    order = []
    for _ in range(5):
        page.keyboard.press("Tab")
        order.append(focused.evaluate("each => each.id"))
    assert order[:4] == ["model", "shown", "strength", "clear"]
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".answer")).to_have_count(0)


ERRORS = {
    413: ("too large", False),
    415: ("reads only JPEG, PNG and WebP", False),
    422: ("cannot be read as a photo", False),
    504: ("took too long", True),
    500: ("failed (status 500)", True),
    404: ("no such model any more", True),
}


def test_errors_are_one_sentence(page: Any, pictures: Path) -> None:
    statuses = iter(ERRORS)
    page.route("**/attention*", lambda route: route.fulfill(**refusal(next(statuses))))
    card = page.locator(".answer").first
    for status, (sentence, again) in ERRORS.items():
        page.set_input_files(FILES, pictures / "china.jpg")
        expect(card.locator(".wrong")).to_contain_text(sentence)
        expect(card).to_contain_text(f"The service says: reason {status}")
        expect(card).to_contain_text("Request id-3")
        expect(card.get_by_role("button", name="Try again")).to_have_count(int(again))
    page.unroute("**/attention*")
    card.get_by_role("button", name="Try again").click()
    expect(card.locator(".bars")).to_be_visible()


def test_a_busy_service_is_asked_again(page: Any, pictures: Path) -> None:
    asked = []

    def busy_once(route: Any) -> None:
        asked.append(route)
        if len(asked) > 1:
            route.continue_()
        else:
            route.fulfill(**refusal(503, **{"Retry-After": "0.2"}))

    page.route("**/attention*", busy_once)
    page.set_input_files(FILES, pictures / "china.jpg")
    expect(page.locator(".bars")).to_be_visible()
    assert len(asked) == 2


def test_a_service_that_is_down(page: Any, pictures: Path) -> None:
    page.context.set_offline(True)
    page.set_input_files(FILES, pictures / "china.jpg")
    expect(page.locator(".wrong")).to_contain_text("cannot be reached")
    page.context.set_offline(False)
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".bars")).to_be_visible()


def test_a_token_is_asked_for_and_sent(
    opened: Callable[..., Any], address: str, pictures: Path
) -> None:
    page = opened("about:blank")

    def guarded(route: Any) -> None:
        right = route.request.headers.get("authorization") == "Bearer secret"
        if right:
            route.continue_()
        else:
            route.fulfill(**refusal(401))

    page.route(re.compile("/(models|attention)"), guarded)
    page.goto(address)
    field = page.get_by_label("Token")
    expect(field).to_be_focused()
    page.set_input_files(FILES, pictures / "china.jpg")
    expect(page.locator(".answer .wrong")).to_contain_text("needs a token")
    field.fill("wrong")
    field.press("Enter")
    expect(field).to_be_visible()
    expect(field).to_be_focused()
    field.fill("secret")
    field.press("Enter")
    expect(page.locator(".bars")).to_be_visible()
    expect(field).not_to_be_visible()
    assert page.evaluate("Object.keys(localStorage)") == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone(opened: Callable[..., Any], address: str, pictures: Path, scheme: str) -> None:
    page = opened(address, color_scheme=scheme, **PHONE)
    expect(page.get_by_text("Take a photo")).to_be_visible()
    page.set_input_files("input[capture]", pictures / "china.jpg")
    page.wait_for_selector(".map")
    page.set_input_files(FILES, pictures / "notes.txt")
    page.wait_for_selector(".wrong")
    widths = "[document.documentElement.scrollWidth, innerWidth]"
    assert page.evaluate(widths) == [390, 390]
    dark = page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
    assert (dark == "rgb(17, 19, 22)") == (scheme == "dark")


def test_the_services_own_routes_answer_it(opened: Callable[..., Any], pictures: Path) -> None:
    """The page needs no token; what it asks for does."""
    with serving(service(FakeEngine(), token="a" * 16)) as place:
        page = opened(place)
        page.get_by_label("Token").fill("a" * 16)
        page.keyboard.press("Enter")
        expect(page.locator("#about")).to_contain_text(" classes: cat, dog")
        page.set_input_files(FILES, [pictures / "china.jpg", pictures / "notes.txt"])
        page.get_by_label("Model", exact=True).select_option("labels")
        expect(page.locator(".answer").nth(0)).to_contain_text("labels · request ")
        expect(page.locator(".answer").nth(0)).to_contain_text("Above their threshold: ")
        expect(page.locator(".answer").nth(1)).to_contain_text("The service says: image 0: ")
        first = page.locator(".answer").first
        photo, part = (first.locator(each).bounding_box() for each in (".photo img", ".map"))
        assert part["height"] == pytest.approx(photo["height"] / 2, abs=0.1)
        assert part["width"] == pytest.approx(photo["width"], abs=0.1)


def test_masks_boxes_and_numbers(opened: Callable[..., Any], tmp_path: Path) -> None:
    """A mask and frames lie where they are of the photo, 12 x 10 pixels, as wide as it is shown."""
    (tmp_path / "red.png").write_bytes(png())
    with serving(service(FakeEngine(names=("masks", "boxes", "numbers")))) as place:
        page = opened(place)
        expect(page.locator("#about")).to_contain_text("masks names each pixel of a photo, out of")
        page.set_input_files(FILES, tmp_path / "red.png")
        expect(page.locator(".answer .value")).to_have_text(["75.0%", "25.0%"])
        photo, over = (
            page.locator(each).bounding_box() for each in (".photo > img >> nth=0", ".mask")
        )
        assert over == photo
        assert page.locator(".mask").evaluate(
            "mask => [mask.naturalWidth, mask.naturalHeight]"
        ) == [12, 10]
        bar = page.locator(".track > span").first
        expect(bar).to_have_css("background-color", "rgb(128, 0, 0)")
        page.get_by_label("The mask").uncheck()
        expect(page.locator(".mask")).to_be_hidden()
        page.get_by_label("The mask").check()
        page.get_by_label("Model", exact=True).select_option("boxes")
        expect(page.locator(".frame bdi")).to_have_text(["<b>owl</b>"])  # the other one is not sure
        expect(page.locator(".answer .value")).to_have_text(["90.0%", "20.0%"])
        expect(page.locator(".mask")).to_have_count(0)
        frame = page.locator(".frame").bounding_box()
        assert frame["x"] - photo["x"] == pytest.approx(photo["width"] * 3 / 12, abs=0.6)
        assert frame["width"] == pytest.approx(photo["width"] * 6 / 12, abs=0.6)
        assert frame["height"] == pytest.approx(photo["height"] * 5 / 10, abs=0.6)
        expect(page.get_by_role("status")).to_have_text("red.png: 1 object of at least 50%")
        page.get_by_label("Model", exact=True).select_option("numbers")
        expect(page.locator(".numbers dd")).to_have_text(["41.5 ± 2", "170.25 ± 3"])
        expect(page.locator("#looks")).to_be_hidden()


def test_nothing_foreign_can_run(page: Any) -> None:
    """The policy stops what a bug might let through."""
    answer = page.request.get(page.url)
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert "<script>" not in answer.text()
    assert " style=" not in answer.text()
