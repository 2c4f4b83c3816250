"""preprocessor_config.json of transformers, read and written."""

from typing import Any

from vitlab.models.config import ViTConfig

# Keys and fields of ours with the same meaning.
NORMALIZATION = {"image_mean": "mean", "image_std": "std"}
RESAMPLE = {2: "bilinear", 3: "bicubic"}  # Pillow's numbers


def read_processor(content: dict[str, Any], prepared: dict[str, Any]) -> dict[str, Any]:
    """Return the preprocessing that a file states.

    Args:
        content: of the file; empty if it is missing
        prepared: the family's defaults
    """
    fields = dict(prepared)
    normalized = content.get("do_normalize", True)
    for key, own in NORMALIZATION.items():
        if isinstance(content.get(key), list) and normalized:
            fields[own] = tuple(content[key])
    if normalized is False:
        fields |= {"mean": 0.0, "std": 1.0}
    if interpolation := RESAMPLE.get(content.get("resample", 0)):
        fields["interpolation"] = interpolation
    return fields | _read_crop(content)


def _read_crop(content: dict[str, Any]) -> dict[str, Any]:
    """How images are fitted: `size` is the resized image, `crop_size` its center that is used."""
    size, cropped = content.get("size"), content.get("crop_size")
    centered = content.get("do_center_crop")
    if isinstance(size, int):
        size = {"shortest_edge": size} if centered else {"height": size}
    if not isinstance(size, dict) or not size:
        return {}
    fields: dict[str, Any] = {"fit": "crop" if "shortest_edge" in size else "squash"}
    side = size.get("shortest_edge") or size.get("height")
    inner = cropped.get("height") if isinstance(cropped, dict) else cropped
    inner = inner if centered and isinstance(inner, int) else side
    if isinstance(side, int) and isinstance(inner, int) and 0 < inner <= side:
        fields["crop"] = inner / side
    return fields


def write_processor(config: ViTConfig) -> dict[str, Any]:
    """Return the file's content for a model; its crop is a share of the shorter side."""
    rows, columns = config.size
    cropped = config.fit == "crop"
    content: dict[str, Any] = {
        "image_processor_type": "CLIPImageProcessor" if cropped else "ViTImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        **{key: list(getattr(config, own)) for key, own in NORMALIZATION.items()},
        "resample": next(key for key, own in RESAMPLE.items() if own == config.interpolation),
    }
    if cropped:
        side = round(min(rows, columns) / config.crop)
        return content | {
            "size": {"shortest_edge": side},
            "do_center_crop": True,
            "crop_size": {"height": rows, "width": columns},
        }
    return content | {"size": {"height": rows, "width": columns}}
