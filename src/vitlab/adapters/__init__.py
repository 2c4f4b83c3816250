"""Models behind the surface of another library: `vitlab.adapters.transformers`."""

from typing import TYPE_CHECKING

from vitlab.errors import PackageError
from vitlab.models.model import Model

if TYPE_CHECKING:
    from vitlab.adapters.trainer_surface import ViTLabForImageClassification


def transformers(model: Model) -> "ViTLabForImageClassification":
    """Return a model that transformers' `Trainer` and pipelines for images take.

    It shares its weights with the model; `vitlab.save` takes it, too.

    Args:
        model: a Vision Transformer or a ResNet

    Returns:
        A `PreTrainedModel`: `forward(pixel_values, labels)` gives loss and logits.

    Raises:
        PackageError: transformers is not installed.
    """
    try:
        import transformers as _transformers  # noqa: F401
    except ImportError as error:
        raise PackageError(
            "vitlab.adapters.transformers needs the package transformers: pip install transformers"
        ) from error
    from vitlab.adapters.trainer_surface import ViTLabForImageClassification, config_of

    return ViTLabForImageClassification(config_of(model.config), model)
