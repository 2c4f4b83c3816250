"""Models that are not Vision Transformers of one width, told by their tensors.

Each is recognized by a tensor that only its family has, and refused with what it is, rather than
with a tensor that some other format misses.
"""

import re

from vitlab.errors import WeightsError
from vitlab.weights.formats.format_api import Hints, Reading
from vitlab.weights.source import Source

STAGES = "stages of different widths"
BLOCK = r"blocks\.\d+\."
# A pattern in a tensor's name, what the model is, and why ours cannot represent it. The first
# that is found counts.
FAMILIES: tuple[tuple[str, str, str], ...] = (
    (
        r"patch_generator\.cls_token|embeddings\.cls_register_token",
        "RADIO or C-RADIO",
        "a class token for each of its teachers",
    ),
    (r"pos_embed_window$", "the Hiera of SAM 2", STAGES),
    (rf"^(?!.*attn).*{BLOCK}(proj|attn\.proj_skip)\.weight$", "Hiera", STAGES),
    (rf"{BLOCK}attn\.(pool_q|norm_q)\.", "MViT", f"pooled attention and {STAGES}"),
    (
        r"(layers\.\d+\.blocks|features\.\d+)\.\d+\.attn\.(relative_position_bias_table|logit_scale)",
        "a Swin Transformer",
        f"shifted windows and {STAGES}",
    ),
    (rf"{BLOCK}local_mp\.", "XCiT", "attention over channels, and convolutions"),
    (rf"{BLOCK}\d+\.cpe1\.", "DaViT", f"attention over channels and {STAGES}"),
    (r"\.(modulation|focal_layers)\.", "FocalNet", f"no attention, and {STAGES}"),
    (
        r"\.attn\.sr\.|\.attention\.self\.sr\.",
        "PVT, Twins or Segformer",
        f"coarser keys and {STAGES}",
    ),
    (r"levels\.\d+\.transformer_encoder\.", "NesT", STAGES),
    (rf"{BLOCK}(attn_grid|conv\.pre_norm)\.", "MaxViT or CoAtNet", f"convolutions and {STAGES}"),
    (r"\.attention_biases$", "LeViT, TinyViT or EfficientFormer", f"convolutions and {STAGES}"),
    (r"network\.\d+\.\d+\.attn\.attn\.", "VOLO", "outlook attention"),
    (
        rf"{BLOCK}(mlp_tokens|token_mix|mlp_channels)\.",
        "an MLP-Mixer, ResMLP or gMLP",
        "no attention",
    ),
    (rf"{BLOCK}fusion\.", "CrossViT", "two branches with different patches"),
    (rf"transformers\.\d+\.{BLOCK}", "PiT", STAGES),
    (rf"{BLOCK}(attn_in|norm_in)\.", "TNT", "a transformer within each patch"),
    (r"serial_blocks\d+\.", "CoaT", STAGES),
    (rf"{BLOCK}attn\.gating_param$", "ConViT", "gated positional attention"),
    (r"stages\.\d+\.(blocks\.)?\d+\.(conv_dw|dwconv)\.", "ConvNeXt or its like", "convolutions"),
    (r"(^|\.)layer1\.0\.(conv1|bn1)\.", "a ResNet of torchvision or timm", "batch norm"),
    (r"(^|\.)(conv_stem|s1\.b1\.conv1\.conv)\.weight$", "a convolutional network", "no attention"),
    (rf"(^|\.)stages\.\d+\.({BLOCK}|\d+\.)", "a network in stages", STAGES),
    (r"\.(experts|moe)\.", "a mixture of experts", "several MLPs in a block"),
    (r"(^|\.)to_patch_embedding\.[23]\.", "a ViT of vit-pytorch", "norms of each patch's pixels"),
    (r"(^|\.)patch_embed\.\d+\.proj\.weight$", "SatMAE or its like", "groups of channels"),
    (r"patch_embedding\.weight_generator\.", "Clay", "a kernel made from wavelengths"),
)
INSIDE = ("patch_embed.backbone.",)  # a hybrid's ResNet, which our model has
VIDEO = re.compile(r"(.*\.)?patch_embed(dings)?\.(proj|projection)\.weight")


def reads(source: Source, hints: Hints) -> Reading | None:
    """Refuse a family that our model cannot represent; return None for any other.

    Raises:
        WeightsError: it says which family, by which tensor, and why.
    """
    for name, shape in source.shapes.items():
        if VIDEO.fullmatch(name) and len(shape) == 5:
            what = "V-JEPA, VideoMAE, Prithvi or another model of several pictures"
            raise _unsupported(source, what, name, "patches with a length in time")
    names = [name for name in source.shapes if not any(part in name for part in INSIDE)]
    for pattern, what, why in FAMILIES:
        for name in names:
            if re.search(pattern, name):
                raise _unsupported(source, what, name, why)
    return None


def _unsupported(source: Source, what: str, name: str, why: str) -> WeightsError:
    return WeightsError(
        f"{source.path} is {what} (tensor {name}), which has {why}: docs/weights.md lists what "
        "loads"
    )
