"""`vitlab delta`."""

from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from typing import Any

from vitlab.command_table import Command
from vitlab.commands import WEIGHTS, WeightsOptions
from vitlab.options import argument, option
from vitlab.places import check_no_folder
from vitlab.units import percent, storage
from vitlab.weights.hub import check_weights


@dataclass(frozen=True, kw_only=True)
class DeltaOptions(WeightsOptions):
    """A fine-tuned model, its base, and the file."""

    weights: str = argument(f"the fine-tuned model: {WEIGHTS}", check_weights)
    start: str = argument("the model that fine-tuning started from", check_weights)
    out: str = option(MISSING, "the new file, ending in .safetensors", check=check_no_folder)


def run(options: DeltaOptions) -> dict[str, Any]:
    """Compare and save."""
    from vitlab.weights import deltas

    base = replace(options, weights=options.start).load()  # both are of one kind
    delta = deltas.delta(options.load(), base)
    share = delta.bytes / sum(tensor.nbytes for tensor in base.state_dict().values())
    file = delta.save(Path(options.out).expanduser())
    return {"bytes": delta.bytes, "share": share, "file": str(file)}


def show(result: dict[str, Any]) -> None:
    """Print the file and its size."""
    share = percent(result["share"])
    print(f"{result['file']}: {storage(result['bytes'])}, {share} of the whole model")


COMMAND = Command(run, show=show)
