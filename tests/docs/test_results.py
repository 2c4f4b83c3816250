"""docs/results.md and docs/defaults.md are what today's statistics make of the rows kept."""

from docs.pages import ROOT, script
from vitlab.studies.papers import STUDIES

result_pages, defaults = script("result_pages"), script("defaults")


def test_verdicts_are_those_of_the_rows() -> None:
    """Also where one was written by hand."""
    text = result_pages.PAGE.read_text()
    spoiled = text.replace("| contradicted |", "| confirmed |")
    assert spoiled != text
    assert result_pages.judged_again(spoiled) == text


def test_every_study_with_claims_has_a_section_with_its_command() -> None:
    text = result_pages.PAGE.read_text()
    assert {*result_pages.stored()} == {*STUDIES}
    for name in STUDIES:
        assert text.count(f"(results/{name}.svg)") == 1, name
        assert f"\n`vitlab study {name} " in text


def test_the_table_of_defaults_is_made_of_its_rows_of_three_seeds() -> None:
    lines = list(defaults.table(defaults.stored()))
    assert len(lines) > 8
    assert "\n".join(lines) in (ROOT / "docs" / "defaults.md").read_text()
    for line in lines[2:]:
        figures = [cell for cell in line.split("|")[2:8] if cell.strip()]
        assert len(figures) > 1
        assert all("±" in each for each in figures), line
