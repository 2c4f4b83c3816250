"""DALL-E's discrete VAE, OpenAI's image tokenizer: state dicts of the two modules.

Source: openai/DALL-E (encoder.py, decoder.py, utils.py). One state dict whose names begin with
`encoder.` and `decoder.` is the whole tokenizer; that of the encoder alone tells codes. Its pixels
are in [0, 1]: the step into [0.1, 0.9] (`map_pixels`) is part of our model. OpenAI's example
resizes to 256 pixels with Lanczos, for which bicubic stands here.
"""

from vitlab.errors import WeightsError
from vitlab.models.configs.tokenizer_config import TokenizerConfig
from vitlab.weights.formats.entries import table
from vitlab.weights.formats.format_api import Hints, Reading, TensorsOf
from vitlab.weights.formats.names import entries, found
from vitlab.weights.formats.records import Facts
from vitlab.weights.source import StoredTensors

NAME = "DALL-E's tokenizer (OpenAI)"
FIRST, LAST = "blocks.input.w", "blocks.output.conv.w"
USUAL = {"mean": (0.0,), "std": (1.0,), "interpolation": "bicubic", "image_size": 256}


# ENCODER is the prefix of the encoder's names: `encoder.`, or none.
NAMES = """
    enter.weight     ENCODERblocks.input.w
    enter.bias       ENCODERblocks.input.b
    narrow.weight    ENCODERblocks.group_{s1}.block_{u1}.id_path.w
    narrow.bias      ENCODERblocks.group_{s1}.block_{u1}.id_path.b
    down.weight      ENCODERblocks.group_{s1}.block_{u1}.res_path.conv_{k1}.w
    down.bias        ENCODERblocks.group_{s1}.block_{u1}.res_path.conv_{k1}.b
    score.weight     ENCODERblocks.output.conv.w
    score.bias       ENCODERblocks.output.conv.b
    codebook.weight  pointwise_transposed(decoder.blocks.input.w)
    codebook.bias    decoder.blocks.input.b
    widen.weight     decoder.blocks.group_{s1}.block_{u1}.id_path.w
    widen.bias       decoder.blocks.group_{s1}.block_{u1}.id_path.b
    up.weight        decoder.blocks.group_{s1}.block_{u1}.res_path.conv_{k1}.w
    up.bias          decoder.blocks.group_{s1}.block_{u1}.res_path.conv_{k1}.b
    leave.weight     decoder.blocks.output.conv.w
    leave.bias       decoder.blocks.output.conv.b
"""


def reads(source: StoredTensors, hints: Hints, tensors_of: TensorsOf) -> Reading | None:
    """Recognize the convolutions of DALL-E's encoder.

    Raises:
        WeightsError: a decoder alone, or an unsupported variant.
    """
    prefix = "encoder." if f"encoder.{FIRST}" in source.shapes else ""
    first, last = (source.shapes.get(prefix + name) for name in (FIRST, LAST))
    if first is None or last is None:
        return None
    if first[2:] == (1, 1):
        raise WeightsError(
            f"{source.path} has DALL-E's decoder alone: give the encoder's state dict, or one of "
            "both, whose names begin with encoder. and decoder."
        )
    names = table(NAMES.replace("ENCODER", prefix))
    parts = found(source.shapes, names)
    groups, blocks = (parts.counted(letter, ("down.weight",)) for letter in "su")
    if len(first) != 4 or len(last) != 4 or not groups:
        raise WeightsError(f"{source.path}: {NAME}: unsupported convolutions or groups")
    facts = Facts().put("family", USUAL)
    facts.put(
        "tensors",
        {"form": "dalle", "width": first[0], "channels": first[1], "codes": last[0],
         "stride": 2 ** max(groups), "depth": max(blocks) + 1, "decoder": False, "code_width": 128},
    )  # fmt: skip
    if (widths := source.shapes.get(f"decoder.{FIRST}")) is not None:
        laplace = parts.shape("leave.weight")[0] == 2 * first[1]
        facts.put("tensors", {"decoder": True, "code_width": widths[0], "laplace": laplace})
    size = {"image_size": hints.image_size} if hints.image_size else {}  # convolutions take any
    facts.put("option", size | hints.choices)
    config = TokenizerConfig.from_dict(facts.values)
    own = entries(config, tensors_of(config), names, NAME)
    return Reading(NAME, config, own, origins=facts.origins)
