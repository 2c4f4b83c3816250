"""A discrete VAE of DALLE-pytorch (lucidrains), which BEiT's code takes as its "customized" one.

Source: lucidrains/DALLE-pytorch (dalle_pytorch.py, `DiscreteVAE`; train_vae.py), microsoft/unilm
(beit). A file of train_vae.py has the arguments of its model in `hparams`. Images are normalized by
0.5 in its later versions and not at all in its first ones, which the tensors do not show.
"""

import re
from collections.abc import Iterator
from typing import Any

from vitlab.errors import WeightsError
from vitlab.models.config import TokenizerConfig
from vitlab.weights.formats.entries import Entry, layer, same
from vitlab.weights.formats.origins import Facts, Origin
from vitlab.weights.formats.room import Hints, Reading
from vitlab.weights.source import Source

NAME = "DiscreteVAE (DALLE-pytorch)"
CODEBOOK, FIRST = "codebook.weight", "encoder.0.0.weight"


def reads(source: Source, hints: Hints) -> Reading | None:
    """Recognize a codebook beside strided convolutions.

    Raises:
        WeightsError: an unsupported variant.
    """
    codebook, first = source.shapes.get(CODEBOOK, ()), source.shapes.get(FIRST, ())
    if len(codebook) != 2 or len(first) != 4:
        return None
    halvings = len(_matching(source, r"encoder\.\d+\.0\.weight"))
    depth = len(_matching(source, r"encoder\.\d+\.net\.0\.weight"))
    if first[2:] != (4, 4) or not 1 <= halvings <= 6:
        raise WeightsError(f"{source.path}: {NAME}: unsupported convolutions")
    facts = Facts().put(Origin.ASSUMED, {"mean": (0.5,), "std": (0.5,), "image_size": 256})
    facts.put(Origin.FAMILY, {"interpolation": "bilinear", "laplace": False})
    facts.put(
        Origin.TENSORS,
        {"form": "dvae", "codes": codebook[0], "code_width": codebook[1], "width": first[0],
         "channels": first[1], "stride": 2**halvings, "depth": depth, "decoder": True},
    )  # fmt: skip
    facts.put(Origin.FILE, _stated(source.record))
    size = {"image_size": hints.image_size} if hints.image_size else {}  # convolutions take any
    facts.put(Origin.OPTION, size | hints.choices)
    config = TokenizerConfig.from_dict(facts.values)
    return Reading(NAME, config, list(entries(config)), origins=facts.origins)


def entries(config: TokenizerConfig) -> Iterator[Entry]:
    """Yield which tensors of a file make which of a model of the form `dvae`."""
    halvings, depth = config.halvings, config.depth
    for number in range(halvings):
        yield from layer(f"encoder.reduce.{number}", f"encoder.{number}.0")
    yield from _residual("encoder", halvings, depth)
    yield from layer("score", f"encoder.{halvings + depth}")
    yield same(CODEBOOK, CODEBOOK)
    if depth:
        yield from layer("decoder.enter", "decoder.0")
    yield from _residual("decoder", 1, depth)
    start = depth + 1 if depth else 0
    for number in range(halvings):
        yield from layer(f"decoder.enlarge.{number}", f"decoder.{start + number}.0")
    yield from layer("decoder.leave", f"decoder.{start + halvings}")


def _residual(part: str, start: int, depth: int) -> Iterator[Entry]:
    for block in range(depth):
        for number in range(3):
            ours = f"{part}.residual.{block}.convolutions.{number}"
            yield from layer(ours, f"{part}.{start + block}.net.{2 * number}")


def _matching(source: Source, pattern: str) -> list[str]:
    return [name for name in source.shapes if re.fullmatch(pattern, name)]


def _stated(record: dict[str, Any]) -> dict[str, Any]:
    """The image size among the arguments that train_vae.py saves."""
    size = record.get("hparams", {}).get("image_size") if "hparams" in record else None
    return {"image_size": size} if isinstance(size, int) and size > 0 else {}
