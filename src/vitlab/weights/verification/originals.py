"""The same folder of weights in the library it was published for: timm or transformers.

Neither is a dependency; each is imported where it is installed. No code from a folder is run.
"""

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitlab.errors import PackageError, WeightsError

# Kinds of outputs, and their names in transformers, in order of preference.
KINDS = (
    ("logits", "logits"),
    ("embedding", "image_embeds"),
    ("tokens", "last_hidden_state"),
)


def outputs(library: str, folder: Path, images: Tensor) -> tuple[str, Tensor]:
    """Return what another library computes.

    Args:
        library: `timm` or `transformers`
        folder: config.json and weights, as they were published
        images: (B, channels, rows, columns), normalized

    Returns:
        What it is (logits, embedding, features or tokens), and the numbers.

    Raises:
        PackageError: the library is not installed.
        WeightsError: the library cannot load the folder.
    """
    run = {"timm": _timm, "transformers": _transformers}[library]
    try:
        module = importlib.import_module(library)
    except (ImportError, RuntimeError) as error:  # torchvision's, of a build for another torch
        raise PackageError(
            f"to compare with {library}, install it: pip install {library} ({error})"
        ) from error
    try:
        with torch.inference_mode():
            return run(module, folder, images)
    except Exception as error:  # whatever another library may raise
        line = " ".join(str(error).split())[:200]
        raise WeightsError(f"{library} cannot run {folder}: {line}") from error


def _timm(timm: Any, folder: Path, images: Tensor) -> tuple[str, Tensor]:
    model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    return "logits" if model.num_classes else "features", model(images)


def _transformers(transformers: Any, folder: Path, images: Tensor) -> tuple[str, Tensor]:
    """Return logits of a classifier, what an image tower gives, or tokens of an encoder."""
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    kind = getattr(transformers, (config.architectures or ["AutoModel"])[0])
    model = kind.from_pretrained(folder).float().eval()
    if hasattr(model, "vision_model") and not kind.__name__.endswith("Classification"):
        pooled = model.vision_model(images).pooler_output  # beside a text model
        if hasattr(model, "visual_projection"):
            return "embedding", model.visual_projection(pooled)
        return "features", pooled
    result = model(images)
    for compared, name in KINDS:
        if getattr(result, name, None) is not None:
            return compared, getattr(result, name)
    raise WeightsError(f"unknown outputs of {kind.__name__}")
