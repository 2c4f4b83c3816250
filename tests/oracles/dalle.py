"""DALL-E's encoder and decoder, written again from their description: names, shapes, arithmetic.

Source: openai/DALL-E (encoder.py, decoder.py, utils.py); DALLE-pytorch's DiscreteVAE below.
"""

import sys
import types
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Conv2d(nn.Module):
    """A convolution whose parameters are called w and b."""

    def __init__(self, inputs: int, outputs: int, side: int) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(outputs, inputs, side, side) / (inputs**0.5 * side))
        self.b = nn.Parameter(torch.randn(outputs) / 8)
        self.device, self.use_float16 = torch.device("cpu"), True

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.w, self.b, padding=self.w.shape[-1] // 2)


class EncoderBlock(nn.Module):
    SIDES = (3, 3, 3, 1)

    def __init__(self, inputs: int, outputs: int, layers: int) -> None:
        super().__init__()
        self.post_gain, inner = 1 / layers**2, outputs // 4
        self.id_path = Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()
        path: OrderedDict[str, nn.Module] = OrderedDict()
        for place, side in enumerate(self.SIDES, 1):
            path[f"relu_{place}"] = nn.ReLU()
            path[f"conv_{place}"] = Conv2d(
                inputs if place == 1 else inner, outputs if place == 4 else inner, side
            )
        self.res_path = nn.Sequential(path)

    def forward(self, x: Tensor) -> Tensor:
        whole: Tensor = self.id_path(x) + self.post_gain * self.res_path(x)
        return whole


class DecoderBlock(EncoderBlock):
    SIDES = (1, 3, 3, 3)


def _groups(
    block: type[EncoderBlock], inputs: int, widths: list[int], count: int, between: nn.Module
) -> OrderedDict[str, nn.Module]:
    found: OrderedDict[str, nn.Module] = OrderedDict()
    for number, width in enumerate(widths, 1):
        group: OrderedDict[str, nn.Module] = OrderedDict()
        for place in range(count):
            group[f"block_{place + 1}"] = block(
                width if place else inputs, width, count * len(widths)
            )
        if number < len(widths):
            group["between"] = between
        found[f"group_{number}"] = nn.Sequential(group)
        inputs = width
    return found


def _output(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(OrderedDict(relu=nn.ReLU(), conv=Conv2d(inputs, outputs, 1)))


class Encoder(nn.Module):
    def __init__(self, width: int, codes: int, count: int = 2, groups: int = 4) -> None:
        super().__init__()
        widths = [width * 2**number for number in range(groups)]
        layers: OrderedDict[str, nn.Module] = OrderedDict(input=Conv2d(3, width, 7))
        layers |= _groups(EncoderBlock, width, widths, count, nn.MaxPool2d(2))
        self.blocks = nn.Sequential(OrderedDict(layers, output=_output(widths[-1], codes)))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.blocks(x)
        return scores


class Decoder(nn.Module):
    def __init__(
        self, width: int, codes: int, first: int, count: int = 2, groups: int = 4
    ) -> None:  # fmt: skip
        super().__init__()
        widths = [width * 2**number for number in reversed(range(groups))]
        layers: OrderedDict[str, nn.Module] = OrderedDict(input=Conv2d(codes, first, 1))
        layers |= _groups(DecoderBlock, first, widths, count, nn.Upsample(scale_factor=2))
        self.blocks = nn.Sequential(OrderedDict(layers, output=_output(width, 6)))

    def forward(self, x: Tensor) -> Tensor:
        statistics: Tensor = self.blocks(x)
        return statistics


@contextmanager
def published() -> Iterator[None]:
    """Let the classes pickle under the names that the published files have, in older dictionaries.

    Modules of 2021 kept parameters and inner modules in ordered dictionaries.
    """
    homes = {"dall_e.encoder": (Encoder, EncoderBlock), "dall_e.decoder": (Decoder, DecoderBlock),
             "dall_e.utils": (Conv2d,)}  # fmt: skip
    before = {kind: kind.__module__ for kinds in homes.values() for kind in kinds}
    sys.modules["dall_e"] = types.ModuleType("dall_e")
    for home, kinds in homes.items():
        sys.modules[home] = types.ModuleType(home)
        for kind in kinds:
            kind.__module__ = home
            setattr(sys.modules[home], kind.__name__, kind)
    try:
        yield
    finally:
        for name in ("dall_e", *homes):
            del sys.modules[name]
        for kind, home in before.items():
            kind.__module__ = home


def save_whole(module: nn.Module, path: str) -> None:
    """Save a module as OpenAI did: `torch.save(module)`, with its class's name in the pickle."""
    for each in module.modules():
        for group in ("_parameters", "_buffers", "_modules"):
            each.__dict__[group] = OrderedDict(each.__dict__[group])
    with published():
        torch.save(module, path)


class ResBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, width, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        whole: Tensor = self.net(x) + x
        return whole


class DiscreteVAE(nn.Module):
    """DALLE-pytorch's: convolutions of stride 2, residual blocks, a codebook, and their mirror."""

    def __init__(self, codes: int, inner: int, width: int, halvings: int, residual: int) -> None:
        super().__init__()
        self.codebook = nn.Embedding(codes, inner)
        down: list[nn.Module] = []
        up: list[nn.Module] = []
        for number in range(halvings):
            channels = width if number else 3
            down.append(nn.Sequential(nn.Conv2d(channels, width, 4, 2, 1), nn.ReLU()))
            channels = width if number or residual else inner
            up.append(nn.Sequential(nn.ConvTranspose2d(channels, width, 4, 2, 1), nn.ReLU()))
        for _ in range(residual):
            down.append(ResBlock(width))
            up.insert(0, ResBlock(width))
        if residual:
            up.insert(0, nn.Conv2d(inner, width, 1))
        self.encoder = nn.Sequential(*down, nn.Conv2d(width, codes, 1))
        self.decoder = nn.Sequential(*up, nn.Conv2d(width, 3, 1))

    def decode(self, codes: Tensor) -> Tensor:
        images: Tensor = self.decoder(self.codebook(codes).movedim(-1, 1))
        return images
