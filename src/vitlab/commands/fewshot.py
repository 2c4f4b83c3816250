"""`vitlab fewshot`."""

from dataclasses import MISSING, dataclass
from typing import Any, Literal

from vitlab.commands import DEVICE, PRECISION, WEIGHTS, WORKERS
from vitlab.data.presence import check_data
from vitlab.data.settings import Columns
from vitlab.evaluation.probes.wanted import Pooled
from vitlab.options import Options, above, at_least, option
from vitlab.terminal import print_table
from vitlab.units import percent
from vitlab.weights.hub import check_weights
from vitlab.weights.stated import Stated

SUMMARY = "Measure features: few shots, nearest neighbors, a linear probe."


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
    shots: tuple[int, ...] = option((1, 5, 10, 25), "training images per class", at_least(1))
    seeds: int = option(3, "times the shots are drawn: seeds 0, 1, …", at_least(1))
    l2: float | Literal["auto"] = option(
        1024.0,
        "penalty of the closed-form few-shot fit (auto: beside 1024, the ViT paper's, the best by "
        "leave-one-out on the shots)",
        above(0),
    )
    neighbors: tuple[int, ...] = option(
        (10, 20), "neighbors that vote in k-NN (0: leave it out)", at_least(0)
    )
    logistic: bool = option(
        True, "fit a logistic regression to all training images, its penalty chosen on a fifth"
    )
    features: Pooled = Pooled()
    columns: Columns = Columns()
    file: Stated = Stated()
    cache: str = option(
        "auto",
        "folder in which features are kept for the next time, or no (auto: vitlab/features in the "
        "user's cache folder, at most 20 GB)",
    )
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
        shots=tuple(sorted(set(options.shots))),
        seeds=options.seeds,
        l2=options.l2,
        neighbors=tuple(sorted({k for k in options.neighbors if k})),
        logistic=options.logistic,
        taken=options.features,
        columns=options.columns,
        cache=cache_of(None if options.cache == "no" else options.cache),
        compute=Compute(options.device, options.precision, workers=options.workers),
    )
    result = probe(model, options.data, probing)
    for note in result.get("notes", ()):
        say(note)
    return result


def show(result: dict[str, Any]) -> None:
    """Print the accuracy of each probe."""
    rows = [
        (
            f"{shots} shot{'s' * (shots != '1')}{note}",
            f"{percent(each['accuracy'])} ± {percent(each['std'])}",
            ", ".join(percent(one) for one in each["seeds"]),
        )
        for name, note in (("fewshot", ""), ("fewshot_auto", ", l2 auto"))
        for shots, each in result.get(name, {}).items()
    ]
    every = f"all {result['train_images']:,} images"
    rows += [
        (f"{k} neighbors", percent(each["accuracy"]), every)
        for k, each in result.get("knn", {}).items()
    ]
    rows.append(("class means", percent(result["means"]["accuracy"]), every))
    if "logistic" in result:
        own = result["logistic"]
        rows.append(("logistic regression", percent(own["accuracy"]), f"{every}, l2 {own['l2']:g}"))
    print_table(("probe", "accuracy", "seeds, or learned from"), rows)
