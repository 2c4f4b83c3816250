"""The explorer's page, as people use it."""

import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import expect

from pages.conftest import PHONE, dropped, fits_a_phone, pasted, runs_nothing_foreign
from pages.fake_explorer import ALONE, FIRST, NASTY, SECOND, FakeExplorer
from pages.fake_service import refusal, serving

FILES = "input[type=file] >> nth=0"
SHOWN = ".panel[data-shown^=api]"
BESIDE = ".panel:nth-child(2)[data-shown^=api]"
PHOTO = ".frame canvas"


@pytest.fixture(scope="module")
def explorer(pictures: Path) -> FakeExplorer:
    explorer = FakeExplorer([FIRST, SECOND, ALONE])
    explorer.open((pictures / "china.jpg").read_bytes(), "china.jpg")
    return explorer


@pytest.fixture(scope="module")
def address(explorer: FakeExplorer) -> Iterator[str]:
    with serving(explorer.application()) as place:
        yield place


@pytest.fixture
def page(opened: Callable[..., Any], address: str) -> Any:
    """The page with one photo in one model."""
    page = opened(address)
    page.wait_for_selector(SHOWN)
    return page


def spot(page: Any, row: int, column: int, side: int = 14, panel: int = 0) -> tuple[float, float]:
    """The middle of a patch on the screen; the models see the middle square of the photo."""
    area = page.locator(PHOTO).nth(panel).bounding_box()
    length = area["height"]
    left = area["x"] + (area["width"] - length) / 2
    return left + length * (column - 0.5) / side, area["y"] + length * (row - 0.5) / side


def brightest(canvas: Any, side: int = 14) -> tuple[int, int]:
    """Row and column of the patch that is drawn brightest, counted from 1."""
    width, height, text = canvas.evaluate(
        """canvas => {
          const {width, height} = canvas;
          const {data} = canvas.getContext("2d").getImageData(0, 0, width, height);
          let text = "";
          for (const each of data) text += String.fromCharCode(each);
          return [width, height, btoa(text)];
        }"""
    )
    pixels = np.frombuffer(b64decode(text), np.uint8).reshape(height, width, 4)[..., :3]
    left = (width - height) // 2
    square = pixels[:, left : left + height].sum(-1)
    places = [round((number + 0.5) * height / side) for number in range(side)]
    row, column = divmod(int(square[np.ix_(places, places)].argmax()), side)
    return row + 1, column + 1


def shows_token(page: Any, token: int, panel: int = 0) -> None:
    """Wait until a panel shows the attention of a token."""
    shown = re.compile(rf"/attention/{token} ")
    expect(page.locator(".panel").nth(panel)).to_have_attribute("data-shown", shown)


def beside(page: Any) -> None:
    """Show the second model beside the first."""
    page.get_by_label("Beside it").select_option("1")
    page.wait_for_selector(BESIDE)


def test_photos_come_in_and_a_bad_file_goes_by(
    opened: Callable[..., Any], pictures: Path, tmp_path: Path
) -> None:
    large = tmp_path / "large.jpg"
    large.write_bytes(bytes(2**20 + 1))
    with serving(FakeExplorer([FIRST]).application()) as place:
        page = opened(place)
        expect(page.get_by_role("status")).to_have_text("Choose a photo to begin.")
        pasted(page, pictures / "flower.jpg")
        page.wait_for_selector(SHOWN)
        expect(page.get_by_label("Model")).not_to_be_visible()  # there is only one
        thumbs = page.locator(".thumb")
        expect(thumbs).to_have_attribute("aria-label", "pasted.jpg")
        page.set_input_files(FILES, [pictures / "notes.txt", large, pictures / "china.jpg"])
        expect(page.locator("#refused li")).to_have_text(
            ["notes.txt: it is no image, or damaged", "large.jpg: too large: a file may have 1 MiB"]
        )
        expect(thumbs).to_have_count(2)
        china = page.get_by_role("button", name="china.jpg")
        expect(china).to_have_attribute("aria-pressed", "true")
        expect(page.get_by_role("status")).to_have_text("china.jpg: pagoda, 75.0%")
        dropped(page, [pictures / "broken.jpg", pictures / "china.jpg"])
        expect(page.locator("#refused li")).to_have_text(["broken.jpg: it is no image, or damaged"])
        expect(thumbs).to_have_count(2)  # the same file is the same photo
        page.get_by_role("button", name="pasted.jpg").click()
        expect(page.get_by_role("status")).to_have_text("pasted.jpg: pagoda, 75.0%")
        expect(page.locator(".bars .name bdi").nth(1)).to_have_text(NASTY)


def test_pointing_shows_where_every_head_looks(page: Any, explorer: FakeExplorer) -> None:
    """Against the same mean, computed here; a click holds the patch, and Escape lets go."""
    shows_token(page, 0)
    expect(page.get_by_role("button", name="class token")).to_have_attribute("aria-pressed", "true")
    page.mouse.move(*spot(page, 6, 3))
    token = 1 + 14 * (6 - 1) + 3 - 1
    expect(page.locator(".panel")).to_have_attribute("data-shown", re.compile(f"/{token} 132$"))
    largest, levels = FIRST.looks(token)
    mean = (largest[11, :, None] * levels[11] / 255).mean(0)
    peak, readout = int(mean[1:].argmax()), page.locator(".readout")
    expect(readout).to_have_text(
        f"Row 6, column 3, layer 12: looks most at row {peak // 14 + 1}, column {peak % 14 + 1} "
        f"({100 * mean[1:].max():.1f}%); {100 * mean[0]:.0f}% to the class token"
    )
    heads = page.locator(".head canvas")
    expect(heads).to_have_count(13)
    assert brightest(heads.nth(1)) == (6, 3)
    assert brightest(heads.nth(8)) == (6, 10)
    page.mouse.click(*spot(page, 5, 5))
    expect(readout).to_contain_text("Row 5, column 5")
    page.mouse.move(*spot(page, 9, 9))
    page.evaluate("new Promise(end => requestAnimationFrame(() => requestAnimationFrame(end)))")
    shows_token(page, 1 + 4 * 14 + 4)
    asked = len(explorer.asked)  # layers need no further request
    page.get_by_label("Layer").focus()
    for _ in range(5):
        page.keyboard.press("ArrowLeft")
    expect(page.locator("#layer-name")).to_have_text("7 of 12")
    expect(readout).to_contain_text("Row 5, column 5, layer 7")
    expect(page.locator(".panel")).to_have_attribute("data-shown", re.compile(" 72$"))
    assert len(explorer.asked) == asked
    page.get_by_role("button", name="Similarity").click()
    expect(page.locator(".panel")).to_have_attribute("data-shown", re.compile("layer=7&token=61"))
    expect(readout).to_have_text("Row 5, column 5 is most like row 1, column 14: 1")
    page.get_by_role("button", name="Attention").click()
    page.keyboard.press("Escape")
    page.mouse.move(*spot(page, 6, 3))
    expect(readout).to_contain_text("Row 6, column 3")
    page.get_by_role("button", name="Head 8").click()
    expect(page.locator(".scale")).to_contain_text("share of the attention, head 8")
    assert brightest(page.locator(PHOTO)) == (6, 10)
    told = page.locator("#told")
    expect(told).to_contain_text(re.compile(r"Row 6, column 3, .* Peaks: head \d+: row 6, column"))


def test_by_keyboard_alone_and_brushing_out_patches(page: Any) -> None:
    page.locator(PHOTO).focus()
    for key in ("ArrowUp", "ArrowUp", "ArrowLeft"):
        page.keyboard.press(key)
    expect(page.locator(".readout")).to_contain_text("Row 7, column 7")
    page.keyboard.press(" ")
    value = page.locator(".bars .value").first
    expect(value).to_have_text("75.0% → 65.0%")
    expect(page.locator("#told")).to_contain_text("first: pagoda 75.0% before, 65.0% after. Row 7")
    page.keyboard.press("Control+z")
    expect(value).to_have_text("75.0%")
    order = []
    for _ in range(3):
        page.keyboard.press("Shift+Tab")
        order.append(page.locator(":focus").evaluate("each => each.id || each.textContent.trim()"))
    assert order == ["Display", "png", "link"]
    posted = []
    page.on("request", lambda each: each.method == "POST" and posted.append(each.post_data))
    page.get_by_role("button", name="Brush out patches").click()
    page.mouse.move(*spot(page, 3, 2))
    page.mouse.down()
    page.mouse.move(*spot(page, 3, 6))  # at once: the patches between are not skipped
    page.mouse.up()
    expect(value).to_have_text("75.0% → 25.0%")
    sent = json.loads(posted[-1])
    assert sorted(sent["patches"]) == [28 + column for column in range(1, 6)]
    assert sent["classes"] == [0, 1, 2, 3, 4]
    expect(page.locator(".legend")).to_have_text("the whole photowithout the patches")
    page.mouse.click(*spot(page, 3, 6))  # a stroke from a patch that is out gives back
    expect(value).to_have_text("75.0% → 35.0%")
    page.get_by_role("button", name="Undo").click()
    expect(value).to_have_text("75.0% → 25.0%")
    page.get_by_role("button", name="Restore all").click()
    expect(value).to_have_text("75.0%")
    expect(page.get_by_role("button", name="Restore all")).to_be_disabled()
    page.get_by_role("button", name="Undo").click()
    expect(value).to_have_text("75.0% → 25.0%")


def test_two_models_side_by_side(page: Any) -> None:
    beside(page)
    expect(page.locator("#layer-name")).to_have_text("12 of 12 · 6 of 6")
    page.mouse.move(*spot(page, 4, 9))
    expect(page.locator(".readout").nth(1)).to_contain_text("Row 2, column 5, layer 6")
    page.mouse.move(*spot(page, 6, 7, 7, panel=1))
    expect(page.locator(".readout").nth(0)).to_contain_text(re.compile("Row 12, column 14"))
    shows_token(page, 2 + 5 * 7 + 6, panel=1)
    page.get_by_role("button", name="Brush out patches").click()
    page.mouse.click(*spot(page, 1, 1, 7, panel=1))  # one of its patches is four of the first's
    expect(page.locator(".panel").nth(0).locator(".value").first).to_have_text("75.0% → 35.0%")
    expect(page.locator(".panel").nth(1).locator(".value").first).to_have_text("75.0% → 65.0%")
    page.get_by_role("button", name="register 1").click()
    expect(page.locator(".news-line").nth(0)).to_have_text("There is no register 1 here.")
    shows_token(page, 1, panel=1)
    page.get_by_label("Beside it").select_option("")
    expect(page.locator(".panel")).to_have_count(1)


def test_two_models_alone_begin_side_by_side(pictures: Path, opened: Callable[..., Any]) -> None:
    explorer = FakeExplorer([FIRST, SECOND])
    explorer.open((pictures / "china.jpg").read_bytes(), "china.jpg")
    with serving(explorer.application()) as place:
        page = opened(place)
        page.wait_for_selector(BESIDE)
        page.get_by_label("Beside it").select_option("")
        page.get_by_role("button", name="Copy link").click()
        again = opened(page.url)
        again.wait_for_selector(SHOWN)
        expect(again.locator(".panel")).to_have_count(1)


def test_what_a_model_does_not_have_is_said(page: Any) -> None:
    page.get_by_label("Model").select_option("2")
    expect(page.locator(".panel")).to_have_attribute("data-shown", re.compile("colors"))
    expect(page.locator(".view:visible")).to_have_count(4)
    expect(page.locator("[data-view=attention]")).to_be_hidden()
    page.get_by_text("4 views are not for this model").click()
    expect(page.locator("#absent li").first).to_have_text("Attention: a ResNet has no attention")
    page.get_by_label("Beside it").select_option("0")
    page.get_by_role("button", name="Attention").click()
    expect(page.locator(".news-line").first).to_have_text("a ResNet has no attention")
    shows_token(page, 1 + 7 * 14 + 7, panel=1)  # from the middle: it has no class token


def test_views_and_the_class_to_explain(page: Any) -> None:
    wanted = {
        "Rollout": "map/rollout?layer=12",
        "Relevance": "map/relevance?class=0",
        "Token norms": "map/norms?layer=12",
        "Feature colors": "colors?layer=12",
        "Grad-CAM": "map/gradcam?class=0",
    }
    for view, path in wanted.items():
        page.get_by_role("button", name=view).click()
        expect(page.locator(".panel")).to_have_attribute("data-shown", re.compile(re.escape(path)))
    expect(page.locator(".scale")).to_have_text("−11made up")
    expect(page.locator(".readout")).to_have_text("pagoda · highest at row 1, column 14: 1")
    page.mouse.move(*spot(page, 2, 1))
    expect(page.locator(".readout")).to_have_text("pagoda · row 2, column 1: −1")
    box = page.get_by_role("combobox", name="Class")
    box.click()
    expect(page.locator("#class-list [role=option]")).to_have_count(7)
    box.fill("ant")
    expect(page.locator("#class-list [role=option]")).to_have_text(["lantern"])
    box.press("Enter")
    expect(page.locator(".panel")).to_have_attribute("data-shown", re.compile("class=3"))
    expect(page.get_by_role("button", name="lantern")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="dahlia").click()  # the bars choose as well
    expect(box).to_have_value("dahlia")
    box.fill("")
    box.press("Enter")
    expect(page.locator(".panel")).to_have_attribute("data-shown", re.compile("class=0"))
    box.fill("nothing of that kind")
    expect(page.locator("#class-list")).to_have_text("No class has this in its name.")
    box.press("Escape")
    expect(box).to_have_value("")


def test_a_link_brings_everything_back_and_a_picture_is_saved(
    page: Any, opened: Callable[..., Any]
) -> None:
    beside(page)
    page.mouse.click(*spot(page, 4, 9))
    page.get_by_role("button", name="Head 3").first.click()
    page.get_by_role("button", name="Brush out patches").click()
    page.mouse.click(*spot(page, 1, 1))
    page.get_by_label("Layer").fill("5")
    page.get_by_role("button", name="Copy link").click()
    words = parse_qs(urlsplit(page.url).fragment)
    assert (words["models"], words["head"], words["out"]) == (["0,1"], ["3"], ["0"])
    other = opened(page.url)
    other.wait_for_selector(BESIDE)
    for panel in (0, 1):
        shown = page.locator(".panel").nth(panel).get_attribute("data-shown")
        expect(other.locator(".panel").nth(panel)).to_have_attribute("data-shown", shown)
        text = page.locator(".readout").nth(panel).inner_text()
        expect(other.locator(".readout").nth(panel)).to_have_text(text)
    expect(other.locator(".bars .value").first).to_have_text("75.0% → 65.0%")
    with page.expect_download() as waited:
        page.get_by_role("button", name="Save picture").click()
    assert waited.value.suggested_filename == "china-attention.png"
    with Image.open(waited.value.path()) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    assert pixels.shape[1] == 2 * (28 + 2 * (620 + 28))
    assert (pixels[:40] == 255).all()  # its margin, of a page in the light
    assert np.ptp(pixels[400:800, 60:1200], axis=(0, 1)).min() > 150  # the photo and its colors
    blue = (pixels == (0x0A, 0x4C, 0x8A)).all(-1)
    assert blue[:, :1296].any()
    assert blue[:, 1296:].any()  # bars of both models


def test_a_link_that_does_not_fit(opened: Callable[..., Any], address: str) -> None:
    odd = "#models=9,-1,x&view=constructor&depth=7&head=999&at=1,2,3&out=x,-1,99999&class=77&from=x"
    for link in ("#image=gone&view=attention", odd):
        page = opened(address + link)
        expect(page.locator(".bars").first).to_be_visible()
        expect(page.locator(".panel h2")).to_contain_text("first")
        gone = page.get_by_text("The photo of this link is not open here")
        expect(gone).to_have_count(int("gone" in link))


def test_a_server_that_does_not_answer_or_takes_long(page: Any) -> None:
    page.context.set_offline(True)
    page.mouse.move(*spot(page, 7, 3))
    news = page.locator(".news-line")
    expect(news).to_contain_text("The explorer does not answer")
    page.context.set_offline(False)
    page.mouse.move(*spot(page, 7, 4))
    expect(page.locator(".readout")).to_contain_text("Row 7, column 4")
    expect(news).to_have_text("")
    page.route("**/map/rollout*", lambda route: route.fulfill(**refusal(503)))
    page.get_by_role("button", name="Rollout").click()
    expect(news).to_have_text("reason 503")
    page.unroute("**/map/rollout*")
    page.route("**/map/relevance*", lambda route: None)  # no answer
    with page.expect_request("**/map/relevance*"):
        page.get_by_role("button", name="Relevance").click()
    expect(news).to_have_text("Computing relevance …")
    with page.expect_event("requestfailed") as failed:  # it is given up for another
        page.get_by_role("button", name="Rollout").click()
    assert "relevance" in failed.value.url
    expect(page.locator(".panel")).to_have_attribute("data-shown", re.compile("rollout"))


def test_a_phone(opened: Callable[..., Any], address: str) -> None:
    page = opened(address, color_scheme="dark", reduced_motion="reduce", **PHONE)
    page.wait_for_selector(SHOWN)
    expect(page.get_by_text("Take a photo")).to_be_visible()
    assert page.locator(".strip").bounding_box()["width"] > 340  # the buttons are above it
    page.locator(PHOTO).scroll_into_view_if_needed()
    page.touchscreen.tap(*spot(page, 3, 12))
    expect(page.locator(".readout")).to_contain_text("Row 3, column 12")
    page.touchscreen.tap(*spot(page, 5, 6))
    expect(page.locator(".readout")).to_contain_text("Row 5, column 6")
    beside(page)
    page.get_by_text("Display").click()
    page.get_by_label("One scale for all heads").check()
    fits_a_phone(page, dark=True)


def test_nothing_leaves_the_machine_and_nothing_foreign_can_run(
    opened: Callable[..., Any], address: str
) -> None:
    page = opened("about:blank")
    asked: list[str] = []
    page.on("request", lambda each: asked.append(each.url))
    page.goto(address)
    page.wait_for_selector(SHOWN)
    page.get_by_role("button", name="Feature colors").click()
    assert {each for each in asked if not each.startswith((address, "data:,"))} == set()
    runs_nothing_foreign(page, address)
