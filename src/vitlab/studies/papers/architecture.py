"""Which ViT: its position embeddings, shape and classifier, or axial attention (ViT, appendix D).

The position embeddings are none, 1-D, 2-D or relative, added in three places (Table 8). The shape
grows in depth, width, MLP, patch size or all of them (Figure 8). The classifier sees a class token
or the mean of the patches (Figure 9). Axial attention is in ViTs and ResNets, against global
attention and convolutions (Figure 13).
"""

from vitlab.models.cost import cost
from vitlab.studies.base import Base, Shape
from vitlab.studies.design import (
    ACCURACY,
    MACS,
    NLL,
    PARAMS,
    TRAIN_LOSS,
    Arm,
    Column,
    Picture,
    Study,
)
from vitlab.studies.few_shot import FEW_SHOT, few_shot
from vitlab.studies.papers import claims_of, table

PLACES = {"stem": "at the stem", "every": "before every block", "shared": "shared by all blocks"}
PAPER_SHAPE = Shape(1024, 8, 16, 2048, 32)  # ViT, D.2
PAPER_PATCHES = {0.5: 56, 2.0: 16}  # 64 does not divide 224: the next smaller one that does
LINES = ("", "depth", "width", "MLP", "patch size", "all")
HIGH, LOW = 1.0, 3 / 8  # the paper's rates 8e-4 and 3e-4, as factors of the recipe's
CLASSIFIERS = {"token": "class token", "mean": "mean of patches"}
AXIAL_MODELS = (
    "ViT-B/32",
    "ViT-B/16",
    "Axial-ViT-B/32",
    "Axial-ViT-B/16",
    "BiT-R50x1",
    "Axial-ResNet-50",
)


def position_arms(base: Base) -> tuple[Arm, ...]:
    """Return an arm for each scheme of position embeddings and place where they are added."""
    recipe = base.published("vit-jft", "ViT-B/16") if base.paper else base.recipe
    found = []
    for name, printed in table("positions").items():
        positions, at = name.split("-")
        none = positions == "none"
        choices = {"positions": positions} | ({} if none else {"positions_at": at})
        cells = (positions, "" if none else PLACES[at])
        paper = {FEW_SHOT.key: printed}
        found.append(Arm("none" if none else name, recipe.changed(**choices), cells, paper))
    return tuple(found)


def shape_arms(base: Base) -> tuple[Arm, ...]:
    """Return the starting shape, and it with each dimension halved and doubled, and with all.

    Within a budget the starting shape is the usual small one with patches twice as large. The
    paper's has 8 layers, a width of 1024, an MLP of 2048 and patches of 32 pixels; it is scaled up
    to 4 times here, and the patches are those that divide 224.
    """
    first = PAPER_SHAPE if base.paper else base.shape.changed(patch=2 * base.shape.patch)
    factors = (0.5, 2.0, 4.0) if base.paper else (0.5, 2.0)
    found = [_shape_arm(base, "", 1.0, "", first, first)]
    for n in factors:
        depth, mlp, wide = int(first.depth * n), int(first.mlp * n), _wide(first, n)
        scaled = {
            "depth": (depth, first.changed(depth=depth)),
            "width": (wide.width, wide),
            "MLP": (mlp, first.changed(mlp=mlp)),
        }
        if n in PAPER_PATCHES:
            patch = PAPER_PATCHES[n] if base.paper else int(first.patch / n)
            every = wide.changed(depth=depth, mlp=mlp, patch=patch)
            scaled |= {"patch size": (patch, first.changed(patch=patch)), "all": (0, every)}
        for line, (value, shape) in scaled.items():
            found.append(_shape_arm(base, line, n, f"{value or f'x{n:g}'}", shape, first))
    return tuple(sorted(found, key=lambda arm: LINES.index(arm.line)))


def _wide(shape: Shape, factor: float) -> Shape:
    """Return the shape with another width, its heads as wide as before."""
    width = int(shape.width * factor)
    return shape.changed(width=width, heads=max(1, shape.heads * width // shape.width))


def _shape_arm(base: Base, line: str, factor: float, value: str, shape: Shape, first: Shape) -> Arm:
    recipe = base.either("vit-jft", shape.name)
    start = recipe.changed(model=first.name, image_size=recipe.model.image_size)
    macs = [cost(each.model.config()).macs for each in (recipe, start)]
    name = f"{line.replace(' ', '-').lower()}-x{factor:g}" if line else "start"
    return Arm(name, recipe, (line or "starting shape", value), x=macs[0] / macs[1], line=line)


def head_arms(base: Base) -> tuple[Arm, ...]:
    """Return each classifier with each of the paper's rates, then with its own best one.

    The paper does not say which model and data its figure is of: its first model on JFT is taken.
    """
    recipe = base.published("vit-jft", "ViT-B/16") if base.paper else base.recipe
    found = []
    for pool, title in CLASSIFIERS.items():
        own = recipe.changed(pool=pool, **({"class_token": False} if pool == "mean" else {}))
        for name, factor in {"high": HIGH, "low": LOW}.items():
            rate = recipe.optimizer.lr * factor
            found.append(Arm(f"{pool}-{name}", own.changed(lr=rate), (title, f"{rate:.2g}")))
        cells = (title, "chosen on held-out images")
        found.append(Arm(f"{pool}-best", own, cells, rates=(LOW, HIGH, 2.0)))
    return tuple(found)


def axial_arms(base: Base) -> tuple[Arm, ...]:
    """Return ViTs, axial ViTs, a ResNet and an axial ResNet.

    Axial ViTs have no class token and 2-D positions. Within a budget, the patches are 4 and 8
    pixels of 32, and the ResNets have a unit in each of two stages.
    """
    coarse, fine = base.shape.changed(patch=2 * base.shape.patch).name, base.shape.name
    small = (coarse, fine, f"Axial-{coarse}", f"Axial-{fine}", "BiT-R(1-1)x1", "Axial-ResNet-(1-1)")
    found = []
    for number, name in enumerate(AXIAL_MODELS if base.paper else small):
        recipe = base.either("vit-imagenet21k", name)
        vit = "ViT" in name
        kind = ("axial " if name.startswith("Axial") else "") + ("ViT" if vit else "ResNet")
        label = kind.replace(" ", "-").lower() + ("-coarse" if number in (0, 2) else "")
        patch = name.rpartition("/")[2] if vit else ""
        found.append(Arm(label, recipe, (kind, patch), line=kind))
    return tuple(found)


POSITIONS = Study(
    "Position embeddings",
    "ViT paper, Table 8 and D.4",
    ("positions", "added"),
    position_arms,
    (ACCURACY, FEW_SHOT, NLL, TRAIN_LOSS),
    few_shot,
    claims_of("positions"),
)
SHAPE = Study(
    "Scaling the shape of a ViT",
    "ViT paper, Figure 8 and D.2",
    ("scaled", "to"),
    shape_arms,
    (ACCURACY, NLL, PARAMS, MACS),
    claims=claims_of("shape"),
    picture=Picture(kind="lines", x="multiply-adds, starting shape = 1", log=True),
)
HEAD = Study(
    "Class token or mean of the patches",
    "ViT paper, Figure 9 and D.3",
    ("classifier", "rate"),
    head_arms,
    claims=claims_of("head"),
)
RATE = Column("images_per_second", "images/s in training", lambda rate: f"{rate:,.0f}", once=True)
AXIAL = Study(
    "Axial attention",
    "ViT paper, Figure 13 and D.6",
    ("model", "patch"),
    axial_arms,
    (ACCURACY, NLL, PARAMS, MACS, RATE),
    claims=claims_of("axial"),
)
