"""The study of stems: its arms, the paper's figures, and a run of it on the digits."""

from pathlib import Path

import pytest

from vitlab.models.cost import cost
from vitlab.recipes.recipe import Host
from vitlab.studies.grid.base import Base
from vitlab.studies.grid.study_campaign import Asked, Campaign
from vitlab.studies.small_recipe import small
from vitlab.studies.three_things.stems_study import STUDY
from vitlab.transfer.campaign_folder import CampaignFolder

# Three things, Table 7: stem, norm, activation; ImageNet-val and -V2 accuracy in percent, GFLOPs
PRINTED = """
linear,,:82.20 71.0 17.58
linear,BN,:82.31 71.0 17.58
linear,,GELU:81.55 70.5 17.58
linear,BN,GELU:82.38 70.7 17.58
linear, a block more,,:82.35 71.3 19.04
LeViT,BN,GELU:82.57 71.0 19.07
LeViT,LN,GELU:82.50 70.9 19.07
local transformer,LN,GELU:82.26 70.6 19.12
hMLP,BN,GELU:82.54 71.5 17.73
hMLP,LN,GELU:82.50 71.0 17.73
"""


def test_printed_figures() -> None:
    arms = STUDY.arms(Base(small("digits"), paper=True))
    found = {
        ",".join(arm.cells[:3]): [arm.paper["ImageNet"], arm.paper["ImageNet-V2"]]
        for arm in arms
        if arm.row and arm.cells[3] == "labels"
    }
    for line in PRINTED.strip().splitlines():
        name, figures = line.split(":")
        value, other, _ = (float(figure) for figure in figures.split())
        assert found.pop(name) == pytest.approx([value / 100, other / 100])
    assert not found


def test_paper_models_cost_what_the_paper_prints() -> None:
    printed = [float(line.split()[-1]) for line in PRINTED.strip().splitlines()]
    arms = [
        arm for arm in STUDY.arms(Base(small("digits"), paper=True)) if arm.cells[3] == "labels"
    ]
    for arm, figure in zip(arms, printed, strict=True):
        assert (arm.recipe.batch, arm.recipe.epochs) == (2048, 300)
        assert cost(arm.recipe.model.config()).macs == pytest.approx(figure * 1e9, rel=0.002)
        assert arm.paper["macs"] == figure * 1e9


@pytest.mark.parametrize("size", [8, 32])
def test_all_stems_have_the_same_patches(size: int) -> None:
    recipe = small("digits") if size == 8 else small("images")
    arms = [arm for arm in STUDY.arms(Base(recipe)) if arm.cells[3] == "labels"]
    configs = [arm.recipe.model.config(classes=10) for arm in arms]
    grid = recipe.model.config().grid
    assert {config.grid for config in configs} == {grid}
    assert {config.patch for config in configs} == {8}
    assert len({arm.recipe.changed(model=recipe.model.model) for arm in arms}) == 1
    assert len({repr(config) for config in configs}) == len(arms)


def test_run(tmp_path: Path) -> None:
    asked = Asked("stems", epochs=0.05, seeds=1, at_once=1, only=("linear", "hmlp-bn"))
    folder = CampaignFolder(tmp_path / "stems")
    found = Campaign(STUDY, Base(small("digits")), asked, folder, Host(device="cpu")).run()
    assert [row["name"] for row in found["rows"]] == ["linear", "hmlp-bn"]
    assert all(row["mean"]["accuracy"] >= 0 for row in found["rows"])
    assert "paper: ImageNet" in found["head"]
