"""Looking inside a model: at everything, for `vitlab inspect`, or at a glance, for a report."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor

from vitlab import inspect
from vitlab.data.augment.augment import normalize
from vitlab.data.labels import SingleLabels
from vitlab.data.loading.crops import fitted_image
from vitlab.data.open import open_images
from vitlab.data.sources.request import Given
from vitlab.data.sources.source import Relabeled, Source
from vitlab.errors import DataError, ImageError, OptionError
from vitlab.evaluation.compute import borrowed
from vitlab.inspect.cka import FEWEST
from vitlab.models.config import ViTConfig
from vitlab.models.model import Model
from vitlab.report.album import in_colors
from vitlab.report.inside.looked import Looked
from vitlab.report.inside.measuring import look_at_all, look_at_weights
from vitlab.report.inside.single import Asked, Shown, glance, see, shared_colors

SHOWN = 12  # images with pictures of their own
COMPARED, TOGETHER = 64, 8  # images that CKA compares, at most, and how many at a time
GLANCED, PICTURED = 8, 4  # images that a report measures, and those that it shows


@dataclass(frozen=True)
class Choices:
    """What `look` can be asked for.

    Attributes:
        watch: name of the class to explain; empty for each image's likeliest
        layer: whose heads, colors, norms and similar patches are shown; 0 for the last one
        covered: number of images that are explained by occlusion, up to 49 passes each
        beside: another model, whose layers are compared; None to compare the model's own
    """

    watch: str = ""
    layer: int = 0
    covered: int = 0
    beside: Model | None = None


def images_for(model: Model, names: Given) -> Source:
    """Return the images that a user names, with the classes of the model, if it has any.

    Args:
        model: any
        names: any DATA, labels or not, or several

    Raises:
        DataError: no such image.
    """
    source, classes = open_images(names, "ignored").every(), model.config.class_names
    return Relabeled(source, SingleLabels.blank(len(source), len(classes)), classes)


def steps(source: Source) -> int:
    """Return how many steps `look` takes: one for each image, and one for each that is shown."""
    return len(source) + min(SHOWN, len(source))


def look(
    model: Model,
    source: Source,
    device: torch.device,
    choices: Choices | None = None,
    progress: Callable[[int], None] = lambda steps: None,
) -> Looked:
    """Look at everything that has a meaning for a model, with one image in memory at a time.

    Args:
        model: any; its device and mode are the same afterwards
        source: images; their labels do not matter
        device: where to compute
        choices: what else to show
        progress: called with the number of steps taken, of `steps`

    Raises:
        OptionError: a class or a layer that the model does not have.
        DataError: no image can be read.
    """
    choices = choices or Choices()
    _check(model, source, choices)
    found, shown = Looked(model.config.name, layer=choices.layer), list[Shown]()
    read: list[int] = []

    def one_by_one() -> Iterator[Tensor]:
        for number in range(len(source)):
            try:
                one = _shown(model, source, number, device)
            except ImageError as error:
                found.notes.append(f"skipped: {error}")
                continue
            finally:
                progress(number + 1)
            if len(shown) < SHOWN:
                shown.append(one)
            read.append(number)
            yield one.image

    with borrowed(model, device):
        look_at_weights(model, found)
        look_at_all(model, found, one_by_one())
        if not read:
            raise DataError(found.notes[0].removeprefix("skipped: "))
        asked = Asked(source.classes, choices.watch, choices.layer)
        colors = shared_colors(model, found, shown, choices.layer)
        for number, (one, own) in enumerate(zip(shown, colors, strict=True)):
            covered = number < choices.covered
            found.images.append(see(model, found, one, asked, own, covered=covered))
            progress(len(source) + number + 1)
        _compare(model, found, source, read[:COMPARED], device, choices.beside)
    return found


def look_briefly(model: Model, source: Source, indices: Sequence[int]) -> Looked:
    """Look at a few images, where they are together in a few passes: what a report shows.

    Args:
        model: any, in evaluation mode on any device
        source: the test images
        indices: of images that can be read, at most `GLANCED`; the first ones are shown
    """
    device, found = next(model.parameters()).device, Looked(model.config.name)
    shown = [_shown(model, source, index, device) for index in indices[:GLANCED]]
    images = [one.image for one in shown]
    alike = len({image.shape for image in images}) == 1
    look_at_weights(model, found)
    look_at_all(model, found, [torch.cat(images)] if alike else images)
    colors = shared_colors(model, found, shown[:PICTURED], 0)
    found.images = [
        glance(model, found, one, own) for one, own in zip(shown[:PICTURED], colors, strict=True)
    ]
    return found


def _check(model: Model, source: Source, choices: Choices) -> None:
    """Refuse a class or a layer that the model does not have."""
    if choices.watch and choices.watch not in source.classes:
        names = ", ".join(source.classes[:10])
        raise OptionError(f"{choices.watch!r} is not a class of the model: {names}")
    last = model.last_layer
    if isinstance(model.config, ViTConfig):
        last += model.config.class_blocks
    if not 0 <= choices.layer <= last:
        raise OptionError(f"layer must be from 1 to {last}, not {choices.layer}")


def _shown(model: Model, source: Source, number: int, device: torch.device) -> Shown:
    """Read an image as a model sees it.

    Raises:
        ImageError: it cannot be decoded.
    """
    config = model.config
    pixels = fitted_image(source.image(number), config)
    image = normalize(torch.from_numpy(pixels)[None].to(device), config)
    return Shown(source.name(number), in_colors(pixels, "").pixels, image)


def _compare(
    model: Model,
    found: Looked,
    source: Source,
    indices: Sequence[int],
    device: torch.device,
    other: Model | None,
) -> None:
    """Compare the layers of a model, or of two, over images that are read again."""
    found.beside = "" if other is None else other.config.name
    if len(indices) < FEWEST:
        found.lacks("CKA", f"it compares at least {FEWEST} images, and there are {len(indices)}")
        return
    parts = [indices[first : first + TOGETHER] for first in range(0, len(indices), TOGETHER)]
    if len(parts[-1]) < FEWEST:
        parts[-2:] = [[*parts[-2], *parts[-1]]]

    def batches(seer: Model) -> Iterator[Tensor]:
        for part in parts:
            images = [_shown(seer, source, index, device).image for index in part]
            if len({image.shape for image in images}) > 1:
                raise OptionError("the images have several sizes, each with tokens of its own")
            yield torch.cat(images)

    with ExitStack() as stack:
        if other is not None:
            stack.enter_context(borrowed(other, device))
        try:
            others = None if other is None else batches(other)
            table = inspect.cka(model, batches(model), other, other_images=others)
        except OptionError as error:
            found.lacks("CKA", str(error))
            return
    found.cka, found.compared = table.cpu().numpy(), len(indices)
