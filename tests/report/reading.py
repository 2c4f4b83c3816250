"""How tests read a page: what it would fetch, and what Chromium makes of it."""

import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from made_facts import NASTY
from steady import PATIENCE


def linear(color: str) -> np.ndarray:
    """Linear RGB of #rrggbb in sRGB."""
    value = np.array([*bytes.fromhex(color[1:])]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colors, by their relative luminance: WCAG 2.2."""
    both = sorted(float(linear(each) @ [0.2126, 0.7152, 0.0722]) for each in (one, other))
    return (both[1] + 0.05) / (both[0] + 0.05)


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


def alone(file: Path) -> str:
    """Return a page, once it is seen to need nothing else and to name its sections."""
    text, references = file.read_text(encoding="utf-8"), References()
    references.feed(text)
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
LOOK = """<!doctype html><title>wait</title><script>
const found = {{}}, frames = {frames};
let left = frames.length;
for (const [name, width] of frames) {{
  const frame = document.createElement("iframe");
  frame.style = `border:0;width:${{width}}px;height:900px`;
  frame.onload = async () => {{
    const page = frame.contentDocument, root = page.documentElement;
    const about = {{ wide: root.scrollWidth, room: root.clientWidth, high: root.scrollHeight }};
    found[`${{name}} ${{width}}`] = about;
    const folded = page.querySelector("details:not([open]) li[id^=m-]");
    if (folded) {{  // a link to it
      frame.contentWindow.location.hash = folded.id;
      await new Promise(done => setTimeout(done, 500));
      const top = folded.getBoundingClientRect().top;
      about.link = folded.closest("details").open && top >= 0 && top < 900;
    }}
    if (!--left) document.title = JSON.stringify(found);
  }};
  frame.src = name;
  document.documentElement.append(frame);
}}</script>"""


def shown(folder: Path) -> dict[str, dict[str, Any]]:
    """What Chromium makes of each page of a folder, on a phone and on a desktop, by name and width.

    How wide and high it is, the room it has, and whether a link into a folded section shows it.
    """
    frames = [[each.name, width] for each in folder.glob("*.html") for width in (390, 1280)]
    wrapper = folder / "wrapper.htm"
    wrapper.write_text(LOOK.format(frames=json.dumps(frames)))
    words = ["chromium", *FLAGS.split(), f"--user-data-dir={folder / 'profile'}"]
    words += ["--virtual-time-budget=9000", "--dump-dom", wrapper.as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=PATIENCE)
    assert "CONSOLE" not in done.stderr
    found: dict[str, dict[str, Any]] = json.loads(
        re.findall("<title>(.*?)</title>", done.stdout)[0]
    )
    assert len(found) == len(frames) > 0
    return found


needs_chromium = pytest.mark.skipif(
    not shutil.which("chromium"), reason="Chromium is not installed"
)


def fits(folder: Path) -> bool:
    """Whether nothing of the pages sticks out; a scroll bar may take some of the width."""
    return all(each["wide"] == each["room"] for each in shown(folder).values())
