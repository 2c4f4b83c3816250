"""What a model costs: its parameters and multiply-adds, part by part."""

import re
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitlab.models.config import ModelConfig, TokenizerConfig, ViTConfig
from vitlab.models.create import build
from vitlab.models.layers import NORMS, evaluating
from vitlab.models.model import Model, Part

# Which modules, by their names, are a part: the first that fits. Norms are those of the encoder.
PARTS = {
    "stem": r"stem|positions|token|registers|class_layers\.token",
    "attention": r"blocks\.\d+\.attention\.\d+\.body",
    "MLP": r"blocks\.\d+\.mlp\.\d+\.body",
    "norms": r"pre_norm|norm|head\.norm|blocks",
    "class attention": r"class_layers",
    "body": r"body\.(?:root|stages\.\d+|norm)",
    "head": r"head\.\w+|neck|classify",
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

    parts: tuple[Part, ...]

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
        model = build(config)
    params = dict.fromkeys(PARTS, 0)
    for name, weight in model.named_parameters():
        params[next(p for p, known in PARTS.items() if _is(known, name))] += weight.numel()
    macs = _macs_of_parts(model)
    if isinstance(config, ViTConfig):
        norms = [each for name, each in model.named_modules() if re.fullmatch(NORMED, name)]
        elements = sum(each.normalized_shape[0] for each in norms if isinstance(each, NORMS))
        macs["norms"] = config.length * elements
        if config.class_blocks:  # the class token alone enters the second norm of a block
            macs["class attention"] += config.class_blocks * config.width * (config.length + 2)
    last = "" if isinstance(config, TokenizerConfig) else "head"  # listed without classes too
    names = [name for name in PARTS if params[name] or name == last]
    return Cost(tuple(Part(name, params[name], macs.get(name, 0)) for name in names))


def _macs_of_parts(model: Model) -> dict[str, int]:
    """Return the multiply-adds of each part, but for norms."""
    config = model.config
    if not isinstance(config, TokenizerConfig):
        found = macs_by_module(model, (1, config.channels, *config.size))
        return {
            part: sum(macs for name, macs in found.items() if re.fullmatch(known, name))
            for part, known in PARTS.items()
        }
    enters = {"encoder": config.channels, "score": config.features, "decoder": config.code_width}
    found = {}
    for name, channels in enters.items():
        if (part := getattr(model, name)) is not None:
            places = config.size if name == "encoder" else config.grid
            found[name] = macs_by_module(part, (1, channels, *places))[""]
    return found | {"scores": found["score"]}


def _is(known: str, name: str) -> bool:
    """Return whether a parameter's name is that of a module, or of something within it."""
    return re.fullmatch(rf"(?:{known})(?:\..*)?", name) is not None


def macs_by_module(module: nn.Module, shape: tuple[int, ...]) -> dict[str, int]:
    """Count the multiply-adds of convolutions and matrix products in each module, by shapes alone.

    Nothing is allocated or computed, whatever the size of the module: weights and images are on
    PyTorch's meta device. Norms, activations, pooling and the standardization of kernels are left
    out, as the papers' figures leave them out.

    Args:
        module: with a forward pass of one tensor
        shape: of that tensor

    Returns:
        By the names of modules inside; that of the module itself is "".
    """
    named: list[tuple[str, Tensor]] = [*module.named_parameters(), *module.named_buffers()]
    weights = {name: tensor.detach().to("meta") for name, tensor in named}
    counter, root = FlopCounterMode(display=False), type(module).__name__
    with evaluating(module), torch.no_grad(), counter:
        torch.func.functional_call(module, weights, (torch.empty(shape, device="meta"),))
    found = {name: sum(each.values()) // 2 for name, each in counter.get_flop_counts().items()}
    inside = {name.removeprefix(f"{root}."): macs for name, macs in found.items()}
    return inside | {"": counter.get_total_flops() // 2}


def exaflops(model: Model | ModelConfig, images: float, epochs: float) -> float:
    """Return the work of training in 10^18 operations, as the ViT paper counts it (Table 6).

    A multiply-add is two operations, and the backward pass is twice the forward one.

    Args:
        model: at the image size of the training
        images: in the training set (JFT-300M has 303 million)
        epochs: passes over them
    """
    return 6 * cost(model).macs * images * epochs / 1e18
