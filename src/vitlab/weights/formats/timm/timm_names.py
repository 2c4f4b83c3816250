"""timm's names of the parts of a Vision Transformer, which most of the papers' own files share.

Source: timm's vision_transformer.py, vision_transformer_hybrid.py, deit.py, cait.py, beit.py and
eva.py; the checkpoints of facebookresearch (deit, mae, dino, dinov2, dinov3, RoPE-ViT) and
microsoft/unilm (beit).
"""

from vitlab.models.config import ViTConfig
from vitlab.weights.formats.entries import Names, halves, joined, keyless, masked
from vitlab.weights.formats.names import first_name, placed
from vitlab.weights.formats.rotary_rows import Pairs, frequencies

_HYBRID = "patch_embed.backbone.stages.{s}.blocks.{u}"
_POOL = joined("attn_pool.qkv.weight"), joined("attn_pool.qkv.bias")
# The first of several is timm's own; the others are those of the papers' code.
TIMM: Names = {
    "block": "blocks.{n}.", "class_block": "blocks_token_only.{n}.",
    "patch": "patch_embed.proj", "patch_norm": "patch_embed.norm", "stem": "patch_embed.proj.{k}",
    "root_conv": ["patch_embed.backbone.stem.conv", "patch_embed.backbone.conv"],
    "root_norm": ["patch_embed.backbone.stem.norm", "patch_embed.backbone.norm"],
    "reduce_conv": f"{_HYBRID}.conv1", "reduce_norm": f"{_HYBRID}.norm1",
    "middle_conv": f"{_HYBRID}.conv2", "middle_norm": f"{_HYBRID}.norm2",
    "expand_conv": f"{_HYBRID}.conv3", "expand_norm": f"{_HYBRID}.norm3",
    "shortcut_conv": f"{_HYBRID}.downsample.conv", "shortcut_norm": f"{_HYBRID}.downsample.norm",
    "token": "cls_token", "positions": "pos_embed", "pre_norm": "norm_pre",
    "registers": ["reg_token", "dist_token", "register_tokens", "storage_tokens"],
    "norm1": ".norm1", "scale1": [".ls1.gamma", ".gamma_1"],
    "qkv": [".attn.qkv", (".attn.q_proj", ".attn.k_proj", ".attn.v_proj")],
    "qkv.bias": [
        ".attn.qkv.bias", (".attn.q_proj.bias", ".attn.k_proj.bias", ".attn.v_proj.bias"),
        keyless(".attn.q_bias", ".attn.v_bias"),
        keyless(".attn.q_proj.bias", ".attn.v_proj.bias"),
        masked(".attn.qkv.bias", ".attn.qkv.bias_mask"),
    ],
    "q_norm": ".attn.q_norm", "k_norm": ".attn.k_norm",
    "before": ".attn.proj_l", "after": ".attn.proj_w",
    "attn_norm": [".attn.norm", ".attn.inner_attn_ln"], "project": ".attn.proj",
    "norm2": ".norm2", "scale2": [".ls2.gamma", ".gamma_2"],
    "expand": [".mlp.fc1", (".mlp.fc1_g", ".mlp.fc1_x"), ".mlp.w12", (".mlp.w1", ".mlp.w2")],
    "mlp_norm": [".mlp.norm", ".mlp.ffn_ln"], "contract": [".mlp.fc2", ".mlp.w3"],
    "bias_table": ".attn.relative_position_bias_table",
    "shared_table": "rel_pos_bias.relative_position_bias_table", "freqs": ["rope.freqs", "freqs"],
    "class_norm1": ".norm1", "class_scale1": ".gamma_1", "class_q": ".attn.q",
    "class_kv": (".attn.k", ".attn.v"), "class_project": ".attn.proj", "class_norm2": ".norm2",
    "class_scale2": ".gamma_2", "class_expand": ".mlp.fc1", "class_contract": ".mlp.fc2",
    "norm": "norm", "pooled_norm": "fc_norm", "pre_logits": "pre_logits.fc",
    "queries": "attn_pool.latent",
    "pool_q": "attn_pool.q", "pool_kv": "attn_pool.kv",
    "pool_q.weight": ["attn_pool.q.weight", _POOL[0]],
    "pool_q.bias": ["attn_pool.q.bias", _POOL[1]],
    "pool_kv.weight": ["attn_pool.kv.weight", _POOL[0]],
    "pool_kv.bias": ["attn_pool.kv.bias", _POOL[1]],
    "pool_project": "attn_pool.proj", "pool_norm": "attn_pool.norm",
    "pool_expand": "attn_pool.mlp.fc1", "pool_contract": "attn_pool.mlp.fc2",
    "head": "head", "heads.weight": halves("head.weight", "head_dist.weight"),
    "heads.bias": halves("head.bias", "head_dist.bias"),
}  # fmt: skip
# Of two parallel branches; DeiT's own code numbers them by another digit.
BRANCHED: Names = {
    **TIMM,
    "norm1": ".attns.{b}.norm", "scale1": ".attns.{b}.ls.gamma", "qkv": ".attns.{b}.attn.qkv",
    "qkv.bias": ".attns.{b}.attn.qkv.bias",
    "q_norm": ".attns.{b}.attn.q_norm", "k_norm": ".attns.{b}.attn.k_norm",
    "project": ".attns.{b}.attn.proj", "norm2": ".ffns.{b}.norm", "scale2": ".ffns.{b}.ls.gamma",
    "expand": ".ffns.{b}.mlp.fc1", "contract": ".ffns.{b}.mlp.fc2",
}  # fmt: skip


def pairs_for(config: ViTConfig) -> Pairs:
    """Return how channels that rotary positions turn together lie where timm stores a model."""
    return "ij" if "rope" in config.positions and config.rope_kind == "mixed" else ""


def names_for(config: ViTConfig) -> Names:
    """Return the names under which timm stores a model."""
    biased, turned = "bias" in config.positions, "rope" in config.positions
    names = dict(BRANCHED if config.branches > 1 else TIMM)
    if biased or turned:  # beit.py and eva.py
        names |= {"scale1": ".gamma_1", "scale2": ".gamma_2"}
        names |= {"expand": (".mlp.fc1_g", ".mlp.fc1_x")} if config.ffn == "swiglu" else {}
    if biased:
        names["qkv.bias"] = keyless(".attn.q_bias", ".attn.v_bias")
    if turned:
        names["freqs"] = frequencies(first_name(names, "freqs"), False)
    if config.stem == "resnet" and not config.stages:
        names |= {"root_conv": "patch_embed.backbone.conv"}
        names |= {"root_norm": "patch_embed.backbone.norm"}
    if config.pool == "prefix":
        names["registers"] = "dist_token"
    return placed(names, True, config.registers > 0) if "1d" in config.positions else names
