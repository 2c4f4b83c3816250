"""The service's page, as people use it."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from pages.conftest import PHONE, dropped, fits_a_phone, pasted, runs_nothing_foreign
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
    """The map can be hidden and made stronger; another model answers for the photos there are."""
    runs_nothing_foreign(page, page.url)
    page.set_input_files(FILES, [pictures / "china.jpg", pictures / "notes.txt"])
    cards = page.locator(".answer")
    expect(cards.nth(0).locator("h2")).to_have_text("china.jpg")
    expect(cards.nth(0).locator(".bars li")).to_have_text(
        ["pagoda> 99.9%", f"{NASTY}< 0.1%", "dahlia0.0%"]
    )
    expect(cards.nth(0)).to_contain_text("first · request ")
    bar = cards.nth(0).locator(".track > span").nth(0)
    assert bar.evaluate("bar => bar.style.width") == "99.96%"
    expect(cards.nth(1)).to_contain_text("This file cannot be read as a photo")
    expect(cards.nth(1)).to_contain_text("The service says: image 0: not an image")
    expect(cards.nth(1).locator("img")).not_to_be_visible()
    expect(page.get_by_role("status")).to_contain_text(re.compile(r"china.jpg: pagoda|notes.txt: "))
    shown = page.locator(".map canvas")
    expect(shown).to_have_css("opacity", "0.65")
    page.get_by_label("Strength").focus()
    page.keyboard.press("End")
    expect(shown).to_have_css("opacity", "1")
    page.get_by_label("Where the model looked").uncheck()
    expect(shown).not_to_be_visible()
    expect(page.get_by_label("Strength")).to_be_disabled()
    page.get_by_label("Model", exact=True).select_option("second")
    expect(cards.nth(0).locator(".value")).to_have_text(["75.0%", "25.0%"])
    expect(cards.nth(0)).to_contain_text("no attention")
    expect(page.locator(".map")).to_have_count(0)
    page.get_by_role("button", name="Clear").click()
    expect(cards).to_have_count(0)


def test_the_map_lies_over_what_the_model_saw(page: Any, pictures: Path) -> None:
    for name in ("china", "turned"):
        page.set_input_files(FILES, pictures / f"{name}.jpg")
        card = page.locator(f".answer:has(h2:text('{name}.jpg'))")
        card.locator(".map").wait_for()
        assert card.locator(".photo img").evaluate("image => image.naturalWidth") == 640
        photo, part = (card.locator(each).bounding_box() for each in (".photo img", ".map"))
        assert part["width"] == pytest.approx(part["height"], abs=1)  # the middle square
        assert part["height"] == pytest.approx(photo["height"], abs=0.1)
        middles = [each["x"] + each["width"] / 2 for each in (photo, part)]
        assert middles[0] == pytest.approx(middles[1], abs=0.1)
        corners = "canvas => [...canvas.getContext('2d').getImageData(0, 0, 2, 2).data]"
        colors = card.locator(".map canvas").evaluate(corners)
        brightness = [sum(colors[place : place + 3]) for place in (0, 4, 8, 12)]
        assert brightness[0] > brightness[1] == brightness[2] > brightness[3]


def test_dropped_and_pasted_photos(page: Any, pictures: Path) -> None:
    dropped(page, [pictures / "china.jpg", pictures / "flower.jpg"])
    expect(page.locator(".answer h2")).to_have_text(["china.jpg", "flower.jpg"])
    expect(page.locator(".answer .bars")).to_have_count(2)
    expect(page.locator("body")).not_to_have_class("over")
    pasted(page, pictures / "flower.jpg")
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


def test_errors_are_one_sentence_and_some_are_tried_again(page: Any, pictures: Path) -> None:
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
    page.context.set_offline(True)
    page.set_input_files(FILES, pictures / "china.jpg")
    expect(card.locator(".wrong")).to_contain_text("cannot be reached")
    page.context.set_offline(False)
    asked = []

    def busy_once(route: Any) -> None:
        asked.append(route)
        if len(asked) > 1:
            route.continue_()
        else:
            route.fulfill(**refusal(503, **{"Retry-After": "0.2"}))

    page.route("**/attention*", busy_once)
    card.get_by_role("button", name="Try again").click()
    expect(card.locator(".bars")).to_be_visible()
    assert len(asked) == 2


def test_a_phone(opened: Callable[..., Any], address: str, pictures: Path) -> None:
    page = opened(address, color_scheme="light", **PHONE)
    expect(page.get_by_text("Take a photo")).to_be_visible()
    page.set_input_files("input[capture]", pictures / "china.jpg")
    page.wait_for_selector(".map")
    page.set_input_files(FILES, pictures / "notes.txt")
    page.wait_for_selector(".wrong")
    fits_a_phone(page, dark=False)


def test_the_services_own_routes_answer_it(opened: Callable[..., Any], pictures: Path) -> None:
    """The page needs no token, which it asks for and forgets; what the page asks for does."""
    with serving(service(FakeEngine(), token="a" * 16)) as place:
        page = opened(place)
        field = page.get_by_label("Token")
        expect(field).to_be_focused()
        page.set_input_files(FILES, [pictures / "china.jpg", pictures / "notes.txt"])
        cards = page.locator(".answer")
        expect(cards.nth(0).locator(".wrong")).to_contain_text("needs a token")
        field.fill("wrong")
        field.press("Enter")
        expect(field).to_be_visible()
        expect(field).to_be_focused()
        field.fill("a" * 16)
        field.press("Enter")
        expect(page.locator("#about")).to_contain_text(" classes: cat, dog")
        expect(field).not_to_be_visible()
        assert page.evaluate("Object.keys(localStorage)") == []
        page.get_by_label("Model", exact=True).select_option("labels")
        expect(cards.nth(0)).to_contain_text("labels · request ")
        expect(cards.nth(0)).to_contain_text("Above their threshold: ")
        expect(cards.nth(1)).to_contain_text("The service says: image 0: ")
        photo, part = (cards.first.locator(each).bounding_box() for each in (".photo img", ".map"))
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
