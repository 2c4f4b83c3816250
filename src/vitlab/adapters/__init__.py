"""Models behind the surfaces of other libraries: `vitlab.adapters.timm` and `.transformers`."""

from typing import TYPE_CHECKING

from vitlab.errors import OptionError, PackageError
from vitlab.models.model import Model

if TYPE_CHECKING:
    from vitlab.adapters.timm_surface import TimmModel
    from vitlab.adapters.trainer_surface import ViTLabForImageClassification


def timm(model: Model) -> "TimmModel":
    """Return a model with the methods and attributes that code written for timm expects.

    It shares its weights with the model. timm itself need not be installed.

    Args:
        model: a Vision Transformer or a ResNet

    Returns:
        A module with `forward_features`, `forward_head`, `forward_intermediates`,
        `reset_classifier`, `set_input_size`, `feature_info`, `pretrained_cfg`, … as in timm 1.0.

    Raises:
        OptionError: an image tokenizer.
    """
    from vitlab.adapters.timm_bodies import TimmResNet, TimmVisionTransformer
    from vitlab.models.resnets.resnet import ResNet
    from vitlab.models.vit import VisionTransformer

    if isinstance(model, ResNet):
        return TimmResNet(model)
    if not isinstance(model, VisionTransformer):
        raise OptionError(
            f"{model.config.name} has no form in timm: pass a Vision Transformer or a ResNet"
        )
    return TimmVisionTransformer(model)


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
