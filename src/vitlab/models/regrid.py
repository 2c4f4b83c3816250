"""A model's tensors for another grid of patches: another image size, or another patch."""

from torch import Tensor

from vitlab.models.config import ViTConfig
from vitlab.models.positions.positions import scheme_of
from vitlab.models.stems.kernels import Filter
from vitlab.models.stems.stem import stem_of


def on_grid_of(new: ViTConfig, tensors: dict[str, Tensor], old: ViTConfig) -> dict[str, Tensor]:
    """Return the tensors of a Vision Transformer whose stem and positions follow another grid.

    Args:
        new: the configuration, with another image size or patch
        tensors: a state dict
        old: the configuration that they fit; the patch's kernels are those of `new`

    Raises:
        OptionError: positions that are limited to one image size.
    """
    scheme, result = scheme_of(old), dict(tensors)
    parts = [("stem.", stem_of(old).resized, old, new)]
    stored, wanted = old.at_positions, new.at_positions
    for number in range(scheme.tables(old)):
        each = stored.of_block(number), wanted.of_block(number)
        parts.append((f"positions.{number}.", scheme.resized, *each))
    for prefix, resized, was, now in parts:
        part = resized(_within(prefix, tensors), was, now)
        result |= {prefix + name: tensor for name, tensor in part.items()}
    return result


def with_patch(
    patch: int, tensors: dict[str, Tensor], config: ViTConfig, interpolation: Filter
) -> dict[str, Tensor]:
    """Return the tensors of a Vision Transformer whose stem has another patch size.

    Args:
        patch: pixels per side
        tensors: a state dict
        config: that they fit
        interpolation: the filter that resizes patches

    Raises:
        OptionError: the stem is limited to its patch size.
    """
    if patch == config.patch:
        return tensors
    stem = stem_of(config).repatched(_within("stem.", tensors), config, patch, interpolation)
    return tensors | {f"stem.{name}": tensor for name, tensor in stem.items()}


def _within(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a module, by their names in it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
