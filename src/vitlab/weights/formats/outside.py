"""What stands beside a backbone: a classifier that belongs to the model, or parts that are told.

People put a backbone and a layer of their own into one module: `backbone.blocks.0…`, `fc.weight`.
"""

import re
from collections.abc import Collection

from vitlab.weights.source import Shape, Source

# What a single linear classifier is called.
CLASSIFIERS = re.compile(
    r"(head|fc|classifier|linear|cls_head|classify|logits|cls|head\.fc|classifier\.0|head\.proj)"
)
# What may be one, or a part of one.
HEADS = re.compile(r"(.*\.)?\w*(head|fc|classif|linear|logits)\w*(\..*)?")
SHOWN = 4  # names in a message


def classifier_beside(source: Source, prefix: str, width: Shape) -> str:
    """Return the name of the one linear layer that classifies a backbone's features, or "".

    Args:
        source: of the tensors
        prefix: of the backbone's names, `backbone.`
        width: of the features: (width,)

    Returns:
        `fc` if `fc.weight` is (classes, width), it has a bias, and no other layer is such a one;
        `head.proj`, open_clip's projection of a tower of timm, may have none.
    """
    found = []
    for name, shape in source.shapes.items():
        layer, _, part = name.rpartition(".")
        above = next((up for up in _ancestors(prefix) if name.startswith(up)), "")
        if name.startswith(prefix) or part != "weight" or not prefix:
            continue
        bias = source.shapes.get(f"{layer}.bias")
        biased = bias == shape[:1] or (bias is None and layer.endswith("head.proj"))
        linear = len(shape) == 2 and shape[1:] == width and biased
        if linear and CLASSIFIERS.fullmatch(layer.removeprefix(above)):
            found.append(layer)
    return found[0] if len(found) == 1 else ""


def notes_beside(source: Source, prefix: str, taken: Collection[str]) -> tuple[str, ...]:
    """Return a line about each classifier beside a backbone: that it was taken, or was left out.

    Args:
        source: of the tensors
        prefix: of the backbone's names
        taken: names of the model's tensors
    """
    if not prefix:
        return ()
    beside = [name for name in source.shapes if not name.startswith(prefix)]
    heads = {name: source.in_file(name) for name in beside if HEADS.fullmatch(name)}
    read = [shown for name, shown in heads.items() if name in taken]
    left = [shown for name, shown in heads.items() if name not in taken]
    place = source.in_file(prefix).rstrip(".")
    more = f" and {len(left) - SHOWN} more" if len(left) > SHOWN else ""
    lines = []
    if read:
        lines.append(f"{', '.join(read)} beside {place} are read as the model's classifier")
    if left:
        lines.append(f"left out, outside {place}: {', '.join(left[:SHOWN])}{more}")
    return tuple(f"{source.path}: {line}" for line in lines)


def _ancestors(prefix: str) -> list[str]:
    """The prefixes of the modules around a backbone, the innermost first: `a.b.` is in `a.`."""
    words = prefix.rstrip(".").split(".")
    return [".".join(words[:n]) + "." if n else "" for n in range(len(words) - 1, -1, -1)]
