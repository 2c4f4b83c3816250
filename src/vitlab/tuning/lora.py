"""LoRA: a frozen matrix, and beside it the product of two thin ones that is trained.

Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, 2021, section 4.1:
W x + (alpha / rank) B A x, where A is (rank, inputs) and B, which starts at zero, (outputs, rank).
The tensors are named as `peft` names them, whose checkpoints can be resumed.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from vitlab.errors import OptionError
from vitlab.models.create import assemble
from vitlab.models.model import Model
from vitlab.optim.sliced import full
from vitlab.recipes.start import LoRATargets

ADAPTER = "default"  # peft's name for the only one


class LoRALinear(nn.Module):
    """A frozen dense layer and two thin ones beside it, whose product starts at zero.

    Args:
        base_layer: the dense layer, which is kept
        generator: source of A, which is Kaiming-uniform with slope sqrt(5), as of `peft` and of the
            authors' code: the same bits on every device
        rank: of the product
        alpha: the product is multiplied by alpha / rank
    """

    def __init__(
        self, base_layer: nn.Linear, generator: torch.Generator, rank: int, alpha: float
    ) -> None:
        super().__init__()
        weight, self.base_layer, self.scaling = base_layer.weight, base_layer, alpha / rank
        self.out_features, self.in_features = weight.shape
        first = torch.empty(rank, self.in_features, device=generator.device)
        nn.init.kaiming_uniform_(first, a=math.sqrt(5), generator=generator)
        self.lora_A = _thin(first.to(weight))
        self.lora_B = _thin(weight.new_zeros(self.out_features, rank))

    @property
    def weight(self) -> Tensor:
        """The frozen matrix."""
        return self.base_layer.weight

    @property
    def bias(self) -> Tensor | None:
        """That of the dense layer."""
        return self.base_layer.bias

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., inputs) to (..., outputs)."""
        added = self.lora_B[ADAPTER](self.lora_A[ADAPTER](x))
        return self.base_layer(x) + added * self.scaling


def _thin(matrix: Tensor) -> nn.ModuleDict:
    """Return a dense layer without a bias, where peft has that of one adapter of several."""
    layer = nn.Linear(matrix.shape[1], len(matrix), bias=False, device="meta")
    layer.weight = nn.Parameter(matrix)
    return nn.ModuleDict({ADAPTER: layer})


def inject(
    model: Model, generator: torch.Generator, *, rank: int, alpha: float, targets: LoRATargets
) -> None:
    """Put LoRA's matrices beside a model's dense layers, and freeze everything else; in place.

    The model computes what it computed before, since B starts at zero.

    Args:
        model: a plain model; its weights keep their values
        generator: source of A
        rank: of the product
        alpha: the product is multiplied by alpha / rank
        targets: the layers of the encoder and of an attention pool that get one: `attention`
            (queries, keys, values and projection), `ffn` (both layers of each MLP), or `all`

    Raises:
        OptionError: the model has no such layers.
    """
    if not (names := dense_layers(model, targets)):
        raise OptionError(
            f"{model.config.name} has no dense layers for LoRA: use a Vision Transformer, or "
            "tune=all"
        )
    model.requires_grad_(False)
    for name in names:
        dense: Any = model.get_submodule(name)
        layer = LoRALinear(dense, generator, rank, alpha).train(dense.training)
        model.set_submodule(name, layer)


def dense_layers(model: Model, targets: LoRATargets) -> list[str]:
    """Return the names of the dense layers that `targets` means.

    A stem's own attention (`stem=local`) belongs to the stem.
    """
    names = []
    for place, module in model.named_modules():
        role = getattr(module, "role", None)
        if role and targets in (role, "all") and not place.startswith("stem."):
            layers = module.named_children()
            names += [f"{place}.{n}" for n, layer in layers if isinstance(layer, nn.Linear)]
    return names


def is_injected(model: nn.Module) -> bool:
    """Return whether a model went through `inject`."""
    return any(isinstance(module, LoRALinear) for module in model.modules())


def merged(model: Model) -> Model:
    """Return the plain model, each product added to its matrix; it shares no tensor.

    A model that is sharded comes back whole, in a collective call of all processes.

    Args:
        model: from `inject`, or a copy of it
    """
    tensors = {name: full(tensor.detach()) for name, tensor in model.state_dict().items()}
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        place, _, rest = name.partition(".base_layer.")
        if rest == "weight":
            layer: Any = model.get_submodule(place)
            product = _product(tensors, place) * layer.scaling
            plain[f"{place}.weight"] = tensor + product.to(tensor.dtype)
        elif ".lora_" not in name:
            plain[f"{place}.{rest}" if rest else name] = tensor.clone()
    result = assemble(model.config, plain)
    result.provenance, result.source = dict(model.provenance), model.source
    result.seen = model.seen
    return result.train(model.training)


def _product(tensors: dict[str, Tensor], place: str) -> Tensor:
    """Return B A of a layer: (outputs, inputs), computed in at least single precision."""
    a, b = (tensors[f"{place}.lora_{which}.{ADAPTER}.weight"] for which in "AB")
    exact = torch.promote_types(a.dtype, torch.float32)
    return b.to(exact) @ a.to(exact)
