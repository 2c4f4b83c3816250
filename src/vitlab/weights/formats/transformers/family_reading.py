"""From a config.json of transformers to our configuration: what all families share, then each."""

from typing import Any

from vitlab.errors import WeightsError
from vitlab.weights.formats.names import first_name
from vitlab.weights.formats.origins import Facts, Origin
from vitlab.weights.formats.transformers.family import Content, Family, Stated

ACTS = {
    "gelu": "exact", "gelu_python": "exact", "gelu_new": "tanh", "gelu_fast": "tanh",
    "gelu_accurate": "tanh", "gelu_python_tanh": "tanh", "gelu_pytorch_tanh": "tanh",
    "quick_gelu": "quick",
}  # fmt: skip
# Keys of config.json and the fields of ours with the same meaning.
KEYS = {
    "hidden_size": "width",
    "num_hidden_layers": "depth",
    "num_attention_heads": "heads",
    "intermediate_size": "mlp",
    "image_size": "image_size",
    "patch_size": "patch",
    "num_channels": "channels",
    "num_register_tokens": "registers",
    "layer_norm_eps": "norm_eps",
    "rms_norm_eps": "norm_eps",
    "qkv_bias": "qkv_bias",
    "rope_theta": "rope_base",
}
# Keys that decide fields which no tensor shows, beside KEYS.
DECIDING = {
    "hidden_act": "gelu",
    "use_relative_position_bias": "positions",
    "use_shared_relative_position_bias": "positions_at",
    "num_patches": "image_size",
}


def read_fields(family: Family, stated: Stated, given: Content) -> Facts:
    """Return the configuration that config.json and the tensors describe.

    Args:
        family: of the model
        stated: every key, and the tensors
        given: config.json as it is

    Raises:
        WeightsError: it asks for something that our model cannot represent.
    """
    content, shapes = stated.content, stated.shapes
    always = not family.gated and isinstance(family.names["expand"], tuple)
    gated = always or bool(family.gate and content[family.gate])
    fields = {own: content[key] for key, own in KEYS.items() if key in content}
    fields["patch"] = _side(fields["patch"])
    if isinstance(fields.get("image_size"), list):
        fields["image_size"] = tuple(fields["image_size"])
    fields |= {
        "ffn": "swiglu" if gated else "mlp",
        "resampling": family.resampling,
        "classes": shapes.get("/classifier.weight", (0,))[0],
        "pool": "token",
    }
    if family.scale:
        there = first_name(family.names, "scale1").format(n=0) in shapes
        fields["layer_scale"] = float(content[family.scale]) or float(there)
    if not gated:
        fields["gelu"] = gelu_of(content["hidden_act"])
    fields |= family.reads(stated)
    facts = Facts().put(Origin.TENSORS, fields)
    for key, own in (KEYS | DECIDING).items():
        if key in content and own in fields:
            facts.origins[own] = Origin.FILE if key in given else Origin.FAMILY
    facts.origins["resampling"] = Origin.FAMILY
    return facts


def gelu_of(act: str) -> str:
    """Return our word for an activation of transformers.

    Raises:
        WeightsError: it is not a form of GELU.
    """
    if act not in ACTS:
        raise WeightsError(f"unsupported hidden_act={act!r}: {', '.join(ACTS)} are")
    return ACTS[act]


def _side(patch: int | list[int]) -> int:
    """The side of a patch, which some files give as rows and columns."""
    if not isinstance(patch, list):
        return patch
    if len(set(patch)) != 1:
        raise WeightsError(f"unsupported patch_size={patch!r}: patches must be square")
    return patch[0]


def read_pooler(stated: Stated) -> dict[str, Any]:
    """The tanh layer, which only models without a classifier use."""
    if "pooler.dense.bias" not in stated.shapes or stated.classifies:
        return {}
    act = stated.content["pooler_act"]
    if act != "tanh":
        raise WeightsError(f"unsupported pooler_act={act!r}: only tanh is")
    return {"pre_logits": stated.content["pooler_output_size"] or stated.content["hidden_size"]}


def read_deit(stated: Stated) -> dict[str, Any]:
    """A distillation token always; both classifiers if the file has them."""
    if "/distillation_classifier.bias" not in stated.shapes:
        return {"registers": 1, **read_pooler(stated)}
    classes = stated.shapes["/distillation_classifier.bias"][0]
    return {"registers": 1, "classes": classes, "pool": "prefix", "class_token": True}


def read_mean(stated: Stated) -> dict[str, Any]:
    """I-JEPA's: no class token, so the mean of the patches."""
    return {"pool": "mean"}


def read_beit(stated: Stated) -> dict[str, Any]:
    """Positions and pooling, which config.json chooses."""
    content, shapes = stated.content, stated.shapes
    own, shared = (
        content["use_relative_position_bias"],
        content["use_shared_relative_position_bias"],
    )
    absolute = content["use_absolute_position_embeddings"]
    if own and shared:
        raise WeightsError(
            "unsupported: BEiT with a table of relative positions per block and one for all"
        )
    fields: dict[str, Any] = {
        "positions": "+".join(["1d"] * absolute + ["bias"] * (own or shared)) or "none",
        "positions_at": "shared" if shared else "stem",
    }
    if not content["use_mean_pooling"]:
        return fields
    pools = stated.classifies or stated.architecture == "BeitModel"
    pooled = pools or "pooler.layernorm.weight" in shapes
    norm_at = "pooled" if pooled else "tokens" if "/layernorm.weight" in shapes else "none"
    pool = "token" if norm_at == "tokens" else "mean"
    return fields | {"pool": pool, "class_token": True, "norm_at": norm_at}


def read_dinov2(stated: Stated) -> dict[str, Any]:
    """The MLP by its ratio; the classifier sees class token and mean of the patches."""
    content = stated.content
    hidden = int(content["hidden_size"] * content["mlp_ratio"])
    if content["use_swiglu_ffn"]:
        hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
    return {"mlp": hidden} | ({"pool": "both"} if stated.classifies else {})


def read_dinov3(stated: Stated) -> dict[str, Any]:
    """Rotary positions, and biases layer by layer."""
    content = stated.content
    if content["use_gated_mlp"] and content["hidden_act"] != "silu":
        act = content["hidden_act"]
        raise WeightsError(f"unsupported hidden_act={act!r} of DINOv3's gated MLP: silu is")
    rope = dict(content["rope_parameters"] or {})
    base = rope.pop("rope_theta", content["rope_theta"])
    if rope.pop("rope_type", "default") != "default" or rope:
        raise WeightsError(f"unsupported rope_parameters={content['rope_parameters']!r}")
    query, key, value = (content[f"{part}_bias"] for part in ("query", "key", "value"))
    if query != value or (key and not query):
        raise WeightsError(
            f"unsupported query_bias={query}, key_bias={key}, value_bias={value} together"
        )
    if content["proj_bias"] != content["mlp_bias"]:
        raise WeightsError(
            f"unsupported proj_bias={content['proj_bias']} with mlp_bias={content['mlp_bias']}"
        )
    wide = stated.shapes.get("/classifier.weight", (0, 0))[-1] > content["hidden_size"]
    return {
        "positions": "rope", "rope_base": base, "qkv_bias": query, "bias": content["proj_bias"],
        "pool": "both" if wide else "token",
    }  # fmt: skip


def read_clip(stated: Stated) -> dict[str, Any]:
    """A norm before the blocks; the classifier averages patches that the last norm did not see."""
    fields: dict[str, Any] = {"pre_norm": True, "stem_bias": False}
    if stated.classifies:
        return fields | {"pool": "mean", "class_token": True, "norm_at": "none"}
    projected = "/visual_projection.weight" in stated.shapes
    return fields | {"classes": stated.projection if projected else 0}


def read_siglip(stated: Stated) -> dict[str, Any]:
    """Attention pooling, unless there is a classifier, which averages the patches."""
    attends = stated.content["vision_use_head"] and not stated.classifies
    return {"pool": "attention" if attends else "mean"}


def read_siglip2(stated: Stated) -> dict[str, Any]:
    """SigLIP's; its positions are a square, whose side sets the size of images."""
    side = round(stated.content["num_patches"] ** 0.5)
    if side**2 != stated.content["num_patches"]:
        raise WeightsError(f"unsupported num_patches={stated.content['num_patches']}: no square")
    return read_siglip(stated) | {"image_size": side * _side(stated.content["patch_size"])}


def read_aimv2(stated: Stated) -> dict[str, Any]:
    """RMS norms, one of them on patches, gated MLPs, no class token."""
    content = stated.content
    if content["hidden_act"] != "silu":
        raise WeightsError(f"unsupported hidden_act={content['hidden_act']!r} of AIMv2: silu is")
    if content["qkv_bias"] != content["mlp_bias"]:
        raise WeightsError(
            f"unsupported qkv_bias={content['qkv_bias']} with mlp_bias={content['mlp_bias']}"
        )
    if content["is_native"]:
        raise WeightsError("unsupported is_native=True: positions are computed for each image")
    if content["use_head"] and "embeddings.patch_embed.weight" in stated.shapes:
        raise WeightsError("unsupported use_head=True: attention pooling by a fixed query")
    return {
        "norm": "rms", "stem_norm": "layer", "pool": "mean", "bias": content["mlp_bias"],
    }  # fmt: skip


def read_intern(stated: Stated) -> dict[str, Any]:
    """InternViT's: the mean of patches without a last norm, or all tokens after one."""
    content = stated.content
    mean = content.get("use_mean_pooling", False)
    return {
        "norm": "rms" if content["norm_type"] == "rms_norm" else "layer",
        "qkv_bias": content.get("attention_bias", content.get("qkv_bias")),
        "layer_scale": content.get("layer_scale_init_value", 0.1),
        "pool": "mean" if mean else "token", "class_token": mean or None,
        "norm_at": "none" if mean or "attention_bias" not in content else "tokens",
        "positions": "1d" if content.get("use_absolute_position_embeddings", True) else "none",
    }  # fmt: skip


def read_vitpose(stated: Stated) -> dict[str, Any]:
    """ViTPose's: no class token, padded images."""
    hidden = int(stated.content["hidden_size"] * stated.content["mlp_ratio"])
    return {"mlp": hidden, "stem_padding": 2, "pool": "mean"}
