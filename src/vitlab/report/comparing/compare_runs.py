"""`vitlab.compare`: several runs side by side."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitlab.places import check_page
from vitlab.progress import PLACE, public
from vitlab.report.comparing.comparison_json import as_json
from vitlab.report.comparing.run_comparison import Progress, gathered


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

    What a model answers to its test images is computed once, and kept in its run's folder. Classes
    are matched by name and images by their content, so that the order of either may differ.

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
    result = as_json(compared)
    if file is not None:
        result["report"] = str(write_comparison(file, compared, command))
    return result
