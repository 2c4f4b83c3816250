"""What was found inside a model, as a folder: pictures, `inspect.json` and `inspect.html`."""

import base64
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from vitlab.files import staged_folder
from vitlab.report.inside import plates
from vitlab.report.inside.looked import Floats, Looked, SeenImage
from vitlab.report.table_page import save_page, templates

Plate = tuple[str, str, Figure]  # name of the files, what it shows, the figure

MAPS = {
    "rollout": "How much of each patch reaches the classifier: rollout of attention",
    "relevance": "How much each patch speaks for the class: attention weighted by its gradient",
    "gradcam": "Where the features are that speak for the class: Grad-CAM",
}


def write_inspection(folder: Path, found: Looked, command: str) -> dict[str, Any]:
    """Write everything into a new folder, whole or not at all; return what `inspect.json` holds.

    Args:
        folder: new
        found: from `look`
        command: that made it

    Raises:
        DiskError: it cannot be written.
    """
    facts = _facts(found)
    with staged_folder(folder) as draft:
        sections = []
        for title, made in _sections(found):
            shown = []
            for name, words, figure in made:
                _save(figure, draft / f"{name}.svg")
                _save(figure, draft / f"{name}.png")
                data = base64.b64encode((draft / f"{name}.png").read_bytes()).decode("ascii")
                shown.append(
                    {"name": name, "words": words, "data": f"data:image/png;base64,{data}"}
                )
            sections.append({"title": title, "pictures": shown})
        text = json.dumps(facts, indent=1, ensure_ascii=False)
        (draft / "inspect.json").write_text(text, encoding="utf-8")
        page = templates().get_template("inspect.html.jinja")
        html = page.render(found=found, sections=sections, command=command)
        save_page(draft / "inspect.html", html)
    return facts


def _sections(found: Looked) -> Iterator[tuple[str, list[Plate]]]:
    """Yield the parts of the page, with their pictures."""
    yield "The model", list(_of_model(found))
    for number, image in enumerate(found.images, 1):
        yield image.picture.name, list(_of_image(found.model, image, f"{number:02}"))


def _of_model(found: Looked) -> Iterator[Plate]:
    over = f"{found.model}, mean of {found.count:,} image{'s' if found.count != 1 else ''}"
    if found.distance is not None:
        words = "How far each head looks: the mean distance of what it attends to, in pixels"
        yield (
            "distance",
            words,
            plates.of_heads(found.distance, "attention distance (pixels)", over),
        )
    if found.entropy is not None:
        words = "How widely each head spreads its attention"
        yield "entropy", words, plates.of_heads(found.entropy, "entropy (bits)", over)
    if found.filters is not None:
        words = "What the first layer looks for: principal components of its filters"
        yield "filters", words, plates.of_filters(found.filters, found.model)
    if found.positions is not None:
        words = "How alike the position embeddings of two patches are: a tile for each patch"
        yield "positions", words, plates.of_positions(found.positions, found.model)
    if found.norms is not None:
        words = "How long the patches' tokens are after each block"
        yield "norms", words, plates.of_depth(found.norms, "mean length of a token", over)
    if found.alike is not None:
        words = "How alike the tokens of an image's patches are after each block"
        yield "similarity", words, plates.of_depth(found.alike, "mean cosine of two patches", over)


def _of_image(model: str, image: SeenImage, number: str) -> Iterator[Plate]:
    name = f"{Path(image.picture.name).name}, {model}"
    for kind, values in image.maps.items():
        about = f"{name}: {image.watched}" if kind != "rollout" else name
        share = values / max(float(values.sum()), 1e-30)
        yield f"{number}-{kind}", MAPS[kind], plates.of_map(image, share, about)
    if image.heads is not None:
        words = "Where each head of the last layer looks from the class token"
        titles = [f"head {n}" for n in range(1, len(image.heads) + 1)]
        yield f"{number}-heads", words, plates.of_tiles(list(image.heads), titles, name)
    if image.colors is not None:
        words = "Patches of one color are alike to the model, in all images of this page"
        picture: Floats = (image.picture.pixels / 255).astype(np.float32)
        tiles: list[Floats] = [picture, image.colors]
        yield f"{number}-colors", words, plates.of_tiles(tiles, ["image", "features"], name)


def _save(figure: Figure, file: Path) -> None:
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type")) if file.suffix == ".svg" else {}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=file.suffix[1:], metadata=nothing or None)
    file.write_bytes(buffer.getvalue())


def _facts(found: Looked) -> dict[str, Any]:
    """Return the numbers, as lists."""
    listed: Callable[[Any], Any] = lambda array: None if array is None else array.round(6).tolist()  # noqa: E731
    return {
        "model": found.model,
        "images": found.count,
        "attention_distance": listed(found.distance),
        "attention_entropy": listed(found.entropy),
        "token_norms": listed(found.norms),
        "token_similarity": listed(found.alike),
        "position_similarity": listed(found.positions),
        "embedding_filters": listed(found.filters),
        "seen": [
            {
                "image": image.picture.name,
                "top": [{"class": name, "probability": chance} for name, chance in image.top],
                "class": image.watched,
                **{kind: listed(values) for kind, values in image.maps.items()},
                "heads": listed(image.heads),
                "feature_colors": listed(image.colors),
            }
            for image in found.images
        ],
        "notes": found.notes,
    }
