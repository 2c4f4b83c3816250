"""The verdicts of docs/results are those that today's statistics make from the rows kept there."""

import pytest

from docs.pages import script
from vitlab.studies.papers import STUDIES

result_pages = script("result_pages")


@pytest.mark.parametrize("name", STUDIES)
def test_verdicts_of_a_page_are_those_of_its_rows(name: str) -> None:
    assert result_pages.judged_again(name) == (result_pages.PAGES / f"{name}.md").read_text()


def test_the_page_of_all_claims_is_made_from_them() -> None:
    text = (result_pages.PAGES / "README.md").read_text()
    assert text.endswith(result_pages.claims())
    assert "## Claims of other papers" in text


def test_a_rate_at_the_edge_is_marked_in_every_table() -> None:
    for name, rows in result_pages.stored().items():
        text = (result_pages.PAGES / f"{name}.md").read_text()
        table = text.partition("| claim |")[0]
        assert table.count(" † |") == sum(row["edge"] > 0 for row in rows), name
        assert table.count(" ‡ |") == sum(row["edge"] < 0 for row in rows), name
