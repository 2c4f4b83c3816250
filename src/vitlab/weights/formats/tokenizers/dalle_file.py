"""DALL-E's discrete VAE: state dicts of the two modules that OpenAI published.

Source: openai/DALL-E (encoder.py, decoder.py, utils.py). One state dict whose names begin with
`encoder.` and `decoder.` is the whole tokenizer; that of the encoder alone tells codes. Its pixels
are in [0, 1]: the step into [0.1, 0.9] (`map_pixels`) is part of our model. OpenAI's example
resizes to 256 pixels with Lanczos, for which bicubic stands here.
"""

import re
from collections.abc import Iterator

from vitlab.errors import WeightsError
from vitlab.models.config import TokenizerConfig
from vitlab.weights.formats.entries import Entry, each, same
from vitlab.weights.formats.origins import Facts, Origin
from vitlab.weights.formats.room import Hints, Reading
from vitlab.weights.source import Shape, Source

NAME = "DALL-E's tokenizer (OpenAI)"
FIRST, LAST = "blocks.input.w", "blocks.output.conv.w"
USUAL = {"mean": (0.0,), "std": (1.0,), "interpolation": "bicubic", "image_size": 256}


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize the convolutions of DALL-E's encoder.

    Raises:
        WeightsError: a decoder alone, or an unsupported variant.
    """
    prefix = "encoder." if f"encoder.{FIRST}" in source.shapes else ""
    shapes = source.shapes
    if prefix + FIRST not in shapes or prefix + LAST not in shapes:
        return None
    if shapes[prefix + FIRST][2:] == (1, 1):
        raise WeightsError(
            f"{source.path} has DALL-E's decoder alone: give the encoder's state dict, or one of "
            "both, whose names begin with encoder. and decoder."
        )
    groups = _numbers(shapes, rf"{re.escape(prefix)}blocks\.group_(\d+)\.")
    blocks = _numbers(shapes, rf"{re.escape(prefix)}blocks\.group_1\.block_(\d+)\.")
    first, last = shapes[prefix + FIRST], shapes[prefix + LAST]
    if len(first) != 4 or len(last) != 4 or not groups or not blocks:
        raise WeightsError(f"{source.path}: {NAME}: unsupported convolutions or groups")
    facts = Facts().put(Origin.FAMILY, USUAL)
    facts.put(
        Origin.TENSORS,
        {"form": "dalle", "width": first[0], "channels": first[1], "codes": last[0],
         "stride": 2 ** (groups - 1), "depth": blocks, "decoder": False, "code_width": 128},
    )  # fmt: skip
    if f"decoder.{FIRST}" in shapes:
        outputs = shapes.get(f"decoder.{LAST}", (0,))[0]
        widths = shapes[f"decoder.{FIRST}"]
        found = {"decoder": True, "code_width": widths[0], "laplace": outputs == 2 * first[1]}
        facts.put(Origin.TENSORS, found)
    size = {"image_size": hints.image_size} if hints.image_size else {}  # convolutions take any
    facts.put(Origin.OPTION, size | hints.choices)
    config = TokenizerConfig.from_dict(facts.values)
    return Reading(NAME, config, list(entries(config, prefix)), origins=facts.origins)


def entries(config: TokenizerConfig, prefix: str = "") -> Iterator[Entry]:
    """Yield which tensors of a file make which of a model.

    Args:
        config: of the form `dalle`
        prefix: of the encoder's names
    """
    start = f"{prefix}blocks"
    yield from _convolution("encoder.enter", f"{start}.input")
    widths = [config.width << number for number in range(config.halvings + 1)]
    yield from _groups("encoder", start, config.width, widths, config.depth)
    yield from _convolution("score", f"{start}.output.conv")
    if not config.decoder:
        return
    start = "decoder.blocks"
    yield each(
        "codebook.weight",
        f"{start}.input.w",
        lambda kernel: kernel[:, :, 0, 0].T,
        lambda weight: weight.T[:, :, None, None],
    )
    yield same("codebook.bias", f"{start}.input.b")
    yield from _groups("decoder", start, config.code_width, widths[::-1], config.depth)
    yield from _convolution("decoder.leave", f"{start}.output.conv")


def _groups(
    ours: str, theirs: str, inputs: int, widths: list[int], depth: int
) -> Iterator[Entry]:  # fmt: skip
    for group, width in enumerate(widths):
        for block in range(depth):
            own = f"{ours}.groups.{group}.{block}"
            other = f"{theirs}.group_{group + 1}.block_{block + 1}"
            if inputs != width:
                yield from _convolution(f"{own}.shortcut", f"{other}.id_path")
            for number in range(4):
                yield from _convolution(
                    f"{own}.convolutions.{number}", f"{other}.res_path.conv_{number + 1}"
                )
            inputs = width


def _convolution(ours: str, theirs: str) -> list[Entry]:
    return [same(f"{ours}.weight", f"{theirs}.w"), same(f"{ours}.bias", f"{theirs}.b")]


def _numbers(shapes: dict[str, Shape], pattern: str) -> int:
    """The highest number that names have where the pattern has its group; 0 for none."""
    return max((int(m[1]) for name in shapes if (m := re.match(pattern, name))), default=0)
