"""The README: its Python runs, and its links work wherever it is shown."""

import re
from pathlib import Path

import pytest

from docs.pages import ROOT, blocks

README = ROOT / "README.md"
PREFIXES = (
    "https://github.com/vitlab/vitlab/blob/main/",
    "https://raw.githubusercontent.com/vitlab/vitlab/main/",
)


def test_its_python_runs(tmp_path: Path) -> None:
    (block,) = blocks(README, "python")
    names: dict[str, object] = {}
    exec(compile(block.text, str(README), "exec"), names)
    assert names["logits"].shape == (2, 10)  # type: ignore[attr-defined]
    assert names["maps"][0].shape == (2, 12, 49, 49)  # type: ignore[index]
    assert len(names["maps"]) == 18  # type: ignore[arg-type]
    assert names["model"].config.classes == 5  # type: ignore[attr-defined]


def test_its_links_are_absolute_and_their_files_exist() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README.read_text())
    assert links
    for link in links:
        path = next((link.removeprefix(each) for each in PREFIXES if link.startswith(each)), None)
        assert path is not None, link
        assert (ROOT / path).is_file(), link


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_the_install_line_says_what_is_not_there_yet(name: str) -> None:
    """To be dropped with the sentence, on the day of the release."""
    text = " ".join((ROOT / name).read_text().split())
    assert "pip install vitlab" in text
    assert "is not on the package index yet" in text
