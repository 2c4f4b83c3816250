"""`vitlab.accelerate`: the fast form of a model for inference."""

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab import device as devices
from vitlab.errors import OptionError
from vitlab.models.config import ViTConfig
from vitlab.models.fast.attention_kernel import measure_attention
from vitlab.models.fast.dense import Dense, PackedDense, can_pack, has_bf16
from vitlab.models.fast.fast_block import FastBlock, replace_layers
from vitlab.models.fast.patch_product import PatchProduct, is_product
from vitlab.models.fuse import FusedBlock, fuse
from vitlab.models.model import Model
from vitlab.models.packed import Packed
from vitlab.models.vit import VisionTransformer

Precision = Literal["auto", "fp32", "bf16"]
FEATURES, CHANCES = 0.05, 0.02  # how far bf16 may be from fp32: relative, and of a probability
PROBES = 4  # images
EXACT = torch.float32


def accelerate(
    model: Model,
    *,
    device: str = "auto",
    precision: Precision = "auto",
    compile: bool = False,
    probe: Tensor | None = None,
) -> Model:
    """Return a copy of a model for fast inference: same methods, and logits in fp32.

    On a CPU the fused form (`vitlab.fuse`) has its weights packed for oneDNN, which also computes
    GELU and residual sums within the products. On a GPU it computes in bf16, compiled if asked
    for, with the attention kernel that is measured to be the fastest when images of a new shape
    come. Patches and the encoder's blocks are computed in the precision, all else in fp32; the last
    block computes only the tokens that the head reads.

    Args:
        model: any; it stays as it is. A ResNet is fused and stays in fp32
        device: auto, cpu, cuda or cuda:N
        precision: fp32; bf16; or auto, which is bf16 where the device multiplies it faster, and
            where features and probabilities of some images agree with those in fp32: within 5% of
            the features' length, and 0.02 of each probability
        compile: on a GPU, compile the encoder, with CUDA graphs
        probe: the images to compare on, normalized (B, channels, H, W); None for random patterns

    Returns:
        The copy, in evaluation mode on the device. Its `computes` says fp32 or bf16. It cannot be
        trained, saved or moved to another device.

    Raises:
        DeviceError: a device that this machine does not have.
        OptionError: compile on a CPU, where the packed form is as fast without.
    """
    where = devices.choose(device)
    if compile and where.type == "cpu":
        raise OptionError("compile applies only to GPUs: on a CPU the packed form is as fast")
    exact = fuse(model).to(where)
    if precision == "fp32" or (precision == "auto" and not gains(exact, where)):
        return _finished(exact, where, EXACT, compile)
    if precision == "bf16":
        return _finished(exact, where, torch.bfloat16, compile)
    images = patterns(model).to(where) if probe is None else probe.to(where)
    wanted = answers(exact, images)
    half = _finished(exact, where, torch.bfloat16, compile)
    if agree(answers(half, images), wanted):
        return half
    return _finished(fuse(model).to(where), where, EXACT, compile)


def gains(model: Model, where: torch.device) -> bool:
    """Return whether a fused model has blocks, and the device multiplies bf16 faster than fp32."""
    fused = any(isinstance(each, FusedBlock) for each in model.modules())
    return fused and multiplies_bf16(where)


def multiplies_bf16(where: torch.device) -> bool:
    """Return whether a device multiplies bf16 faster than fp32."""
    if where.type == "cuda":
        return torch.cuda.get_device_capability(where) >= (8, 0)
    return has_bf16()


def _finished(model: Model, where: torch.device, dtype: torch.dtype, compile: bool) -> Model:
    """Return a fused model with fast blocks, which are taken from it."""
    rows = model.config.length if isinstance(model.config, ViTConfig) else 1
    packed = where.type == "cpu" and can_pack()

    def make(layer: nn.Linear, dtype: torch.dtype) -> Dense:
        return PackedDense(layer, dtype, rows) if packed else Dense(layer, dtype)

    blocks = [name for name, each in model.named_modules() if isinstance(each, FusedBlock)]
    for name in blocks:
        block = model.get_submodule(name)
        assert isinstance(block, FusedBlock)
        of = partial(make, dtype=dtype)
        model.set_submodule(name, FastBlock(block, of, dtype, last=name == blocks[-1]))
    if blocks and (packed or where.type == "cuda"):
        for name, layer in list(model.named_modules()):
            if name.startswith("stem.") and is_product(layer):
                model.set_submodule(name, PatchProduct(layer, partial(make, dtype=dtype)))
    if packed:
        replace_layers(model, partial(make, dtype=EXACT))
    model.computes = "bf16" if blocks and dtype is torch.bfloat16 else "fp32"
    if isinstance(model, VisionTransformer):
        model.watched = False
    if compile:
        compile_encoder(model)
    if where.type == "cuda" and isinstance(model, VisionTransformer):
        measure_attention(model, dtype)
    return model.eval()


def compile_encoder(model: Model) -> None:
    """Compile the encoder of a fused model on a GPU, with CUDA graphs where batches repeat."""
    if not isinstance(model, VisionTransformer):
        return
    encoded = torch.compile(model._encoded, mode="reduce-overhead")

    def copied(
        images: Tensor | Packed, extra: Tensor | None = None, leading: int | None = None
    ) -> list[Tensor]:
        parts = encoded(images, extra, leading)
        return [part.clone() for part in parts]  # the next call overwrites them

    model._encoded = copied  # type: ignore[method-assign]


def patterns(model: Model) -> Tensor:
    """Return smooth random images, normalized, (4, channels, H, W): the same for every call."""
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randn(PROBES, model.config.channels, 8, 8, generator=generator)
    smooth = F.interpolate(coarse, size=model.config.size, mode="bilinear")
    return smooth + 0.2 * torch.randn(smooth.shape, generator=generator)


@torch.inference_mode()
def answers(model: Model, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return features (B, …) and probabilities (B, …), in fp32."""
    features = model.features(images)
    logits = model(images) if model.config.classes else features.new_zeros(len(images), 1)
    return features.flatten(1).float(), logits.float().softmax(-1).flatten(1)


def agree(got: tuple[Tensor, Tensor], exact: tuple[Tensor, Tensor]) -> bool:
    """Return whether features and probabilities are within the limits of those in fp32."""
    away = (got[0] - exact[0]).norm(dim=1) / exact[0].norm(dim=1).clamp(min=1e-12)
    chances = (got[1] - exact[1]).abs().max()
    return bool((away <= FEATURES).all() and chances <= CHANCES)  # NaN is not
