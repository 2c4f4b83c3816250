"""Tutorials, how-to pages and the page on weights run as printed, in an empty folder, offline."""

from pathlib import Path
from typing import Any

import pytest

from conftest import stub_reports
from docs.pages import ROOT, run
from oracles import peers
from vitlab.models.registry import KINDS, kinds
from vitlab.report import gather

PAGES = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
ASIDE = sorted((ROOT / "docs" / "from").glob("*.md"))
GUIDES = [ROOT / "docs" / name for name in ("weights.md", "python.md", "segment.md")]
NEEDS = {"timm": peers.timm, "transformers": peers.transformers}


@pytest.fixture(autouse=True)
def _own_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the stems and positions that a page defines."""
    for field in list(KINDS):
        monkeypatch.setitem(KINDS, field, kinds(field))  # `kinds` imports our own first


@pytest.fixture(autouse=True)
def _first_report_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the report of a page's first run; those of further ones would take most of its time."""
    draw = gather.write_page

    def first(file: Path, page: Any) -> None:
        draw(file, page)
        stub_reports(monkeypatch)

    monkeypatch.setattr(gather, "write_page", first)


@pytest.mark.parametrize("page", PAGES + ASIDE + GUIDES, ids=lambda page: page.stem)
def test_the_blocks_of_a_page_run(page: Path) -> None:
    for name, peer in NEEDS.items():
        if f"import {name}" in page.read_text() or f"from {name}" in page.read_text():
            peer()
    run(page)
