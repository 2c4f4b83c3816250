"""Class token or the mean of the patches, and the learning rates they need (ViT, Figure 9)."""

from vitlab.studies.grid.base import Base
from vitlab.studies.grid.design import Arm, Study
from vitlab.studies.grid.paper_claims import Claim

HIGH, LOW = 1.0, 3 / 8  # the paper's 8e-4 and 3e-4, as factors of the recipe's rate
RATES = (LOW, HIGH, 2.0)
CLASSIFIERS = {"token": "class token", "mean": "mean of patches"}


def arms(base: Base) -> tuple[Arm, ...]:
    """Return each classifier with each of the paper's rates, then with its own best one.

    The paper does not say which model and data its figure is of: its first model on JFT is taken.
    """
    recipe = base.published("vit-jft", "ViT-B/16") if base.paper else base.recipe
    rate = recipe.optimizer.lr
    found = []
    for pool, title in CLASSIFIERS.items():
        own = recipe.changed(pool=pool, **({"class_token": False} if pool == "mean" else {}))
        for factor in (HIGH, LOW):
            name = f"{pool}-{'high' if factor == HIGH else 'low'}"
            found.append(Arm(name, own.changed(lr=rate * factor), (title, f"{rate * factor:.2g}")))
        found.append(Arm(f"{pool}-best", own, (title, "chosen on held-out images"), rates=RATES))
    return tuple(found)


STUDY = Study(
    "Class token or mean of the patches",
    "ViT paper, Figure 9 and D.3",
    ("classifier", "rate"),
    arms,
    claims=(
        Claim(
            "with its own rate, the mean is as good", ("token-best",), ("mean-best",), "no higher"
        ),
        Claim("the mean needs a lower rate", ("mean-low",), ("mean-high",)),
        Claim("the class token wants the higher rate", ("token-high",), ("token-low",)),
    ),
)
