"""`vitlab probe`."""

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

from vitlab.errors import OptionError
from vitlab.evaluation.probes.wanted import CACHE
from vitlab.options import Options, option, options_of
from vitlab.recipes.head_search import INSTEAD, OF_STEPS, HeadSearch, probe_recipe
from vitlab.recipes.recipe import Host, Recipe
from vitlab.runs.run_folder import RunFolder
from vitlab.terminal import print_figures, print_table
from vitlab.units import percent

SUMMARY = "Fit a classifier to frozen features, and test it."
USED = ("device", "workers", "check_duplicates", "report", "max_bad", "timeout")  # of a host


@dataclass(frozen=True, kw_only=True)
class ProbeRun(Options):
    """Data, weights, what is searched, and the run's folder."""

    FIRST: ClassVar[tuple[str, ...]] = (
        "weights", "out", "by", "layers", "folds", "image_size", "pool", "resume", "cache",
        "device", "workers", "precision",
    )  # fmt: skip
    ELSEWHERE: ClassVar[dict[str, str]] = dict.fromkeys(
        sorted(OF_STEPS | (options_of(Host).keys() - set(USED))), INSTEAD
    )
    HIDDEN: ClassVar[frozenset[str]] = frozenset({"model"})

    out: str | None = option(
        None, "folder of the run (default: runs/DATA-WEIGHTS-probe; then with -2, -3, …)"
    )
    resume: bool = option(False, "finish the run in that folder, if it was interrupted")
    cache: str = option("auto", CACHE)
    search: HeadSearch = HeadSearch()
    recipe: Recipe = Recipe()
    host: Host = Host()
    command: str = ""


def build(given: dict[str, Any]) -> ProbeRun:
    """Return options that start from the recipe of a probe."""
    return ProbeRun(recipe=probe_recipe()).changed(**given)


def begin(options: ProbeRun) -> None:
    """Refuse a folder in the way, and a run in the place of data; say what begins."""
    data = options.recipe.data.data
    if data not in ("", "digits") and RunFolder(data).started:
        raise OptionError(f"{data} is a run, not data: to take its features, pass --from {data}")
    if options.out:
        RunFolder(options.out).may_be_used(options.resume)
    print(f"{options.recipe.start.weights} on {data}", file=sys.stderr, flush=True)


def run(options: ProbeRun) -> dict[str, Any]:
    """Fit, test and report."""
    import vitlab

    recipe = options.recipe
    chosen = {**_chosen(recipe.data), **_chosen(recipe.start), "seed": recipe.seed}
    chosen["precision"] = recipe.precision
    chosen |= recipe.model.chosen() | options.search.as_dict()
    data, weights = chosen.pop("data"), chosen.pop("weights")
    del chosen["tune"]
    how: dict[str, Any] = {"host": options.host, "command": options.command}
    how |= {"cache": options.cache, "resume": options.resume}
    found = vitlab.probe(data, weights, options.out, **how, **chosen)
    return found.metrics


def _chosen(part: Options) -> dict[str, Any]:
    """Return the options of a part that are not at their defaults."""
    usual = type(part)()
    names = options_of(type(part))
    return {
        name: getattr(part, name) for name in names if getattr(part, name) != getattr(usual, name)
    }


def show(result: dict[str, Any]) -> None:
    """Print what was tried, the best first, and the test figures."""
    tried = sorted(result.get("tried", ()), key=lambda each: -each["accuracy"])
    rows = [
        (
            str(each["layer"]),
            each["pool"] or "features",
            each["head"],
            f"{each['l2']:g}" if each["l2"] else "",
            each["how"],
            percent(each["accuracy"]),
        )
        for each in tried
    ]
    print_table(("block", "features", "head", "l2", "by", "accuracy"), rows)
    print_figures(result)
