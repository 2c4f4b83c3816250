"""docs/results.md and docs/defaults.md are what today's statistics make of the rows kept."""

from docs.pages import ROOT, script
from vitlab.models.cost import cost
from vitlab.recipes.model_part import model_part
from vitlab.studies.base import table
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


def test_hours_of_the_papers_runs_follow_from_table_6_and_the_measured_step() -> None:
    """A step of ViT-B/16 takes 70.8 ms for 256 images (docs/performance.md)."""
    work = {name: [run[-1] for run in runs] for name, runs in table("compute").items()}
    rate = 6 * cost(model_part("ViT-B/16", classes=1000).config()).macs * 256 / 0.0708
    shares = 4 * sum(work[n][0] for n in ("ViT-B/32", "ViT-L/16", "BiT-R50x1", "BiT-R152x2"))
    adam = 2 * (work["BiT-R50x1"][0] + work["BiT-R152x2"][0])
    text = result_pages.PAGE.read_text()
    assert f"the {rate / 1e12:.0f} TFLOP/s" in text
    for exaflops in (shares, sum(map(sum, work.values())), adam):
        assert f"| {round(exaflops * 1e18 / rate / 3600, -1):,.0f} |" in text
