"""The inside of a model as charts, maps over photos, and the folder of `vitlab inspect`."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from vitlab.files import staged_folder
from vitlab.inspect import plots
from vitlab.inspect.plots.canvas import COSINES, HEAT, STYLE
from vitlab.report import thumbnails
from vitlab.report.charts import NO_METADATA, WIDTH, svg
from vitlab.report.inside.looking import MEASURED, WATCHING, Looked, SeenImage
from vitlab.report.page import (
    Block,
    Commands,
    Lens,
    Page,
    Plot,
    Plots,
    Prose,
    Section,
    Sight,
    Sights,
    common_folder,
    write_page,
)
from vitlab.report.thumbnails import Floats
from vitlab.units import counted

PHOTO, BEHIND = 256, 224  # pixels of the longer side of a photo, and of one behind maps
LIKELIEST = 3  # classes of an image that are shown
TITLES = {  # the first one that a model has is the first picture
    "late_attention": "Where the last layers look",
    "rollout": "Attention rollout, through all layers",
    "relevance": "Relevance",
    "gradcam": "Grad-CAM",
    "norm_map": "Token norms",
    "similar_patches": "Similar to the framed patch",
}
REASONS = {  # why it comes first
    "late_attention": "The brighter a part, the more of it reaches the answer through the "
    "attention of the last three layers (late attention). It comes first because it shows the "
    "object best: on 20 photographs with the object marked, 70% of it lay on the object, which "
    "filled half of the image; of the rollout through all layers, 57%.",
    "gradcam": "There is no attention to show. The brighter a part, the more the features there "
    "speak for the class (Grad-CAM).",
    "norm_map": "There is no attention to show. The brighter a part, the larger its features.",
}
Draw = Callable[[Looked, Floats, str], Figure]
CHARTS: dict[str, tuple[str, str, str, Draw | None]] = {  # file -> array, title, how to read it
    "distance": (
        "attention_distance", "Attention distance", "How far each head looks: the mean distance, "
        "in pixels, to what it attends to. Class token and registers count as no distance; dashed, "
        "their share, which stands below, is shared out among the patches.",
        lambda found, values, title: plots.attention_distance(
            values, title, among=found.arrays.get("attention_distance_among_patches"),
            elsewhere=found.arrays.get("attention_elsewhere"),
        ),
    ),
    "entropy": (
        "attention_entropy", "Attention entropy", "How widely each head spreads its attention: 0 "
        "bits if it looks at a single place.",
        None,
    ),
    "norms": (
        "token_norms", "Token norms", "How large the vectors of patches are. A few patches far "
        "larger than the rest are what registers cure.",
        lambda found, values, title: plots.through_depth(
            {"mean of patches": values, "longest patch": found.arrays["longest_tokens"]},
            "length of the token", title,
        ),
    ),
    "similarity": (
        "token_similarity", "Token similarity", "How alike the patches of an image are: near 1, "
        "the model no longer tells them apart.",
        lambda found, values, title: plots.token_similarity(values[None], title),
    ),
    "filters": (
        "embedding_filters", "Filters", "What the first layer looks for: principal components of "
        "its filters.",
        None,
    ),
    "positions": (
        "position_similarity", "Positions", "How alike the position embedding of a patch is to all "
        "others, a tile for each patch.",
        None,
    ),
}  # fmt: skip


def write_inspection(folder: Path, found: Looked, command: str) -> dict[str, Any]:
    """Write everything into a new folder, whole or not at all; return what `inspect.json` holds.

    Args:
        folder: new
        found: from `look`
        command: that made it

    Raises:
        DiskError: it cannot be written.
    """
    facts, shown = _facts(found), len(found.images)
    lead = (
        f"{counted(found.count, 'image')}{f', of which {shown} are shown' * (shown < found.count)}."
        " Every picture is also a file beside this page, as PNG and SVG, and every number is in "
        "inspect.json."
    )
    titles = [title for key, title, *_ in CHARTS.values() if found.arrays.get(key) is not None]
    sections = [
        Section("images", TITLES[_first(found)], image_blocks(found), folded=False),
        Section("model", "The model", model_blocks(found), hint=", ".join(titles).lower()),
    ]
    with staged_folder(folder) as draft:
        for name, figure in model_figures(found):
            _save(figure, draft / name)
        for number, image in enumerate(found.images, 1):
            for name, figure in image_figures(found, image):
                _save(figure, draft / f"{number:02}-{name}")
        text = json.dumps(facts, indent=1, ensure_ascii=False)
        (draft / "inspect.json").write_text(text, encoding="utf-8", errors="backslashreplace")
        page = Page(f"Inside {found.model}", lead, sections, found.remarks, command, "look inside")
        write_page(draft / "inspect.html", page)
    return facts


def inside_blocks(found: Looked | None, inspecting: str) -> list[Block]:
    """Return what a report shows of what was found.

    Args:
        found: from `look`; None for nothing
        inspecting: the command that looks at other images
    """
    if found is None:
        return []
    words = f"Of {found.count} test images. For others, and for what speaks for a class"
    return [Commands([(words, inspecting)]), *image_blocks(found), *model_blocks(found)]


def model_blocks(found: Looked) -> list[Block]:
    """Return what changes from layer to layer, and what the weights show."""
    items = []
    for name, figure in model_figures(found, titled=False):
        _, title, words, _ = CHARTS[name]
        items.append(Plot(title, svg(figure, f"in-{name}", f"{title} {words}", WIDTH), words))
    return [Plots(items)] if items else []


def model_figures(found: Looked, *, titled: bool = True) -> Iterator[tuple[str, Figure]]:
    """Yield the name and the figure of each array of the model; one at a time is in memory."""
    for name, (key, _, _, draw) in CHARTS.items():
        if (values := found.arrays.get(key)) is not None:
            of = f", {counted(found.count, 'image')}" * (key in MEASURED)
            title = f"{found.model}{of}" * titled
            yield name, draw(found, values, title) if draw else getattr(plots, key)(values, title)


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
    """Return each image with its first map, the reason for that one, and the other maps folded."""
    if not found.images:
        return []
    folder = common_folder(each.name for each in found.images)
    text = REASONS.get(_first(found), "")
    if any(each.heads is not None for each in found.images):
        which = f"layer {found.layer}" if found.layer else "the last layer"
        text += (
            f" Under “more”, the small maps show where each head of {which} looks from the class "
            "token or the attention pool, and the most that one patch gets."
        )
    scales = {name: thumbnails.gradient(name) for name in (HEAT, COSINES)}
    sights = Sights([_sight(each, folder) for each in found.images], scales)
    return [Prose(text.strip(), note=True), sights]


def _first(found: Looked) -> str:
    """Return which map comes first."""
    return next(
        (kind for kind in TITLES if any(kind in each.maps for each in found.images)), "norm_map"
    )


def _sight(image: SeenImage, folder: str) -> Sight:
    """Return a photo, its likeliest classes and its maps."""
    name, (high, wide) = image.name.removeprefix(folder), image.pixels.shape[:2]
    photo = thumbnails.picture(image.pixels, PHOTO)
    lenses = [Lens("what the model sees", photo, name, whole=True)]
    lenses += [_map(kind, image.maps[kind], image) for kind in TITLES if kind in image.maps]
    if image.colors is not None:
        words = "patches of one color are alike to the model, in all these images"
        lenses.append(Lens("Feature colors", thumbnails.in_color(image.colors), words, whole=True))
    heads = []
    for number, values in enumerate(() if image.heads is None else image.heads, 1):
        most = float(values.max())
        share = f"{most:.0%}" if most >= 0.1 else f"{most:.1%}"
        shown = thumbnails.colored(values, HEAT, 0, max(most, 1e-12))
        heads.append(Lens(f"{number} · {share}", shown, _peak(values)))
    return Sight(
        name,
        image.label,
        tuple((each, f"{100 * chance:.1f}%") for each, chance in image.top[:LIKELIEST]),
        thumbnails.picture(image.pixels, BEHIND, gray=True),
        wide / high,
        lenses,
        heads,
    )


def _map(kind: str, values: Floats, image: SeenImage) -> Lens:
    """Return one map with its scale, whose colors span what the scale says."""
    low, high, shades = float(np.nanmin(values)), float(np.nanmax(values)), HEAT
    title, ring = TITLES[kind], ()
    if kind in WATCHING and image.watched:
        title += f" for {image.watched}"
    if kind == "similar_patches":
        high, shades, ends = 1.0, COSINES, (f"cosine {low:.2f}", "1")
        if image.patch is not None:
            (row, column), (rows, columns) = image.patch, values.shape
            ring = tuple(100 * n for n in (column / columns, row / rows, 1 / columns, 1 / rows))
    elif kind == "norm_map":
        ends = (f"{low:.3g}", f"{high:.3g}")
    else:
        low, ends = 0.0, ("0", f"{high / max(float(values.sum()), 1e-30):.2%} of the sum")
    shown = thumbnails.colored(values, shades, low, max(high, low + 1e-12))
    return Lens(title, shown, _peak(values), (shades, *ends), ring)


def _peak(values: Floats) -> str:
    """Return where a map is highest, in words."""
    row, column = np.unravel_index(int(np.nanargmax(values)), values.shape)
    return (
        f"highest in row {row + 1} of {values.shape[0]}, column {column + 1} of {values.shape[1]}"
    )


def _save(figure: Figure, file: Path) -> None:
    """Write a figure as SVG and as PNG."""
    with mpl.rc_context(STYLE):  # the ids of an SVG come from its salt
        for kind, metadata in (("svg", NO_METADATA), ("png", None)):
            figure.savefig(file.with_name(f"{file.name}.{kind}"), format=kind, metadata=metadata)


def _facts(found: Looked) -> dict[str, Any]:
    """Return the numbers, as lists."""
    keys = (*MEASURED, "position_similarity", "embedding_filters")
    return {
        "model": found.model,
        "images": found.count,
        "layer": found.layer or None,
        **{key: _listed(found.arrays.get(key)) for key in keys},
        "seen": [
            {
                "image": image.name,
                "top": [{"class": name, "probability": chance} for name, chance in image.top],
                "class": image.watched,
                **{kind: _listed(values) for kind, values in image.maps.items()},
                "patch": image.patch,
                "heads": _listed(image.heads),
                "feature_colors": _listed(image.colors),
            }
            for image in found.images
        ],
        "notes": found.remarks,
    }


def _listed(array: Any) -> Any:
    """Return an array as nested lists of few digits, None in the place of what is no number."""
    if isinstance(array, np.ndarray):
        array = array.tolist()
    if isinstance(array, list):
        return [_listed(each) for each in array]
    return float(f"{array:.5g}") if array is not None and array == array else None
