"""docs/defaults.md: its table is made of the rows that are kept."""

from docs.pages import ROOT, script

defaults = script("defaults")


def test_its_table_is_made_of_the_stored_rows() -> None:
    lines = list(defaults.table(defaults.stored()))
    assert len(lines) > 8
    assert "\n".join(lines) in (ROOT / "docs" / "defaults.md").read_text()


def test_every_figure_is_of_three_seeds() -> None:
    for line in list(defaults.table(defaults.stored()))[2:]:
        figures = [cell for cell in line.split("|")[2:8] if cell.strip()]
        assert len(figures) > 1
        assert all("±" in each for each in figures), line
