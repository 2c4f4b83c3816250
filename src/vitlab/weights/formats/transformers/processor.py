"""preprocessor_config.json of transformers, read and written.

As in config.json, a key that is left out has the value of the class that the file names. Source:
the image processors of transformers 5.23.
"""

import re
from dataclasses import dataclass
from typing import Any

from vitlab.images import IMAGENET, INCEPTION, OPENAI
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.origins import Facts, Origin
from vitlab.weights.formats.transformers.family import Content, Family

# Keys and fields of ours with the same meaning.
NORMALIZATION = {"image_mean": "mean", "image_std": "std"}
RESAMPLE = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers
FILTERS = {0: "nearest", 1: "lanczos", 4: "box", 5: "hamming"}  # that we do not have


def _class(normal: Content, resample: int, size: Content | None, crop: int = 0) -> Content:
    content: Content = {own: list(normal[name]) for own, name in NORMALIZATION.items()}
    content |= {"resample": resample, "size": size, "do_center_crop": crop > 0}
    content |= {"crop_size": {"height": crop, "width": crop}, "do_normalize": True}
    content |= {"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255}
    return content | {"default_to_square": True}


_SQUARE, _EDGE = {"height": 224, "width": 224}, {"shortest_edge": 224}
_SIDES = {"default_to_square": False}  # what an integer `size` means: that of the shorter side
# What each class does if the file does not say.
CLASSES: dict[str, Content] = {
    "Beit": _class(INCEPTION, 3, _SQUARE),
    **dict.fromkeys(("Bit", "CLIP", "ChineseCLIP"), _class(OPENAI, 3, _EDGE, 224) | _SIDES),
    "ConvNext": _class(INCEPTION, 3, {"shortest_edge": 384}) | _SIDES | {"crop_pct": 224 / 256},
    "DINOv3ViT": _class(IMAGENET, 2, _SQUARE),
    "DeiT": _class(INCEPTION, 3, {"height": 256, "width": 256}, 224),
    "Siglip": _class(INCEPTION, 3, _SQUARE) | _SIDES,
    "Siglip2": _class(INCEPTION, 2, None) | {"max_num_patches": 256},
    "Tipsv2": _class(INCEPTION, 2, {"height": 448, "width": 448}) | {"do_normalize": False},
    "ViT": _class(INCEPTION, 2, _SQUARE),
}
# Keys that do not change an image of eight bits and three channels, or that are of other tasks.
IDLE = {
    "image_processor_type", "feature_extractor_type", "processor_class", "auto_map",
    "_valid_processor_keys", "data_format", "input_data_format", "device", "return_tensors",
    "disable_grouping", "do_convert_rgb", "do_reduce_labels", "reduce_labels",
    "image_seq_length", "patch_size", "max_num_patches", "model_input_names",
}  # fmt: skip
OFF = (
    "do_pad", "do_flip_channel_order", "do_thumbnail", "do_align_long_axis", "use_square_size",
)  # fmt: skip
# Keys that change images in a way that we do not follow, unless they have one of these values.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "pad_size": (None,),
    **dict.fromkeys(OFF, (False, None)),
}
DECIDED = {
    "interpolation": {"resample"},
    "mean": {"image_mean", "do_normalize", "do_rescale", "rescale_factor"},
    "std": {"image_std", "do_normalize", "do_rescale", "rescale_factor"},
    "crop": {"size", "crop_size", "do_center_crop", "crop_pct"},
    "fit": {"size", "do_resize"},
    "tokens": {"max_num_patches"},
}


@dataclass(frozen=True)
class Preparation:
    """How a processor prepares images.

    Attributes:
        facts: fields of the configuration
        size: rows and columns of its results; None if the model's image size decides
        notes: what it does otherwise than we, a line each
    """

    facts: Facts
    size: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()


def read_processor(given: Content, family: Family) -> Preparation:
    """Return what preprocessor_config.json states; the family's usual preparation without one."""
    if not given:
        sure = family.model_type != "vit"  # many models are saved as this one
        facts = Facts().put(Origin.FAMILY if sure else Origin.ASSUMED, family.prepared)
        return Preparation(facts)
    stated = str(given.get("image_processor_type") or given.get("feature_extractor_type") or "")
    kind = re.sub(r"(ImageProcessor|FeatureExtractor)(Fast|Pil)?$", "", stated)
    known = not kind or kind in CLASSES
    notes = [] if known else [f"unknown image processor {stated}: read as {family.processor}'s"]
    content = CLASSES[kind if kind in CLASSES else family.processor] | {
        key: value for key, value in given.items() if value is not None
    }
    notes += _unknown(content)
    fields = _normalization(content)
    size, share, fit = _sizes(content, notes)
    fields |= {"crop": share, "fit": fit, "interpolation": _filter(content, notes)}
    if fit == "native":
        fields["tokens"] = content["max_num_patches"]
    facts = Facts().put(Origin.FAMILY if known else Origin.ASSUMED, fields)
    for name, keys in DECIDED.items():
        if name in fields and keys & given.keys():
            facts.origins[name] = Origin.FILE
    if content["resample"] in FILTERS:
        facts.origins["interpolation"] = Origin.ASSUMED
    return Preparation(facts, size, tuple(f"preprocessor_config.json: {note}" for note in notes))


def _unknown(content: Content) -> list[str]:
    """A note for each key that may change images in a way that we do not follow."""
    known = {*CLASSES["ViT"], *IDLE, *NEUTRAL, "crop_pct", "rescale_offset", "offset"}
    return [
        f"{key}={value!r} is unsupported: images are prepared without it"
        for key, value in content.items()
        if key not in known or value not in NEUTRAL.get(key, (value,))
    ]


def _normalization(content: Content) -> dict[str, Any]:
    """Mean and std of pixels in [0, 1], whatever range they are rescaled to."""
    factor: float = 255 * (content["rescale_factor"] if content["do_rescale"] else 1)
    shift = float(bool(content.get("rescale_offset") or content.get("offset")))
    mean, std = content["image_mean"], content["image_std"]
    if not content["do_normalize"]:
        mean, std = 0.0, 1.0
    means, stds = (each if isinstance(each, list | tuple) else [each] for each in (mean, std))
    if abs(factor - 1) < 1e-6:
        factor = 1.0
    return {
        "mean": tuple((each + shift) / factor for each in means),
        "std": tuple(each / factor for each in stds),
    }


def _filter(content: Content, notes: list[str]) -> str:
    resample = content["resample"]
    if resample in RESAMPLE:
        return RESAMPLE[resample]
    name = FILTERS.get(resample, repr(resample))
    notes.append(f"unsupported resample={resample} ({name}): bicubic takes its place")
    return "bicubic"


def _sizes(content: Content, notes: list[str]) -> tuple[tuple[int, int] | None, float, str]:
    """Size of the results, their share of the resized image, and how that was resized."""
    size = content["size"]
    if size is None:
        return None, 1.0, "native"
    if isinstance(size, int):
        square = content["default_to_square"]
        size = {"height": size, "width": size} if square else {"shortest_edge": size}
    if isinstance(size, list):
        size = {"height": size[0], "width": size[1]}
    if not content["do_resize"]:
        notes.append("do_resize is false, but images are resized to the model's size here")
    edge = size.get("shortest_edge")
    if edge and size.get("longest_edge"):
        notes.append(
            f"longest_edge of size={size!r} is unsupported: images keep their shorter side"
        )
    if edge and "crop_pct" in content:  # ConvNeXt's: no crop from 384 pixels on
        if edge >= 384:
            return (edge, edge), 1.0, "squash"
        return (edge, edge), edge / int(edge / content["crop_pct"]), "crop"
    if not edge and not size.get("height"):
        notes.append(f"size={size!r} is unsupported: images are fitted to the model's size")
        return None, 1.0, "crop"
    resized = (edge, edge) if edge else (size["height"], size["width"])
    if not content["do_center_crop"]:
        if edge:
            notes.append("without a crop, images keep their aspect; here they are center-cropped")
        return resized, 1.0, "crop" if edge else "squash"
    inner = content["crop_size"]
    sides = (inner, inner) if isinstance(inner, int) else tuple(inner.values())[:2]
    shares = {inside / whole for inside, whole in zip(sorted(sides), sorted(resized), strict=True)}
    share = min(sides) / min(resized)
    if share > 1 or (not edge and len(shares) > 1):
        notes.append(f"crop_size={inner!r} of size={size!r} is unsupported: fitted instead")
    return (sides[0], sides[1]), min(share, 1.0), "crop" if edge else "squash"


def write_processor(config: ViTConfig) -> dict[str, Any]:
    """Return the file's content for a model; its crop is a share of the shorter side."""
    rows, columns = config.size
    shape = {"height": rows, "width": columns}
    cropped, plain = config.fit == "crop", config.fit != "crop" and config.crop == 1
    kind = "CLIP" if cropped else "ViT" if plain else "DeiT"
    content: dict[str, Any] = {
        "image_processor_type": f"{kind}ImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        **{key: list(getattr(config, own)) for key, own in NORMALIZATION.items()},
        "resample": next(key for key, own in RESAMPLE.items() if own == config.interpolation),
    }
    if plain:
        return content | {"size": shape}
    sides = [int(side / config.crop + 1e-6) for side in (rows, columns)]
    whole = {"shortest_edge": min(sides)} if cropped else {"height": sides[0], "width": sides[1]}
    return content | {
        "size": whole,
        "do_center_crop": True,
        "crop_size": shape,
    }
