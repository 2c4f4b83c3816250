"""Models that are not Vision Transformers of one width, told by their tensors.

Each is recognized by a tensor that only its family has, and refused with what it is, rather than
with a tensor that some other format misses.
"""

import re

from vitlab.errors import WeightsError
from vitlab.weights.formats.format_api import Hints, Reading, TensorsOf
from vitlab.weights.source import StoredTensors

# A pattern in a tensor's name, then what the model is, and why ours cannot represent it. The first
# that is found counts.
FAMILIES = r"""
    patch_generator\.cls_token|embeddings\.cls_register_token
        RADIO or C-RADIO: a class token for each of its teachers
    pos_embed_window$
        the Hiera of SAM 2: stages of different widths
    ^(?!.*attn).*blocks\.\d+\.(proj|attn\.proj_skip)\.weight$
        Hiera: stages of different widths
    blocks\.\d+\.attn\.(pool_q|norm_q)\.
        MViT: pooled attention and stages of different widths
    \.attn\.rel_pos_h$
        Segment Anything's encoder or ViTDet: windows of attention
    image_encoder\.neck\.0\.weight$
        EfficientSAM: a neck of convolutions
    (layers\.\d+\.blocks|features\.\d+)\.\d+\.attn\.(relative_position_bias_table|logit_scale)
        a Swin Transformer: shifted windows and stages of different widths
    blocks\.\d+\.local_mp\.
        XCiT: attention over channels, and convolutions
    blocks\.\d+\.\d+\.cpe1\.
        DaViT: attention over channels and stages of different widths
    \.(modulation|focal_layers)\.
        FocalNet: no attention, and stages of different widths
    \.attn\.sr\.|\.attention\.self\.sr\.
        PVT, Twins or Segformer: coarser keys and stages of different widths
    levels\.\d+\.transformer_encoder\.
        NesT: stages of different widths
    blocks\.\d+\.(attn_grid|conv\.pre_norm)\.
        MaxViT or CoAtNet: convolutions and stages of different widths
    \.attention_biases$
        LeViT, TinyViT or EfficientFormer: convolutions and stages of different widths
    network\.\d+\.\d+\.attn\.attn\.
        VOLO: outlook attention
    blocks\.\d+\.(mlp_tokens|token_mix|mlp_channels)\.
        an MLP-Mixer, ResMLP or gMLP: no attention
    blocks\.\d+\.fusion\.
        CrossViT: two branches with different patches
    transformers\.\d+\.blocks\.\d+\.
        PiT: stages of different widths
    blocks\.\d+\.(attn_in|norm_in)\.
        TNT: a transformer within each patch
    serial_blocks\d+\.
        CoaT: stages of different widths
    blocks\.\d+\.attn\.gating_param$
        ConViT: gated positional attention
    stages\.\d+\.(blocks\.)?\d+\.(conv_dw|dwconv)\.
        ConvNeXt or its like: convolutions
    (^|\.)layer1\.0\.(conv1|bn1)\.
        a ResNet of torchvision or timm: batch norm
    (^|\.)(conv_stem|s1\.b1\.conv1\.conv)\.weight$
        a convolutional network: no attention
    (^|\.)stages\.\d+\.(blocks\.\d+\.|\d+\.)
        a network in stages: stages of different widths
    (^|\.)blocks_token_only\.
        CaiT: attention of the class token alone, and talking heads
    \.(experts|moe)\.
        a mixture of experts: several MLPs in a block
    (^|\.)to_patch_embedding\.[23]\.
        a ViT of vit-pytorch: norms of each patch's pixels
    (^|\.)patch_embed\.\d+\.proj\.weight$
        SatMAE or its like: groups of channels
    patch_embedding\.weight_generator\.
        Clay: a kernel made from wavelengths
"""
INSIDE = ("patch_embed.backbone.",)  # a hybrid's ResNet, which our model has
VIDEO = re.compile(r"(.*\.)?patch_embed(dings)?\.(proj|projection)\.weight")


def reads(source: StoredTensors, hints: Hints, tensors_of: TensorsOf) -> Reading | None:
    """Refuse a family that our model cannot represent; return None for any other.

    Raises:
        WeightsError: it says which family, by which tensor, and why.
    """
    for name, shape in source.shapes.items():
        if VIDEO.fullmatch(name) and len(shape) == 5:
            what = "V-JEPA, VideoMAE, Prithvi or another model of several pictures"
            raise _unsupported(source, what, name, "patches with a length in time")
    names = [name for name in source.shapes if not any(part in name for part in INSIDE)]
    rows = map(str.strip, FAMILIES.strip().splitlines())
    for pattern, reason in zip(rows, rows, strict=True):
        for name in names:
            if re.search(pattern, name):
                what, _, why = reason.partition(": ")
                raise _unsupported(source, what, name, why)
    return None


def _unsupported(source: StoredTensors, what: str, name: str, why: str) -> WeightsError:
    return WeightsError(
        f"{source.path} is {what} (tensor {name}), which has {why}: docs/weights.md lists what "
        "loads"
    )
