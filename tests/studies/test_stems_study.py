"""The study of stems: its arms, the paper's figures, and a run of it on the digits."""

import pytest

from vitlab.models.cost import cost
from vitlab.recipes.named import recipe
from vitlab.studies.base import Base, small, table
from vitlab.studies.design import Arm
from vitlab.studies.papers.three_things import stem_arms

# Three things, Table 7: stem, norm, activation; ImageNet-val and -V2 accuracy in percent, GFLOPs,
# ImageNet-val accuracy after BEiT
PRINTED = """
linear,,:82.20 71.0 17.58 83.05
linear,BN,:82.31 71.0 17.58 82.98
linear,,GELU:81.55 70.5 17.58 83.09
linear,BN,GELU:82.38 70.7 17.58 82.99
linear, a block more,,:82.35 71.3 19.04 83.26
LeViT,BN,GELU:82.57 71.0 19.07 83.04
LeViT,LN,GELU:82.50 70.9 19.07 83.06
local transformer,LN,GELU:82.26 70.6 19.12 82.38
hMLP,BN,GELU:82.54 71.5 17.73 83.43
hMLP,LN,GELU:82.50 71.0 17.73 83.24
"""


LINES = [line.split(":") for line in PRINTED.strip().splitlines()]


def trained(how: str, data: str = "digits") -> dict[str, Arm]:
    """Return the rows of one training, by their stems."""
    arms = stem_arms(Base(small(data)))
    return {",".join(arm.cells[:3]): arm for arm in arms if arm.row and arm.cells[3] == how}


def test_printed_figures() -> None:
    labels, beit = trained("labels"), trained("BEiT, then labels")
    assert [*labels] == [name for name, _ in LINES]
    assert {"linear,,", "LeViT,BN,GELU", "hMLP,BN,GELU"} == {*beit}
    for name, figures in LINES:
        value, other, macs, after = (float(figure) for figure in figures.split())
        found = labels[name].paper
        assert found["macs"] == macs * 1e9
        assert [found["ImageNet"], found["ImageNet-V2"]] == pytest.approx(
            [value / 100, other / 100]
        )
        if name in beit:
            assert beit[name].paper == {"macs": macs * 1e9, "ImageNet": pytest.approx(after / 100)}


@pytest.mark.parametrize("stem", table("stems"))
def test_paper_models_cost_what_the_paper_prints(stem: str) -> None:
    row = table("stems")[stem]
    model = "ViT-B13/16" if "deeper" in row else "ViT-B/16"
    own = recipe("three-things", "x", model=model, **row.get("options", {}))
    macs = row["supervised"]["macs"]
    assert cost(own.model.config()).macs == pytest.approx(macs, rel=0.002)


def test_after_beit_the_stem_is_the_same() -> None:
    before = {arm.name: arm for arm in stem_arms(Base(small("digits")))}
    labels = trained("labels")
    for name, arm in trained("BEiT, then labels").items():
        pair = before[arm.after].recipe.model, labels[name].recipe.model
        keys = ("model", "stem", "stem_norm", "stem_act")
        first, second = ([getattr(model, key) for key in keys] for model in pair)
        assert first == second
        assert before[arm.after].guide == "tokenizer"


@pytest.mark.parametrize("size", [8, 32])
def test_all_stems_have_the_same_patches(size: int) -> None:
    own = small("digits") if size == 8 else small("images")
    arms = trained("labels", own.data.data).values()
    before = [arm for arm in stem_arms(Base(own)) if arm.name.endswith("before")]
    configs = [arm.recipe.model.config(classes=10) for arm in arms]
    unlabeled = [arm.recipe.model.config() for arm in before]
    grid = (4, 4) if size == 8 else (6, 6)
    assert {config.grid for config in (*configs, *unlabeled)} == {grid}
    assert {config.patch for config in (*configs, *unlabeled)} == {8}
    assert len({arm.recipe.changed(model=own.model.model) for arm in arms}) == 1
    assert len({repr(config) for config in configs}) == len(arms)
