"""`vitlab models`."""

from dataclasses import dataclass
from typing import Any

from vitlab.options import Options
from vitlab.terminal import print_table

SUMMARY = "List model names with their parameters and multiply-adds."


@dataclass(frozen=True, kw_only=True)
class Models(Options):
    """Nothing to choose."""


def run(options: Models) -> dict[str, Any]:
    """Count every listed model at 224 pixels."""
    from vitlab.models.config import config_of
    from vitlab.models.cost import cost
    from vitlab.models.names import MODELS

    costs = {name: cost(config_of(name)) for name in MODELS}
    rows = [{"model": name, "params": c.params, "macs": c.macs} for name, c in costs.items()]
    return {"image_size": 224, "models": rows}


def show(result: dict[str, Any]) -> None:
    """Print a row per model."""
    rows = [
        (each["model"], f"{each['params'] / 1e6:.1f} M", f"{each['macs'] / 1e9:.2f}")
        for each in result["models"]
    ]
    print_table(("model", "parameters", "GMACs at 224"), rows)
    print("Other depths, branches and patch sizes have names too: ViT-S18x2/14, ViT-B13/8")
