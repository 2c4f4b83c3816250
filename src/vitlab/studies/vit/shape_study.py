"""Which dimension of a ViT to scale: depth, width, MLP, patch size, or all (ViT, Figure 8)."""

from vitlab.models.cost import cost
from vitlab.studies.grid.base import Base, Shape
from vitlab.studies.grid.design import ACCURACY, MACS, NLL, PARAMS, Arm, Picture, Study
from vitlab.studies.grid.paper_claims import Claim

PAPER = Shape(1024, 8, 16, 2048, 32)  # ViT, D.2
PAPER_PATCHES = {0.5: 56, 2.0: 16}  # 64 does not divide 224: the next smaller one that does
FACTORS = (0.5, 2.0)


def arms(base: Base) -> tuple[Arm, ...]:
    """Return the starting shape, and it with each dimension halved and doubled, and with all.

    Within a budget the starting shape is the usual small one with patches twice as large. The
    paper's has 8 layers, a width of 1024, an MLP of 2048 and patches of 32 pixels; it is scaled up
    to 4 times here, and the patches are those that divide 224.
    """
    first = PAPER if base.paper else base.shape.changed(patch=2 * base.shape.patch)
    factors = (*FACTORS, 4.0) if base.paper else FACTORS
    patches = PAPER_PATCHES if base.paper else {n: int(first.patch / n) for n in FACTORS}
    found = [_arm(base, "", 1.0, "", first, first)]
    for n in factors:
        depth, mlp = int(first.depth * n), int(first.mlp * n)
        wide = _wide(first, int(first.width * n))
        found.append(_arm(base, "depth", n, f"{depth}", first.changed(depth=depth), first))
        found.append(_arm(base, "width", n, f"{wide.width}", wide, first))
        found.append(_arm(base, "MLP", n, f"{mlp}", first.changed(mlp=mlp), first))
    for n, patch in patches.items():
        finer = first.changed(patch=patch)
        found.append(_arm(base, "patch size", n, f"{patch}", finer, first))
        wide = _wide(finer, int(first.width * n))
        every = wide.changed(depth=int(first.depth * n), mlp=int(first.mlp * n))
        found.append(_arm(base, "all", n, f"x{n:g}", every, first))
    return tuple(sorted(found, key=lambda arm: LINES.index(arm.line)))


LINES = ("", "depth", "width", "MLP", "patch size", "all")


def _wide(shape: Shape, width: int) -> Shape:
    """Return the shape with another width, its heads as wide as before."""
    return shape.changed(width=width, heads=max(1, shape.heads * width // shape.width))


def _arm(base: Base, line: str, factor: float, value: str, shape: Shape, first: Shape) -> Arm:
    recipe = base.published("vit-jft", shape.name) if base.paper else base.vit(shape)
    start = recipe.changed(model=first.name, image_size=recipe.model.image_size)
    macs = [cost(each.model.config()).macs for each in (recipe, start)]
    name = f"{line.replace(' ', '-').lower()}-x{factor:g}" if line else "start"
    cells = (line or "starting shape", value)
    return Arm(name, recipe, cells, x=macs[0] / macs[1], line=line)


STUDY = Study(
    "Scaling the shape of a ViT",
    "ViT paper, Figure 8 and D.2",
    ("scaled", "to"),
    arms,
    (
        ACCURACY,
        NLL,
        PARAMS,
        MACS,
    ),
    claims=(
        Claim("more depth is better", ("depth-x2",), ("start",)),
        Claim("more depth is better than more width", ("depth-x2",), ("width-x2",)),
        Claim(
            "smaller patches are better, without more parameters", ("patch-size-x2",), ("start",)
        ),
        Claim("scaling everything is better", ("all-x2",), ("start",)),
    ),
    picture=Picture(kind="lines", x="multiply-adds, starting shape = 1", log=True),
)
