"""timm's config.json: preprocessing, classes, and the arguments of its constructors."""

from collections.abc import Collection, Mapping
from typing import Any

from vitlab.errors import WeightsError
from vitlab.images import IMAGENET, Size
from vitlab.weights.formats.timm.timm_arguments import NAME, POOLS, stated
from vitlab.weights.formats.timm.timm_rules import known

# Keys of pretrained_cfg and fields of ours with the same meaning.
PREPROCESSING = {
    "mean": "mean", "std": "std", "crop_pct": "crop", "interpolation": "interpolation",
}  # fmt: skip
# Keys whose other values our model cannot represent, and the field that each is about.
LIMITED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "interpolation": ("interpolation", ("bilinear", "bicubic")),
    "crop_mode": ("fit", ("center", "squash")),
    "global_pool": ("pool", (*POOLS, "")),
    "label_offset": ("labels", (0,)),
}
# Reviewed: where weights are from, other sizes, names of layers, texts.
IRRELEVANT = {
    "url", "file", "state_dict", "hf_hub_id", "hf_hub_filename", "source", "architecture", "tag",
    "input_size", "test_input_size", "min_input_size", "fixed_input_size", "test_crop_pct",
    "num_classes", "label_names", "label_descriptions", "labels", "pool_size", "test_pool_size",
    "first_conv", "classifier", "license", "description", "origin_url", "paper_name", "paper_ids",
    "notes", "num_features", "custom_load",
}  # fmt: skip


def architecture_in(config: Mapping[str, Any]) -> str:
    """Return timm's name of the model that config.json states, if it is one that is known."""
    stored = config.get("architecture", "")
    stored = stored.partition(".")[0] if isinstance(stored, str) else ""
    return stored if known(stored) else ""


def arguments_in(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of timm's constructor, and the number of classes, in config.json."""
    if "architecture" not in config:
        return {}
    classes = config.get("num_classes", _pretrained(config).get("num_classes"))
    counted: dict[str, Any] = {"num_classes": classes} if isinstance(classes, int) else {}
    if _pretrained(config).get("global_pool") == "":
        counted["global_pool"] = ""
    return counted | _table(config, "model_args")


def recorded(path: object, config: Mapping[str, Any], chosen: Collection[str]) -> dict[str, Any]:
    """Return the fields that config.json states, or that timm's own defaults for it give.

    Args:
        path: for messages
        config: the content of config.json
        chosen: fields that the user gave, so that they need not be represented here

    Raises:
        WeightsError: it asks for something that our model cannot represent.
    """
    if "architecture" not in config:
        return {}
    pretrained, arguments = _pretrained(config), _table(config, "model_args")
    _check_pretrained(path, pretrained, chosen)
    fields: dict[str, Any] = {"interpolation": "bicubic", "crop": 0.875, **IMAGENET}
    for key, own in PREPROCESSING.items():
        value = pretrained.get(key)
        if value is not None and own not in chosen:
            fields[own] = plain(value)
    fields["fit"] = "squash" if pretrained.get("crop_mode") == "squash" else "crop"
    pool = pretrained.get("global_pool", config.get("global_pool"))
    fields |= stated({"global_pool": pool} | arguments)
    labels = _labels(config.get("label_names", pretrained.get("label_names")))
    return fields | ({"labels": labels} if labels else {})


def recorded_size(config: Mapping[str, Any]) -> Size | None:
    """Return the image size that config.json states, in pixels."""
    size = _table(config, "model_args").get("img_size")
    shape = _pretrained(config).get("input_size")
    if size is None and isinstance(shape, list) and len(shape) == 3:
        size = shape[1:]
    if isinstance(size, list) and len(size) == 2:
        return int(size[0]), int(size[1])
    return size if isinstance(size, int) else None


def _check_pretrained(path: object, pretrained: dict[str, Any], chosen: Collection[str]) -> None:
    """Refuse what would change how images are prepared, or which outputs the classifier has."""
    for key, (own, values) in LIMITED.items():
        value = pretrained.get(key)
        if value not in (None, *values) and own not in chosen:
            settle = f": give --{own}" if own in PREPROCESSING.values() else ""
            raise WeightsError(
                f"{path}: unsupported pretrained_cfg {key}={value!r} of {NAME}{settle}"
            )
    for key in pretrained:
        if key not in (*LIMITED, *PREPROCESSING, *IRRELEVANT):
            raise WeightsError(
                f"{path}: unsupported pretrained_cfg {key}={pretrained[key]!r} of {NAME}"
            )


def plain(value: Any) -> Any:
    """Return a value as our fields have it: a tuple for a list."""
    return tuple(value) if isinstance(value, list) else value


def _labels(stored: Any) -> tuple[str, ...]:
    """Names of the classes: a list, or a table by number without gaps."""
    if isinstance(stored, dict):
        stored = [stored.get(str(number)) for number in range(len(stored))]
    if isinstance(stored, list) and all(isinstance(label, str) for label in stored):
        return tuple(stored)
    return ()


def _pretrained(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part about weights; older files have its keys at the top."""
    if "pretrained_cfg" in config:
        return _table(config, "pretrained_cfg")
    return {key: config[key] for key in (*LIMITED, *PREPROCESSING, *IRRELEVANT) if key in config}


def _table(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}
