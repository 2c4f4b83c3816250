"""One forward pass, captured: what leaves each layer, and from it every layer's attention."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Self

import torch
from torch import Tensor

from vitlab.errors import OptionError
from vitlab.evaluation.infer import probabilities
from vitlab.models.config import ViTConfig
from vitlab.models.layers import evaluating
from vitlab.models.model import DenseFeatures, Model
from vitlab.models.packed import Packed
from vitlab.models.positions.positions import Positions
from vitlab.models.resnets.resnet import ResNet
from vitlab.models.vit import VisionTransformer
from vitlab.on_device import exact

AT_ONCE = 2**28  # bytes of attention maps in memory
NONE = torch.empty(0)  # in the place of images, beside a `Look`
Grid = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Look:
    """One pass of a few images through a model, from which everything else is computed.

    Every function of `vitlab.inspect` that looks at tokens or attention takes a `Look` in the place
    of a model, without images, and passes none through the model again.

    Attributes:
        model: as it was before; what follows from its weights is computed in evaluation mode
        images: normalized, (B, channels, H, W), on the model's device and in its type
        outputs: what leaves each block, layer 0 being what enters the first: (B, N, D); of a
            ResNet what leaves each stage, (B, D, rows, columns)
        positions: of each block; none of a ResNet
    """

    model: Model
    images: Tensor
    outputs: tuple[Tensor, ...]
    positions: tuple[Positions, ...] = ()

    @property
    def transformer(self) -> VisionTransformer:
        """The model, if it has attention; else an `OptionError`."""
        return transformer(self.model)

    @property
    def grid(self) -> Grid:
        """Rows and columns of the patches; of a ResNet, of what leaves it."""
        rows, columns = self.dense(None).map.shape[-2:]
        return rows, columns

    @property
    def prefix(self) -> int:
        """Tokens before the patches; none of a ResNet."""
        return self.dense(None).prefix.shape[1]

    @property
    def depth(self) -> int:
        """How many layers have attention."""
        return self.transformer.config.blocks

    @property
    def layers(self) -> list[Tensor]:
        """What leaves each layer, as `model.intermediates` has it."""
        return [each.to(self.outputs[0].dtype) for each in self.outputs]

    @cached_property
    @torch.inference_mode()
    def last(self) -> Tensor:
        """What leaves the model, after the final norm: (B, N, D), or a map of a ResNet."""
        model, values = self.model, self.outputs[-1].to(self.outputs[0].dtype)
        with evaluating(model):
            if isinstance(model, VisionTransformer):
                return model.norm(values)
            return model.body.finish(values) if isinstance(model, ResNet) else values

    @cached_property
    @torch.inference_mode()
    def logits(self) -> Tensor:
        """The scores of the classes, as `model(images)`: (B, classes), or (B, queries, classes)."""
        model, last = self.model, self.last
        with evaluating(model):
            if isinstance(model, VisionTransformer):
                return model.scores(model.head.features(last))
            return model.scores(last.flatten(2).transpose(1, 2).mean(1))

    @property
    def chances(self) -> Tensor:
        """The probabilities of the classes, as `vitlab.predict` has them, (B, classes).

        Those of several queries of attention pooling are their mean; none without a classifier.
        """
        model, classes = self.model, self.model.config.classes
        if not classes:
            return torch.empty(len(self.images), 0)
        each = probabilities(exact(self.logits), model)
        return each.reshape(len(each), -1, classes).mean(1)

    def dense(self, layer: int | None) -> DenseFeatures:
        """Return what leaves one layer, as a map beside the tokens before the patches.

        Args:
            layer: as `model.intermediates` counts them; None for the last one, after the final norm

        Raises:
            OptionError: a layer that the model does not have.
        """
        most = len(self.outputs) - 1
        if layer is not None and not -most - 1 <= layer <= most:
            raise OptionError(f"layer {layer} of {self.model.config.name}: choose from 0 to {most}")
        values = self.last if layer is None else self.layers[layer]
        rows, columns = self.images.shape[-2:]
        return self.model.as_map(values, (rows, columns))

    @torch.inference_mode()
    def attention(self, first: int = 1) -> Iterator[Tensor]:
        """Yield each layer's attention from `first` on, as `model.attention_maps`, (B, h, N, N).

        One layer is in memory at a time, unless all are `kept`.
        """
        if "maps" in vars(self):
            yield from islice(self.maps, first - 1, None)
            return
        model = self.transformer
        steps = zip(model.blocks, self.positions, self.outputs, strict=False)
        for block, own, tokens in islice(steps, first - 1, None):
            yield block.attention_weights(own.place(tokens), own)

    @cached_property
    @torch.inference_mode()
    def maps(self) -> list[Tensor]:
        """The attention of all layers, kept: (B, h, N, N) each."""
        return list(self.attention())

    def kept(self) -> Self:
        """Return the pass, from now on with the attention of all layers, for several functions.

        Raises:
            OptionError: a ResNet.
        """
        _ = self.maps
        return self

    def on_cpu(self) -> Self:
        """Return the pass with what leaves its layers on the CPU, and nothing else to ask for."""
        kept = replace(self, outputs=tuple(each.cpu() for each in self.outputs), positions=())
        vars(kept)["last"] = self.last.cpu()
        return kept


@torch.inference_mode()
def look(model: Model, images: Tensor) -> Look:
    """Pass images through a model once, and keep what leaves its layers.

    Args:
        model: any; used in evaluation mode, and afterwards as before
        images: normalized, (B, channels, H, W)

    Returns:
        A `Look`, which the other functions take in the place of a model and images.

    Raises:
        OptionError: images that do not fit.
    """
    return _passed(model, entering(model, images))


def looked(model: Model | Look, images: Tensor) -> Look:
    """Return a pass of these images, or the one that was given."""
    return model if isinstance(model, Look) else look(model, images)


def looks(model: Model | Look, images: Tensor | Iterable[Tensor]) -> Iterator[Look]:
    """Yield passes of few images each, so that their attention maps fit into memory.

    Args:
        model: a Vision Transformer, or a pass through one, which is yielded as it is
        images: (B, channels, H, W), or batches of them

    Raises:
        OptionError: a ResNet, no images, or some that do not fit.
    """
    if isinstance(model, Look):
        yield model
        return
    none = True
    transformer(model)
    for batch in [images] if isinstance(images, Tensor | Packed | str) else images:
        ready = entering(model, batch)
        for part in ready.split(together(model, ready)):
            yield _passed(model, part)
        none = False
    if none:
        raise OptionError("no images: give at least one")


def transformer(model: Model) -> VisionTransformer:
    """Return a model that has attention.

    Raises:
        OptionError: it has none.
    """
    if not isinstance(model, VisionTransformer):
        raise OptionError(
            f"{model.config.name} has no attention maps: use a Vision Transformer, or "
            "vitlab.inspect.gradcam, which works for every model"
        )
    return model


def entering(model: Model, images: Tensor) -> Tensor:
    """Return images (B, channels, H, W) on the model's device and in its type.

    Raises:
        OptionError: no images, anything but normalized images of a size that the model takes, or
            numbers that are not finite.
    """
    if isinstance(images, Packed):
        raise OptionError("packed images have no common grid: pass images of one size")
    model.check_images(images)
    if not images.numel():
        raise OptionError("no images: give at least one")
    if not images.isfinite().all():
        raise OptionError("images contain numbers that are not finite")
    home = next(model.parameters())
    return images.to(home.device, home.dtype)


def attention_bytes(model: Model, size: Sequence[int] = ()) -> int:
    """Return the bytes of one image's attention, as numbers of 4 bytes; 0 of a ResNet.

    Args:
        model: any
        size: rows and columns of the image; none for the largest that the model takes
    """
    config = model.config
    if not isinstance(config, ViTConfig):
        return 0
    patches = math.prod(config.grid_of(size or config.size))
    tokens = config.prefix + (config.tokens if config.fit == "native" and not size else patches)
    return 4 * config.blocks * config.branches * config.heads * tokens**2


def together(model: Model, images: Tensor) -> int:
    """Return how many images may pass at once, so that their attention maps fit into memory."""
    return max(1, AT_ONCE // max(1, attention_bytes(model, images.shape[-2:])))


def _passed(model: Model, images: Tensor) -> Look:
    """Pass images that fit through a model."""
    with evaluating(model):
        if not isinstance(model, VisionTransformer):
            found = model.leaving(images, range(model.last_layer + 1), norm=False)
            return Look(model, images, tuple(found[layer] for layer in sorted(found)))
        tokens, positions = model.begin(images)
        outputs = [tokens]
        for block, own in zip(model.blocks, positions, strict=True):
            outputs.append(block(own.place(outputs[-1]), own))
    return Look(model, images, tuple(outputs), tuple(positions))
