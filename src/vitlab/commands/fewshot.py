"""`vitlab fewshot`."""

from dataclasses import dataclass
from typing import Any

from vitlab.commands import PrecisionOptions, WeightsOptions, WorkersOptions
from vitlab.data.exists import check_data
from vitlab.evaluation.probes.feature_options import Probing
from vitlab.options import argument
from vitlab.terminal import print_table
from vitlab.units import percent

SUMMARY = "Measure features: few shots, k-NN, linear classifiers by protocol."


@dataclass(frozen=True, kw_only=True)
class Fewshot(WorkersOptions, PrecisionOptions, WeightsOptions):
    """A model, data, which probes, and where to compute.

    big_vision's few-shot evaluation prepares images with --fit squash --crop 0.875.
    """

    data: str = argument(
        "labeled images, any DATA of `vitlab train`: learns from the training split, is measured "
        "on the test split",
        check_data,
    )
    probing: Probing = Probing()


def run(options: Fewshot) -> dict[str, Any]:
    """Measure; of several processes only the first one has a result to print."""
    from vitlab.evaluation.compute import Compute
    from vitlab.evaluation.probes.probing import probe
    from vitlab.progress import say

    compute = Compute(**options.values("device precision workers"))
    result = probe(options.load(), options.data, options.probing, compute)
    for note in result.get("notes", ()):
        say(note)
    return result


def show(result: dict[str, Any]) -> None:
    """Print the accuracy of each protocol: of one kind of features, or of all side by side."""
    from vitlab.evaluation.probes.probing import named_rows

    best = result.get("best", {})
    columns = {
        kind: {name: _accuracy(row, best.get(name) == kind) for name, row in named_rows(own)}
        for kind, own in result.get("by_features", {"accuracy": result}).items()
    }
    if "by_features" not in result:
        columns["seeds, or l2"] = {name: _about(row) for name, row in named_rows(result)}
    names = next(iter(columns.values()))
    rows = [(name, *(own[name] for own in columns.values())) for name in names]
    print_table(("protocol", *columns), rows)
    if best:
        print("* the best on validation images, which are a part of the training images")


def _accuracy(row: dict[str, Any], best: bool) -> str:
    low, high = row["interval"]
    return f"{percent(row['accuracy'])} ({100 * low:.1f} to {100 * high:.1f})" + " *" * best


def _about(row: dict[str, Any]) -> str:
    """Format what else is known of a row."""
    if "seeds" in row:
        return f"{', '.join(map(percent, row['seeds']))}: ± {100 * row['std']:.1f}"
    return f"l2 {row['l2']:.3g}" if "l2" in row else ""
