"""Every family of transformers that is read or written, one record each, and its own keys.

Families with alike names are made from others. Source: the modeling files of transformers 5.23, and
the released files, whose names are theirs on the Hub.
"""

from vitlab.errors import WeightsError
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.weights.formats.dialects import AIMV2_NAMES
from vitlab.weights.formats.entries import table
from vitlab.weights.formats.records import record
from vitlab.weights.formats.transformers.config_json import Family, StatedModel, derived, refuse
from vitlab.weights.formats.transformers.spellings import ATTENTION, NEWER
from vitlab.weights.sharded import Fields

TABLE = "relative_position_bias.relative_position_bias_table"


def read_pooler(stated: StatedModel) -> Fields:
    """The tanh layer, which only models without a classifier use."""
    if "pooler.dense.bias" not in stated.shapes or stated.classifies:
        return {}
    act = stated.content["pooler_act"]
    refuse(act != "tanh", f"pooler_act={act!r}: only tanh is")
    return {"pre_logits": stated.content["pooler_output_size"] or stated.content["hidden_size"]}


def write_pooler(config: ViTConfig) -> Fields:
    """The tanh layer."""
    size = config.pre_logits
    return {"pooler_output_size": size, "pooler_act": "tanh"} if size else {}


def read_deit(stated: StatedModel) -> Fields:
    """A distillation token always; both classifiers if the file has them."""
    if bias := stated.shapes.get("/distillation_classifier.bias"):
        return {"registers": 1, "classes": bias[0], "pool": "prefix", "class_token": True}
    return {"registers": 1, **read_pooler(stated)}


def read_ast(stated: StatedModel) -> Fields:
    """Overlapping patches of spectrograms; the mean of two tokens, normalized once more."""
    content, layer = stated.content, "/classifier.dense.weight"
    stride, other = content["frequency_stride"], content["time_stride"]
    refuse(stride != other, f"frequency_stride={stride} with time_stride={other}")
    return {
        "image_size": (content["num_mel_bins"], content["max_length"]), "channels": 1,
        "stem_stride": stride, "registers": 1, "class_token": True, "pool": "prefix-mean",
        "norm_at": "both" if layer in stated.shapes else "tokens",
        "classes": stated.shapes.get(layer, (0,))[0],
    }  # fmt: skip


def read_beit(stated: StatedModel) -> Fields:
    """Positions and pooling, which config.json chooses."""
    content, shapes = stated.content, stated.shapes
    own, shared = (content[f"use_{kind}relative_position_bias"] for kind in ("", "shared_"))
    refuse(own and shared, "BEiT with a table of relative positions per block and one for all")
    kinds = {"1d": content["use_absolute_position_embeddings"], "bias": own or shared}
    fields: Fields = {
        "positions": "+".join(kind for kind, there in kinds.items() if there) or "none",
        "positions_at": "shared" if shared else "stem",
    }
    if not content["use_mean_pooling"]:
        return fields
    norm_at, pool = "none", "mean"
    if "/layernorm.weight" in shapes:  # of masked image modeling
        norm_at, pool = "tokens", "token"
    pools = stated.classifies or stated.architecture == "BeitModel"
    if pools or "pooler.layernorm.weight" in shapes:
        norm_at, pool = "pooled", "mean"
    return fields | {"class_token": True, "norm_at": norm_at, "pool": pool}


def write_beit(config: ViTConfig) -> Fields:
    """Positions, and the pool."""
    shared = config.positions_at == "shared"
    return {
        "use_absolute_position_embeddings": config.positions.startswith("1d"),
        "use_relative_position_bias": not shared,
        "use_shared_relative_position_bias": shared,
        "use_mean_pooling": config.norm_at == "pooled",
    }


def write_dinov2(config: ViTConfig) -> Fields:
    """The MLP by its ratio; a gated one by that of its usual form."""
    gated = config.ffn == "swiglu"
    if not gated and config.mlp % config.width:
        raise WeightsError("transformers' DINOv2 needs an mlp that is a multiple of the width")
    return {"mlp_ratio": 4 if gated else config.mlp // config.width}


def read_dinov3(stated: StatedModel) -> Fields:
    """Rotary positions; biases of layers that ours has together."""
    content = stated.content
    usual = {"rope_theta": content["rope_theta"], "rope_type": "default"}
    given = content["rope_parameters"]
    base = (usual | given)["rope_theta"]
    refuse(usual | given != usual | {"rope_theta": base}, f"rope_parameters={given!r}")
    query, key, value = (content[f"{part}_bias"] for part in ("query", "key", "value"))
    apart = query != value or (key and not query)
    refuse(apart, f"query_bias={query}, key_bias={key}, value_bias={value} together")
    project, mlp = content["proj_bias"], content["mlp_bias"]
    refuse(project != mlp, f"proj_bias={project} with mlp_bias={mlp}")
    wide = stated.shapes.get("/classifier.weight", (0, 0))[-1] > content["hidden_size"]
    return {"positions": "rope", "rope_base": base, "pool": "both" if wide else "token"}


def read_clip(stated: StatedModel) -> Fields:
    """A norm before the blocks; the classifier averages patches that the last norm did not see."""
    fields: Fields = {"pre_norm": True, "stem_bias": False}
    if stated.classifies:
        return fields | {"pool": "mean", "class_token": True, "norm_at": "none"}
    projected = "/visual_projection.weight" in stated.shapes
    return fields | {"classes": stated.projection if projected else 0}


def read_siglip(stated: StatedModel) -> Fields:
    """Attention pooling, unless there is a classifier, which averages the patches."""
    attends = stated.content["vision_use_head"] and not stated.classifies
    return {"pool": "attention" if attends else "mean"}


def read_aimv2(stated: StatedModel) -> Fields:
    """RMS norms, one of them on patches, gated MLPs, no class token."""
    content = stated.content
    qkv, mlp = content["qkv_bias"], content["mlp_bias"]
    refuse(qkv != mlp, f"qkv_bias={qkv} with mlp_bias={mlp}")
    pools = content["use_head"] and "embeddings.patch_embed.weight" in stated.shapes
    refuse(pools, "use_head=True: attention pooling by a fixed query")
    return {"norm": "rms", "stem_norm": "layer", "pool": "mean"}


def read_intern(stated: StatedModel) -> Fields:
    """InternViT's: the mean of patches without a last norm, or all tokens after one."""
    content = stated.content
    if "attention_bias" not in content:  # of its authors' own code
        return {"layer_scale": 0.1, "norm_at": "none"}
    mean = content["use_mean_pooling"]
    return {
        "pool": "mean" if mean else "token",
        "class_token": mean or None,
        "norm_at": "none" if mean else "tokens",
        "positions": "1d" if content["use_absolute_position_embeddings"] else "none",
    }


def _plain(config: ViTConfig, pool: str) -> bool:
    """Whether a model is an unchanged ViT but for its pool."""
    own = (config.pool, config.norm_at, config.registers, config.layer_scale)
    return own == (pool, "tokens", 0, 0)


def _pooled(config: ViTConfig) -> bool:
    """Whether class token and mean of the patches, beside each other, have what a head reads."""
    pools = ("token", "mean", "both") if config.classes else ("token",)
    own = config.has_token, config.norm_at, config.pre_logits
    return config.pool in pools and own == (True, "tokens", 0)


# The plain Vision Transformers: ViT, MSN, MAE, I-JEPA, DeiT, BEiT, data2vec, InternViT.
VIT = Family(
    title="vit ViTModel ViTForImageClassification",
    names=table("""
        block         encoder.layer.{n}.
        patch         embeddings.patch_embeddings.projection
        token         embeddings.cls_token
        registers     embeddings.register_tokens
        positions     embeddings.position_embeddings
        norm1         .layernorm_before
        qkv           .attention.attention.query .attention.attention.key .attention.attention.value
        project       .attention.output.dense
        norm2         .layernorm_after
        expand        .intermediate.dense
        contract      .output.dense
        norm          layernorm
        pre_logits    pooler.dense
        head          /classifier
        heads.weight  halves(/cls_classifier.weight /distillation_classifier.weight)
        heads.bias    halves(/cls_classifier.bias /distillation_classifier.bias)
    """),
    fits=lambda config: _plain(config, "token") and (config.classes > 0) != (config.pre_logits > 0),
    prefix="vit.",
    spellings=NEWER,
    reads=read_pooler,
    writes=write_pooler,
    prepared="@INCEPTION, interpolation bilinear, crop 1.0, fit squash",
)  # fmt: skip
MSN = derived(  # a ViT without a pooler
    VIT, "", "vit_msn ViTMSNModel ViTMSNForImageClassification",
    fits=lambda config: _plain(config, "token") and not config.pre_logits,
    reads="",
    prepared="@IMAGENET, interpolation bicubic, crop 1.0, fit squash",
)  # fmt: skip
DEIT = derived(
    VIT, """
        registers  embeddings.distillation_token
    """,
    "deit DeiTModel DeiTForImageClassification DeiTForImageClassificationWithTeacher",
    fits=lambda config: (config.pool, config.positions) == ("prefix", "1d"),
    prefix="deit.", register_rows=True,
    reads=read_deit, processor="DeiT",
    prepared="@IMAGENET, interpolation bicubic, crop 0.875, fit squash",
)  # fmt: skip
AST = derived(
    DEIT,
    """
        pooled_norm  /classifier.layernorm
        head         /classifier.dense
    """,
    "audio-spectrogram-transformer ASTModel ASTForAudioClassification",
    prefix="audio_spectrogram_transformer.", reads=read_ast, processor="AST",
    prepared="center floor",
)  # fmt: skip
BEIT = derived(
    VIT,
    """
        scale1        .lambda_1
        scale2        .lambda_2
        qkv.bias      keyless(.attention.attention.query.bias .attention.attention.value.bias)
        norm          layernorm | /layernorm
        pooled_norm   pooler.layernorm
        bias_table    .attention.attention.relative_position_bias.relative_position_bias_table
        shared_table  encoder.relative_position_bias.relative_position_bias_table
    """,
    "beit BeitModel BeitForImageClassification",
    fits=lambda config: config.positions in ("bias", "1d+bias"), prefix="beit.", square=True,
    spellings={
        **NEWER,
        rf"^(encoder\.layer\.\d+)\.{TABLE}": rf"\1.attention.attention.{TABLE}",
        r"^shared_position_bias": "encoder.relative_position_bias",
    },
    reads=read_beit, writes=write_beit,
    processor="Beit", prepared="@INCEPTION, interpolation bicubic, crop 0.875, fit crop",
)  # fmt: skip
IJEPA = derived(
    VIT, "", "ijepa IJepaModel IJepaForImageClassification", prefix="ijepa.",
    fits=lambda config: _plain(config, "mean") and not config.has_token,
    reads="pool mean",
    prepared="@IMAGENET, interpolation bilinear, crop 1.0, fit squash",
)  # fmt: skip
MAE = derived(
    VIT, "", "vit_mae ViTMAEModel", classified=False, reads="",
    prepared="@IMAGENET, interpolation bicubic, crop 1.0, fit squash",
)  # fmt: skip
DATA2VEC = derived(
    BEIT, "", "data2vec-vision Data2VecVisionModel Data2VecVisionForImageClassification",
    prefix="data2vec_vision.",
)  # fmt: skip
INTERN = derived(
    VIT,
    """
        qkv       .attention.q_proj .attention.k_proj .attention.v_proj
        project   .attention.projection_layer
        expand    .mlp.fc1
        contract  .mlp.fc2
        scale1    .lambda_1
        scale2    .lambda_2
    """,
    "internvl_vision InternVLVisionModel", classified=False,
    spellings={}, reads=read_intern,
    prepared="@IMAGENET, interpolation bicubic, crop 1.0, fit squash",
)  # fmt: skip
INTERN_OWN = derived(  # of its authors' own code (OpenGVLab/InternVL)
    INTERN,
    """
        patch      embeddings.patch_embedding
        token      embeddings.class_embedding
        positions  embeddings.position_embedding
        block      encoder.layers.{n}.
        norm1      .norm1
        norm2      .norm2
        qkv        .attn.qkv
        project    .attn.proj
        scale1     .ls1
        scale2     .ls2
    """,
    "intern_vit_6b InternVLVisionModel",
)  # fmt: skip
DPT = derived(
    VIT, "", "dpt DPTModel", classified=False, prefix="dpt.", spellings={},
    resampling="bilinear-unaligned",
    prepared="@INCEPTION, interpolation bicubic, crop 1.0, fit squash",
)  # fmt: skip
# The families of DINO: DINOv2, with registers, DINOv3, and TIPS v2.
DINOV2 = derived(
    VIT,
    """
        norm1     .norm1
        norm2     .norm2
        expand    .mlp.fc1
        contract  .mlp.fc2
        scale1    .layer_scale1.lambda1
        scale2    .layer_scale2.lambda1
    """,
    "dinov2 Dinov2Model Dinov2ForImageClassification",
    gated=table("""
        expand    .mlp.weights_in
        contract  .mlp.weights_out
    """),
    fits=lambda config: not config.registers and _pooled(config), prefix="dinov2.",
    any_size=True, square=True, spellings=ATTENTION,
    # its classifier sees class token and mean of the patches
    reads=lambda stated: {"pool": "both"} if stated.classifies else {},
    writes=write_dinov2,
    processor="Bit", prepared="@IMAGENET, interpolation bicubic, crop 0.875, fit crop",
)  # fmt: skip
REGISTERS = derived(
    DINOV2, "",
    "dinov2_with_registers Dinov2WithRegistersModel Dinov2WithRegistersForImageClassification",
    fits=_pooled, prefix="dinov2_with_registers.", resampling="antialiased",
)  # fmt: skip
DINOV3 = derived(
    DINOV2,
    """
        block     layer.{n}.
        patch     embeddings.patch_embeddings
        qkv       .attention.q_proj .attention.k_proj .attention.v_proj
        project   .attention.o_proj
        expand    .mlp.up_proj
        contract  .mlp.down_proj
        norm      norm
    """,
    "dinov3_vit DINOv3ViTModel",
    gated=table("""
        expand    .mlp.gate_proj .mlp.up_proj
        contract  .mlp.down_proj
    """),
    classified=False, fits=lambda config: config.positions == "rope", prefix="", square=False,
    spellings={r"^model\.layer\.": "layer."}, key_bias="key_bias",
    reads=read_dinov3,
    writes=lambda config: {"hidden_act": "silu"} if config.ffn == "swiglu" else {},
    processor="DINOv3ViT",
    prepared="@IMAGENET, interpolation bilinear, crop 1.0, fit squash",
)  # fmt: skip
TIPS = derived(
    REGISTERS,
    """
        block      blocks.{n}.
        patch      patch_embed.proj
        token      cls_token
        registers  register_tokens
        positions  pos_embed
        qkv        .attn.qkv
        project    .attn.proj
        expand     .mlp.c_fc
        contract   .mlp.c_proj
        scale1     .ls1.gamma
        scale2     .ls2.gamma
        norm       norm
    """,
    "tipsv2_vision_model Tipsv2VisionModel",
    gated=table("""
        expand    .mlp.w12
        contract  .mlp.w3
    """), classified=False,
    resampling="bilinear-antialiased", processor="Tipsv2",
    prepared="@UNCHANGED, interpolation bilinear, crop 1.0, fit squash",
)  # fmt: skip
# The image towers of models of images and texts: CLIP, SigLIP and their kin.
CLIP = derived(
    VIT,
    """
        block        encoder.layers.{n}.
        patch        embeddings.patch_embedding
        token        flat_token(embeddings.class_embedding)
        positions    flat_table(embeddings.position_embedding.weight)
        norm1        .layer_norm1
        norm2        .layer_norm2
        qkv          .self_attn.q_proj .self_attn.k_proj .self_attn.v_proj
        project      .self_attn.out_proj
        expand       .mlp.fc1
        contract     .mlp.fc2
        pre_norm     pre_layrnorm
        norm         post_layernorm
        head.weight  /visual_projection.weight | /classifier.weight
        head.bias    no_bias() | /classifier.bias
    """,
    "clip_vision_model CLIPVisionModel CLIPVisionModelWithProjection",
    fits=lambda config: config.pre_norm, prefix="vision_model.", square=True,
    spellings={  # of AltCLIP, and of OWL-ViT
        r"^encoder\.layer\.": "encoder.layers.",
        r"^pre_layernorm\.": "pre_layrnorm.",
    },
    reads=read_clip,
    writes=lambda config: {"projection_dim": config.classes or config.width}, processor="CLIP",
    prepared="@OPENAI, interpolation bicubic, crop 1.0, fit crop",
)  # fmt: skip
_POOL = """
    queries         head.probe
    pool_q.weight   joined(head.attention.in_proj_weight)
    pool_kv.weight  joined(head.attention.in_proj_weight)
    pool_q.bias     joined(head.attention.in_proj_bias)
    pool_kv.bias    joined(head.attention.in_proj_bias)
    pool_project    head.attention.out_proj
    pool_norm       head.layernorm
    pool_expand     head.mlp.fc1
    pool_contract   head.mlp.fc2
    head.weight     /classifier.weight
    head.bias       /classifier.bias
"""
SIGLIP = derived(
    CLIP, _POOL, "siglip_vision_model SiglipVisionModel",
    fits=lambda config: config.pool == "attention", prefix="", reads=read_siglip,
    writes=lambda config: {}, processor="Siglip",
    prepared="@INCEPTION, interpolation bicubic, crop 1.0, fit squash",
)  # fmt: skip
NAFLEX = derived(
    SIGLIP,
    """
        patch.weight  patches(embeddings.patch_embedding.weight)
        patch.bias    embeddings.patch_embedding.bias
    """,
    "siglip2_vision_model Siglip2VisionModel",
    resampling="bilinear-antialiased", reads=read_siglip, processor="Siglip2",
    prepared="@INCEPTION, interpolation bilinear, crop 1.0, fit native",
)  # fmt: skip
OF_CLIP = tuple(
    derived(CLIP, "", f"{name}_vision_model {kind}VisionModel {kind}VisionModelWithProjection")
    for name, kind in record("""
        metaclip_2 MetaClip2, chinese_clip ChineseCLIP, altclip AltCLIP, clipseg CLIPSeg, git Git,
        owlv2 Owlv2, owlvit OwlViT
    """).items()
)
BLIP = tuple(  # whose text models see all tokens after the last norm
    derived(
        CLIP,
        """
            token      embeddings.class_embedding
            positions  embeddings.position_embedding
            qkv        .self_attn.qkv
            project    .self_attn.projection
        """,
        f"{name}_vision_model {kind}VisionModel", classified=False, reads="",
        prepared="@OPENAI, interpolation bicubic, crop 1.0, fit squash",
    )
    for name, kind in record("blip Blip, blip_2 Blip2, instructblip InstructBlip").items()
)  # fmt: skip
IDEFICS = tuple(
    derived(
        SIGLIP, "", f"{name}_vision {kind}VisionTransformer",
        reads="pool mean", resampling="nearest",
    )
    for name, kind in record("idefics2 Idefics2, idefics3 Idefics3, smolvlm SmolVLM").items()
)  # fmt: skip
AIMV2 = derived(
    SIGLIP,
    """
        patch       embeddings.patch_embed
        patch_norm  embeddings.rms_norm
        norm1       .rms_norm1
        norm2       .rms_norm2
        qkv         .attention.q_proj .attention.k_proj .attention.v_proj
        project     .attention.out_proj
        expand      .ffn.gate_proj .ffn.up_proj
        contract    .ffn.down_proj
        norm        rms_norm
    """,
    "aimv2_vision_model Aimv2VisionModel", reads=read_aimv2, processor="CLIP",
    prepared="@OPENAI, interpolation bicubic, crop 1.0, fit crop",
)  # fmt: skip
AIMV2_OWN = derived(  # of its authors' own code (apple/ml-aim), which the Hub's files follow
    AIMV2,
    AIMV2_NAMES,
    "aimv2_vision_model Aimv2VisionModel",
)  # fmt: skip

# Models are written as the first of these that fits them.
WRITTEN = (BEIT, DINOV3, CLIP, SIGLIP, DEIT, VIT, MSN, IJEPA, DINOV2, REGISTERS)
READ_ONLY = (
    AST, MAE, DATA2VEC, TIPS, NAFLEX, AIMV2, *OF_CLIP, *BLIP, *IDEFICS, INTERN, DPT,
)  # fmt: skip
FAMILIES: dict[str, Family] = {family.model_type: family for family in (*WRITTEN, *READ_ONLY)}
# By a model_type that only their authors' own code has, not transformers.
OF_AUTHORS: dict[str, Family] = {"aimv2": AIMV2_OWN, "intern_vit_6b": INTERN_OWN}
