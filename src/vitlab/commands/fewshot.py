"""`vitlab fewshot`."""

from dataclasses import MISSING, dataclass
from typing import Any, Literal, get_args

from vitlab.commands import CACHE, DEVICE, PRECISION, WEIGHTS, WORKERS
from vitlab.data.presence import check_data
from vitlab.data.settings import Columns
from vitlab.evaluation.probes.wanted import Pooled, ProtocolName
from vitlab.options import Options, above, at_least, option
from vitlab.terminal import print_table
from vitlab.units import percent
from vitlab.weights.hub import check_weights
from vitlab.weights.stated import Stated

SUMMARY = "Measure features by the protocols of papers: few shots, k-NN, linear classifiers."


@dataclass(frozen=True, kw_only=True)
class Fewshot(Options):
    """A model, data, which probes, and where to compute.

    big_vision's few-shot evaluation prepares images with --fit squash --crop 0.875.
    """

    weights: str = option(MISSING, WEIGHTS, positional=True, check=check_weights)
    data: str = option(
        MISSING,
        "labeled images, any DATA of `vitlab train`: learns from the training split, is measured "
        "on the test split",
        positional=True,
        check=check_data,
    )
    protocol: tuple[ProtocolName, ...] = option(
        get_args(ProtocolName),
        "fewshot: least squares on few images of each class (big_vision, the ViT paper); knn: 10, "
        "20, 100 and 200 neighbors (DINO, DINOv2); means: the nearest class mean; logistic, "
        "simclr: logistic regression as DINOv2 and SimCLR evaluate",
    )
    shots: tuple[int, ...] = option((1, 5, 10, 25), "training images per class", at_least(1))
    seeds: int = option(3, "times the shots are drawn: seeds 0, 1, …", at_least(1))
    l2: float | Literal["auto"] = option(
        "auto",
        "penalty of the few-shot fit (auto: 1024, the paper's, and beside it the best by "
        "leave-one-out on the shots)",
        above(0),
    )
    features: Pooled = Pooled()
    columns: Columns = Columns()
    file: Stated = Stated()
    cache: str = option("auto", CACHE)
    device: str = option("auto", DEVICE)
    precision: Literal["fp32", "bf16"] = option("fp32", PRECISION)
    workers: int | None = option(None, WORKERS, at_least(0))


def run(options: Fewshot) -> dict[str, Any]:
    """Measure; of several processes only the first one has a result to print."""
    import vitlab
    from vitlab.evaluation.compute import Compute
    from vitlab.evaluation.features import cache_of
    from vitlab.evaluation.probes.probing import Probing, probe
    from vitlab.progress import say

    model = vitlab.load(options.weights, **options.file.arguments())
    probing = Probing(
        protocols=options.protocol,
        shots=options.shots,
        seeds=options.seeds,
        l2=options.l2,
        taken=options.features,
        columns=options.columns,
        cache=cache_of(options.cache),
        compute=Compute(options.device, options.precision, workers=options.workers),
    )
    result = probe(model, options.data, probing)
    for note in result.get("notes", ()):
        say(note)
    return result


def show(result: dict[str, Any]) -> None:
    """Print the accuracy of each protocol: of one kind of features, or of all side by side."""
    from vitlab.evaluation.probes.probing import named_rows

    every, best = f"all {result['train_images']:,} images", result.get("best", {})
    columns = {
        kind: {name: _accuracy(row, best.get(name) == kind) for name, row in named_rows(own)}
        for kind, own in result.get("by_features", {"accuracy": result}).items()
    }
    if "by_features" not in result:
        columns["seeds, or learned from"] = {
            name: _about(row, every) for name, row in named_rows(result)
        }
    names = next(iter(columns.values()))
    rows = [(name, *(own[name] for own in columns.values())) for name in names]
    print_table(("protocol", *columns), rows)
    if best:
        print("* the best on validation images, which are a part of the training images")


def _accuracy(row: dict[str, Any], best: bool) -> str:
    """Format an accuracy with its interval."""
    low, high = row["interval"]
    return f"{percent(row['accuracy'])} ({100 * low:.1f} to {100 * high:.1f})" + " *" * best


def _about(row: dict[str, Any], every: str) -> str:
    """Format what else is known of a row."""
    if "seeds" in row:
        return f"{', '.join(map(percent, row['seeds']))}: ± {100 * row['std']:.1f}"
    return every + (f", l2 {row['l2']:.3g}" if "l2" in row else "")
