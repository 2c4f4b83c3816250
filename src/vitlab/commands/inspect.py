"""`vitlab inspect`."""

import shlex
import sys
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from vitlab.commands import DEVICE, WEIGHTS
from vitlab.data.presence import check_images
from vitlab.options import Options, option
from vitlab.places import check_new_folder
from vitlab.weights.hub_names import check_weights
from vitlab.weights.stated import Stated

SUMMARY = "Look inside a model: attention, filters, positions, features."


@dataclass(frozen=True, kw_only=True)
class Inspect(Options):
    """A model, images, and a folder for the pictures."""

    weights: str = option(MISSING, WEIGHTS, positional=True, check=check_weights)
    paths: tuple[str, ...] = option(
        MISSING, "image files, folders or glob patterns", positional=True, check=check_images
    )
    out: str = option(
        MISSING,
        "a new folder for inspect.html, inspect.json and the pictures",
        check=check_new_folder,
    )
    watch: str = option("", "class to explain (default: each image's likeliest)")
    file: Stated = Stated()
    device: str = option("auto", DEVICE)


def run(options: Inspect) -> dict[str, Any]:
    """Look, draw and write."""
    import vitlab
    from vitlab import device as devices
    from vitlab.data.labels import SingleLabels
    from vitlab.data.pictures.listing import find_images
    from vitlab.data.sources.filenames import Names
    from vitlab.data.sources.folders import Files
    from vitlab.progress import Meter, say
    from vitlab.report.inside.looked import look
    from vitlab.report.inside.writing import write_inspection

    model = vitlab.load(options.weights, **options.file.arguments())
    paths = Names.of(find_images(options.paths))
    classes = model.config.class_names
    source = Files(Path(), paths, SingleLabels.blank(len(paths), len(classes)), classes)
    with Meter(len(paths), title="looking") as meter:
        found = look(
            model,
            source,
            devices.choose(options.device),
            watch=options.watch,
            progress=lambda done: meter.show(done, "images"),
        )
    for note in found.notes:
        say(note)
    command = shlex.join(["vitlab", *sys.argv[1:]])
    write_inspection(Path(options.out).expanduser(), found, command)
    tops = [{"image": each.picture.name, "top": each.top[:1]} for each in found.images]
    return {
        "model": found.model,
        "images": found.count,
        "folder": options.out,
        "page": str(Path(options.out) / "inspect.html"),
        "predictions": tops,
        "notes": found.notes,
    }


def show(result: dict[str, Any]) -> None:
    """Print where the page is."""
    print(f"{result['model']}, {result['images']:,} images: {result['page']}")
