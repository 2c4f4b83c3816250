"""Cost of a model: its parameters and multiply-adds, part by part."""

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from vitlab.models.configs.model_config import ModelConfig
from vitlab.models.configs.tokenizer_config import TokenizerConfig
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.models.create import build
from vitlab.models.layers import NORMS
from vitlab.models.model import Model, PartCost
from vitlab.models.tokenizers.tokenizer import Tokenizer

# Which modules, by their names, are a part: the first that fits. Norms are those of the encoder.
PARTS = {
    "stem": r"stem|positions|token|registers",
    "attention": r"blocks\.\d+\.attention\.\d+\.body",
    "MLP": r"blocks\.\d+\.mlp\.\d+\.body",
    "norms": r"pre_norm|norm|head\.norm|blocks",
    "body": r"body\.(?:root|stages\.\d+|norm)",
    "head": r"head\.\w+|classify",
    "encoder": "encoder",
    "scores": "score",
    "codebook": "codebook",
    "decoder": "decoder",
}
NORMED = r"pre_norm|norm|head\.norm|blocks\.\d+\.(?:attention|mlp)\.\d+\.(?:body\.)?norm"


@dataclass(frozen=True)
class Cost:
    """What a model costs at its configuration's image size.

    Multiply-adds are counted once each, as in the per-image figures of Three things: those of
    matrix products and convolutions, by PyTorch's own counter, and the scale and shift of the
    encoder's norms, one per element. (The papers' counter takes five for a norm, up to 0.3% more in
    all.)
    """

    parts: tuple[PartCost, ...]

    @property
    def params(self) -> int:
        """Number of parameters."""
        return sum(part.params for part in self.parts)

    @property
    def macs(self) -> int:
        """Multiply-adds for one image."""
        return sum(part.macs for part in self.parts)


def cost(model: Model | ModelConfig) -> Cost:
    """Count the parameters and multiply-adds of a model, part by part.

    The model runs once on PyTorch's meta device, which has shapes but no numbers. A Vision
    Transformer has stem (with class token, registers and positions), attention, MLP, norms (with
    LayerScale) and head; a ResNet has body and head; a tokenizer encoder, scores, codebook (which
    is looked up) and decoder.
    """
    return _cost(model if isinstance(model, ModelConfig) else model.config)


@lru_cache(maxsize=256)
def _cost(config: ModelConfig) -> Cost:
    with torch.device("meta"):
        model = build(config).eval().requires_grad_(False)
    params, macs = dict.fromkeys(PARTS, 0), _macs(model)
    for name, weight in model.named_parameters():
        inside = (part for part, known in PARTS.items() if re.match(rf"(?:{known})(?:\.|$)", name))
        params[next(inside)] += weight.numel()
    if isinstance(config, ViTConfig):
        norms = [each for name, each in model.named_modules() if re.fullmatch(NORMED, name)]
        elements = sum(each.normalized_shape[0] for each in norms if isinstance(each, NORMS))
        macs["norms"] = config.length * elements
    last = "" if isinstance(config, TokenizerConfig) else "head"  # listed without classes too
    names = [name for name in PARTS if params[name] or name == last]
    return Cost(tuple(PartCost(name, params[name], macs[name]) for name in names))


def _macs(model: Model) -> Counter[str]:
    """Return the multiply-adds of each part of a model on the meta device, but for norms.

    Those of matrix products and convolutions; activations, pooling and the standardization of
    kernels are left out, as the papers' figures leave them out.
    """
    macs, counter = Counter[str](), FlopCounterMode(display=False)

    def watch(module: nn.Module, part: str) -> None:
        """Add what the counter has after the module less what it has before."""
        before = lambda *_: macs.subtract({part: counter.get_total_flops() // 2})  # noqa: E731
        after = lambda *_: macs.update({part: counter.get_total_flops() // 2})  # noqa: E731
        module.register_forward_pre_hook(before)
        module.register_forward_hook(after)

    for name, module in model.named_modules():
        for part, known in PARTS.items():
            if re.fullmatch(known, name):
                watch(module, part)
    images = torch.empty(1, model.config.channels, *model.config.size, device="meta")
    with torch.no_grad(), counter:
        if isinstance(model, Tokenizer):
            model.logits(images)
            if model.decoder is not None:
                model.outputs(torch.empty(1, *model.config.grid, dtype=torch.int64, device="meta"))
        else:
            model(images)
    return macs


def exaflops(model: Model | ModelConfig, images: float, epochs: float) -> float:
    """Return the work of training in 10^18 operations, as the ViT paper counts it (Table 6).

    A multiply-add is two operations, and the backward pass is twice the forward one.

    Args:
        model: at the image size of the training
        images: in the training set (JFT-300M has 303 million)
        epochs: passes over them
    """
    return 6 * cost(model).macs * images * epochs / 1e18
