"""The base of every model: images in; features, scores and its cost out."""

import math
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, overload

import torch
from torch import Tensor, nn

from vitlab.errors import OptionError, WeightsError
from vitlab.images import Size
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.packed import Packed
from vitlab.models.seen import NOTHING, Seen
from vitlab.models.unlike import Unlike

KEPT = 16  # configurations whose names and shapes are remembered


class PartCost(NamedTuple):
    """One part of a model: its parameters, and its multiply-adds for one image."""

    name: str
    params: int
    macs: int


class DenseFeatures(NamedTuple):
    """What leaves a layer, as a map of the image.

    Attributes:
        map: features of each patch, or of each place of a ResNet, (B, D, rows, columns)
        prefix: the tokens before the patches, (B, prefix, D): class token, distillation token,
            registers; none of them, (B, 0, D), of a model without
    """

    map: Tensor
    prefix: Tensor


class Model(nn.Module):
    """A model around its configuration: `VisionTransformer` or `ResNet`.

    Args:
        config: every choice of the architecture
        generator: source of the initial weights; None for PyTorch's default generator

    Attributes:
        config: every choice of the architecture
        provenance: data, recipe, … of the weights, saved with them; source: their file
        seen: the images that they were learned from (models/seen.py), saved with them
        unlike: how far an image is from them (models/unlike.py), saved too; None if it is unknown
        computes: fp32; or bf16 in a form of `vitlab.accelerate` whose products are in it
        engine: plain; or what computes a form of `vitlab.accelerate`
        head_names: prefixes of the tensors of the classifier and of the layers before it alone
        role: of a module inside, what fine-tuning calls its parameters: "attention" or "ffn"
    """

    config: ModelConfig
    computes: Literal["fp32", "bf16"] = "fp32"
    engine: str = "plain"
    seen: Seen = NOTHING
    unlike: Unlike | None = None
    head_names: ClassVar[tuple[str, ...]] = ("classify.",)
    undecayed: ClassVar[tuple[str, ...]] = ()  # own parameters that weight decay leaves alone

    def __init__(self, config: ModelConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config, self.source = config, ""
        self.provenance: dict[str, Any] = {}
        device = torch.get_default_device()
        with torch.device("meta"):  # shapes first: no tensor is filled twice
            self.build()
        if device.type != "meta":
            self.to_empty(device=device)
            self.reset_parameters(generator)

    if TYPE_CHECKING:

        def __call__(self, images: Tensor | Packed) -> Tensor:
            """Compute class scores, as `forward`."""

    @classmethod
    def empty(cls, config: ModelConfig) -> dict[str, Tensor]:
        """Return a state dict without memory: names, shapes and types; seldom a network is built.

        They are asked for again and again while a model is loaded or saved.
        """
        return dict(_state(cls, config))  # type: ignore[arg-type]

    @classmethod
    def blank(cls, config: ModelConfig) -> Self:
        """Return a new model whose tensors have no memory; nobody else has it."""
        model = _unused.pop((cls, config), None)
        model = _without_memory(cls, config) if model is None else model
        assert isinstance(model, cls)
        model.config = config  # equal to the one that it was built for, but perhaps 1 and not 1.0
        return model

    def build(self) -> None:
        """Create the modules that the configuration names."""
        raise NotImplementedError

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw every weight, as the official code does; each part describes its own."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Say in one line what differs from the defaults; `print(model.blocks)` shows modules."""
        texts = {name: repr(value) for name, value in self.config.chosen().items()}
        chosen = [f"{n}={text if len(text) < 60 else text[:50] + '…'}" for n, text in texts.items()]
        count = sum(weight.numel() for weight in self.parameters())
        return f"{self.config.name}({', '.join(chosen)}), {count:,} parameters"

    def forward(self, images: Tensor | Packed) -> Tensor:
        """Compute class scores from normalized images: (B, channels, H, W) -> (B, classes)."""
        return self.scores(self.features(images))

    def scores(self, features: Tensor) -> Tensor:
        """Compute class scores from the classifier's input: (B, features) -> (B, classes)."""
        raise NotImplementedError

    def features(self, images: Tensor | Packed) -> Tensor:
        """Compute the classifier's input: (B, channels, H, W) -> (B, features)."""
        return self.encode(images).mean(1)

    def judge(self, images: Tensor | Packed) -> tuple[Tensor, Tensor | None]:
        """Compute the classifier's input, and the inner features that `unlike` needs, in one pass.

        Returns:
            (B, features), or (B, queries, features); (B, inner), or None if `unlike` is.
        """
        if self.unlike is None:
            return self.features(images), None
        return self.features_with_inner(images, self.unlike.layer)

    def features_with_inner(self, images: Tensor | Packed, layer: int) -> tuple[Tensor, Tensor]:
        """Compute the classifier's input, and `inner` of a layer, in one pass."""
        last = self.last_layer
        self.check_images(images)
        maps = self.leaving(images, {layer, last}, norm=True)
        return maps[last].flatten(2).mT.mean(1), maps[layer].flatten(2).mean(2)

    def inner(self, images: Tensor | Packed, layer: int) -> Tensor:
        """Compute the class token that leaves a layer, else the mean over its places.

        No layer above is computed; the final norm of a Vision Transformer is not applied.

        Args:
            images: normalized, (B, channels, H, W); or packed
            layer: its number, as `intermediates` counts them, from 1

        Returns:
            (B, width of the layer).
        """
        self.check_images(images)
        return self.leaving(images, [layer], norm=True)[layer].flatten(2).mean(2)

    def encode(self, images: Tensor | Packed, extra: Tensor | None = None) -> Tensor:
        """Compute tokens, or a map in raster order: (B, channels, H, W) -> (B, N, width).

        Raises:
            OptionError: images of another shape, or extra tokens, which only a ViT can take.
        """
        if extra is not None:
            raise OptionError(f"{self.config.name} takes no extra tokens: use a Vision Transformer")
        last = self.last_layer
        self.check_images(images)
        return self.leaving(images, [last], norm=True)[last].flatten(2).transpose(1, 2)

    @overload
    def intermediates(
        self, images: Tensor | Packed, layers: Sequence[int], *, norm: bool = False
    ) -> list[Tensor]: ...

    @overload
    def intermediates(
        self, images: Tensor, layers: Sequence[int], *, norm: bool = False, maps: Literal[True]
    ) -> list[DenseFeatures]: ...

    def intermediates(
        self,
        images: Tensor | Packed,
        layers: Sequence[int],
        *,
        norm: bool = False,
        maps: bool = False,
    ) -> list[Tensor] | list[DenseFeatures]:
        """Return what leaves chosen blocks of a Vision Transformer, or stages of a ResNet.

        Layer 0 is what enters the first block; layer N leaves block N. Negative numbers count from
        the end, as Python's do: -1 is the last layer. An axial block counts as two, for its rows
        and its columns. No block above the highest layer is computed.

        Args:
            images: normalized, (B, channels, H, W); or packed
            layers: their numbers
            norm: return each as if it were the last, with all that follows the blocks: the final
                norm. That of the last layer is then what `encode` returns. A ResNet's norm fits its
                last stage alone
            maps: return each as a map of patches, apart from class token and registers

        Returns:
            For each layer, in the order asked for: tokens (B, prefix + patches, width), or the map
            (B, features, rows, columns) of a ResNet; with `maps`, a `DenseFeatures` of either.
            Tokens of packed images are in one row, (1, T, width).

        Raises:
            OptionError: a layer that the model does not have, images of another shape, or maps of
                packed images, whose sizes differ.
        """
        last, name = self.last_layer, self.config.name
        for layer in layers:
            if not -last - 1 <= layer <= last:
                raise OptionError(f"layer {layer} of {name}: choose from 0 to {last}")
        self.check_images(images)
        numbers = [layer % (last + 1) for layer in layers]
        found = self.leaving(images, numbers, norm)
        if not maps:
            return [found[number] for number in numbers]
        if isinstance(images, Packed):
            raise OptionError("packed images have no common map: pass images of one size")
        size = (images.shape[2], images.shape[3])
        return [self.as_map(found[number], size) for number in numbers]

    @property
    def last_layer(self) -> int:
        """Number of the last block or stage, as `intermediates` counts them."""
        raise NotImplementedError

    def leaving(
        self, images: Tensor | Packed, layers: Collection[int], norm: bool
    ) -> dict[int, Tensor]:
        """Return what leaves these layers, from 0 to `last_layer`, as `intermediates` says."""
        raise NotImplementedError

    def as_map(self, values: Tensor, size: tuple[int, int]) -> DenseFeatures:
        """Return what leaves a layer, of images of this size, as a map: it is one."""
        return DenseFeatures(values, values.flatten(2).transpose(1, 2)[:, :0])

    def attention_maps(self, images: Tensor) -> list[Tensor]:
        """Return each layer's attention, (B, heads, N, N).

        Raises:
            OptionError: the model has no encoder.
        """
        raise OptionError(f"{self.config.name} has no attention maps: use a Vision Transformer")

    @property
    def layers(self) -> int:
        """Number of the last layer, for layer-wise learning rates; 0 for a model without blocks."""
        return 0

    @property
    def temperature(self) -> float:
        """What logits are divided by before they become probabilities; 1 unless calibrated.

        The logits themselves stay as they are. It is part of the provenance, so that every saved
        form of ours has it. Source: Guo et al., On Calibration of Modern Neural Networks, 2017.

        Raises:
            WeightsError: the provenance has something else in its place.
        """
        value = self.provenance.get("temperature", 1.0)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 < value < math.inf:
            raise WeightsError(
                f"the temperature saved with {self.source or 'the model'} is {value!r}, not a "
                "number above 0: calibrate it again"
            )
        return float(value)

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The probability above which each class counts as predicted, where images have several.

        0.5 unless thresholds were chosen (`vitlab.choose_thresholds`). They are part of the
        provenance, so that every saved form of ours has them.

        Raises:
            WeightsError: the provenance has something else in their place.
        """
        classes = self.config.classes
        values = self.provenance.get("thresholds", [0.5] * classes)
        numbers = isinstance(values, list | tuple) and len(values) == classes
        if not numbers or not all(type(each) is float and 0 <= each < 1 for each in values):
            raise WeightsError(
                f"the thresholds saved with {self.source or 'the model'} are not {classes} numbers "
                "from 0 to 1: choose them again"
            )
        return tuple(values)

    def layer_of(self, name: str) -> int:
        """Return how deep a parameter or module sits, from 0 to `layers`."""
        return self.layers

    def refresh(self) -> None:
        """Compute the buffers that are not stored with the weights, like these.

        Every module with such buffers has a `refresh` of its own, which fills them in place.
        """
        weight = next(self.parameters())
        for module in self.modules():
            if module is not self and callable(refresh := getattr(module, "refresh", None)):
                for name, buffer in module.named_buffers(recurse=False):
                    if buffer.is_meta:
                        kind = weight.dtype if buffer.is_floating_point() else buffer.dtype
                        made = torch.empty_like(buffer, device=weight.device, dtype=kind)
                        setattr(module, name, made)
                refresh()

    def resize(self, image_size: Size) -> Self:
        """Return the same model for another input size, with its provenance.

        Positions stay as they are stored, and are resampled in the forward pass as the model's
        family does it. Whatever does not depend on the size shares its memory with this model: copy
        one of the two (`copy.deepcopy`) to train them apart.

        Args:
            image_size: pixels, one number for a square or (rows, columns)

        Raises:
            OptionError: a size that the patch does not divide, or a model limited to one size.
            WeightsError: a fused model: its tensors are not those of its configuration.
        """
        return self.remade(self.config.sized(image_size), self.state_dict())

    def remade(self, new: ModelConfig, tensors: dict[str, Tensor]) -> Self:
        """Return this model with another grid, around its tensors.

        Args:
            new: the configuration, with another image size or another patch
            tensors: that fit it but for the positions, which follow

        Raises:
            OptionError: a model limited to one size.
            WeightsError: a fused model.
        """
        if self.empty(self.config).keys() != tensors.keys():
            raise WeightsError("cannot resize a fused model: resize first, then fuse")
        model = self.blank(new)
        tensors = self.resize_tensors(tensors, self.config, new)
        free = {name: weight.requires_grad for name, weight in self.named_parameters()}
        model.take(tensors)
        for name, weight in model.named_parameters():
            weight.requires_grad_(free[name])
        model.provenance, model.source = dict(self.provenance), self.source
        model.seen, model.unlike = self.seen, self.unlike
        return model.train(self.training)

    @classmethod
    def resize_tensors(
        cls, tensors: dict[str, Tensor], old: ModelConfig, new: ModelConfig
    ) -> dict[str, Tensor]:
        """Return a model's tensors for another image size; those that do not depend on it stay.

        Args:
            tensors: a state dict; the kernels of patches are those of `new`
            old: the configuration that they fit
            new: the same but for its image size, its patch, or the size that positions are for

        Raises:
            OptionError: the model is limited to one image size.
        """
        same = (new.size, new.at_positions.grid) == (old.size, old.at_positions.grid)
        return tensors if same else cls.regrid(tensors, old, new)

    @classmethod
    def regrid(cls, tensors: dict[str, Tensor], old: Any, new: Any) -> dict[str, Tensor]:
        """Return the same for another grid: convolutions take images of any size."""
        return tensors

    def take(self, tensors: dict[str, Tensor]) -> None:
        """Use tensors, a whole state dict on one device, as one's own without a copy."""
        self.load_state_dict(tensors, assign=True)
        self.refresh()

    def check_images(self, images: Tensor | Packed) -> None:
        """Refuse tensors that are not (B, channels, rows, columns) of a size that the model takes.

        Raises:
            OptionError: it names the shape that would work.
        """
        config = self.config
        if isinstance(images, Packed):
            config.check_packed(images.channels, images.patch)
            return
        kind = images.dtype if isinstance(images, Tensor) else type(images).__name__
        if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
            raise OptionError(
                f"images must be a tensor of normalized numbers, not {kind}: "
                "vitlab.preprocess(model)(images) makes one of files, arrays and bytes"
            )
        if images.ndim != 4 or images.shape[1] != config.channels:
            shape = ", ".join(map(str, (config.channels, *config.size)))
            advice = "; a data set's transform is vitlab.preprocess(model).one" * (images.ndim == 5)
            raise OptionError(f"images must be (B, {shape}), not {tuple(images.shape)}{advice}")
        if (size := (images.shape[2], images.shape[3])) != config.size:
            config.check_size(size)


# The network that was built last for its names and shapes, until somebody takes it.
_unused: dict[tuple[type[Model], ModelConfig], Model] = {}


@lru_cache(maxsize=KEPT)
def _state(kind: type[Model], config: ModelConfig) -> dict[str, Tensor]:
    model = _without_memory(kind, config)
    _unused.clear()
    _unused[kind, config] = model
    return model.state_dict()


def _without_memory(kind: type[Model], config: ModelConfig) -> Model:
    with torch.inference_mode(mode=False), torch.device("meta"):  # else it could never learn
        return kind(config)
