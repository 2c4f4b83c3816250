"""Blocks of a page about the inside of a model: charts of layers, maps over photos."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from vitlab.inspect import plots
from vitlab.inspect.plots.canvas import BOTH, COSINES, HEAT
from vitlab.report import thumbnails
from vitlab.report.drawings.drawing import WIDTH, svg
from vitlab.report.facts import Picture
from vitlab.report.inside.looked import WATCHING, Floats, Looked, SeenImage
from vitlab.report.page import Block, Commands, Plot, Plots, Prose, Raw, common_folder

PHOTO, BEHIND = 256, 224  # pixels of the longer side of a photo, and of one behind maps
HEADS = 32  # of an image that are shown
TITLES = {
    "late_attention": "Where the last layers look",
    "rollout": "Attention rollout, through all layers",
    "relevance": "Relevance",
    "gradcam": "Grad-CAM",
    "norm_map": "Token norms",
    "similar_patches": "Similar to the framed patch",
    "occlusion": "Occlusion",
}
WORDS = {
    "distance": ("Attention distance", "How far each head looks: the mean distance, in pixels, to "
                 "what it attends to. Class token and registers count as no distance; dashed, "
                 "their share, which stands below, is shared out among the patches."),
    "entropy": ("Attention entropy", "How widely each head spreads its attention: 0 bits if it "
                "looks at a single place."),
    "norms": ("Token norms", "How large the vectors of patches are. A few patches far larger than "
              "the rest are what registers cure."),
    "similarity": ("Token similarity", "How alike the patches of an image are: near 1, the model "
                   "no longer tells them apart."),
    "filters": ("Filters", "What the first layer looks for: principal components of its filters."),
    "positions": ("Positions", "How alike the position embedding of a patch is to all others, a "
                  "tile for each patch."),
    "cka": ("Layers", "How alike two layers are in what they tell apart (CKA): 1 for the same up "
            "to a rotation."),
}  # fmt: skip


def inside_blocks(found: Looked | None, inspecting: str = "") -> list[Block]:
    """Return what a page shows of what was found.

    Args:
        found: from `look` or `look_briefly`; None for nothing
        inspecting: the command that looks at other images
    """
    if found is None:
        return []
    blocks: list[Block] = []
    if inspecting:
        words = f"Of {found.count} test images. For others, and for what speaks for a class"
        blocks.append(Commands([(words, inspecting)]))
    return [*blocks, *model_blocks(found), *image_blocks(found)]


def model_blocks(found: Looked) -> list[Block]:
    """Return what changes from layer to layer, and what the weights show."""
    items = [
        Plot(
            WORDS[name][0], svg(figure, f"in-{name}", " ".join(WORDS[name]), WIDTH), WORDS[name][1]
        )
        for name, figure in model_figures(found, titled=False)
    ]
    return [Plots(items)] if items else []


def model_figures(found: Looked, *, titled: bool = True) -> Iterator[tuple[str, Figure]]:
    """Yield the name and the figure of each array of the model; one at a time is in memory."""
    over = f"{found.model}, mean of {found.count:,} image{'s' if found.count != 1 else ''}"
    over, model = (over, found.model) if titled else ("", "")
    if found.distance is not None:
        yield (
            "distance",
            plots.attention_distance(
                found.distance, over, among=found.among, elsewhere=found.elsewhere
            ),
        )
    if found.entropy is not None:
        yield "entropy", plots.attention_entropy(found.entropy, over)
    if found.norms is not None and found.longest is not None:
        lines = {"mean of patches": found.norms, "longest patch": found.longest}
        yield "norms", plots.through_depth(lines, "length of the token", over)
    if found.alike is not None:
        yield "similarity", plots.token_similarity(found.alike[None], over)
    if found.filters is not None:
        yield "filters", plots.embedding_filters(found.filters, model)
    if found.positions is not None:
        yield "positions", plots.position_similarity(found.positions, model)
    if found.cka is not None:
        names = (found.model, found.beside or found.model)
        over = f"{found.compared:,} images" if titled else ""
        yield "cka", plots.cka(found.cka, over, names=names)


def image_figures(found: Looked, image: SeenImage) -> Iterator[tuple[str, Figure]]:
    """Yield the name and the figure of each map of an image."""
    name = f"{Path(image.name).name}, {found.model}"
    for kind, values in image.maps.items():
        title = f"{name}: {image.watched}" if kind in WATCHING else name
        more = {"patch": image.patch} if kind == "similar_patches" else {}
        yield kind, getattr(plots, kind)(values, image.pixels, title, **more)
    if image.heads is not None:
        yield "heads", plots.class_attention(image.heads, image.pixels, name)
    if image.colors is not None:
        yield "colors", plots.feature_colors(image.colors, image.pixels, name)


def image_blocks(found: Looked) -> list[Block]:
    """Return each image with the maps of it, below one another."""
    if not found.images:
        return []
    folder = common_folder(each.name for each in found.images)
    which = f"layer {found.layer}" if found.layer else "the last layer"
    text = "Maps lie over the image in gray; a scale below each says what its colors mean."
    if any(each.heads is not None for each in found.images):
        text += (
            f" The small maps show where each head of {which} looks from the class token or the "
            "attention pool, and the most that one patch gets."
        )
    rules = [
        Markup(".scale-{}{{background:{}}}").format(name, thumbnails.gradient(name))
        for name in (HEAT, COSINES, BOTH)
    ]
    style = Markup("<style>{}</style>").format(Markup().join(rules))
    boxes = Markup().join(_image_box(each, folder) for each in found.images)
    box = Markup('{}<div class="sights">{}</div>').format(style, boxes)
    return [Prose(text, note=True), Raw(box)]


def _image_box(image: SeenImage, folder: str) -> Markup:
    """Return a photo, its likeliest classes and its maps."""
    photo, (high, wide) = Picture(image.pixels, image.name), image.pixels.shape[:2]
    behind = thumbnails.picture(photo, BEHIND, gray=True)
    name = image.name.removeprefix(folder)
    top = Markup(", ").join(
        Markup("<bdi>{}</bdi> {:.1f}%").format(each, 100 * chance) for each, chance in image.top
    )
    first = _lens("what the model sees", thumbnails.picture(photo, PHOTO), name, whole=True)
    maps = [_map(kind, values, image) for kind, values in image.maps.items()]
    if image.colors is not None:
        words = "patches of one color are alike to the model, in all these images"
        maps.append(_lens("Feature colors", thumbnails.in_color(image.colors), words, whole=True))
    heads = [] if image.heads is None else list(image.heads)
    small = [_head(number, each) for number, each in enumerate(heads[:HEADS], 1)]
    rows = (
        Markup('<div class="lenses heads">{}</div>').format(Markup().join(small)) if small else ""
    )
    more, rest = Markup(), len(heads) - HEADS
    if rest > 0:
        more = Markup('<p class="note">{} more heads are not shown.</p>').format(rest)
    return Markup(
        '<div class="box sight" style="--ratio:{:.4f};--behind:url({})"><h3><bdi>{}</bdi></h3>'
        '<p class="note">{}</p><div class="lenses">{}</div>{}{}'
        "</div>"
    ).format(wide / high, behind, name, top, Markup().join([first, *maps]), rows, more)


def _map(kind: str, values: Floats, image: SeenImage) -> Markup:
    """Return one map with its scale, whose colors span what the scale says."""
    low, high, shades = float(np.nanmin(values)), float(np.nanmax(values)), HEAT
    title, ring = TITLES[kind], Markup()
    if kind in WATCHING and image.watched:
        title += f" for {image.watched}"
    if kind == "occlusion":
        high = max(abs(low), abs(high), 1e-12)
        low, shades, ends = -high, BOTH, (f"−{high:.2g}", f"+{high:.2g} nats lost")
        title += f": {values.size} squares covered in turn"
    elif kind == "similar_patches":
        high, shades, ends = 1.0, COSINES, (f"cosine {low:.2f}", "1")
        if image.patch is not None:
            (row, column), (rows, columns) = image.patch, values.shape
            ring = Markup(
                '<span class="ring" style="left:{:.2f}%;top:{:.2f}%;width:{:.2f}%;height:{:.2f}%">'
                "</span>"
            ).format(100 * column / columns, 100 * row / rows, 100 / columns, 100 / rows)
    elif kind == "norm_map":
        ends = (f"{low:.3g}", f"{high:.3g}")
    else:
        share = high / max(float(values.sum()), 1e-30)
        low, ends = 0.0, ("0", f"{share:.2%} of the sum")
    scale = Markup(
        '<span class="span"><i class="scale-{}" aria-hidden="true"></i><span>{}</span>'
        "<span>{}</span></span>"
    ).format(shades, *ends)
    shown = thumbnails.colored(values, shades, low, max(high, low + 1e-12))
    return _lens(title, shown, _peak(values), scale=scale, ring=ring)


def _head(number: int, values: Floats) -> Markup:
    """Return where a head looks, from 0 to the most that a patch gets."""
    most = float(values.max())
    title = f"{number} · {most:.0%}" if most >= 0.1 else f"{number} · {most:.1%}"
    return _lens(title, thumbnails.colored(values, HEAT, 0, max(most, 1e-12)), _peak(values))


def _lens(
    title: str, source: str, words: str, *, scale: str = "", ring: str = "", whole: bool = False
) -> Markup:
    """Return an image that lies over a photo, with its caption."""
    return Markup(
        '<figure><div class="lens{}"><img src="{}" alt="{}: {}">{}</div>'
        "<figcaption><bdi>{}</bdi>{}</figcaption></figure>"
    ).format(" whole" * whole, source, title, words, ring, title, scale)


def _peak(values: Floats) -> str:
    """Return where a map is highest, in words."""
    row, column = np.unravel_index(int(np.nanargmax(values)), values.shape)
    return (
        f"highest in row {row + 1} of {values.shape[0]}, column {column + 1} of {values.shape[1]}"
    )
