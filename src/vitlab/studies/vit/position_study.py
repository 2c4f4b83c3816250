"""Position embeddings: none, 1-D, 2-D, relative, and where they are added (ViT, Table 8)."""

from vitlab.studies.grid.base import Base
from vitlab.studies.grid.design import ACCURACY, NLL, TRAIN_LOSS, Arm, Study
from vitlab.studies.grid.paper_claims import Claim
from vitlab.studies.measures.few_shot import FEW_SHOT, few_shot

# ImageNet 5-shot accuracy of ViT-B/16, by scheme and place (ViT, Table 8)
PRINTED = {
    ("none", "stem"): 0.61382,
    ("1d", "stem"): 0.64206,
    ("1d", "every"): 0.63964,
    ("1d", "shared"): 0.64292,
    ("2d", "stem"): 0.64001,
    ("2d", "every"): 0.64046,
    ("2d", "shared"): 0.64022,
    ("relative", "every"): 0.64032,
}
PLACES = {"stem": "at the stem", "every": "before every block", "shared": "shared by all blocks"}


def arms(base: Base) -> tuple[Arm, ...]:
    """Return an arm for each scheme and place."""
    return tuple(_arm(base, *key) for key in PRINTED)


def _arm(base: Base, positions: str, at: str) -> Arm:
    choices = {"positions": positions} | ({"positions_at": at} if positions != "none" else {})
    recipe = base.published("vit-jft", "ViT-B/16") if base.paper else base.recipe
    where = PLACES[at] if positions != "none" else ""
    return Arm(
        positions if positions == "none" else f"{positions}-{at}",
        recipe.changed(**choices),
        (positions, where),
        {FEW_SHOT.key: PRINTED[positions, at]},
    )


ADDED = ("1d-stem", "2d-stem", "relative-every")
STUDY = Study(
    "Position embeddings",
    "ViT paper, Table 8 and D.4",
    ("positions", "added"),
    arms,
    (ACCURACY, FEW_SHOT, NLL, TRAIN_LOSS),
    few_shot,
    claims=(
        Claim("any positions are better than none", ADDED, ("none",)),
        Claim("2-D positions are no better than 1-D", ("2d-stem",), ("1d-stem",), "no higher"),
        Claim("relative positions are no better", ("relative-every",), ("1d-stem",), "no higher"),
        Claim(
            "the place where they are added does not matter",
            ("1d-every", "1d-shared", "2d-every", "2d-shared"),
            ("1d-stem", "2d-stem"),
            kind="equal",
        ),
    ),
)
