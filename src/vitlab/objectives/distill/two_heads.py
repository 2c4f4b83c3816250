"""DeiT's distillation token: a second token, whose classifier learns what the teacher says.

Source: Touvron et al., Training data-efficient image transformers & distillation through attention,
2021, section 4. The two classifiers' scores are averaged when tested.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.errors import OptionError
from vitlab.models.config import ModelConfig, ViTConfig
from vitlab.models.model import Model
from vitlab.models.vit import VisionTransformer

WITHOUT = "leave distill_token out, so that the same scores learn from both"


def with_distillation_token(config: ModelConfig, trained: bool = False) -> ViTConfig:
    """Return a model's configuration with a distillation token; one that has it stays as it is.

    The token is a register that the classifier sees beside the class token (`pool=prefix`): the
    form in which DeiT's released models are loaded and saved.

    Args:
        config: of the student
        trained: its weights are there already, so that no token can be added

    Raises:
        OptionError: a model that cannot have one.
    """
    if not isinstance(config, ViTConfig):
        raise OptionError(f"{config.name} has no tokens to distill into: {WITHOUT}")
    if config.pre_logits:
        raise OptionError(
            f"distill_token cannot go with pre_logits: set pre_logits=0, or {WITHOUT}"
        )
    if config.pool == "prefix" and config.has_token:
        if config.pooled == 2 * config.width:
            return config
        seen = config.pooled // config.width
        raise OptionError(
            f"distill_token averages two tokens, but pool=prefix sees {seen}: set pool=token"
        )
    if trained:
        raise OptionError(
            "distill_token needs weights with a distillation token, such as DeiT's distilled ones: "
            "choose them, or leave it out"
        )
    if config.pool != "token" or config.norm_at == "pooled":
        raise OptionError(
            f"distill_token averages two tokens, but pool={config.pool}, norm_at={config.norm_at}: "
            "set pool=token and norm_at=tokens"
        )
    both = (0, config.prefix) if config.registers else ()
    return replace(
        config,
        pool="prefix",
        class_token=True,
        registers=config.registers + 1,
        pool_tokens=both,
    )


class TwoHeads(nn.Module):
    """The scores of class token and distillation token, of the one classifier that averages them.

    With a kernel W = (W_1, W_2) and bias b over both tokens x_1 and x_2, the model's scores are
    W_1 x_1 + W_2 x_2 + b. They are the mean of 2 W_1 x_1 + b + d and 2 W_2 x_2 + b - d. Only d, the
    difference of the biases, which the mean does not show, is held here. Compared with DeiT, where
    the kernels are 2 W_1 and 2 W_2, Adam moves the classifier twice as far at the same rate.

    Args:
        classes: their number
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.difference = nn.Parameter(torch.zeros(classes))

    def reset_parameters(self) -> None:
        """Start with equal biases."""
        nn.init.zeros_(self.difference)

    def forward(self, model: Model, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return what either token says of images (B, C, H, W): two times (B, classes)."""
        assert isinstance(model, VisionTransformer)
        classify = model.head.classify
        assert isinstance(classify, nn.Linear)
        tokens = model.features(images).chunk(2, dim=-1)
        kernels = classify.weight.chunk(2, dim=1)
        biases = classify.bias + self.difference, classify.bias - self.difference
        own, taught = (
            F.linear(token, 2 * kernel, bias)
            for token, kernel, bias in zip(tokens, kernels, biases, strict=True)
        )
        return own, taught
