"""Looking inside a model: at everything, for `vitlab inspect`, or at a glance, for a report."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext

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
from vitlab.inspect.look import together
from vitlab.inspect.tokens import FEWEST
from vitlab.models.config import ViTConfig
from vitlab.models.model import Model
from vitlab.report.album import in_colors
from vitlab.report.inside.looked import Looked
from vitlab.report.inside.measuring import Sums, look_at_weights
from vitlab.report.inside.single import Choices, Shown, color, features_of, glance, see

SHOWN = 12  # images with pictures of their own
COMPARED, TOGETHER = 64, 8  # images that CKA compares, at most, and how many at a time
GLANCED, PICTURED = 8, 4  # images that a report measures, and those that it shows


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
    found = Looked(model.config.name, layer=choices.layer)
    sums, features, read, done = Sums(found), list[Tensor](), list[int](), 0
    with borrowed(model, device):
        look_at_weights(model, found)
        for number in range(len(source)):
            try:
                one = _shown(model, source, number, device)
            except ImageError as error:
                found.notes.append(f"skipped: {error}")
                one = None
            done += 1
            progress(done)
            if one is None:
                continue
            read.append(number)
            seen = inspect.look(model, one.image)
            sums.add(seen)
            if len(read) <= SHOWN:
                covered = len(read) <= choices.covered
                found.images.append(see(found, one, seen, choices, covered=covered))
                features.append(features_of(seen, choices.layer))
                done += 1
                progress(done)
        if not read:
            raise DataError(found.notes[0].removeprefix("skipped: "))
        sums.close()
        color(found, features)
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
    look_at_weights(model, found)
    sums, features = Sums(found), list[Tensor]()
    alike = len({one.image.shape for one in shown}) == 1
    few = together(model, shown[0].image) if alike else 1
    for first in range(0, len(shown), few):
        part = shown[first : first + few]
        seen = inspect.look(model, torch.cat([one.image for one in part]))
        sums.add(seen)
        found.images += glance(found, part, seen)
        features += features_of(seen, 0).split(1)
    sums.close()
    found.images = found.images[:PICTURED]
    color(found, features[:PICTURED])
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

    with nullcontext() if other is None else borrowed(other, device):
        try:
            others = None if other is None else batches(other)
            table = inspect.cka(model, batches(model), other, other_images=others)
        except OptionError as error:
            found.lacks("CKA", str(error))
            return
    found.cka, found.compared = table.cpu().numpy(), len(indices)
