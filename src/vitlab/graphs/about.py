"""Metadata of an exported file about its model, as JSON."""

from typing import Any

from vitlab.data.contents import has_unidentified
from vitlab.models.model import Model
from vitlab.packages import version_of
from vitlab.recorded_paths import last_name


def about(model: Model) -> dict[str, Any]:
    """Return what a program needs to use a model's file, and where its weights come from."""
    config, origin = model.config, model.provenance
    facts: dict[str, Any] = {
        "model": config.name,
        "classes": list(config.class_names),
        "features": config.features,
        "image_size": list(config.size),
        "channels": config.channels,
        "mean": list(config.mean),
        "std": list(config.std),
        "interpolation": config.interpolation,
        "crop": config.crop,
        "fit": config.fit,
        "center": config.center,
        "temperature": model.temperature,
        "multi_label": bool(origin.get("multi_label", False)),
        "version": version_of("vitlab"),
    }
    if count := len(model.seen) - has_unidentified(model.seen):
        facts["learned_from"] = count
    if model.unlike is not None:
        facts["unlike"] = "distance > 1"
    if facts["multi_label"]:
        facts["thresholds"] = list(model.thresholds)
    kept = ("recipe", "license", "source_license", "commit", "source", "base", "data")
    return facts | {name: last_name(str(origin[name])) for name in kept if origin.get(name)}
