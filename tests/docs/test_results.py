"""docs/results.md: its verdicts are those that today's statistics make from the rows kept."""

from docs.pages import script
from vitlab.studies.papers import STUDIES

result_pages = script("result_pages")


def test_verdicts_are_those_of_the_rows() -> None:
    text = result_pages.PAGE.read_text()
    assert result_pages.judged_again(text) == text


def test_every_study_with_claims_has_a_section_with_its_command() -> None:
    text = result_pages.PAGE.read_text()
    assert {*result_pages.stored()} == {*STUDIES}
    for name in STUDIES:
        assert text.count(f"(results/{name}.svg)") == 1, name
        assert f"\n`vitlab study {name} " in text


def test_a_verdict_written_by_hand_is_replaced() -> None:
    text = result_pages.PAGE.read_text()
    spoiled = text.replace("| contradicted |", "| confirmed |")
    assert spoiled != text
    assert result_pages.judged_again(spoiled) == text
