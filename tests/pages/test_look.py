"""The pages' files: one look for pages and reports, and nothing asked of anybody else."""

import re

import pytest

from vitlab.pages.assets import SERVICE, WEB, asset, media_type
from vitlab.report.drawings.theme import DARK, LIGHT


def test_the_colors_are_those_of_the_reports() -> None:
    """Their contrasts are computed in the tests of the reports."""
    light, dark = asset("look.css").decode().split("prefers-color-scheme: dark")
    for text, theme in ((light, LIGHT), (dark.partition("\n}")[0], DARK)):
        assert dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", text)) == theme


@pytest.mark.parametrize(("page", "files"), [("service.html", SERVICE), ("web.html", WEB)])
def test_a_page_asks_for_its_own_files_alone(page: str, files: tuple[str, ...]) -> None:
    text = asset(page).decode()
    asked = re.findall(r'(?:src|href)="(?:page/)?([^"]+)"', text)
    assert set(asked) - {"data:,", "docs", "facts.js"} == set(files)
    for name in files:
        content = asset(name).decode()
        assert "http" not in content.replace("http(s)", "")
        assert "innerHTML" not in content
        assert media_type(name).startswith(("text/css", "text/javascript"))
