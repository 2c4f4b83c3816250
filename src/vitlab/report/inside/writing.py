"""What was found inside a model, as a folder: pictures, `inspect.json` and `inspect.html`."""

import io
import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from vitlab.files import staged_folder
from vitlab.report.inside.looked import Floats, Looked
from vitlab.report.inside.plates import plates
from vitlab.report.inside.sights import view
from vitlab.report.table_page import save_page, templates


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
        for name, figure in plates(found):
            _save(figure, draft / f"{name}.svg")
            _save(figure, draft / f"{name}.png")
        text = json.dumps(facts, indent=1, ensure_ascii=False)
        (draft / "inspect.json").write_text(text, encoding="utf-8", errors="backslashreplace")
        page = templates().get_template("inspect.html.jinja")
        html = page.render(found=found, inside=view(found), command=command)
        save_page(draft / "inspect.html", html)
    return facts


def _save(figure: Figure, file: Path) -> None:
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type")) if file.suffix == ".svg" else {}
    buffer = io.BytesIO()
    figure.savefig(buffer, format=file.suffix[1:], metadata=nothing or None)
    file.write_bytes(buffer.getvalue())


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
