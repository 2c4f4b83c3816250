"""`vitlab replay`."""

from dataclasses import dataclass
from typing import Any

from vitlab.commands import DeviceOptions
from vitlab.options import argument

SUMMARY = "Name the layer at which a step of a run was not finite."
WHERE = {
    "weights": "the weights {layer} are not finite",
    "output": "{layer} is the first layer whose output is not finite; it got values up to {most}",
    "loss": "every layer's output is finite, the loss is not",
    "gradient": "the loss is finite; the gradient first is not at {layer}",
    "": "every value is finite",
}


@dataclass(frozen=True, kw_only=True)
class Replay(DeviceOptions):
    """The run, and where to compute."""

    run: str = argument("folder of a run with a step whose loss was not finite")


def run(options: Replay) -> dict[str, Any]:
    """Replay; what may differ from the step that was taken is said on stderr."""
    from vitlab.progress import say
    from vitlab.recipes.recipe import Host
    from vitlab.training.replay import replay

    result = replay(options.run, Host(device=options.device, workers=0))
    for note in result["notes"]:
        say(note)
    return result


def show(result: dict[str, Any]) -> None:
    """Print where the step was not finite, and for which images."""
    where = WHERE[result["what"]].format(layer=result["layer"], most=f"{result['largest']:.3g}")
    print(f"step {result['step']:,} ({result['fault']} not finite): {where}")
    if result["images"]:
        print("images:", ", ".join(result["images"]))
