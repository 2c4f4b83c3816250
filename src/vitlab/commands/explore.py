"""`vitlab explore`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitlab.command_table import Command
from vitlab.commands import DeviceOptions
from vitlab.data.exists import check_data
from vitlab.explore.parse_inputs import parse_inputs
from vitlab.files import head_of
from vitlab.options import above, argument, at_least, at_most, option
from vitlab.weights.stated import Stated

if TYPE_CHECKING:
    from vitlab.explore.dataset_map import MapJob
    from vitlab.models.model import Model

MOST = 32  # images that are opened at the start


@dataclass(frozen=True, kw_only=True)
class Explore(DeviceOptions):
    """Models, images, and where the page is."""

    weights: tuple[str, ...] = argument(
        "models (a run folder, a saved model, a weights file, user/name on the Hugging Face Hub; "
        "NAME=WEIGHTS names it), and image files, folders or glob patterns, in any order",
        default=(),
    )
    data: str = option(
        "",
        "any DATA of `vitlab train`: a map of its images as the first model sees them, and the "
        "labels that are likely wrong",
        check=check_data,
    )
    port: int = option(
        8765, "port to listen on, on this machine alone; 0 for any", at_least(0), at_most(65535)
    )
    browser: bool = option(True, "open the page in a browser, where one is at hand")
    max_pixels: float = option(25.0, "largest image, in megapixels", above(0), at_most(50))
    file: Stated = Stated()


def begin(options: Explore) -> None:
    """Refuse what cannot be shown or listened on, before PyTorch is imported."""
    from vitlab.serve.access import listen

    parse_inputs(options.weights)
    listen("127.0.0.1", options.port).close()


def run(options: Explore) -> dict[str, Any]:
    """Show the page until a signal.

    Raises:
        KeyboardInterrupt: there was one.
    """
    from vitlab import device as devices
    from vitlab.data.open import open_images
    from vitlab.explore.explore_routes import HOST, explore, open_browser
    from vitlab.explore.explorer import Explorer
    from vitlab.explore.gallery import FORMATS
    from vitlab.explore.views import Shown
    from vitlab.progress import say
    from vitlab.serve.access import listen, url_of
    from vitlab.serve.decoder import Bounds
    from vitlab.serve.decoders import Decoders
    from vitlab.weights.load import load
    from vitlab.weights.segmenter import load_segmenter

    weights, named = parse_inputs(options.weights)
    images: list[str] = []
    if named:
        source = open_images(named, "none").every()
        images = [source.name(number) for number in range(min(len(source), MOST))]
        if len(source) > MOST:
            say(f"the first {MOST} of {len(source):,} images are opened")
    device = devices.choose(options.device)
    models = []
    for name, place in weights:
        segmenter = load_segmenter(place) if head_of(place) == "masks" else None
        model = segmenter.model if segmenter else load(place, **options.file.arguments())
        models.append(Shown.of(name, model, device, segmenter))
    bounds = Bounds(max_pixels=int(options.max_pixels * 1e6), formats=FORMATS)
    explorer = Explorer(
        models,
        Decoders(1, bounds),
        images=images,
        map_job=_map_job(models[0].model, options.data) if options.data else None,
        say=say,
    )
    with listen(HOST, options.port) as opened:
        url = url_of(opened)

        def ready() -> None:
            say(f"explore at {url} (Ctrl-C ends)")
            if options.browser:
                open_browser(url)

        explore(explorer, opened, ready)
    return {}


def _map_job(model: "Model", data: str) -> "MapJob":
    """Return who makes the map, with modules of its own around the same weights."""
    from vitlab.explore.dataset_map import MapJob, dataset_map
    from vitlab.progress import say

    own = model.remade(model.config, model.state_dict())
    return MapJob(lambda progress: dataset_map(own, data, progress=progress), say)


def show(result: dict[str, Any]) -> None:
    """Print nothing: the page is the result."""


COMMAND = Command(run, show=show, begin=begin, needs=("fastapi", "uvicorn"), lasts=True)
