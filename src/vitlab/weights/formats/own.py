"""Our own folder, as `vitlab.save` wrote it: every tensor under its own name."""

from typing import Any

from vitlab.errors import UserError
from vitlab.models.config import ModelConfig, ResNetConfig, ViTConfig
from vitlab.weights.entries import Entry, same
from vitlab.weights.reading import Hints, Reading, empty
from vitlab.weights.source import Source

FORMAT = "vitlab-1"
NAME = "ViTLab"
KINDS: dict[str, type[ModelConfig]] = {"vit": ViTConfig, "resnet": ResNetConfig}


def reading(source: Source, hints: Hints) -> Reading | None:
    """What such a folder says, or None for another format."""
    content = source.config
    if "format" not in content or not str(content["format"]).startswith("vitlab-"):
        return None
    file = source.path / "config.json" if source.path.is_dir() else source.path
    if content["format"] != FORMAT:
        raise UserError(f"{file} has format {content['format']!r}, not {FORMAT!r}")
    try:
        model: Any = {**content["model"], **hints.choices}
        config = KINDS[content["kind"]].from_dict(model)
    except (KeyError, TypeError, ValueError) as error:
        reason = str(error) if isinstance(error, UserError) else f"damaged ({error})"
        raise UserError(f"{file}: {reason}") from error
    return Reading(NAME, config, entries(config), exact=True)


def entries(config: ModelConfig) -> list[Entry]:
    """Each tensor as it is."""
    return [same(name, name) for name in empty(config)]
