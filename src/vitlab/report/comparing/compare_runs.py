"""`vitlab.compare`: several runs side by side, as JSON values and as a page."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vitlab.evaluation.metrics import METRICS
from vitlab.evaluation.paired_tests import Pair
from vitlab.places import check_page
from vitlab.progress import PLACE, public
from vitlab.report.comparing.compared_run import ComparedRun, differing
from vitlab.report.comparing.run_comparison import Compared, Progress, gathered, seeds_of

COSTS = ("images", "params", "macs", "images_per_second", "peak_memory", "seconds", "device")


@public(runs=Sequence, out=PLACE)
def compare(
    runs: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    replace: bool = False,
    device: str = "auto",
    workers: int | None = None,
    command: str = "",
    progress: Progress = lambda name, images, total: None,
) -> dict[str, Any]:
    """Compare runs: figures, paired tests on the same test images, recipes, and mistakes.

    A model's predictions for its test images are computed once, and kept in its run's
    folder. Classes are matched by name and images by content: the order of either may differ.

    Args:
        runs: folders of 2 to 20 runs, or of a sweep, seeds or folds, which stand for their runs
        out: the page to write, a name that ends in .html; None for none
        replace: an older file of that name
        device: where to compute what is not kept: auto, cpu, cuda, cuda:N or mps
        workers: processes that decode; None to choose
        command: what the user typed, for the page
        progress: called with the name of a run, the number of its images processed, and of all

    Returns:
        `runs`, the figures of each; `pairs`, two runs each on the `images` they have in common:
        McNemar's exact p, p after Holm's correction, the difference (second minus first) of each
        figure with its 95% interval, the share of equal answers, and how far mistakes coincide;
        `recipe`, the options that differ and their values; `seeds`, mean and standard deviation of
        runs that differ in their seed alone; `notes`; and `report`, the page.

    Raises:
        RunError: no run in a folder, the same run twice, or damaged files.
        OptionError: fewer than two runs or more than 20, or `out` is no new .html file.
        DiskError: the page cannot be written.
    """
    from vitlab.report.comparing.comparison_page import write_comparison  # slow to import

    file = None if out is None else check_page(out, replace=replace)
    compared = gathered([str(run) for run in runs], device, workers, progress)
    result = {
        "images": 0 if compared.same is None else len(compared.same),
        "runs": [_run(each) for each in compared.entries],
        "pairs": [_pair(compared, each) for each in compared.pairs],
        "recipe": {option: list(values) for option, values in differing(compared.entries).items()},
        "seeds": seeds_of(compared.entries),
        "notes": compared.notes,
    }
    if file is not None:
        result["report"] = str(write_comparison(file, compared, command))
    return result


def _run(entry: ComparedRun) -> dict[str, Any]:
    facts, names = entry.facts, (*METRICS, *COSTS, "intervals")
    return {
        "run": str(entry.folder.path),
        "name": entry.name,
        "model": facts.model,
        "seed": entry.seed,
        **({"task": facts.task} if facts.task else {}),
        "finished": bool(facts.figures),
        **{key: facts.figures[key] for key in names if key in facts.figures},
    }


def _pair(compared: Compared, pair: Pair) -> dict[str, Any]:
    """Return the tests of two runs, which are named; what is not a number becomes null."""
    assert compared.same is not None
    first, second = (
        str(compared.entries[compared.same.runs[place]].folder.path)
        for place in (pair.first, pair.second)
    )
    differences = {
        name: {
            "value": each.value if math.isfinite(each.value) else None,
            "interval": each.interval and list(each.interval),
        }
        for name, each in pair.differences.items()
    }
    return asdict(pair) | {"first": first, "second": second, "differences": differences}
