"""A model's tensors for another grid of patches: another image size, or another patch."""

from torch import Tensor

from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.positions.positions import scheme_of
from vitlab.models.stems.stem import stem_of


def regrid_patches(tensors: dict[str, Tensor], old: ViTConfig, new: ViTConfig) -> dict[str, Tensor]:
    """Return a Vision Transformer's tensors for another grid of patches.

    Args:
        tensors: a state dict; the kernels of patches are those of `new`
        old: the configuration that they fit
        new: the same but for its image size, its patch, or the size that positions are stored for

    Raises:
        OptionError: the positions are limited to one image size.
    """
    scheme, result = scheme_of(old), dict(tensors)
    parts = [
        ("stem.", stem_of(old).resized, old, new),
        *(
            (f"positions.{number}.", scheme.resized, old.at_positions, new.at_positions)
            for number in range(scheme.tables(old))
        ),
    ]
    for prefix, follow, was, now in parts:
        part = follow(within(prefix, tensors), was, now)
        result |= {prefix + name: tensor for name, tensor in part.items()}
    return result


def within(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a module, by their names in it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
