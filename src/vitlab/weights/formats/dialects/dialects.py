"""Other people's names for the tensors of a Vision Transformer: each a table from theirs to timm's.

To add a dialect, give it an entry in `DIALECTS`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitlab.errors import WeightsError
from vitlab.images import IMAGENET, INCEPTION, OPENAI
from vitlab.weights.formats.outside import classifier_beside
from vitlab.weights.formats.timm.arguments import NAME
from vitlab.weights.source import Shape, Source

Rules = tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """What somebody's code calls the tensors, and what holds for all models of that code.

    Attributes:
        name: in words
        roots: names that the map of patches may have
        marks: names that must be beside it
        rules: patterns in names, and timm's words for them, applied in turn
        words: of `Names` that differ from timm's
        facts: fields that every model has
        usual: fields that most models have
        sizes: every model of a usual width has the usual heads
        beyond: patterns of names of parts that cannot be represented, each with the reason
        outside: patterns of names in front of the prefix, and timm's names for them
    """

    name: str
    roots: tuple[str, ...]
    marks: tuple[str, ...] = ()
    rules: Rules
    words: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    usual: Mapping[str, Any] = field(default_factory=dict)
    sizes: bool = False
    beyond: Mapping[str, str] = field(default_factory=dict)
    outside: Rules = ()


@dataclass(frozen=True)
class Layout:
    """A file's tensors by timm's names.

    Attributes:
        dialect: that they have
        prefix: in front of the names of the model
        shapes: of those tensors, by timm's names
        stored: the file's whole names by timm's
        theirs: shapes by the file's names without the prefix
        beside: a classifier in front of the prefix is the dialect's own
    """

    dialect: Dialect
    prefix: str
    shapes: dict[str, Shape]
    stored: dict[str, str]
    theirs: dict[str, Shape]
    beside: bool = False


ROOTS = ("patch_embed.proj.weight", "patch_embed.proj.0.weight")
# timm's, and the papers' own files (DeiT, MAE, DINO, BEiT, MoCo-v3, iBOT, I-JEPA, TIPS, …).
OWN: Rules = (
    (r"^blocks\.\d+\.(\d+)\.(?=norm|attn|mlp|ls)", r"blocks.\1."),  # DINOv2's chunks
    (r"^(register_tokens|storage_tokens)$", "reg_token"),
    (r"\.mlp\.w12\.", ".mlp.fc1."),
    (r"\.mlp\.w1\.", ".mlp.fc1_g."),
    (r"\.mlp\.w2\.", ".mlp.fc1_x."),
    (r"\.mlp\.w3\.", ".mlp.fc2."),
    (r"\.mlp\.ffn_ln\.", ".mlp.norm."),  # EVA-02's own
    (r"\.attn\.inner_attn_ln\.", ".attn.norm."),
    (r"\.gamma_1$", ".ls1.gamma"),
    (r"\.gamma_2$", ".ls2.gamma"),
)
# Two parallel branches in DeiT's own code (norm11, attn1, gamma_1_1, …).
PARALLEL: Rules = tuple(
    (rf"^(blocks\.\d+)\.{theirs}(?=\.|$)", rf"\1.{ours}")
    for theirs, ours in (
        ("norm11", "attns.1.norm"), ("norm1", "attns.0.norm"),
        ("norm21", "ffns.1.norm"), ("norm2", "ffns.0.norm"),
        ("attn1", "attns.1.attn"), ("attn", "attns.0.attn"),
        ("mlp1", "ffns.1.mlp"), ("mlp", "ffns.0.mlp"),
        ("gamma_1_1", "attns.1.ls.gamma"), ("gamma_1", "attns.0.ls.gamma"),
        ("gamma_2_1", "ffns.1.ls.gamma"), ("gamma_2", "ffns.0.ls.gamma"),
    )
)  # fmt: skip
# PyTorch's attention module: queries, keys and values in one tensor.
IN_PROJ: Rules = (
    (r"attn\.in_proj_(weight|bias)$", r"attn.qkv.\1"), (r"attn\.out_proj\.", "attn.proj."),
)  # fmt: skip
TORCHVISION: Rules = (
    (r"^conv_proj\.", "patch_embed.proj."), (r"^class_token$", "cls_token"),
    (r"^encoder\.pos_embedding$", "pos_embed"), (r"^encoder\.ln\.", "norm."),
    (r"^encoder\.layers\.encoder_layer_", "blocks."), (r"\.self_attention\.", ".attn."),
    (r"\.ln_([12])\.", r".norm\1."), (r"\.mlp\.(0|linear_1)\.", ".mlp.fc1."),
    (r"\.mlp\.(3|linear_2)\.", ".mlp.fc2."), (r"^heads\.head\.", "head."),
    (r"^heads\.pre_logits\.", "pre_logits.fc."), *IN_PROJ,
)  # fmt: skip
OPEN_CLIP: Rules = (
    (r"^conv1\.", "patch_embed.proj."), (r"^class_embedding$", "cls_token"),
    (r"^positional_embedding$", "pos_embed"), (r"^ln_pre\.", "norm_pre."), (r"^ln_post\.", "norm."),
    (r"^transformer\.resblocks\.", "blocks."), (r"\.ln_([12])\.", r".norm\1."),
    (r"\.ls_([12])\.", r".ls\1."), (r"\.mlp\.c_fc\.", ".mlp.fc1."),
    (r"\.mlp\.c_proj\.", ".mlp.fc2."), *IN_PROJ,
)  # fmt: skip
PERCEPTION: Rules = (
    *OPEN_CLIP, (r"^attn_pool\.probe$", "attn_pool.latent"),
    (r"^attn_pool\.layernorm\.", "attn_pool.norm."), (r"^attn_pool\.attn\.", "attn_pool."),
)  # fmt: skip
AIMV2: Rules = (
    (r"^preprocessor\.patchifier\.", "patch_embed."), (r"^preprocessor\.pos_embed$", "pos_embed"),
    (r"^trunk\.blocks\.", "blocks."), (r"^trunk\.post_trunk_norm\.", "norm."),
    (r"\.norm_([12])\.", r".norm\1."), (r"\.mlp\.fc1\.", ".mlp.fc1_g."),
    (r"\.mlp\.fc3\.", ".mlp.fc1_x."),
)  # fmt: skip
CAPI: Rules = (
    (r"^patch_embed\.", "patch_embed.proj."), (r"^registers$", "reg_token"),
    (r"^encoder\.blocks\.", "blocks."), (r"\.residual([12])\.norm\.", r".norm\1."),
    (r"\.residual1\.fn\.rope\.", ".rope."), (r"\.residual1\.fn\.", ".attn."),
    (r"\.residual2\.fn\.", ".mlp."),
)  # fmt: skip
LUCIDRAINS: Rules = (
    (r"^to_patch_embedding\.1\.", "patch_embed.proj."), (r"^pos_embedding$", "pos_embed"),
    (r"^transformer\.norm\.", "norm."), (r"^transformer\.layers\.", "blocks."),
    (r"^(blocks\.\d+)\.0\.norm\.", r"\1.norm1."), (r"^(blocks\.\d+)\.1\.norm\.", r"\1.norm2."),
    (r"^(blocks\.\d+)\.0\.(fn\.)?to_qkv\.", r"\1.attn.qkv."),
    (r"^(blocks\.\d+)\.0\.(fn\.)?to_out(\.0)?\.", r"\1.attn.proj."),
    (r"^(blocks\.\d+)\.1\.fn\.net\.0\.", r"\1.mlp.fc1."),
    (r"^(blocks\.\d+)\.1\.fn\.net\.3\.", r"\1.mlp.fc2."),
    (r"^(blocks\.\d+)\.1\.net\.0\.", r"\1.norm2."),
    (r"^(blocks\.\d+)\.1\.net\.1\.", r"\1.mlp.fc1."),
    (r"^(blocks\.\d+)\.1\.net\.4\.", r"\1.mlp.fc2."),
    (r"^mlp_head\.0\.", "fc_norm."), (r"^mlp_head\.1\.", "head."), (r"^mlp_head\.(?=w|b)", "head."),
)  # fmt: skip
MMPRETRAIN: Rules = (
    (r"^patch_embed\.projection\.", "patch_embed.proj."), (r"^layers\.", "blocks."),
    (r"^ln1\.", "norm."), (r"\.ln([12])\.", r".norm\1."),
    (r"\.ffn\.layers\.0\.0\.", ".mlp.fc1."), (r"\.ffn\.layers\.1\.", ".mlp.fc2."),
    (r"\.attn\.gamma1\.weight$", ".ls1.gamma"), (r"\.ffn\.gamma2\.weight$", ".ls2.gamma"),
)  # fmt: skip
# Our own, of a state dict without its config.json; branches as timm names several.
VITLAB: Rules = (
    (r"^token$", "cls_token"), (r"^registers$", "reg_token"),
    (r"^positions\.0\.table$", "pos_embed"), (r"^pre_norm\.", "norm_pre."),
    (r"\.attention\.(\d+)\.(?!body)", r".attns.\1."), (r"\.mlp\.(\d+)\.(?!body)", r".ffns.\1."),
    (r"\.attention\.(\d+)\.body\.", r".attns.\1.attn."),
    (r"\.mlp\.(\d+)\.body\.", r".ffns.\1.mlp."),
    (r"\.scale$", ".ls.gamma"), (r"\.norms\.([qk])\.", r".\1_norm."),
    (r"^head\.attend\.queries$", "attn_pool.latent"), (r"^head\.attend\.", "attn_pool."),
    (r"\.project\.", ".proj."), (r"\.expand\.", ".fc1."), (r"\.contract\.", ".fc2."),
    (r"^head\.norm\.", "fc_norm."), (r"^head\.classify\.", "head."),
    (r"^head\.pre_logits\.", "pre_logits.fc."),
)  # fmt: skip
LINEAR: Rules = (
    (r"^stem\.layers\.0\.", "patch_embed.proj."), (r"^stem\.layers\.1\.", "patch_embed.norm."),
)  # fmt: skip
HMLP: Rules = ((r"^stem\.layers\.", "patch_embed.proj."),)
NAFLEX: Rules = ((r"^embeds\.proj\.", "patch_embed.proj."), (r"^embeds\.", ""))
GRIDDED = {"channels_last": True, "gridded": True}
PLAIN = {"gelu": "exact", "norm_eps": 1e-6}
# transforms.py and pe.py of facebookresearch/perception_models.
PERCEIVED = {
    "stem_bias": False, "interpolation": "bilinear", "fit": "squash", "crop": 1.0, **INCEPTION,
    "resampling": "bilinear-unaligned",
}  # fmt: skip
# The most particular first. Sources: torchvision's vision_transformer.py; transformer.py of
# open_clip and model.py of OpenAI's CLIP; vit_pytorch/vit.py; mmpretrain's vision_transformer.py.
DIALECTS = (
    Dialect(
        name="DeiT's names of parallel branches",
        roots=ROOTS, marks=("blocks.0.norm11.weight",), rules=PARALLEL,
    ),
    Dialect(
        name=f"{NAME}'s names", roots=ROOTS, rules=OWN,
        outside=((r"linear_head\.(weight|bias)", r"head.\1"),),  # DINOv2's
    ),
    *(
        Dialect(
            name="ViTLab's names", roots=("stem.layers.0.weight",), rules=(*stem, *VITLAB),
            marks=("blocks.0.attention.0.body.qkv.weight", *more),
            usual={"mean": (0.5,), "std": (0.5,), "interpolation": "bilinear", "crop": 1.0,
                   "resampling": "bilinear", "fit": "crop"},
        )
        for stem, more in (
            (HMLP, ("stem.layers.3.weight",)), (HMLP, ("stem.layers.2.weight",)), (LINEAR, ()),
        )
    ),
    Dialect(
        name="torchvision's names", roots=("conv_proj.weight",),
        marks=("encoder.pos_embedding",), rules=TORCHVISION,
        facts={**PLAIN, **IMAGENET, "pool": "token"},
        usual={"interpolation": "bilinear", "crop": 0.875},
        words={"pre_logits": "pre_logits.fc"}, sizes=True,
    ),
    Dialect(
        name="Perception Encoder's names", roots=("conv1.weight",), marks=("attn_pool.probe",),
        rules=PERCEPTION, facts=PERCEIVED, sizes=True, words={"flat": True, "projection": "proj"},
    ),
    Dialect(
        name="open_clip's names", roots=("conv1.weight",),
        marks=("class_embedding", "ln_post.weight"), rules=OPEN_CLIP,
        facts={
            "norm_eps": 1e-5, "pool": "token", "interpolation": "bicubic", "crop": 1.0,
            "stem_bias": False,
        },
        usual=OPENAI, sizes=True, words={"flat": True, "projection": "proj"},
        beyond={r"attn_pool\..*": "a pool with queries of its own, as in CoCa"},
    ),
    Dialect(  # without a pool and a last norm: lang, spatial
        name="Perception Encoder's names", roots=("conv1.weight",), marks=("ln_pre.weight",),
        rules=PERCEPTION, facts=PERCEIVED, sizes=True, words={"flat": True},
    ),
    Dialect(
        name="AIMv2's names", roots=("preprocessor.patchifier.proj.weight",), rules=AIMV2,
        facts={"interpolation": "bicubic", "crop": 1.0, "pool": "mean", **OPENAI}, sizes=True,
    ),
    Dialect(
        name="CAPI's names", roots=("patch_embed.weight",), rules=CAPI, words={"norm": ""},
        marks=("encoder.blocks.0.residual1.fn.rope.freqs",), sizes=True,
        facts={"positions": "rope", "rope_kind": "free", "norm_at": "tokens", "norm_eps": 1e-5,
               "gelu": "exact", **IMAGENET},
    ),
    Dialect(
        name="vit-pytorch's names", roots=("to_patch_embedding.1.weight",),
        marks=("pos_embedding", "cls_token"), rules=LUCIDRAINS,
        facts={"norm_eps": 1e-5, "gelu": "exact"}, usual={"pool": "token"},
        words={"channels_last": True},
        beyond={r"to_patch_embedding\.[23]\..*": "norms of the pixels of each patch"},
    ),
    Dialect(
        name="NaFlexVit's names, SigLIP 2's", roots=("embeds.proj.weight",), rules=NAFLEX,
        marks=("embeds.pos_embed", "attn_pool.latent"), sizes=True, words=GRIDDED,
        facts={"gelu": "tanh", "norm_eps": 1e-6, "resampling": "bilinear-antialiased", **INCEPTION,
               "fit": "native", "tokens": 256, "interpolation": "bilinear", "crop": 1.0},
    ),
    Dialect(
        name="NaFlexVit's names", roots=("embeds.proj.weight",), rules=NAFLEX,
        beyond={r"embeds\..*": "positions, and no tensor shows how they are resized"},
    ),
    Dialect(
        name="mmpretrain's names", roots=("patch_embed.projection.weight",),
        marks=("layers.0.ln1.weight",), rules=MMPRETRAIN, facts=PLAIN, sizes=True,
        outside=((r"head\.(layers\.head|fc)\.(weight|bias)", r"head.\2"),
                 (r"head\.layers\.pre_logits\.(weight|bias)", r"pre_logits.fc.\1")),
    ),
)  # fmt: skip


def layout_of(source: Source) -> Layout | None:
    """Find the dialect of a file; None if it has none of them.

    Raises:
        WeightsError: two tensors have the same meaning, or one that cannot be represented.
    """
    for dialect in DIALECTS:
        for prefix in _prefixes(source, dialect):
            if all(f"{prefix}{mark}" in source.shapes for mark in dialect.marks):
                return _layout(source, dialect, prefix)
    return None


def _prefixes(source: Source, dialect: Dialect) -> list[str]:
    """What stands in front of the names that may be the map of patches, the shortest first."""
    found = {
        name.removesuffix(root)
        for name in source.shapes
        for root in dialect.roots
        if name == root or name.endswith(f".{root}")
    }
    return sorted(found, key=len)


def _layout(source: Source, dialect: Dialect, prefix: str) -> Layout:
    theirs = {n.removeprefix(prefix): s for n, s in source.shapes.items() if n.startswith(prefix)}
    for name in theirs:
        for pattern, why in dialect.beyond.items():
            if re.fullmatch(pattern, name):
                raise WeightsError(
                    f"{source.path}: unsupported model with {dialect.name}: it has {why} ({name})"
                )
    stored = {new: prefix + old for new, old in canonical(list(theirs), dialect.rules).items()}
    for name in source.shapes if prefix else ():
        for pattern, word in dialect.outside:
            if re.fullmatch(pattern, name):
                stored[re.sub(pattern, word, name)] = name
    beside = "head.weight" in stored and not stored["head.weight"].startswith(prefix)
    if "head.weight" not in stored and "projection" not in dialect.words:
        norms = ("norm.weight", "fc_norm.weight", "cls_token", "pos_embed")
        sizes = [source.shapes[stored[name]][-1:] for name in norms if name in stored]
        if layer := classifier_beside(source, prefix, max(sizes, default=())):
            parts = (part for part in ("weight", "bias") if f"{layer}.{part}" in source.shapes)
            stored |= {f"head.{part}": f"{layer}.{part}" for part in parts}
    shapes = {new: source.shapes[old] for new, old in stored.items()}
    return Layout(dialect, prefix, _as_timms(shapes, dialect), stored, theirs, beside)


def canonical(names: list[str], rules: Rules) -> dict[str, str]:
    """Return the original names by timm's names.

    Raises:
        WeightsError: two of them have the same meaning.
    """
    renamed: dict[str, str] = {}
    for old in names:
        new = old
        for pattern, word in rules:
            new = re.sub(pattern, word, new)
        if new in renamed:
            raise WeightsError(f"tensors {renamed[new]} and {old} have the same meaning")
        renamed[new] = old
    heads = {name for name in renamed if re.fullmatch(r"head\.\d+\.(weight|bias)", name)}
    if len(heads) == 2 and len({name.rsplit(".", 1)[0] for name in heads}) == 1:
        for name in heads:  # a dropout, then the classifier
            renamed["head." + name.rsplit(".", 1)[1]] = renamed.pop(name)
    return renamed


def _as_timms(shapes: dict[str, Shape], dialect: Dialect) -> dict[str, Shape]:
    """Return the shapes that timm's tensors of the same meaning have."""
    shapes = dict(shapes)
    if dialect.words.get("flat"):
        for name in {"cls_token", "pos_embed"} & shapes.keys():
            shapes[name] = (1,) * (3 - len(shapes[name])) + shapes[name]
    if dialect.words.get("gridded"):
        shapes["pos_embed"] = (1, math.prod(shapes["pos_embed"][:3]), shapes["pos_embed"][3])
    if dialect.words.get("channels_last") and len(shapes["patch_embed.proj.weight"]) == 2:
        width, pixels = shapes["patch_embed.proj.weight"]
        sides = {count: math.isqrt(pixels // count) for count in (3, 1, 4)}
        fitting = [c for c, side in sides.items() if c * side**2 == pixels]
        channels = fitting[0] if fitting else 1
        side = math.isqrt(pixels // channels)
        shapes["patch_embed.proj.weight"] = (width, channels, side, side)
    if shapes.get("cls_token", (1, 1, 1))[1] == 0:  # vit-pytorch's, of models that need none
        del shapes["cls_token"]
    if (projected := dialect.words.get("projection")) in shapes:
        shapes["head.weight"] = shapes[projected][::-1]
    return shapes
