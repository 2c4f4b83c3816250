"""The pages' files: one look for pages and reports, and nothing asked of anybody else."""

import re

import pytest

from vitlab.pages.assets import EXPLORE, SERVICE, WEB, asset, media_type
from vitlab.pages.palette import DARK, LIGHT


def test_the_colors_are_those_of_the_reports() -> None:
    """Their contrasts are computed in the tests of the reports, whose series the pages lack."""
    light, dark = asset("look.css").decode().split("prefers-color-scheme: dark")
    for text, theme in ((light, LIGHT), (dark.partition("\n}")[0], DARK)):
        own = {name: color for name, color in theme.items() if not name.startswith("series")}
        assert dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", text)) == own


def modules(name: str) -> set[str]:
    """A module, and those that it imports."""
    found = set(re.findall(r'^import .* from "\./([^"]+)";$', asset(name).decode(), re.MULTILINE))
    return {name}.union(*map(modules, found))


@pytest.mark.parametrize(
    ("page", "files"),
    [("service.html", SERVICE), ("web.html", WEB), ("explore.html", EXPLORE)],
)
def test_a_page_asks_for_its_own_files_alone(page: str, files: tuple[str, ...]) -> None:
    text = asset(page).decode()
    asked = set(re.findall(r'(?:src|href)="(?:page/)?([^"]+)"', text)) - {
        "data:,",
        "docs",
        "facts.js",
    }
    assert set().union(*(modules(name) for name in asked)) == set(files)
    assert len(set(files)) == len(files)
    for name in files:
        content = asset(name).decode()
        assert "http" not in content.replace("http(s)", "").replace("HTTP", "")
        assert "innerHTML" not in content
        assert media_type(name).startswith(("text/css", "text/javascript"))
