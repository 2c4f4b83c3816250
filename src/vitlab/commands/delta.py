"""`vitlab delta`."""

from dataclasses import MISSING, dataclass
from typing import Any

from vitlab.commands import WEIGHTS
from vitlab.options import Options, option
from vitlab.weights.hub import check_weights
from vitlab.weights.stated import Stated

SUMMARY = "Save only the weights that fine-tuning changed, in one file."


@dataclass(frozen=True, kw_only=True)
class Delta(Options):
    """A fine-tuned model, its base, and the file."""

    weights: str = option(
        MISSING, f"the fine-tuned model: {WEIGHTS}", positional=True, check=check_weights
    )
    start: str = option(
        MISSING, "the model that fine-tuning started from", positional=True, check=check_weights
    )
    out: str = option(MISSING, "the new file, ending in .safetensors")
    file: Stated = Stated()


def run(options: Delta) -> dict[str, Any]:
    """Compare and save."""
    import vitlab

    known = options.file.arguments()  # of both, which are of one kind
    base = vitlab.load(options.start, **known)
    delta = vitlab.delta(vitlab.load(options.weights, **known), base)
    whole = sum(tensor.nbytes for tensor in base.state_dict().values())
    return {
        "bytes": delta.bytes,
        "share": delta.bytes / whole,
        "file": str(delta.save(options.out)),
    }


def show(result: dict[str, Any]) -> None:
    """Print the file and its size."""
    from vitlab.units import percent, storage

    share = percent(result["share"])
    print(f"{result['file']}: {storage(result['bytes'])}, {share} of the whole model")
