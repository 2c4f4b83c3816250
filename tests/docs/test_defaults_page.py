"""docs/defaults.md: its tables are made of the rows that are kept."""

from docs.pages import ROOT, script

defaults = script("defaults")


def test_its_tables_are_made_of_the_stored_rows() -> None:
    page = (ROOT / "docs" / "defaults.md").read_text()
    stored = defaults.stored()
    for table in (defaults.table(stored), defaults.rates(stored)):
        assert "\n".join(table) in page


def test_every_row_has_three_seeds_or_says_how_many() -> None:
    lines = list(defaults.table(defaults.stored()))[2:]
    assert len(lines) > 20
    for line in lines:
        accuracy, seeds = (cell.strip(" *") for cell in line.split("|")[3:5])
        assert ("±" in accuracy) == ("," in seeds), line
