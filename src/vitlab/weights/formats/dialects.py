"""Dialects: other names for the tensors of a Vision Transformer, and facts of their models.

To add a dialect, give it a table of names and an entry in `DIALECTS`.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from os.path import commonprefix

from vitlab.errors import WeightsError
from vitlab.models.configs.vit_config import ViTConfig
from vitlab.weights.containers.parts import some
from vitlab.weights.formats.entries import Names, table
from vitlab.weights.formats.names import OURS, STEMS, FoundParts, found, placed
from vitlab.weights.formats.records import rules
from vitlab.weights.source import Shape, StoredTensors


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """One code base's names for the tensors, and facts of all its models.

    Attributes:
        name: in words
        roots: names that the map of patches may have
        marks: names that must be beside it
        names: the table; names outside of the model's prefix begin with a slash
        spellings: patterns in names, and what the table has in their place
        facts: record of fields that every model has
        usual: record of fields that most models have
        sizes: every model of a usual width has the usual heads
        beyond: patterns of names of parts that cannot be represented, each with the reason
    """

    name: str
    roots: str
    marks: str = ""
    names: Names
    spellings: dict[str, str] = field(default_factory=dict)
    facts: str = ""
    usual: str = ""
    sizes: bool = False
    beyond: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Layout(FoundParts):
    """The parts of a model in a file with the names of a dialect."""

    dialect: Dialect


# timm's own, and of most of the papers' code. Source: timm's vision_transformer.py,
# vision_transformer_hybrid.py, deit.py, beit.py and eva.py; the checkpoints of
# facebookresearch (deit, mae, dino, dinov2, dinov3, RoPE-ViT) and microsoft/unilm (beit).
# The first of several is timm's own; the others are those of the papers' code.
TIMM = table("""
    block           blocks.{n}.
    patch           patch_embed.proj
    patch_norm      patch_embed.norm
    stem            patch_embed.proj.{k}
    root_conv       patch_embed.backbone.stem.conv | patch_embed.backbone.conv
    root_norm       patch_embed.backbone.stem.norm | patch_embed.backbone.norm
    reduce_conv     patch_embed.backbone.stages.{s}.blocks.{u}.conv1
    reduce_norm     patch_embed.backbone.stages.{s}.blocks.{u}.norm1
    middle_conv     patch_embed.backbone.stages.{s}.blocks.{u}.conv2
    middle_norm     patch_embed.backbone.stages.{s}.blocks.{u}.norm2
    expand_conv     patch_embed.backbone.stages.{s}.blocks.{u}.conv3
    expand_norm     patch_embed.backbone.stages.{s}.blocks.{u}.norm3
    shortcut_conv   patch_embed.backbone.stages.{s}.blocks.{u}.downsample.conv
    shortcut_norm   patch_embed.backbone.stages.{s}.blocks.{u}.downsample.norm
    token           cls_token
    positions       pos_embed
    pre_norm        norm_pre
    registers       reg_token | dist_token | register_tokens | storage_tokens
    norm1           .norm1
    scale1          .ls1.gamma | .gamma_1
    qkv             .attn.qkv | .attn.q_proj .attn.k_proj .attn.v_proj
    qkv.bias        .attn.qkv.bias | .attn.q_proj.bias .attn.k_proj.bias .attn.v_proj.bias
                    | keyless(.attn.q_bias .attn.v_bias)
                    | keyless(.attn.q_proj.bias .attn.v_proj.bias)
                    | masked(.attn.qkv.bias .attn.qkv.bias_mask)
    q_norm          .attn.q_norm
    k_norm          .attn.k_norm
    attn_norm       .attn.norm | .attn.inner_attn_ln
    project         .attn.proj
    norm2           .norm2
    scale2          .ls2.gamma | .gamma_2
    expand          .mlp.fc1 | .mlp.fc1_g .mlp.fc1_x | .mlp.w12 | .mlp.w1 .mlp.w2
    mlp_norm        .mlp.norm | .mlp.ffn_ln
    contract        .mlp.fc2 | .mlp.w3
    bias_table      .attn.relative_position_bias_table
    shared_table    rel_pos_bias.relative_position_bias_table
    norm            norm
    pooled_norm     fc_norm
    pre_logits      pre_logits.fc
    queries         attn_pool.latent
    pool_q          attn_pool.q
    pool_kv         attn_pool.kv
    pool_q.weight   attn_pool.q.weight | joined(attn_pool.qkv.weight)
    pool_q.bias     attn_pool.q.bias | joined(attn_pool.qkv.bias)
    pool_kv.weight  attn_pool.kv.weight | joined(attn_pool.qkv.weight)
    pool_kv.bias    attn_pool.kv.bias | joined(attn_pool.qkv.bias)
    pool_project    attn_pool.proj
    pool_norm       attn_pool.norm
    pool_expand     attn_pool.mlp.fc1
    pool_contract   attn_pool.mlp.fc2
    head            head
    heads.weight    halves(head.weight head_dist.weight)
    heads.bias      halves(head.bias head_dist.bias)
""")
# Of two parallel branches; DeiT's own code numbers them by another digit.
BRANCHED = TIMM | table("""
    norm1     .attns.{b}.norm
    scale1    .attns.{b}.ls.gamma
    qkv       .attns.{b}.attn.qkv
    qkv.bias  .attns.{b}.attn.qkv.bias
    q_norm    .attns.{b}.attn.q_norm
    k_norm    .attns.{b}.attn.k_norm
    project   .attns.{b}.attn.proj
    norm2     .ffns.{b}.norm
    scale2    .ffns.{b}.ls.gamma
    expand    .ffns.{b}.mlp.fc1
    contract  .ffns.{b}.mlp.fc2
""")
ROOTS = "patch_embed.proj.weight patch_embed.proj.0.weight"
# DINOv2's chunks of blocks, and DeiT's own names of two parallel branches.
CHUNKS = rules(r"^blocks\.\d+\.(\d+)\.(?=norm|attn|mlp|ls) blocks.\1.")
PARALLEL = rules(r"""
    ^(blocks\.\d+)\.norm11(?=\.|$)     \1.attns.1.norm
    ^(blocks\.\d+)\.norm1(?=\.|$)      \1.attns.0.norm
    ^(blocks\.\d+)\.norm21(?=\.|$)     \1.ffns.1.norm
    ^(blocks\.\d+)\.norm2(?=\.|$)      \1.ffns.0.norm
    ^(blocks\.\d+)\.attn1(?=\.|$)      \1.attns.1.attn
    ^(blocks\.\d+)\.attn(?=\.|$)       \1.attns.0.attn
    ^(blocks\.\d+)\.mlp1(?=\.|$)       \1.ffns.1.mlp
    ^(blocks\.\d+)\.mlp(?=\.|$)        \1.ffns.0.mlp
    ^(blocks\.\d+)\.gamma_1_1(?=\.|$)  \1.attns.1.ls.gamma
    ^(blocks\.\d+)\.gamma_1(?=\.|$)    \1.attns.0.ls.gamma
    ^(blocks\.\d+)\.gamma_2_1(?=\.|$)  \1.ffns.1.ls.gamma
    ^(blocks\.\d+)\.gamma_2(?=\.|$)    \1.ffns.0.ls.gamma
""")
# Sources: torchvision's vision_transformer.py; transformer.py of open_clip and model.py of OpenAI's
# CLIP; pe.py of facebookresearch/perception_models; vit_pytorch/vit.py; mmpretrain's
# vision_transformer.py.
TORCHVISION = table("""
    block       encoder.layers.encoder_layer_{n}.
    patch       conv_proj
    token       class_token
    positions   encoder.pos_embedding
    norm        encoder.ln
    norm1       .ln_1
    norm2       .ln_2
    qkv.weight  .self_attention.in_proj_weight
    qkv.bias    .self_attention.in_proj_bias
    project     .self_attention.out_proj
    expand      .mlp.0 | .mlp.linear_1
    contract    .mlp.3 | .mlp.linear_2
    pre_logits  heads.pre_logits
    head        heads.head
""")
OPEN_CLIP = table("""
    block        transformer.resblocks.{n}.
    patch        conv1
    token        flat_token(class_embedding)
    positions    flat_table(positional_embedding)
    pre_norm     ln_pre
    norm         ln_post
    norm1        .ln_1
    scale1       .ls_1.gamma
    qkv.weight   .attn.in_proj_weight
    qkv.bias     .attn.in_proj_bias
    project      .attn.out_proj
    norm2        .ln_2
    scale2       .ls_2.gamma
    expand       .mlp.c_fc
    contract     .mlp.c_proj
    head.weight  transposed(proj)
    head.bias    no_bias()
""")
PERCEPTION = OPEN_CLIP | table("""
    queries         attn_pool.probe
    pool_norm       attn_pool.layernorm
    pool_q.weight   joined(attn_pool.attn.in_proj_weight)
    pool_kv.weight  joined(attn_pool.attn.in_proj_weight)
    pool_q.bias     joined(attn_pool.attn.in_proj_bias)
    pool_kv.bias    joined(attn_pool.attn.in_proj_bias)
    pool_project    attn_pool.attn.out_proj
    pool_expand     attn_pool.mlp.c_fc
    pool_contract   attn_pool.mlp.c_proj
""")
HEADLESS = {k: v for k, v in PERCEPTION.items() if not k.startswith("head")}
AIMV2_NAMES = """
    block       trunk.blocks.{n}.
    patch       preprocessor.patchifier.proj
    patch_norm  preprocessor.patchifier.norm
    positions   preprocessor.pos_embed
    norm        trunk.post_trunk_norm
    norm1       .norm_1
    qkv         .attn.qkv
    project     .attn.proj
    norm2       .norm_2
    expand      .mlp.fc1 .mlp.fc3
    contract    .mlp.fc2
"""
AIMV2 = table(AIMV2_NAMES + "head head")
LUCIDRAINS = table("""
    block         transformer.layers.{n}.
    patch.weight  patches(to_patch_embedding.1.weight)
    patch.bias    to_patch_embedding.1.bias
    token         cls_token
    positions     pos_embedding
    norm          transformer.norm
    norm1         .0.norm
    qkv           .0.to_qkv | .0.fn.to_qkv
    project       .0.to_out.0 | .0.to_out | .0.fn.to_out.0 | .0.fn.to_out
    norm2         .1.norm | .1.net.0
    expand        .1.fn.net.0 | .1.net.1
    contract      .1.fn.net.3 | .1.net.4
    pooled_norm   mlp_head.0
    head          mlp_head.1 | mlp_head
""")
MMPRETRAIN = table("""
    block       layers.{n}.
    patch       patch_embed.projection
    token       cls_token
    positions   pos_embed
    norm        ln1
    norm1       .ln1
    scale1      .attn.gamma1.weight
    qkv         .attn.qkv
    project     .attn.proj
    norm2       .ln2
    expand      .ffn.layers.0.0
    scale2      .ffn.gamma2.weight
    contract    .ffn.layers.1
    pre_logits  /head.layers.pre_logits
    head        /head.layers.head | /head.fc
""")
NAFLEX = TIMM | table("""
    patch.weight  patches(embeds.proj.weight)
    patch.bias    embeds.proj.bias
    token         embeds.cls_token
    registers     embeds.reg_token
    positions     gridded(embeds.pos_embed)
""")
# transforms.py and pe.py of facebookresearch/perception_models.
PERCEIVED = """
    stem_bias false, interpolation bilinear, fit squash, crop 1.0, @INCEPTION,
    resampling bilinear-unaligned
"""
# The most particular first.
DIALECTS = (
    Dialect(
        name="DeiT's names of parallel branches", roots=ROOTS, marks="blocks.0.norm11.weight",
        names=BRANCHED, spellings=PARALLEL,
    ),
    Dialect(
        name="timm's names", roots=ROOTS, marks="blocks.0.attns.0.norm.weight", names=BRANCHED
    ),
    Dialect(
        name="timm's names", roots=ROOTS, spellings=CHUNKS,
        names=TIMM | table("head head | /linear_head"),  # DINOv2's
    ),
    *(
        Dialect(
            name="ViTLab's names", roots="stem.layers.0.weight",
            marks=f"blocks.0.attention.0.body.qkv.weight {more}",
            names=OURS | STEMS[stem] | table("positions positions.0.table"),
            usual="""
                @HALF, interpolation bilinear, crop 1.0, resampling bilinear, fit crop
            """,  # of ours without a config.json
        )
        for stem, more in (
            ("hmlp", "stem.layers.3.weight"), ("hmlp", "stem.layers.2.weight"), ("linear", ""),
        )
    ),
    Dialect(
        name="torchvision's names", roots="conv_proj.weight", marks="encoder.pos_embedding",
        names=TORCHVISION, facts="@PLAIN, @IMAGENET, pool token",
        usual="interpolation bilinear, crop 0.875", sizes=True,
    ),
    Dialect(
        name="Perception Encoder's names", roots="conv1.weight", marks="attn_pool.probe",
        names=PERCEPTION, facts=PERCEIVED, sizes=True,
    ),
    Dialect(
        name="open_clip's names", roots="conv1.weight", marks="class_embedding ln_post.weight",
        names=OPEN_CLIP, usual="@OPENAI", sizes=True,
        facts="norm_eps 1e-5, pool token, interpolation bicubic, crop 1.0, stem_bias false",
        beyond={r"attn_pool\..*": "a pool with queries of its own, as in CoCa"},
    ),
    Dialect(  # without a pool and a last norm: lang, spatial
        name="Perception Encoder's names", roots="conv1.weight", marks="ln_pre.weight",
        names=HEADLESS, facts=PERCEIVED, sizes=True,
    ),
    Dialect(
        name="AIMv2's names", roots="preprocessor.patchifier.proj.weight", names=AIMV2,
        facts="interpolation bicubic, crop 1.0, pool mean, @OPENAI", sizes=True,
    ),
    Dialect(
        name="vit-pytorch's names", roots="to_patch_embedding.1.weight",
        marks="pos_embedding cls_token", names=LUCIDRAINS, facts="norm_eps 1e-5, gelu exact",
        usual="pool token",
    ),
    Dialect(
        name="NaFlexVit's names, SigLIP 2's", roots="embeds.proj.weight",
        marks="embeds.pos_embed attn_pool.latent", names=NAFLEX, sizes=True,
        facts="""
            gelu tanh, norm_eps 1e-6, resampling bilinear-antialiased, @INCEPTION, fit native,
            tokens 256, interpolation bilinear, crop 1.0
        """,
    ),
    Dialect(
        name="NaFlexVit's names", roots="embeds.proj.weight", names=NAFLEX,
        beyond={r"embeds\..*": "positions, and no tensor shows how they are resized"},
    ),
    Dialect(
        name="mmpretrain's names", roots="patch_embed.projection.weight",
        marks="layers.0.ln1.weight", names=MMPRETRAIN, facts="@PLAIN", sizes=True,
    ),
)  # fmt: skip


def layout_of(source: StoredTensors) -> Layout | None:
    """Find the dialect of a file; None if it has none of them.

    Raises:
        WeightsError: two tensors have the same meaning, or one that cannot be represented.
    """
    for dialect in DIALECTS:
        for prefix in prefixes_of(source, dialect.roots.split()):
            if all(f"{prefix}{mark}" in source.shapes for mark in dialect.marks.split()):
                return _layout(source, dialect, prefix)
    return None


def prefixes_of(source: StoredTensors, roots: Collection[str]) -> list[str]:
    """Return what stands in front of names that end with one of some roots, the shortest first."""
    prefixes = {
        name.removesuffix(root)
        for name in source.shapes
        for root in roots
        if name == root or name.endswith(f".{root}")
    }
    return sorted(prefixes, key=lambda prefix: (len(prefix), prefix))


def _layout(source: StoredTensors, dialect: Dialect, prefix: str) -> Layout:
    inside = [name.removeprefix(prefix) for name in source.shapes if name.startswith(prefix)]
    for name in inside:
        for pattern, why in dialect.beyond.items():
            if re.fullmatch(pattern, name):
                raise WeightsError(
                    f"{source.path}: unsupported model with {dialect.name}: it has {why} ({name})"
                )
    stored = {new: prefix + old for new, old in respelled(inside, dialect.spellings).items()}
    if prefix:
        stored |= {f"/{name}": name for name in source.shapes if not name.startswith(prefix)}
    if source.shapes.get(stored.get("cls_token", ""), (1, 1, 1))[1] == 0:
        del stored["cls_token"]  # vit-pytorch's, of models that need none
    parts = found(source.shapes, dialect.names, stored, prefix)
    headless = "head" in dialect.names and "head.weight" not in parts
    width = parts.shape("contract.weight")[:1]
    if headless and (layer := classifier_beside(source, prefix, width)):
        bias = "" if f"{layer}.bias" in source.shapes else "head.bias no_bias()"
        names = {**dialect.names, **table(f"head /{layer}\n{bias}")}
        parts = found(source.shapes, names, stored, prefix)
    return Layout(dialect=dialect, **vars(parts))


def respelled(names: list[str], spellings: dict[str, str]) -> dict[str, str]:
    """Return the original names by what they are with other spellings.

    Raises:
        WeightsError: two of them have the same meaning.
    """
    renamed: dict[str, str] = {}
    for old in names:
        new = old
        for pattern, word in spellings.items():
            new = re.sub(pattern, word, new)
        if new in renamed:
            raise WeightsError(f"tensors {renamed[new]} and {old} have the same meaning")
        renamed[new] = old
    heads = {name for name in renamed if re.fullmatch(r"head\.\d+\.(weight|bias)", name)}
    if len(heads) == 2 and len({name.rsplit(".", 1)[0] for name in heads}) == 1:
        for name in heads:  # a dropout, then the classifier
            renamed["head." + name.rsplit(".", 1)[1]] = renamed.pop(name)
    return renamed


def names_for(config: ViTConfig) -> Names:
    """Return the names under which timm stores a model."""
    biased, turned = "bias" in config.positions, "rope" in config.positions
    names = BRANCHED if config.branches > 1 else TIMM
    if biased or turned:  # beit.py and eva.py
        names = names | table("scale1 .gamma_1\nscale2 .gamma_2")
        names |= table("expand .mlp.fc1_g .mlp.fc1_x" if config.ffn == "swiglu" else "")
    if biased:
        names = names | table("qkv.bias keyless(.attn.q_bias .attn.v_bias)")
    if config.stem == "resnet" and not config.stages:
        backbone = "patch_embed.backbone"
        names = names | table(f"root_conv {backbone}.conv\nroot_norm {backbone}.norm")
    if config.pool == "prefix":
        names = names | table("registers dist_token")
    return placed(names, True, config.registers > 0) if "1d" in config.positions else names


# What a single linear classifier is called.
CLASSIFIERS = re.compile(
    r"(head|fc|classifier|linear|cls_head|classify|logits|cls|head\.fc|classifier\.0|head\.proj)"
)
# What may be one, or a part of one.
HEADS = re.compile(r"(.*\.)?\w*(head|fc|classif|linear|logits)\w*(\..*)?")


def classifier_beside(source: StoredTensors, prefix: str, width: Shape) -> str:
    """Return the name of the one linear layer that classifies a backbone's features, or "".

    Args:
        source: of the tensors
        prefix: of the backbone's names, `backbone.`
        width: of the features: (width,)

    Returns:
        `fc` if `fc.weight` is (classes, width), it has a bias, and no other layer is such a one;
        `head.proj`, open_clip's projection of a tower of timm, may have none.
    """
    layers = []
    for name, shape in source.shapes.items():
        layer, _, part = name.rpartition(".")
        above = commonprefix([name, prefix])  # noqa: RUF071 - of modules, below
        above = above[: above.rfind(".") + 1]
        if name.startswith(prefix) or part != "weight" or not prefix:
            continue
        bias = source.shapes.get(f"{layer}.bias")
        biased = bias == shape[:1] or (bias is None and layer.endswith("head.proj"))
        linear = len(shape) == 2 and shape[1:] == width and biased
        if linear and CLASSIFIERS.fullmatch(layer.removeprefix(above)):
            layers.append(layer)
    return layers[0] if len(layers) == 1 else ""


def notes_beside(source: StoredTensors, prefix: str, taken: Collection[str]) -> tuple[str, ...]:
    """Return a line about each classifier beside a backbone: that it was taken, or was left out.

    Args:
        source: of the tensors
        prefix: of the backbone's names
        taken: names of the model's tensors
    """
    if not prefix:
        return ()
    beside = [name for name in source.shapes if not name.startswith(prefix)]
    heads = {name: source.in_file(name) for name in beside if HEADS.fullmatch(name)}
    read = [shown for name, shown in heads.items() if name in taken]
    left = [shown for name, shown in heads.items() if name not in taken]
    place = source.in_file(prefix).rstrip(".")
    lines = []
    if read:
        lines.append(f"{', '.join(read)} beside {place} are read as the model's classifier")
    if left:
        lines.append(f"left out, outside {place}: {some(left)}")
    return tuple(f"{source.path}: {line}" for line in lines)
