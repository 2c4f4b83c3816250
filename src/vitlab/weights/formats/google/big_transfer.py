"""Google's BiT ResNets, `BiT-M-R50x1.npz` and its like (big_transfer).

Images are in [-1, 1]; evaluation squashes them to the input's size, 480 after fine-tuning.
"""

import re
from typing import Any

from vitlab.errors import WeightsError
from vitlab.models.config import ModelConfig, ResNetConfig
from vitlab.weights.formats.entries import Entry, each, same
from vitlab.weights.formats.google import flax
from vitlab.weights.formats.resnet_units import units_of, walk
from vitlab.weights.formats.room import Hints, Reading, cannot
from vitlab.weights.source import Source

NAME = "Google's BiT (.npz)"


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize a BiT ResNet.

    Raises:
        WeightsError: its tensors have unsupported shapes.
    """
    roots = [n for n in source.shapes if "root_block/" in n and n.endswith("/kernel")]
    if source.kind != "npz" or len(roots) != 1:
        return None
    prefix = roots[0].partition("root_block/")[0]
    stored = {_unnumbered(name.removeprefix(prefix)): name for name in source.shapes}
    stages = units_of(stored, r"block(\d+)/unit(\d+)/")
    shape = source.shapes[roots[0]]
    head = source.shapes.get(stored.get("head/conv2d/bias", ""), ())
    if len(shape) != 4 or shape[3] % 64 or not stages:
        raise WeightsError(f"{source.path}: {NAME}: unsupported root kernel or units")
    fields: dict[str, Any] = {
        "stages": stages, "widen": shape[3] // 64, "channels": shape[2], "fit": "squash",
        "classes": head[0] if head else 0,
    }  # fmt: skip
    if hints.image_size:  # convolutions take any
        fields["image_size"] = hints.image_size
    config = ResNetConfig(**(fields | hints.choices))
    table = [entry.renamed(lambda n: stored.get(n, prefix + n)) for entry in entries(config)]
    return Reading(NAME, config, table)


def _unnumbered(name: str) -> str:
    """The name without the running number that some files give to layers: conv2d_17."""
    return re.sub(r"(standardized_conv2d|group_norm|conv2d)_\d+/", r"\1/", name)


def entries(config: ModelConfig) -> list[Entry]:
    """List which tensors of a file make which of a model.

    Raises:
        WeightsError: the model is not a BiT ResNet.
    """
    if not isinstance(config, ResNetConfig) or config.attention == "axial":
        raise cannot(NAME, config.name)
    table = _conv("body.root", "root_block")
    for stage, unit in walk(config.stages):
        ours, theirs = f"body.stages.{stage}.{unit}", f"block{stage + 1}/unit{unit + 1:02d}"
        for number, letter in enumerate("abc", start=1):
            table += _norm(f"{ours}.norm{number}", f"{theirs}/{letter}/")
            table += _conv(f"{ours}.conv{number}", f"{theirs}/{letter}")
        if unit == 0:
            table += _conv(f"{ours}.shortcut", f"{theirs}/a/proj")
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


def _conv(ours: str, theirs: str) -> list[Entry]:
    return flax.conv(ours, f"{theirs}/standardized_conv2d")


def _norm(ours: str, theirs: str) -> list[Entry]:
    return flax.norm(ours, f"{theirs}group_norm", ("gamma", "beta"))
