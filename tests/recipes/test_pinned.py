"""Values that change only if that is meant: those that are pinned in `pinned.txt`.

Of recipes they are in `vitlab.recipes.papers`, `vitlab.recipes.pretraining`, `vitlab.recipes.named`
and `vitlab.recipes`; of the arms of studies in `vitlab.studies.base` and, of each paper,
`vitlab.studies.papers.advice`, `vitlab.studies.papers.architecture`,
`vitlab.studies.papers.pretraining` and `vitlab.studies.papers.three_things`.
"""

from recipes import pinned


def test_no_value_of_an_option_or_a_recipe_or_an_arm_changes_unnoticed() -> None:
    assert pinned.text() == pinned.FILE.read_text(encoding="utf-8"), pinned.__doc__
