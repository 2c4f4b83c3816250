"""How tests read a page: what it would fetch, and what Chromium makes of it."""

import html.parser
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from made_facts import NASTY


def luminance(color: str) -> float:
    """The relative luminance of #rrggbb: WCAG 2.2."""
    digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
    value = np.array([*bytes.fromhex(digits)]) / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colors: WCAG 2.2."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


class References(html.parser.HTMLParser):
    """Everything a page would fetch, and the scripts in it."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: list[str] = []
        self.labels: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        for key, value in attrs:
            if key in ("src", "href", "xlink:href", "action", "srcset") and value:
                self.found.append(value)
            if key == "aria-labelledby" and value:
                self.labels.append(value)
            if key == "id" and value:
                self.ids.append(value)


def read(file: Path) -> tuple[str, References]:
    text = file.read_text(encoding="utf-8")
    references = References()
    references.feed(text)
    return text, references


def alone(file: Path) -> str:
    """Return a page, once it is seen to need nothing else and to name its sections."""
    text, references = read(file)
    outside = [each for each in references.found if not each.startswith(("data:", "#"))]
    assert not outside
    assert not references.scripts
    assert "@import" not in text
    assert "url(http" not in text
    inside = {each[1:] for each in references.found if each.startswith("#")}
    assert inside <= set(references.ids)
    assert references.labels  # every section has its heading's name
    assert set(references.labels) <= set(references.ids)
    assert len(references.ids) == len(set(references.ids))
    return text


def check_harmless(file: Path, *, nasty: bool) -> None:
    """A page in a folder of its own needs nothing else, and shows nasty names as text."""
    text = alone(file)
    assert NASTY not in text
    assert "<script>alert" not in text
    if nasty:
        assert text.count("&lt;script&gt;alert") >= 6
    assert [each.name for each in file.parent.iterdir()] == ["report.html"]


FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update --enable-logging=stderr "
    "--allow-file-access-from-files"
)
MEASURE = """<!doctype html><title>wait</title><iframe id="page" src="report.html"
style="border:0;width:{width}px;height:900px"></iframe><script>
document.getElementById("page").onload = function () {{
  const root = this.contentDocument.documentElement;
  document.title = "width " + root.scrollWidth + " of " + root.clientWidth;
}};</script>"""


def shown(tmp_path: Path, script: str) -> str:
    """Open a page with a script in Chromium; return the title that the script sets."""
    wrapper = tmp_path / "wrapper.html"
    wrapper.write_text(script)
    words = ["chromium", *FLAGS.split(), f"--user-data-dir={tmp_path / 'profile'}"]
    words += ["--virtual-time-budget=5000", "--dump-dom", wrapper.as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert "CONSOLE" not in done.stderr
    return re.findall("<title>(.*?)</title>", done.stdout)[0]


needs_chromium = pytest.mark.skipif(
    not shutil.which("chromium"), reason="Chromium is not installed"
)


def fits(folder: Path) -> bool:
    """Whether nothing of `report.html` sticks out, on a phone and on a desktop."""
    for width in (390, 1280):
        found = re.fullmatch(r"width (\d+) of (\d+)", shown(folder, MEASURE.format(width=width)))
        assert found
        if found[1] != found[2]:  # a scroll bar may take some of the width
            return False
    return True
