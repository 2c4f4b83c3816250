"""The explorer's page and its own server, with models of every kind."""

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn
from playwright.sync_api import expect

import vitlab
from conftest import photo_folder
from explore.made import SMALL, InProcess, kinds
from made_heads import SHAPES, segmenter
from serve.made import tiny
from steady import PATIENCE, wait_until
from vitlab.explore.dataset_map import MapJob, dataset_map
from vitlab.explore.explore_routes import application
from vitlab.explore.explorer import Explorer
from vitlab.explore.views import Shown

KINDS = ("plain", "registers", "pool", "axial", "features", "resnet")


@contextmanager
def running(explorer: Explorer) -> Iterator[str]:
    """Serve an explorer on a free port, in a thread with an event loop of its own."""
    server = uvicorn.Server(
        uvicorn.Config(application(explorer), host="127.0.0.1", port=0, log_level="critical")
    )

    async def work() -> None:
        await explorer.start()
        try:
            await server.serve()
        finally:
            await explorer.stop()

    thread = threading.Thread(target=lambda: asyncio.run(work()), daemon=True)
    thread.start()
    wait_until(lambda: server.started or not thread.is_alive())
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join(PATIENCE)


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    made = kinds()
    return {name: made[name] for name in KINDS}


@pytest.fixture(scope="module")
def address(
    models: dict[str, Any], pictures: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    data = photo_folder(tmp_path_factory.mktemp("data") / "p", {"a": 12, "b": 12})
    own = models["plain"]
    charted = own.remade(own.config, own.state_dict())
    explorer = Explorer(
        [Shown.of(name, model, torch.device("cpu")) for name, model in models.items()],
        InProcess(),
        images=[str(pictures / "china.jpg")],
        map_job=MapJob(lambda told: dataset_map(charted, str(data), progress=told)),
    )
    with running(explorer) as place:
        yield place


def shown(page: Any, what: str) -> None:
    expect(page.locator(".panel").first).to_have_attribute("data-shown", re.compile(what))


def test_what_is_shown_is_what_the_model_does(
    opened: Callable[..., Any], address: str, models: dict[str, Any], pictures: Path
) -> None:
    """The readings against the model's own attention, and the bars against its predictions."""
    page = opened(f"{address}#at=0.55,0.51&depth=0.5&head=2")  # row 3, column 3 of 4 x 4
    shown(page, "attention/11 0$")
    model = models["plain"]
    image = vitlab.preprocess(model)(pictures / "china.jpg")
    with torch.no_grad():
        weights = model.attention_maps(image)[0][0, 1, 11]
        chances = model(image).softmax(-1)[0]
        image[..., 8:12, 8:12] = image.mean((-2, -1), keepdim=True)  # the photo's mean color
        without = model(image).softmax(-1)[0]
    row, column = divmod(int(weights[1:].argmax()), 4)
    expect(page.locator(".readout")).to_contain_text(
        f"Row 3, column 3, layer 1: looks most at row {row + 1}, column {column + 1} "
    )
    best = int(chances.argmax())
    value = page.locator(".bars .value").first
    expect(value).to_have_text(f"{100 * chances[best]:.1f}%")
    page.locator(".frame canvas").focus()
    page.keyboard.press(" ")
    expect(value).to_have_text(f"{100 * chances[best]:.1f}% → {100 * without[best]:.1f}%")


def test_the_mask_of_a_run_that_segments(opened: Callable[..., Any], pictures: Path) -> None:
    own, device = segmenter(), torch.device("cpu")
    image = vitlab.preprocess(own.model)(pictures / "china.jpg")
    with torch.no_grad():
        labels = own(image)[0].argmax(0)
    both = [Shown.of("scenes", own.model, device, own), Shown.of("plain", tiny(SMALL), device)]
    with running(Explorer(both, InProcess(), images=[str(pictures / "china.jpg")])) as place:
        page = opened(f"{place}#at=0.55,0.51")
        page.get_by_role("button", name="Mask").click()
        shown(page, "^api/look/0/.*/mask")
        middle = int(labels[10, 10])  # of the patch in row 3, column 3 of 4 x 4
        expect(page.locator(".readout").first).to_have_text(f"row 3, column 3: {SHAPES[middle]}")
        page.locator("#model").select_option("1")
        expect(page.get_by_role("button", name="Mask")).to_be_hidden()
        assert "Mask" not in page.locator("#absent").inner_text()


@pytest.mark.slow
def test_every_view_of_every_kind_of_model(opened: Callable[..., Any], address: str) -> None:
    """It is drawn, or the reason why not can be read; nothing fails."""
    page = opened(address)
    views = page.locator(".view")
    expect(views).to_have_count(9)  # the mask is of segmenters alone
    for number in range(len(KINDS)):
        page.locator("#model").select_option(str(number))
        shown(page, f"^api/look/{number}/")
        for view in views.all():
            if view.is_hidden():
                continue
            view.click()
            shown(page, f"^api/look/{number}/.*{view.get_attribute('data-view')}")
            expect(page.locator(".wrong")).to_have_count(0)
        why = page.locator("#absent li")
        assert why.count() + page.locator(".view:visible").count() == 8
        assert all(len(each.text_content()) > 20 for each in why.all())
    page.locator("#model").select_option("2")
    page.get_by_role("button", name="Attention", exact=True).click()
    page.get_by_role("button", name="attention pool").click()
    expect(page.locator(".readout")).to_contain_text("Attention pool: looks most at row")


def test_files_and_the_map(opened: Callable[..., Any], address: str, pictures: Path) -> None:
    page = opened(address)
    shown(page, "attention/0 ")
    files = [pictures / "notes.txt", pictures / "broken.jpg", pictures / "turned.jpg"]
    page.set_input_files("input[type=file] >> nth=0", files)
    expect(page.locator("#refused li")).to_have_count(2)
    expect(page.locator(".thumb")).to_have_count(2)
    page.get_by_role("button", name="Map of the data").click()
    expect(page.locator(".plane")).to_contain_text("24 images")
    page.locator(".plane > canvas").focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page.locator(".thumb")).to_have_count(3)
    shown(page, "attention/0 ")


def test_labels_are_learned_and_saved(opened: Callable[..., Any], address: str) -> None:
    """The two classes of the data are its labels; an image that is given another keeps it."""
    page = opened(f"{address}#tab=map")
    corner = page.get_by_role("region", name="Label images")
    expect(corner).to_contain_text("24 of 24 images have a label")
    expect(corner.locator(".chip")).to_have_text(["a1", "b2"])
    page.locator(".plane > canvas").focus()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("0")
    expect(corner).to_contain_text("23 of 24 images have a label")
    expect(corner.locator(".proposal")).to_have_count(1)
    page.keyboard.press("2")
    with page.expect_download() as download:
        corner.get_by_role("button", name="Save labels").click()
    lines = download.value.path().read_text().splitlines()
    assert lines[0] == "path,label"
    assert len(lines) == 25
    assert all(re.fullmatch(r"(train/|val/|test/)?[ab]/.*,[ab]", line) for line in lines[1:])
