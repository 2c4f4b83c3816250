"""A model's tensors for another grid of patches: another image size, or another patch."""

from torch import Tensor

from vitlab.errors import OptionError
from vitlab.models.config import ModelConfig, ResNetConfig, ViTConfig
from vitlab.models.positions.positions import scheme_of
from vitlab.models.stems.stem import stem_of


def resized(tensors: dict[str, Tensor], old: ModelConfig, new: ModelConfig) -> dict[str, Tensor]:
    """Return a model's tensors for another image size; those that do not depend on it stay.

    Args:
        tensors: a state dict; the kernels of patches are those of `new`
        old: the configuration that they fit
        new: the same but for its image size, its patch, or the size that positions are stored for

    Raises:
        OptionError: the model is limited to one image size.
    """
    if (new.size, new.at_positions.grid) == (old.size, old.at_positions.grid):
        return tensors
    if isinstance(old, ResNetConfig) and old.attention == "axial":
        raise OptionError(
            f"{old.name} cannot be resized, since its relative positions hold for one size "
            f"only: keep image_size={old.image_size}"
        )
    if not (isinstance(old, ViTConfig) and isinstance(new, ViTConfig)):
        return tensors  # convolutions take images of any size
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
