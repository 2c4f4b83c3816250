"""`vitlab inspect`."""

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from vitlab.command_table import Command
from vitlab.commands import DeviceOptions, WeightsOptions
from vitlab.data.exists import check_each
from vitlab.options import argument, at_least, option
from vitlab.places import check_new_folder


@dataclass(frozen=True, kw_only=True)
class Inspect(DeviceOptions, WeightsOptions):
    """A model, images, and a folder for the pictures; `command` is what the user typed."""

    paths: tuple[str, ...] = argument(
        "any DATA of `vitlab predict`: image files, folders, glob patterns, lists, tables, …",
        check_each,
    )
    out: str = option(
        MISSING,
        "a new folder for inspect.html, inspect.json and the pictures",
        check=check_new_folder,
    )
    watch: str = option("", "class to explain (default: each image's likeliest)")
    layer: int = option(
        0,
        "whose heads, colors and token maps are shown, from 1 (0: the last layer, or the pool)",
        at_least(0),
    )
    command: str = ""


def run(options: Inspect) -> dict[str, Any]:
    """Look, draw and write."""
    from vitlab import device as devices
    from vitlab.data.open import open_images
    from vitlab.progress import Meter, named_if_slow, say
    from vitlab.report.inside.looking import look
    from vitlab.report.inside.sights import write_inspection

    model = options.load()
    source = open_images(options.paths, "none").every()
    with Meter(len(source), title="looking") as meter:
        device = devices.choose(options.device)
        asked = options.values("watch layer")
        found = look(
            model, source, device, **asked, progress=lambda done: meter.show(done, "images")
        )
    say(*found.remarks)
    with named_if_slow("drawing"):
        write_inspection(Path(options.out).expanduser(), found, options.command)
    return {
        "model": found.model,
        "images": found.count,
        "folder": options.out,
        "page": str(Path(options.out) / "inspect.html"),
        "notes": found.remarks,
        "predictions": [{"image": each.name, "top": each.top[:1]} for each in found.images],
    }


def show(result: dict[str, Any]) -> None:
    """Print where the page is."""
    print(f"{result['model']}, {result['images']:,} images: {result['page']}")


COMMAND = Command(run, show=show)
