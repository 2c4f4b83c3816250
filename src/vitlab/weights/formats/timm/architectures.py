"""Facts of timm's families that no tensor shows, by name or tensors: heads, GELU, epsilon, …

Every rule is compared with all of timm's own Vision Transformers in tests/weights. Rotary
positions, which leave no tensor either, are implied as arguments of timm's eva.py.
"""

import math
import re
from typing import Any

import torch

from vitlab.errors import WeightsError
from vitlab.models.config import config_of
from vitlab.models.positions.sincos import sines
from vitlab.weights.formats.dialects import Layout
from vitlab.weights.formats.records import Facts, found_in, record, records, rules
from vitlab.weights.sharded import Fields
from vitlab.weights.source import StoredTensors

# A name consists of these words, and of sizes; others are not timm's, or newer than this table.
SIZES = (
    "tiny|xsmall|small|medium|mediumd|wee|pwee|dwee|dpwee|little|dlittle|betwixt|base|so150m|so150m2"
    "|large|so400m|huge|giant|giantopt|gigantic|enormous|intern300m|1b|3b|5b|7b"
)
WORDS = re.compile(
    rf"vit[234]?|deit|deit3|beit|beitv2|beit3|eva|eva02|aimv2|flexivit|samvit|test|{SIZES}"
    r"|patch\d+|reg\d|p8|r|r26|r50|s16|s32|resnet(26d|50d?)|18x2|36x1|\d{3}"
    r"|clip|quickgelu|siglip|dinov?[23]?|lingbot|tipsv2|miil|distilled|gap|map|plus|qkvb|rope|ape"
    r"|mixed|pe|core|lang|spatial|relpos|srelpos|cls|clsgap|rpn|xp|mci|radio|sapiens2|v[34]"
    r"|laion2b|in21k|in21ft1k|sam"
)
# At least one more word, since `vit_small` is what the papers' own code calls its models.
WHOLE_NAME = re.compile(
    rf"(vit|deit3?|beit(v2|3)?|eva(02)?|aimv2)_(s?relpos_|pe_[a-z]+_)?({SIZES})_[a-z0-9_]+(?<!patch16)(?<!patch14)"
    r"|flexivit_(small|base|large)|samvit_(base|large|huge)_patch16(_224)?|test_vit([234]|_relpos)?"
)
# Families that our model cannot represent, and why.
UNSUPPORTED = rules(r"""
    .*_(sapiens2|radio_v\d).*                     other norms or positions
    .*_rope_mixed_.*                              learned frequencies of rotary positions
    .*_xp_.*|vit_d(little|wee|pwee).*|vit_pwee.*  another order of norms and branches
    .*_s?relpos(_.*)?                             positions from an MLP
    samvit_.*                                     windows of attention
    vit_base_mci_.*|vit_.*resnet\d+d_.*           another stem
""")
# By a pattern that a name contains; later rows take precedence. Heads go by the size in a name,
# where timm keeps them even if the width is another than the size's.
FIELDS = records(r"""
    ^test_vit                                                 heads 3
    ^test_vit2?$                                              heads 2
    _tiny_                                                    heads 3
    _xsmall_|_d?p?wee_                                        heads 4
    _d?little_                                                heads 5
    _small(_|$)                                               heads 6
    _mediumd?_                                                heads 8
    _betwixt_                                                 heads 10
    _base(_|$)                                                heads 12
    _so150m2_                                                 heads 13
    _so150m_|_base_.*_plus_                                   heads 14
    vit_base_patch16_gap_224                                  heads 16
    _large(_|$)|_so400m_|_huge_|_giant_|_giantopt_            heads 16
    _gigantic_|_enormous_|intern300m|_1b_                     heads 16
    _giant_.*(dinov2|tipsv2|lingbot|radio|sapiens2)|_3b_      heads 24
    vit_small_resnet|aimv2_large                              heads 8
    aimv2_huge                                                heads 12
    vit_huge_plus_                                            heads 20
    _[57]b_                                                   heads 32
    ^(?!.*_(clip|cls)_)((beit|eva|aimv2)|.*(_gap|_rpn|relpos|vit_pe_|test_vit[24])) pool mean
    ^(?!.*_gap).*(_siglip_|_map_|vit_pe_core|test_vit3)       pool attention
    _clip_|^eva_|^eva02|^aimv2|vit_betwixt_.*_rope            @OPENAI
    ^deit|^beitv2|^beit3|dino|lingbot|intern300m              @IMAGENET
    vit_(huge|giant)_patch\d+_gap|vit_small_patch8_224        @IMAGENET
    eva_giant_patch14_560|_rope_(ape_)?\d{3}$         @IMAGENET
    _reg\d_gap_256|medium_patch16_gap|flexivit|^test          crop 0.95
    ^(?!.*(siglip|eva_giant_.*_clip|patch32_clip_quickgelu|medium_patch|eva02.*_224)).*(dino
        |intern300m|_(378|384|448|512|560)$|(huge|giant|gigantic|large).*_clip_|_clip_(2[45]\d|3)
        |eva_large|eva_giant_patch14_3|_base_.*_clip_quickgelu|^eva02_.*_336|^aimv2|^beit3
        |^vit_pe)                                             crop 1.0
    so400m_patch14_siglip_gap_(384|448|896)|so150m2_.*_reg1   crop 1.0
    base_patch16_clip_224|beitv2_large|^vit_medium_.*_384     crop 0.95
    ^vit.*_clip_|^aimv2|^beit3|^vit_pe                        norm_eps 1e-5
    quickgelu                                                 gelu quick
    ^eva02_.*_448                                             fit squash
    ^vit_pe_core                                              pool_heads 8
    _rpn_|eva02_enormous                                      norm_order after
    ^test_vit3                                                pool_prefix true
    (base_patch32|giantopt_patch16|so400m_patch16)_siglip     gelu tanh
    large_patch16_siglip_(gap_)?512                           gelu tanh
    dinov3                                                    norm_eps 1e-5, pool mean
    lingbot                   norm_eps 1e-5, pool token, interpolation bilinear, crop 1.0
    tipsv2|miil                                               @UNCHANGED, crop 1.0
    miil                                                      crop 0.875, interpolation bilinear
""")
# Weights of one name differ in how images are normalized: OpenAI's, LAION's, or fine-tuned ones.
VARY = {"vit_large_patch14_clip_224", "vit_large_patch14_clip_336"}
# Arguments of eva.py for rotary positions, by architecture.
ROTARY = records(r"""
    EVA02     use_rot_pos_emb true, ref_feat_shape 16
    ROPE_VIT  use_rot_pos_emb true, rope_grid_indexing xy, rope_temperature 100.0
    PE        use_rot_pos_emb true, rope_grid_indexing xy, rope_grid_offset 1.0, ref_feat_shape 32
    DINOV3    use_rot_pos_emb true, rope_type dinov3, rope_temperature 100.0, rope_rotate_half true
    ^eva02_(?!enormous)|_rope_reg\d   @EVA02
    _rope_(ape_)?\d{3}$               @ROPE_VIT
    ^vit_pe_                          @PE
    ^vit_pe_core_(tiny|small|large)_  ref_feat_shape 24
    ^vit_pe_core_base_                ref_feat_shape 14
    ^vit_pe_[a-z]+_gigantic_          rope_grid_offset 0.0
    dinov3|lingbot                    @DINOV3
""")


def known(architecture: str) -> bool:
    """Return whether a name is one of timm's architectures, as far as this table knows them."""
    words = all(WORDS.fullmatch(word) for word in architecture.split("_"))
    return words and bool(WHOLE_NAME.fullmatch(architecture))


def stem_of(name: Any) -> str:
    """Return the architecture that a name with or without a tag is of; empty for any other."""
    stem = name.partition(".")[0] if isinstance(name, str) else ""
    return stem if known(stem) else ""


def check_supported(architecture: str) -> None:
    """Refuse a family that our model cannot represent.

    Raises:
        WeightsError: it is one.
    """
    for pattern, why in UNSUPPORTED.items():
        if re.fullmatch(pattern, architecture):
            raise WeightsError(f"unsupported model {architecture}: it has {why}")


def implied(architecture: str) -> Fields:
    """Return the fields that a known architecture's name stands for."""
    usual = "@PLAIN, pool token, interpolation bicubic, crop 0.9, @INCEPTION"
    return record(usual) | found_in(FIELDS, architecture)


def named_rotary(architecture: str) -> Fields:
    """Return the arguments that an architecture stands for; empty if it has no rotary positions."""
    return found_in(ROTARY, architecture)


def settled(name: str) -> Fields:
    """Return the fields that a name given by the user settles: timm's, or the papers' notation.

    Raises:
        OptionError: neither knows it.
    """
    if not name:
        return {}
    if stem := stem_of(name):
        return {"fit": "crop", **implied(stem)}
    return {"heads": getattr(config_of(name), "heads", 1)}


def registers_in(architecture: str) -> int | None:
    """Return the number of registers that a name states."""
    found = re.search(r"_reg(\d+)_", architecture)
    return int(found[1]) if found else None


def size_in(architecture: str) -> int | None:
    """Return the image size that a name states or stands for."""
    if re.search("dinov3|lingbot", architecture):
        return 256 if "dinov3" in architecture else 512
    found = re.search(r"_(\d{3})(_|$)", architecture)
    return int(found[1]) if found else None


# Families that tensors give away. A file with nothing else is one of these, or a plain ViT, of
# which heads, the form of GELU, epsilon and how images are normalized are only assumed.
# Heads by width: 64 wide, or as in every model of that width; of EVA-02, BEiT-3 and Perception
# Encoder; of DINOv3 (dinov3/hub/backbones.py of facebookresearch/dinov3).
HEADS = records("""
    USUAL
        192 3, 256 4, 320 5, 384 6, 512 8, 576 9, 640 10, 768 12, 832 13, 896 14, 1024 16,
        1152 16, 1280 16, 1408 16, 1536 16, 1664 16
    AIMV2   1024 8, 1536 12, 2048 16, 3072 24
    EVEN    192 3, 384 6, 768 12, 1024 16, 1408 16, 1536 16, 1792 16
    DINOV3  192 3, 384 6, 768 12, 1024 16, 1280 20, 1536 24, 4096 32
""")
DINO2_DEPTHS = record("384 12, 768 12, 1024 24, 1536 40")  # of DINOv2's releases, by width


def heads_for(width: int, table: str = "USUAL") -> Fields:
    """Return the heads of a width in one of the tables, as a field; empty if it has none."""
    heads = HEADS.get(table, {}).get(str(width))
    return {"heads": heads} if heads else {}


def holds(file: Layout, shows: str) -> bool:
    """Return whether a file has all of some marks: parts or tensors, `a|b` one of two, `!a` none.

    `ends` is a last norm, `keyless` a bias of which keys have none, `apart` queries, keys and
    values, and gate and value, in layers of their own; a number is the width.
    """
    return all(any(_has(file, each) for each in mark.split("|")) for mark in shows.split())


def _has(file: Layout, mark: str) -> bool:
    if mark.startswith("!"):
        return not _has(file, mark[1:])
    sizes = [len(file.theirs.get(key, ())) for key in ("qkv.bias", "qkv.weight", "expand.weight")]
    marks = {
        "keyless": sizes[0] in (0, 2),
        "apart": sizes[1:] == [3, 2],
        "gated": file.gated,
        "ends": "norm.weight" in file or "pooled_norm.weight" in file,
        str(file.width): True,
    }
    return marks.get(mark, mark in file.tensors or mark in file)


# Marks of families: a norm before the encoder as in CLIP, but another end; gate and value apart;
# registers, but no stored positions.
PERCEPTION = "pre_norm.weight positions queries|!ends|scale1"
EVA02 = "positions apart|blocks.0.attn.q_bias apart|gated"
DINOV3 = "token registers norm.weight scale1 !positions keyless"
# Marks of a family, its facts (heads by width), and what differs between its releases. The first
# that a file has counts.
FAMILIES = f"""
    {PERCEPTION}  # Perception Encoder
        norm_eps 1e-5, gelu exact, pool_heads 8, heads EVEN
        pool mean, crop 1.0, resampling antialiased, @INCEPTION
    patch_norm.weight !norm1.bias  # AIMv2
        norm_eps 1e-5, heads AIMV2
        crop 1.0, @OPENAI
    attn_norm.weight mlp_norm.weight qkv.bias !keyless !gated  # BEiT-3
        norm_eps 1e-5, gelu exact, heads EVEN
        crop 1.0
    {EVA02}  # EVA-02
        norm_eps 1e-6, heads EVEN
        resampling antialiased, @OPENAI
    blocks.0.attn.q_bias positions 1792  # EVA-02-CLIP-E
        @PLAIN, norm_order after, heads EVEN
        crop 0.9, resampling antialiased, @OPENAI
    bias_table|shared_table  # BEiT, BEiT v2
        @PLAIN
        @INCEPTION
    pre_norm.weight  # CLIP
        norm_eps 1e-5
        crop 1.0, @OPENAI
    blocks.0.attn.q_bias positions  # EVA
        @PLAIN
        crop 0.9, @OPENAI
    queries  # SigLIP
        norm_eps 1e-6
        crop 1.0, @INCEPTION
    dist_token  # DeiT, distilled
        @PLAIN, @IMAGENET
        -
    pre_logits.weight  # timm's first files
        @PLAIN, @INCEPTION, crop 0.9
        -
    decoder_pos_embed  # MAE, with which others train on other images
        @PLAIN
        @IMAGENET
    masked_embed  # iBOT
        @PLAIN, @IMAGENET, resampling scaled
        -
"""
# What our model cannot represent, by a tensor's name, and the reason.
BEYOND = rules("""
    blocks.0.attn.rel_pos.mlp.fc1.weight  positions from an MLP
    shared_rel_pos.mlp.fc1.weight         positions from an MLP
    rope.freqs                            learned frequencies of rotary positions
    freqs                                 learned frequencies of rotary positions
    blocks.0.attn.lambda_q1               differential attention
    blocks.0.in_proj.weight               attention and MLP in one layer
    neck.0.weight                         a neck of convolutions, as in EfficientSAM
    blocks.0.attn.gate.weight             gated attention
""")


def check_content(path: object, file: Layout, certain: bool) -> None:
    """Refuse families that only their tensors tell from those that our model represents.

    Args:
        path: for messages
        file: its tensors
        certain: a supported architecture is known, so that doubtful layouts are its own

    Raises:
        WeightsError: the first reason.
    """
    reasons = [why for name, why in BEYOND.items() if name in file.tensors]
    if holds(file, "scale1 !scale2"):
        reasons.append("LayerScale on attention alone, as in Sapiens 2")
    side, places = file.shape("patch.weight")[-1:], file.rows("positions")
    if file.dialect.name == "mmpretrain's names" and side and math.isqrt(places) * side[0] == 1024:
        reasons.append("zeros around the image, as Sapiens")
    if not certain and holds(file, "registers token !ends"):
        reasons.append("registers without a last norm, as in C-RADIO")
    if reasons:
        raise WeightsError(f"{path}: unsupported model: it has {reasons[0]}")
    if not certain and holds(file, "pooled_norm.weight !token !scale1 !qkv.bias"):
        raise WeightsError(
            f"{path} may be another model, as in vit_base_patch16_rpn_224, whose norms follow "
            "attention and MLP: give --name with the model's name in timm (in training "
            "--weights-name)"
        )


def facts_by_content(source: StoredTensors, file: Layout, certain: bool) -> Facts:
    """Return what the tensors say of the fields that they do not show.

    Args:
        source: whose tensors may be read
        file: its tensors
        certain: the architecture is known, and says the rest
    """
    width = file.width
    usual = "@PLAIN, interpolation bicubic, crop 0.875, resampling bicubic, @IMAGENET"
    facts = Facts().put("assumed", heads_for(width) | record(usual))
    if certain:
        return facts
    facts.put("assumed", "fit crop")
    rows = map(str.strip, FAMILIES.strip().splitlines())
    for shows, every, most in zip(rows, rows, rows, strict=True):
        if holds(file, shows.partition("#")[0]):
            always = record(every)
            heads = heads_for(width, always.pop("heads", ""))
            return facts.put("family", always | heads).put("assumed", most.strip("-"))
    if holds(file, "scale1 positions") and len(file.tensors.get("mask_token", ())) == 2:
        _put_dino2(facts, file, source.kind == "npz")
    elif holds(file, DINOV3):
        _put_dinov3(facts, file)
    elif width == 1536 and file.gated:  # DINOv2's giant; SigLIP's has 16
        facts.put("family", "heads 24")
    elif width == 384 and _is_moco(source, file):
        facts.put("family", "heads 12, interpolation bilinear, @PLAIN, @IMAGENET")
    return facts


def rotary_by_content(file: Layout) -> Fields:
    """Return the arguments of timm's eva.py that tensors give away; empty without rotary."""
    if holds(file, PERCEPTION):
        token = "token" in file
        side: int | None = math.isqrt(file.shape("positions")[1] - token)  # of the same grid
        if "positional_embedding" in file.tensors:  # its own code does not scale
            side = None
        return ROTARY["PE"] | {"ref_feat_shape": side, "rope_grid_offset": float(token)}
    if holds(file, EVA02):
        return ROTARY["EVA02"]
    return ROTARY["DINOV3"] if holds(file, DINOV3) else {}


def _put_dino2(facts: Facts, file: Layout, tips: bool) -> None:
    """Others train with this code, so only released sizes are certain; TIPS publishes arrays."""
    width, depth = file.width, len(file.counted("n", ("scale1",)))
    released = file.shape("patch.weight")[2:3] == (14,) and DINO2_DEPTHS.get(str(width)) == depth
    facts.put("family" if released else "assumed", {"heads": width // 64})
    own = "crop 0.875, interpolation bicubic, fit crop, @IMAGENET"
    if tips:
        own = "resampling antialiased, @UNCHANGED, fit squash, interpolation bilinear, crop 1.0"
    resampling = "antialiased" if "register_tokens" in file.tensors else "scaled"
    facts.put(facts.origins["heads"], {"resampling": resampling} | record(own))
    facts.put("family", "@PLAIN, pool token")


def _put_dinov3(facts: Facts, file: Layout) -> None:
    width = file.width
    facts.put("family", "norm_eps 1e-5, gelu exact, positions rope")
    facts.put("assumed", "crop 1.0").put("family", heads_for(width, "DINOV3"))
    if "storage_tokens" not in file.tensors:
        facts.put("assumed", "pool mean")
        return
    own = "pool token, interpolation bilinear, fit squash, crop 1.0"  # of its own files
    if width == 1024 and "local_cls_norm.weight" in file.tensors:
        own += ", @SATELLITE"
    facts.put("family", own)


def _is_moco(source: StoredTensors, file: Layout) -> bool:
    """Recognize MoCo-v3's ViT-S, whose 12 heads are 32 wide, by its two models or fixed positions.

    Sines and cosines of rows, then of columns, with a zero row for the class token (vits.py of
    facebookresearch/moco-v3).
    """
    stored = file.stored.get("pos_embed", "")
    if re.search(r"\b(base|momentum)_encoder\.", source.in_file(stored)):
        return True
    places = file.rows("positions") - 1
    side = math.isqrt(max(places, 0))
    if "token" not in file or side < 1 or side**2 != places:
        return False
    table = sines((side, side), 384).roll(192, 1)
    return bool(torch.allclose(source.read(stored)[0, 1:], table, atol=1e-4))
