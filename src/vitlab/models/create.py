"""Models from names, from configurations, and around tensors."""

from typing import Any, Unpack, cast

import torch
from torch import Tensor
from typing_extensions import TypeVar

from vitlab.errors import OptionError
from vitlab.images import Size
from vitlab.keywords import CreateKeywords
from vitlab.models.config import config_of
from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.resnet_config import ResNetConfig
from vitlab.models.configs.tokenizer_config import TokenizerConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.model import Model
from vitlab.models.resnets.resnet import ResNet
from vitlab.models.tokenizers.tokenizer import Tokenizer
from vitlab.models.vit import VisionTransformer

MODEL_OF: dict[type[ModelConfig], type[Model]] = {
    ViTConfig: VisionTransformer,
    ResNetConfig: ResNet,
    TokenizerConfig: Tokenizer,
}


# what a model is typed as: a `VisionTransformer`, as nearly all are, unless `kind` says otherwise
SomeModel = TypeVar("SomeModel", bound=Model, default=VisionTransformer)
ANY_KIND: type[VisionTransformer] = cast(Any, Model)


def create(
    name: str,
    classes: int | None = None,
    image_size: Size = 224,
    *,
    kind: type[SomeModel] = ANY_KIND,  # type: ignore[assignment]
    generator: torch.Generator | None = None,
    **choices: Unpack[CreateKeywords],
) -> SomeModel:
    """Create a freshly initialized model by its name in the papers, `ViT-B/16`.

    Args:
        name: the papers' notation; `vitlab models` lists the usual ones
        classes: outputs of the classifier; None for 1000, or for none in a tokenizer
        image_size: pixels, one number for a square or (rows, columns)
        kind: the model's class, such as `vitlab.ResNet`, for type checkers, to which it is a
            `VisionTransformer` otherwise; another kind of model is refused
        generator: source of the weights; None for PyTorch's default generator
        choices: any other field of `ViTConfig`; for a ResNet's name of `ResNetConfig`, for a
            tokenizer's of `TokenizerConfig`

    Returns:
        A `VisionTransformer`, a `ResNet` for names such as `BiT-R50x1`, or a `Tokenizer` for names
        such as `dVAE/8`.

    Raises:
        OptionError: an unknown name or field, or a value that is not possible; the message says
            what would work.
    """
    given = {} if classes is None else {"classes": classes}
    config = config_of(name, image_size=image_size, **given, **choices)
    return of_kind(build(config, generator), kind)


def of_kind(model: Model, kind: type[SomeModel]) -> SomeModel:
    """Return a model that is of a kind.

    Raises:
        OptionError: it is of another one.
    """
    if not isinstance(model, kind):
        what = type(model).__name__
        raise OptionError(f"{model.config.name} is a {what}: kind must not be {kind.__name__}")
    return model


def build(config: ModelConfig, generator: torch.Generator | None = None) -> Model:
    """Create a freshly initialized model of a configuration."""
    return MODEL_OF[type(config)](config, generator)


def assemble(config: ModelConfig, tensors: dict[str, Tensor]) -> Model:
    """Create a model around tensors that fit its configuration, in evaluation mode.

    Args:
        config: every choice of the architecture
        tensors: a whole state dict, on one device; the model takes them over without a copy
    """
    model = MODEL_OF[type(config)].blank(config)
    model.take(tensors)
    return model.requires_grad_().eval()


def resize_tensors(
    tensors: dict[str, Tensor], old: ModelConfig, new: ModelConfig
) -> dict[str, Tensor]:
    """Return a model's tensors for another image size, as `Model.resize_tensors`."""
    return MODEL_OF[type(old)].resize_tensors(tensors, old, new)


def with_new_head(tensors: dict[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Return a model's tensors with a classifier of zeros (ViT paper, section 3.2) and its bias.

    Args:
        tensors: a state dict
        config: the configuration with the new number of classes, and without `pre_logits`
    """
    names = MODEL_OF[type(config)].head_names
    result = {name: tensor for name, tensor in tensors.items() if not name.startswith(names)}
    if config.classes:
        classify, like = names[0], next(iter(tensors.values()))
        result[f"{classify}weight"] = like.new_zeros(config.classes, config.features)
        result[f"{classify}bias"] = like.new_full((config.classes,), config.head_bias)
    return result
