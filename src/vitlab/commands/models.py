"""`vitlab models`."""

from dataclasses import dataclass
from typing import Any

from vitlab.command_table import Command
from vitlab.options import Options
from vitlab.terminal import print_table


@dataclass(frozen=True, kw_only=True)
class ModelsOptions(Options):
    """Nothing to choose."""


def run(options: ModelsOptions) -> dict[str, Any]:
    """Return the cost of every listed model at 224 pixels."""
    from vitlab.models.names import MODELS

    rows = [
        {"model": name, "params": params, "macs": macs} for name, (params, macs) in MODELS.items()
    ]
    return {"image_size": 224, "models": rows}


def show(result: dict[str, Any]) -> None:
    """Print a row per model."""
    rows = [
        (each["model"], f"{each['params'] / 1e6:.1f} M", f"{each['macs'] / 1e9:.2f}")
        for each in result["models"]
    ]
    print_table(("model", "parameters", "GMACs at 224"), rows)
    print("Other depths, branches and patch sizes have names too: ViT-S18x2/14, ViT-B13/8")


COMMAND = Command(run, show=show, is_light=True)
