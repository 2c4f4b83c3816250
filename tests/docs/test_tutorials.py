"""Tutorials, how-to pages and the page on weights run as printed, in an empty folder, offline."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from conftest import BRIEF, SHOWN, fewer_digits
from docs.pages import ROOT, run
from oracles import peers
from vitlab.models.registry import DEFINED

PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
ASIDE = sorted((ROOT / "docs" / "from").glob("*.md"))
NAMES = ("weights.md", "python.md", "segment.md", "detect.md", "regress.md", "audio.md", "video.md")
GUIDES = [ROOT / "docs" / name for name in NAMES]
# a dozen runs each; a loop of its own; real runs
LONG = ("finetune", "segment", "photos", "question", "detect", "regress")
NEEDS = {
    "timm": peers.timm,
    "transformers": peers.transformers,
    "soundfile": lambda: pytest.importorskip("soundfile"),
    "av": lambda: pytest.importorskip("av"),
}


@pytest.fixture(autouse=True)
def _shorter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fewer digits, but where a page counts them.

    The stems and positions that a page defines are forgotten.
    """
    name = request.node.callspec.params["page"].stem
    for field, defined in DEFINED.items():
        monkeypatch.setitem(DEFINED, field, dict(defined))
    with nullcontext() if name == "question" else fewer_digits():
        yield


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.stem in LONG else [])
        for page in PAGES + ASIDE + GUIDES
    ],
)
def test_the_blocks_of_a_page_run(page: Path) -> None:
    for name, peer in NEEDS.items():
        if f"import {name}" in page.read_text() or f"from {name}" in page.read_text():
            peer()
    run(page, SHOWN if page.stem == "photos" else BRIEF)
