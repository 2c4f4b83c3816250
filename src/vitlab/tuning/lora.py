"""LoRA: a frozen matrix, and beside it the product of two thin ones that is trained.

Hu et al., *LoRA: Low-Rank Adaptation of Large Language Models*, 2021, section 4.1:
W x + (alpha / rank) B A x, where A is (rank, inputs) and B, which starts at zero, (outputs, rank).
The layers are those of the package `peft`.
"""

import math
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vitlab.errors import OptionError
from vitlab.models.create import assemble
from vitlab.models.model import Model
from vitlab.optim.sliced import full
from vitlab.packages import needed

Targets = Literal["attention", "ffn", "all"]
ADAPTER = "default"  # peft's name for the only one


def inject(
    model: Model, generator: torch.Generator, *, rank: int, alpha: float, targets: Targets
) -> None:
    """Put LoRA's matrices beside a model's dense layers, and freeze everything else; in place.

    The model computes what it computed before, since B starts at zero. A is drawn Kaiming-uniform
    with slope sqrt(5), as by `peft` and by the authors' code: the same bits on every device.

    Args:
        model: a plain model; its weights keep their values
        generator: source of A
        rank: of the product
        alpha: the product is multiplied by alpha / rank
        targets: the layers of the encoder and of an attention pool that get one: `attention`
            (queries, keys, values and projection), `ffn` (both layers of each MLP), or `all`

    Raises:
        PackageError: `peft` is not installed.
        OptionError: the model has no such layers.
    """
    if not (names := dense_layers(model, targets)):
        raise OptionError(
            f"{model.config.name} has no dense layers for LoRA: use a Vision Transformer, or "
            "tune=all"
        )
    peft = _peft()
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,
        target_modules="|".join(map(re.escape, names)),
        init_lora_weights=False,
    )
    modes = {name: model.get_submodule(name).training for name in names}
    peft.inject_adapter_in_model(config, model, ADAPTER, low_cpu_mem_usage=True)  # without memory
    for name, layer in _adapted(model):
        weight = layer.base_layer.weight
        first = torch.empty(layer.lora_A[ADAPTER].weight.shape, device=generator.device)
        nn.init.kaiming_uniform_(first, a=math.sqrt(5), generator=generator)
        zeros = torch.zeros(layer.lora_B[ADAPTER].weight.shape)
        layer.lora_A[ADAPTER].weight = nn.Parameter(first.to(weight))
        layer.lora_B[ADAPTER].weight = nn.Parameter(zeros.to(weight))
        layer.train(modes[name])


def dense_layers(model: Model, targets: Targets) -> list[str]:
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
    return next(_adapted(model), None) is not None


def merged(model: Model) -> Model:
    """Return the plain model, each product added to its matrix; it shares no tensor.

    A model that is sharded comes back whole, in a collective call of all processes.

    Args:
        model: from `inject`, or a copy of it
    """
    layers = dict(_adapted(model))
    tensors = {name: full(tensor.detach()) for name, tensor in model.state_dict().items()}
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        place, _, rest = name.partition(".base_layer.")
        if rest == "weight":
            product = _product(tensors, place) * layers[place].scaling[ADAPTER]
            plain[f"{place}.weight"] = tensor + product.to(tensor.dtype)
        elif ".lora_" not in name:
            plain[f"{place}.{rest}" if rest else name] = tensor.clone()
    result = assemble(model.config, plain)
    result.provenance, result.source = dict(model.provenance), model.source
    return result.train(model.training)


def _product(tensors: dict[str, Tensor], place: str) -> Tensor:
    """Return B A of a layer: (outputs, inputs), computed in at least single precision."""
    a, b = (tensors[f"{place}.lora_{which}.{ADAPTER}.weight"] for which in "AB")
    exact = torch.promote_types(a.dtype, torch.float32)
    return b.to(exact) @ a.to(exact)


def _adapted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the layers with LoRA's matrices, by name."""
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and hasattr(module, "base_layer"):
            yield name, module


def _peft() -> Any:
    """Return the package `peft`.

    Raises:
        PackageError: it is not installed, or cannot be imported.
    """
    with _broken_torchvision_hidden():
        return needed("peft", "tune=lora")


@contextmanager
def _broken_torchvision_hidden() -> Iterator[None]:
    """Hide a torchvision that does not fit torch in the block, as if it were not installed.

    peft imports transformers, which imports torchvision where it finds one; the published one is
    built for CUDA and fails beside a CPU build of torch. Neither needs it here.
    """
    try:
        import torchvision  # noqa: F401
    except ModuleNotFoundError:
        hidden = False
    except (ImportError, RuntimeError, OSError):
        hidden = True
    else:
        hidden = False
    if hidden:
        sys.modules["torchvision"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hidden:
            del sys.modules["torchvision"]
