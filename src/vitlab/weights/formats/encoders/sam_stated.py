"""What stands beside the tensors of Segment Anything's encoder: timm's or transformers' config."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitlab.errors import WeightsError
from vitlab.images import IMAGENET
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.origins import Origin
from vitlab.weights.formats.room import Hints
from vitlab.weights.formats.timm.arguments import check_arguments, stated
from vitlab.weights.formats.timm.config_json import arguments_in, recorded
from vitlab.weights.formats.transformers.config_keys import check_keys
from vitlab.weights.formats.transformers.family_reading import gelu_of
from vitlab.weights.source import Source

# timm's architectures, and their blocks without windows.
SAMVIT = {
    "samvit_base_patch16": (2, 5, 8, 11),
    "samvit_base_patch16_224": (2, 5, 8, 11),
    "samvit_large_patch16": (5, 11, 17, 23),
    "samvit_huge_patch16": (7, 15, 23, 31),
}
MODEL_TYPES = ("sam", "sam_vision_model", "sam_hq", "sam_hq_vision_model")
# Keys of transformers' SamVisionConfig, with the class's defaults, and the fields of ours.
KEYS: dict[str, tuple[str, Any]] = {
    "num_attention_heads": ("heads", 12), "window_size": ("window", 14),
    "global_attn_indexes": ("global_blocks", (2, 5, 8, 11)), "layer_norm_eps": ("norm_eps", 1e-6),
}  # fmt: skip
SHOWN = {  # by the tensors, against which the model is checked
    "hidden_size", "output_channels", "num_hidden_layers", "num_channels", "image_size",
    "patch_size", "qkv_bias", "mlp_ratio", "mlp_dim", "use_abs_pos", "use_rel_pos",
}  # fmt: skip
IDLE = {"num_pos_feats", "scale", "intermediate_size", "projection_dim"}  # of the mask decoder
Check = Callable[[ViTConfig, set[str]], None]


@dataclass(frozen=True)
class Stated:
    """What was found.

    Attributes:
        label: the format, in words
        fields: of the configuration, with their origin, the most certain last
        fitted: whether it says how images are prepared
        check: compares the configuration with the rest of what is stated
    """

    label: str
    fields: Sequence[tuple[Origin, dict[str, Any]]] = ()
    fitted: bool = False
    check: Check | None = None


def of_transformers(source: Source) -> Stated | None:
    """Read config.json of transformers; None for a model of another type.

    Raises:
        WeightsError: it asks for something that our model cannot represent.
    """
    content, model_type = source.config, source.config["model_type"]
    if model_type not in MODEL_TYPES:
        return None
    content = content.get("vision_config", content)
    check_keys(model_type, content, {*KEYS, *SHOWN, *IDLE, "hidden_act"})
    act = gelu_of(content.get("hidden_act", "gelu"))
    given = {own: content[key] for key, (own, _) in KEYS.items() if key in content}
    given |= {"gelu": act} if "hidden_act" in content else {}
    if "global_blocks" in given:
        given["global_blocks"] = tuple(given["global_blocks"])
    prepared = {"image_mean": "mean", "image_std": "std"}
    images = {
        own: tuple(source.preprocessor[key])
        for key, own in prepared.items()
        if key in source.preprocessor
    }
    usual = dict(KEYS.values())
    found = [(Origin.FAMILY, usual), (Origin.FILE, given), (Origin.FILE, images)]
    return Stated(f"transformers, {model_type}", found)


def of_timm(source: Source, hints: Hints, stored: Mapping[str, str]) -> Stated:
    """Read config.json of timm, or the name that the user gives; else what timm's words imply.

    Args:
        source: the file or folder
        hints: of the user
        stored: names in the file by timm's

    Raises:
        WeightsError: an argument that our model cannot represent.
    """
    architecture = str(source.config.get("architecture", "")).partition(".")[0]
    name = hints.name.partition(".")[0] or architecture
    words = stored.get("blocks.0.mlp.fc1.weight", "").endswith(".fc1.weight")
    own = words and len(source.shape(stored.get("pos_embed", ""))) != 3  # EfficientSAM's
    code: dict[str, Any] = {"norm_eps": 1e-5, "resampling": "antialiased"}
    code |= {"interpolation": "bicubic", "fit": "crop"}
    if "neck.weight" in stored:
        code["last_norm_eps"] = 1e-6
    usual = [(Origin.FAMILY, code)] if own else []
    if "head.fc.weight" in stored:  # somebody's fine-tuning
        usual.append((Origin.ASSUMED, {"crop": 1.0, **IMAGENET}))
    if name not in SAMVIT:
        label = "Segment Anything, timm's names" if own else "Segment Anything"
        return Stated(label, usual, fitted=own)
    blocks = {"window": 14, "global_blocks": SAMVIT[name]}
    found = [*usual, (Origin.NAME, blocks | code)]
    if name != architecture:
        return Stated(f"timm, {name}", found, True)
    arguments = arguments_in(source.config)
    changed = {"window": "window_size", "global_blocks": "global_attn_indexes"}
    given = {f: arguments[a] for f, a in changed.items() if a in arguments}
    if "global_blocks" in given:
        given["global_blocks"] = tuple(given["global_blocks"])
    found.append((Origin.FILE, recorded(source.path, source.config, hints.choices)))
    found.append((Origin.FILE, stated(arguments) | given))
    return Stated(f"timm, {name}", found, True, _checking(source, arguments))


def _checking(source: Source, arguments: dict[str, Any]) -> Check:
    """Compare the arguments of timm's constructor with a configuration."""

    def check(config: ViTConfig, chosen: set[str]) -> None:
        wanted = {
            "use_abs_pos": "1d" in config.positions,
            "use_rel_pos": "decomposed" in config.positions,
            "use_rope": False,
            "neck_chans": config.neck or None,
            "head_hidden_size": None,
            "ref_feat_shape": None,
        }
        for name, value in wanted.items():
            if arguments.get(name, value) != value:
                raise WeightsError(
                    f"{source.path}: unsupported model_args {name}={arguments[name]!r} of timm for "
                    f"this model: its tensors are those of {name}={value!r}"
                )
        own = {*wanted, "window_size", "global_attn_indexes"}
        rest = {name: value for name, value in arguments.items() if name not in own}
        check_arguments(source.path, rest, config, True, chosen)

    return check
