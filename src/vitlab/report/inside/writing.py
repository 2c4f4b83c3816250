"""The folder of `vitlab inspect`: pictures, `inspect.json` and `inspect.html`."""

import io
import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from vitlab.files import staged_folder
from vitlab.report.inside.looked import Floats, Looked
from vitlab.report.inside.sights import image_blocks, image_figures, model_blocks, model_figures
from vitlab.report.page import Page, Section, write_page
from vitlab.units import counted


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
        for name, figure in model_figures(found):
            _save(figure, draft / name)
        for number, image in enumerate(found.images, 1):
            for name, figure in image_figures(found, image):
                _save(figure, draft / f"{number:02}-{name}")
        text = json.dumps(facts, indent=1, ensure_ascii=False)
        (draft / "inspect.json").write_text(text, encoding="utf-8", errors="backslashreplace")
        write_page(draft / "inspect.html", _page(found, command))
    return facts


def _page(found: Looked, command: str) -> Page:
    """Return the page: the images first, then the model."""
    shown, count = len(found.images), counted(found.count, "image")
    return Page(
        f"Inside {found.model}",
        f"{count}{f', of which {shown} are shown' if shown < found.count else ''}. Every picture "
        "is also a file beside this page, as PNG and SVG, and every number is in inspect.json.",
        [
            Section("images", "The images", image_blocks(found), folded=False),
            Section("model", "The model", model_blocks(found), folded=False),
        ],
        found.remarks,
        command,
    )


def _save(figure: Figure, file: Path) -> None:
    """Write a figure as SVG and as PNG."""
    for kind in ("svg", "png"):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type")) if kind == "svg" else None
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind, metadata=nothing)
        file.with_name(f"{file.name}.{kind}").write_bytes(buffer.getvalue())


def _facts(found: Looked) -> dict[str, Any]:
    """Return the numbers, as lists."""
    return {
        "model": found.model,
        "images": found.count,
        "layer": found.layer or None,
        "attention_distance": _listed(found.distance),
        "attention_distance_among_patches": _listed(found.among),
        "attention_elsewhere": _listed(found.elsewhere),
        "attention_entropy": _listed(found.entropy),
        "token_norms": _listed(found.norms),
        "longest_tokens": _listed(found.longest),
        "token_similarity": _listed(found.alike),
        "position_similarity": _listed(found.positions),
        "embedding_filters": _listed(found.filters),
        "cka": _listed(found.cka),
        "beside": found.beside or None,
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


def _listed(array: Floats | None) -> Any:
    """Return an array as nested lists of few digits, None in the place of what is no number."""
    if array is None:
        return None
    return _short(array.tolist())


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(each) for each in value]
    return float(f"{value:.5g}") if value == value else None
