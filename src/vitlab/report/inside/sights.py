"""What was found inside a model, as a page shows it: drawings and small images."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from vitlab.inspect.plots.canvas import BOTH, COSINES, HEAT
from vitlab.inspect.plots.charts import scaled, tiled
from vitlab.report.drawings.layer_chart import LayerLine, layer_chart
from vitlab.report.drawings.lenses import gradient, grayed, in_color, opaque, translucent
from vitlab.report.drawings.thumbnails import picture
from vitlab.report.facts import Picture
from vitlab.report.inside.looked import WATCHING, Floats, Looked, SeenImage

PHOTO, BEHIND = 256, 224  # pixels of the longer side of a photo, and of one behind maps
ACROSS = 7  # filters in a row, and tiles of positions per side
HEADS = 32  # of an image that are shown
POINTS = (("block blue", "a head"), ("warm", "mean of heads"))


@dataclass(frozen=True)
class Scale:
    """Colors from low to high, by the name of their CSS class, and the texts at both ends."""

    shades: str
    low: str
    high: str


@dataclass(frozen=True)
class Drawn:
    """A chart, or an image of weights, with what it shows.

    Attributes:
        title: short
        words: what it tells
        drawing: inline; empty for an image
        image: data URI; empty for a drawing
        keys: CSS classes and names of the lines
        scale: of the image's colors; None if it has none
    """

    title: str
    words: str
    drawing: Markup = Markup()
    image: str = ""
    keys: tuple[tuple[str, str], ...] = ()
    scale: Scale | None = None


@dataclass(frozen=True)
class Lens:
    """A map that lies over a photo.

    Attributes:
        title: what it shows
        words: for those who do not see it
        image: data URI, a pixel for each patch
        scale: of its colors; None if they have none
        ring: place of the patch it is about, in percent: left, top, width, height; None for none
    """

    title: str
    words: str
    image: str
    scale: Scale | None = None
    ring: tuple[float, float, float, float] | None = None


@dataclass(frozen=True)
class Sight:
    """An image and the maps of it.

    Attributes:
        name: where it comes from
        photo: data URI, in color
        behind: data URI, in gray, for what lies over it
        ratio: width over height
        top: the likeliest classes and their probabilities
        maps: one for each that was made
        heads: one for each head
        others: heads that are not shown
    """

    name: str
    photo: str
    behind: str
    ratio: float
    top: tuple[tuple[str, float], ...]
    maps: list[Lens]
    heads: list[Lens]
    others: int


@dataclass(frozen=True)
class View:
    """Everything that a page shows; `which` names the layer of the heads, `scales` is CSS."""

    drawn: list[Drawn]
    sights: list[Sight]
    which: str
    scales: Markup


def view(found: Looked) -> View:
    """Return what a page shows of what was found."""
    which = f"layer {found.layer}" if found.layer else "the last layer"
    rules = (f".scale-{name}{{background:{gradient(name)}}}" for name in (HEAT, COSINES, BOTH))
    sights = [_sight(each) for each in found.images]
    return View([*_charts(found), *_weights(found)], sights, which, Markup("".join(rules)))


def _charts(found: Looked) -> Iterator[Drawn]:
    """Yield what changes from layer to layer."""
    far = "How far each head looks: the mean distance to what it attends to."
    if found.elsewhere is not None:
        far += (
            f" The class token and registers get {found.elsewhere.mean():.0%} of the attention, "
            "which counts as no distance. Dashed: shared out among the patches instead."
        )
    wide = "How widely each head spreads its attention: 0 bits for a single token."
    for values, title, unit, words, among in (
        (found.distance, "Attention distance", "pixels", far, found.among),
        (found.entropy, "Attention entropy", "bits", wide, None),
    ):
        if values is not None:
            lines = [LayerLine("mean of heads", values.mean(1), "warm")]
            if among is not None:
                lines.append(LayerLine("among patches alone", among.mean(1), dashed=True))
            drawing = layer_chart(title, unit, lines, points=values, first=1)
            yield Drawn(title, words, drawing, keys=POINTS)
    if found.norms is not None and found.longest is not None:
        lines = [
            LayerLine("mean of patches", found.norms),
            LayerLine("longest patch", found.longest, "warm", dashed=True),
        ]
        words = (
            "How long tokens are. A few patches far longer than the rest are what registers cure."
        )
        drawing = layer_chart("Length of tokens", "length", lines)
        keys = (("blue", "mean of patches"), ("warm", "longest patch"))
        yield Drawn("Token norms", words, drawing, keys=keys)
    if found.alike is not None:
        line = LayerLine("mean cosine of two patches", found.alike)
        words = "How alike the patches of an image are: near 1, a model over-smooths."
        drawing = layer_chart("Token similarity", "cosine", [line])
        yield Drawn("Token similarity", words, drawing)


def _weights(found: Looked) -> Iterator[Drawn]:
    """Yield filters, positions, and how alike layers are, as images of few pixels."""
    if found.filters is not None:
        words = "What the first layer looks for: principal components of its filters."
        yield Drawn("Filters", words, image=_filters(found.filters))
    if found.positions is not None:
        tiles, down, right = tiled(found.positions, ACROSS)
        low = float(np.nanmin(tiles))
        every = found.positions.shape[:2] == (len(down), len(right))
        words = (
            f"How alike the position embedding of a patch is to all others: a tile for "
            f"{'each patch' if every else f'{len(down) * len(right)} of the patches'}."
        )
        scale = Scale(COSINES, f"cosine {low:.2f}", "1")
        yield Drawn("Positions", words, image=opaque(tiles, COSINES, low, 1), scale=scale)
    if found.cka is not None:
        other = f"of {found.beside} to the right" if found.beside else "against each other"
        words = (
            f"How alike {found.compared:,} images are to two layers (CKA): layers of "
            f"{found.model} up, from 0, {other}."
        )
        scale = Scale(COSINES, "0", "1: alike but for a rotation")
        yield Drawn("Layers", words, image=opaque(found.cka[::-1], COSINES, 0, 1), scale=scale)


def _filters(filters: Floats) -> str:
    """Return a data URI of filters side by side, each scaled to its own range."""
    rows, columns = filters.shape[1:3]
    color = 3 if filters.shape[3] == 3 else 1
    across = min(ACROSS, len(filters))
    down = -(-len(filters) // across)
    sheet = np.full((down * (rows + 1) - 1, across * (columns + 1) - 1, color), np.nan, np.float32)
    for number, each in enumerate(filters):
        top, left = number // across * (rows + 1), number % across * (columns + 1)
        sheet[top : top + rows, left : left + columns] = scaled(each).reshape(rows, columns, color)
    return in_color(sheet if color == 3 else sheet[..., 0])


def _sight(image: SeenImage) -> Sight:
    """Return an image and its maps."""
    photo, (high, wide) = Picture(image.pixels, image.name), image.pixels.shape[:2]
    maps = [_lens(kind, values, image) for kind, values in image.maps.items()]
    if image.colors is not None:
        words = "patches of one color are alike to the model, in all these images"
        maps.append(Lens("Feature colors", words, in_color(image.colors)))
    heads = [] if image.heads is None else list(image.heads)
    return Sight(
        image.name, picture(photo, PHOTO), picture(grayed(photo), BEHIND), wide / high, image.top,
        maps, [_head(number, each) for number, each in enumerate(heads[:HEADS], 1)],
        max(0, len(heads) - HEADS),
    )  # fmt: skip


def _lens(kind: str, values: Floats, image: SeenImage) -> Lens:
    """Return one map; its colors span what its scale says."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    title, ring = f"for {image.watched}" if image.watched else "", None
    match kind:
        case "occlusion":
            high = max(abs(low), abs(high), 1e-12)
            low, title = -high, f"Occlusion {title}: {values.size} squares covered in turn"
            scale = Scale(BOTH, f"−{high:.2g}", f"+{high:.2g} nats lost")
        case "similar_patches":
            title, high = "Similar to the framed patch", 1.0
            scale = Scale(COSINES, f"cosine {low:.2f}", "1")
            if image.patch is not None:
                (row, column), (rows, columns) = image.patch, values.shape
                ring = (100 * column / columns, 100 * row / rows, 100 / columns, 100 / rows)
        case "norm_map":
            title, scale = "Token norms", Scale(HEAT, f"{low:.3g}", f"{high:.3g}")
        case _:
            names = {
                "late_attention": "Attention of the last layers",
                "rollout": "Attention rollout, through all layers",
                "relevance": "Relevance",
                "gradcam": "Grad-CAM",
            }
            title = f"{names[kind]} {title}" if kind in WATCHING else names[kind]
            share = high / max(float(values.sum()), 1e-30)
            low, scale = 0.0, Scale(HEAT, "0", f"{share:.2%} of the sum")
    return Lens(
        title,
        _peak(values),
        translucent(values, scale.shades, low, max(high, low + 1e-12)),
        scale,
        ring,
    )


def _head(number: int, values: Floats) -> Lens:
    """Return where a head looks, from 0 to the most that a patch gets."""
    most = float(values.max())
    title = f"{number} · {most:.0%}" if most >= 0.1 else f"{number} · {most:.1%}"
    return Lens(title, _peak(values), translucent(values, HEAT, 0, max(most, 1e-12)))


def _peak(values: Floats) -> str:
    """Return where a map is highest, in words."""
    row, column = np.unravel_index(int(np.nanargmax(values)), values.shape)
    return (
        f"highest in row {row + 1} of {values.shape[0]}, column {column + 1} of {values.shape[1]}"
    )
