"""`vitlab export`."""

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from vitlab.commands import WEIGHTS
from vitlab.options import Options, option
from vitlab.places import check_new_folder
from vitlab.weights.formats.catalog import export_help, export_names
from vitlab.weights.hub_names import check_weights
from vitlab.weights.stated import Stated

SUMMARY = "Write a model in another library's format."


@dataclass(frozen=True, kw_only=True)
class Export(Options):
    """A model, the format and the new folder."""

    weights: str = option(MISSING, WEIGHTS, positional=True, check=check_weights)
    to: str = option(MISSING, f"the format: {export_help()}", choices=export_names)
    out: str = option(MISSING, "the new folder", check=check_new_folder)
    file: Stated = Stated()


def run(options: Export) -> dict[str, Any]:
    """Load and write."""
    import vitlab

    model = vitlab.load(options.weights, **options.file.arguments())
    folder = vitlab.save(model, options.out, to=options.to)
    return {"model": model.config.name, "format": options.to, "folder": str(folder)}


def show(result: dict[str, Any]) -> None:
    """Print the files."""
    files = ", ".join(sorted(each.name for each in Path(result["folder"]).iterdir()))
    print(f"{result['model']} for {result['format']}: {result['folder']} ({files})")
