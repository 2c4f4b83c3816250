"""From our configuration to a config.json of transformers: what all families share, then each."""

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.transformers.config_keys import DEFAULTS
from vitlab.weights.formats.transformers.family import Content, Family
from vitlab.weights.formats.transformers.family_reading import KEYS

WRITTEN_ACTS = {"exact": "gelu", "tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}


def write_content(family: Family, config: ViTConfig) -> Content:
    """Return the config.json of a model.

    Raises:
        WeightsError: the family cannot represent the model.
    """
    model_type = family.model_type
    position = 2 if config.pool == "prefix" else int(config.classes > 0)
    if position >= len(family.classes):
        raise WeightsError(f"transformers' {model_type} has no classifier: save with classes=0")
    if family.square and config.size[0] != config.size[1]:
        raise WeightsError(
            f"transformers' {model_type} takes square images: cannot represent "
            f"image_size={config.image_size}"
        )
    content: Content = {"architectures": [family.classes[position]], "model_type": model_type}
    content |= {
        key: getattr(config, own) for key, own in KEYS.items() if key in DEFAULTS[model_type]
    }
    content["hidden_act"] = WRITTEN_ACTS[config.gelu]
    content["image_size"] = (
        list(config.size) if isinstance(config.image_size, tuple) else config.image_size
    )
    if family.gate:
        content[family.gate] = config.ffn == "swiglu"
    if family.scale:
        content[family.scale] = config.layer_scale
    return content | family.writes(config)


def write_pooler(config: ViTConfig) -> Content:
    """The tanh layer."""
    if not config.pre_logits:
        return {}
    return {"pooler_output_size": config.pre_logits, "pooler_act": "tanh"}


def write_beit(config: ViTConfig) -> Content:
    """Positions, and the pool."""
    shared = config.positions_at == "shared"
    return {
        "use_absolute_position_embeddings": config.positions.startswith("1d"),
        "use_relative_position_bias": not shared,
        "use_shared_relative_position_bias": shared,
        "use_mean_pooling": config.norm_at == "pooled",
    }


def write_dinov2(config: ViTConfig) -> Content:
    """The MLP by its ratio."""
    gated = config.ffn == "swiglu"
    if gated and config.mlp != (config.width * 4 * 2 // 3 + 7) // 8 * 8:
        raise WeightsError(f"transformers' DINOv2 has no gated MLP with mlp={config.mlp}")
    if not gated and config.mlp % config.width:
        raise WeightsError("transformers' DINOv2 needs an mlp that is a multiple of the width")
    return {"mlp_ratio": 4 if gated else config.mlp // config.width}


def write_dinov3(config: ViTConfig) -> Content:
    """Biases layer by layer; a key's bias is turned with the key, so it matters."""
    content: Content = {f"{part}_bias": config.qkv_bias for part in ("query", "key", "value")}
    content |= {f"{part}_bias": config.bias for part in ("proj", "mlp")}
    return content | ({"hidden_act": "silu"} if config.ffn == "swiglu" else {})


def write_clip(config: ViTConfig) -> Content:
    """Width of the projection."""
    return {"projection_dim": config.classes or config.width}
