"""Google's BiT ResNets, `BiT-M-R50x1.npz` and its like (big_transfer).

Images are in [-1, 1]; evaluation squashes them to the input's size, 480 behind fine-tuning.
"""

import re
from typing import Any

from torch import Tensor

from vitlab.errors import UserError
from vitlab.models.config import ModelConfig, ResNetConfig
from vitlab.weights.entries import Entry, each, same
from vitlab.weights.reading import Hints, Reading
from vitlab.weights.source import Source, units_of

NAME = "Google's BiT (.npz)"


def reading(source: Source, hints: Hints) -> Reading | None:
    """What such a file says, or None for another format."""
    roots = [n for n in source.shapes if "root_block/" in n and n.endswith("/kernel")]
    if source.kind != "npz" or len(roots) != 1:
        return None
    prefix = roots[0].partition("root_block/")[0]
    plain = {_plain(name.removeprefix(prefix)): name for name in source.shapes}
    stages = units_of(plain, r"block(\d+)/unit(\d+)/")
    shape = source.shapes[roots[0]]
    head = source.shapes.get(plain.get("head/conv2d/bias", ""), ())
    if len(shape) != 4 or shape[3] % 64 or not stages:
        raise UserError(f"{source.path}: {NAME}: the root's kernel or the units are not as known")
    fields: dict[str, Any] = {
        "stages": stages, "widen": shape[3] // 64, "channels": shape[2], "fit": "squash",
        "classes": head[0] if head else 0,
    }  # fmt: skip
    if hints.image_size:  # convolutions take any
        fields["image_size"] = hints.image_size
    config = ResNetConfig(**(fields | hints.choices))
    table = [entry.renamed(lambda n: plain.get(n, prefix + n)) for entry in entries(config)]
    return Reading(NAME, config, table)


def _plain(name: str) -> str:
    """Some files number their convolutions through: standardized_conv2d_17."""
    return re.sub(r"(standardized_conv2d|group_norm|conv2d)_\d+/", r"\1/", name)


def entries(config: ModelConfig) -> list[Entry]:
    """The table for a configuration."""
    if not isinstance(config, ResNetConfig) or config.attention == "axial":
        raise UserError(f"{NAME} has no place for {config.name}")
    table = [_conv("body.root", "root_block")]
    for stage, units in enumerate(config.stages):
        for unit in range(units):
            ours, theirs = f"body.stages.{stage}.{unit}", f"block{stage + 1}/unit{unit + 1:02d}"
            for number, letter in enumerate("abc", start=1):
                table += _norm(f"{ours}.norm{number}", f"{theirs}/{letter}")
                table.append(_conv(f"{ours}.conv{number}", f"{theirs}/{letter}"))
            if unit == 0:
                table.append(_conv(f"{ours}.shortcut", f"{theirs}/a/proj"))
    table += _norm("body.norm", "")
    if config.classes:
        table.append(
            each(
                "classify.weight",
                "head/conv2d/kernel",
                lambda kernel: kernel[0, 0].T,
                lambda weight: weight.T[None, None],
            )
        )
        table.append(same("classify.bias", "head/conv2d/bias"))
    return table


def _conv(ours: str, theirs: str) -> Entry:
    def read(kernel: Tensor) -> Tensor:
        return kernel.permute(3, 2, 0, 1)

    def write(weight: Tensor) -> Tensor:
        return weight.permute(2, 3, 1, 0)

    return each(f"{ours}.weight", f"{theirs}/standardized_conv2d/kernel", read, write)


def _norm(ours: str, theirs: str) -> list[Entry]:
    place = f"{theirs}/group_norm" if theirs else "group_norm"
    return [same(f"{ours}.weight", f"{place}/gamma"), same(f"{ours}.bias", f"{place}/beta")]
