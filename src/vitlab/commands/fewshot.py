"""`vitlab fewshot`."""

from dataclasses import dataclass
from typing import Any

from vitlab.command_table import Command
from vitlab.commands import PrecisionOptions, WeightsOptions, WorkersOptions
from vitlab.data.exists import check_data
from vitlab.evaluation.probes.feature_options import Probing
from vitlab.options import argument
from vitlab.terminal import print_table
from vitlab.units import percent


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
    say(*result.get("notes", ()))
    return result


def show(result: dict[str, Any]) -> None:
    """Print the accuracy of each protocol."""
    found = [result[key] for key in ("fewshot", "fewshot_auto", "knn") if key in result]
    rows = [row for each in found for row in each.values()]
    rows += [result[key] for key in ("means", "logistic") if key in result]
    cells = [(row["name"], _accuracy(row), _about(row)) for row in rows]
    print_table(("protocol", "accuracy", "seeds, or l2"), cells)


def _accuracy(row: dict[str, Any]) -> str:
    low, high = row["interval"]
    return f"{percent(row['accuracy'])} ({100 * low:.1f} to {100 * high:.1f})"


def _about(row: dict[str, Any]) -> str:
    """Format what else is known of a row."""
    if "seeds" in row:
        return f"{', '.join(map(percent, row['seeds']))}: ± {100 * row['std']:.1f}"
    return f"l2 {row['l2']:.3g}" if "l2" in row else ""


COMMAND = Command(run, show=show)
