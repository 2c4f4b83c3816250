"""The pictures of `vitlab inspect`: a figure for each array that was found."""

from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure

from vitlab.inspect import plots
from vitlab.report.inside.looked import WATCHING, Looked, SeenImage


def plates(found: Looked) -> Iterator[tuple[str, Figure]]:
    """Yield the name and the figure of each picture; one at a time is in memory."""
    yield from _of_model(found)
    for number, image in enumerate(found.images, 1):
        yield from ((f"{number:02}-{name}", figure) for name, figure in _of_image(found, image))


def _of_model(found: Looked) -> Iterator[tuple[str, Figure]]:
    over = f"{found.model}, mean of {found.count:,} image{'s' if found.count != 1 else ''}"
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
        yield "filters", plots.embedding_filters(found.filters, found.model)
    if found.positions is not None:
        yield "positions", plots.position_similarity(found.positions, found.model)
    if found.cka is not None:
        names = (found.model, found.beside or found.model)
        yield "cka", plots.cka(found.cka, f"{found.compared:,} images", names=names)


def _of_image(found: Looked, image: SeenImage) -> Iterator[tuple[str, Figure]]:
    name = f"{Path(image.name).name}, {found.model}"
    for kind, values in image.maps.items():
        title = f"{name}: {image.watched}" if kind in WATCHING else name
        more = {"patch": image.patch} if kind == "similar_patches" else {}
        yield kind, getattr(plots, kind)(values, image.pixels, title, **more)
    if image.heads is not None:
        yield "heads", plots.class_attention(image.heads, image.pixels, name)
    if image.colors is not None:
        yield "colors", plots.feature_colors(image.colors, image.pixels, name)
