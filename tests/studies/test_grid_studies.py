"""Every grid study: its arms are recipes, its claims are about them, and it runs on the digits."""

from pathlib import Path

import pytest

import vitlab
from vitlab.recipes.named import recipe
from vitlab.recipes.recipe import Host, Recipe
from vitlab.studies.base import Base, small
from vitlab.studies.grid import cells_of
from vitlab.studies.papers import STUDIES, study_named

TINY = "ViT(width=32,depth=2,heads=2,mlp=32)/2"
OWN = {
    "compute",
    "data-size",
    "features",
    "optimizers",
    "self-supervision",
    "tune",
}  # in their own tests
RUN = [name if name == "positions" else pytest.param(name, marks=pytest.mark.campaign)
       for name in STUDIES if name not in OWN]  # fmt: skip


SCALES = (small("digits"), recipe("three-things", "digits", model="ViT-B/16"))


@pytest.mark.parametrize(
    ("name", "start"), [(name, SCALES[place % 2]) for place, name in enumerate(STUDIES)]
)
def test_arms_are_recipes_in_order_and_claims_are_about_them(name: str, start: Recipe) -> None:
    study = study_named(name)
    base = Base(start, downstream="digits")
    arms = tuple(study.arms(base))
    cells = cells_of(arms, (0, 1), Path())
    assert len({cell.name for cell in cells}) == len(cells)
    for arm in arms:
        assert not arm.row or len(arm.cells) == len(study.head), arm.name
        if arm.recipe.model.model:
            arm.recipe.model.check()
    known = {arm.name for arm in arms if arm.row}
    for claim in study.claims:
        assert claim.arms <= known, claim.text
        assert claim.source, claim.text
    keys = {column.key for column in study.columns}
    assert {claim.by for claim in study.claims} <= keys | {""}
    assert study.picture.y in keys


@pytest.mark.parametrize("name", RUN)
def test_runs_end_to_end_on_the_digits(name: str, tmp_path: Path) -> None:
    study, base = study_named(name), Base(small("digits", TINY))
    rows = [arm.name for arm in study.arms(base) if arm.row]
    how = {"epochs": 0.02, "seeds": 1, "only": (rows[0], rows[-1]), "at_once": 1}
    host = Host(device="cpu")
    result = vitlab.study(name, out=tmp_path / "out", recipe=base.recipe, host=host, **how)
    assert [row["name"] for row in result["rows"]] == [rows[0], rows[-1]]
    assert all(row["mean"][study.columns[0].key] >= 0 for row in result["rows"])
    for file in ("results.md", "report.html", "picture.svg", "plan.json"):
        assert (tmp_path / "out" / file).is_file() or study.picture.x
