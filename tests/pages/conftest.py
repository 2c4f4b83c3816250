"""A browser, and photos to show to the pages."""

import shutil
from base64 import b64encode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

CHROMIUM = shutil.which("chromium")
LONGEST = 120_000.0  # milliseconds, which only end what hangs
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
DESKTOP = {"viewport": {"width": 1280, "height": 900}}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser for the tests of a file: until it ends, asyncio cannot be used in this thread."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=LONGEST)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Open pages as a person would; at the end, no script failed and no rule was violated."""
    contexts, complaints = [], []

    def note(message: Any) -> None:
        # what a server answers is the test's affair; everything else is a fault of the page
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            complaints.append(message.text)

    def open_page(address: str, **settings: Any) -> Any:
        contexts.append(chromium.new_context(**(DESKTOP | settings)))
        page = contexts[-1].new_page()
        page.set_default_timeout(LONGEST)
        page.on("console", note)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two photos; one of them also on its side with its orientation in EXIF; and other files."""
    folder = tmp_path_factory.mktemp("pictures")
    for name, pixels in zip(("china", "flower"), load_sample_images().images, strict=True):
        Image.fromarray(pixels).save(folder / f"{name}.jpg", quality=92)
    exif = Image.Exif()
    exif[0x112] = 6  # to be turned clockwise
    flower = Image.open(folder / "flower.jpg")
    flower.rotate(90, expand=True).save(folder / "turned.jpg", quality=92, exif=exif)
    (folder / "notes.txt").write_text("no photo")
    (folder / "broken.jpg").write_bytes((folder / "china.jpg").read_bytes()[:300])
    return folder


def dropped(page: Any, files: list[Path]) -> None:
    """Drop files on the page, as a drag from the desktop does."""
    contents = [[file.name, b64encode(file.read_bytes()).decode()] for file in files]
    transfer = page.evaluate_handle(
        """contents => {
          const transfer = new DataTransfer();
          for (const [name, text] of contents) {
            const type = name.endsWith(".jpg") ? "image/jpeg" : "text/plain";
            const bytes = Uint8Array.from(atob(text), each => each.charCodeAt(0));
            transfer.items.add(new File([bytes], name, { type }));
          }
          return transfer;
        }""",
        contents,
    )
    event = """(main, [name, dataTransfer]) =>
      main.dispatchEvent(new DragEvent(name, { dataTransfer, bubbles: true, cancelable: true }))"""
    for name in ("dragenter", "dragover", "drop"):  # else the browser leaves the page for the file
        assert not page.locator("main").evaluate(event, [name, transfer])


def pasted(page: Any, file: Path) -> None:
    """Paste a file as `pasted.jpg`."""
    script = """(body, text) => {
      const clipboardData = new DataTransfer();
      const bytes = Uint8Array.from(atob(text), each => each.charCodeAt(0));
      clipboardData.items.add(new File([bytes], "pasted.jpg"));
      dispatchEvent(new ClipboardEvent("paste", { clipboardData }));
    }"""
    page.locator("body").evaluate(script, b64encode(file.read_bytes()).decode())


def fits_a_phone(page: Any, *, dark: bool) -> None:
    """Nothing sticks out, and the colors are those that the device prefers."""
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    color = page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
    assert color == ("rgb(17, 19, 22)" if dark else "rgb(248, 247, 244)")


def runs_nothing_foreign(page: Any, address: str) -> None:
    """The policy of a page stops what a bug might let through, and the page needs no exception."""
    answer = page.request.get(address)
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "<script>" not in answer.text()
    assert " style=" not in answer.text()
