"""`vitlab compare`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitlab.command_table import Command
from vitlab.commands import DeviceOptions, PageOptions, WorkersOptions
from vitlab.options import argument, option, when_any
from vitlab.places import check_drawing
from vitlab.runs.several_runs import check_runs
from vitlab.terminal import fits_terminal, print_table, print_wide, readable

if TYPE_CHECKING:
    from vitlab.evaluation.metrics import Metric

FIRST = ("accuracy", "map")  # the figure that has its interval in the table
COSTS = ("params", "macs", "seconds")
KINDS = {"paired": "paired", "welch": "Welch"}
Lines = list[tuple[str, ...]]


@dataclass(frozen=True, kw_only=True)
class Compare(WorkersOptions, DeviceOptions, PageOptions):
    """The runs, the files to write, and what the user typed."""

    runs: tuple[str, ...] = argument(
        "folders of runs; that of seeds, folds or a study stands for its runs, that of a sweep for "
        "its best run, or alone for all; at most 20 recipes",
        check_runs,
    )
    figure: str | None = option(
        None, "draw the recipes, mean and deviation: FILE.svg, FILE.pdf or FILE.png"
    )
    replace: bool = option(
        False, "replace the files that --out and --figure name", only=when_any("out", "figure")
    )


def begin(options: Compare) -> None:
    """Refuse files that cannot be written."""
    options.page()
    if options.figure is not None:
        check_drawing(options.figure, replace=options.replace)


def run(options: Compare) -> dict[str, Any]:
    """Compare; what cannot be compared is said on stderr."""
    from vitlab.progress import Meter, say
    from vitlab.report.comparing.compare_runs import compare

    how = options.values("figure replace device workers command")
    with Meter(0, title="evaluating") as meter:
        how["progress"] = lambda name, done, of: meter.show(done, f"images of {name}", of)
        result = compare(options.runs, options.out, **how)
    say(*result["notes"])
    return result


def show(result: dict[str, Any]) -> None:
    """Print the recipes or the runs, what differs in their options, the tests, and the files."""
    recipes = result["recipes"]
    if any(len(each["runs"]) > 1 for each in recipes):
        _show_recipes(result)
    if len(recipes) == 1 or all(len(each["runs"]) < 2 for each in recipes):
        _show_runs(result)
    elif result["pairs"]:
        print(f"pairs of runs, on {result['images']:,} test images in common: --json, or --out")
    for key in ("figure", "report"):
        if key in result:
            print(result[key])


# Recipes over seeds and folds


def _show_recipes(result: dict[str, Any]) -> None:
    """Print a row a recipe, what differs in their options, and a row for each two recipes."""
    from vitlab.report.comparing.recipe_tests import TITLES

    recipes = result["recipes"]
    names = [each["name"] for each in recipes]
    head, named = _differences(result, names)
    if not fits_terminal(head, named):  # numbers leave more room
        numbers = [f"{number}" for number in range(1, len(names) + 1)]
        head, named = _differences(result, numbers)
        names = [f"{number} {name}" for number, name in zip(numbers, names, strict=True)]
    _print_means(names, recipes)
    if len(recipes) > 1:
        _print_options("recipe", names, _of_recipes(result))
    if named:
        tests = {each["test"] for each in result["recipe_pairs"] if each["test"]}
        words = f", {TITLES[tests.pop()]}" if len(tests) == 1 else ""
        print(f"difference of means, second minus first (95% interval){words}")
        print_table(head, named)


def _differences(result: dict[str, Any], names: Sequence[str]) -> tuple[tuple[str, ...], Lines]:
    """Return head and lines of the differences of each two recipes, which are called so."""
    from vitlab.evaluation.metrics import METRICS

    pairs = [each for each in result["recipe_pairs"] if each["differences"]]
    numbers = {each["name"]: number for number, each in enumerate(result["recipes"])}
    head = ["first", "second", "difference", "p"]
    lines = Lines()
    mixed = len({each["test"] for each in pairs if each["test"]}) > 1
    for each in pairs:
        two = (names[numbers[each["first"]]], names[numbers[each["second"]]])
        value = METRICS[each["metric"]].gap(**each["differences"][each["metric"]])
        ps = [_p(each["p"]), *([_p(each["adjusted"])] if len(pairs) > 1 else [])]
        lines.append((*two, value, *ps, *([KINDS.get(each["test"], "–")] if mixed else [])))
    head += ["p (Holm)"] * (len(pairs) > 1) + ["test"] * mixed
    return tuple(head), lines


def _p(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _print_means(names: Sequence[str], recipes: Sequence[dict[str, Any]]) -> None:
    """Print mean and deviation of each recipe: the first figure, the runs, then other figures."""
    from vitlab.evaluation.metrics import METRICS, main_of

    known = {key for each in recipes for key in each["mean"]}
    shown = [each for each in METRICS.values() if each.name in known and (each.key or not each.fn)]
    if main := main_of(known):
        shown = [main, *(each for each in shown if each is not main)]
    columns = [(each.word, [_mean(recipe, each) for recipe in recipes]) for each in shown]
    counts = [(len(each["runs"]), len(each.get("unfinished", ()))) for each in recipes]
    runs = [f"{done} of {done + more}" if more else f"{done}" for done, more in counts]
    whole = [("recipe", names), *columns[:1], ("runs", runs), *columns[1:]]
    head = [title for title, _ in whole]
    print_wide(head, [*zip(*(cells for _, cells in whole), strict=True)])


def _mean(recipe: dict[str, Any], metric: "Metric") -> str:
    """Return the mean of a figure, and its deviation if there is one."""
    if metric.name not in recipe["mean"]:
        return "–"
    text = metric.text(recipe["mean"][metric.name])
    deviation = recipe["std"].get(metric.name)
    return text if deviation is None else f"{text} ± {metric.deviation(deviation)}"


def _of_recipes(result: dict[str, Any]) -> dict[str, list[str]]:
    """Return the options that differ, each with its value in the first run of every recipe."""
    from vitlab.report.comparing.recipe_groups import NUMBERING

    places = [each["run"] for each in result["runs"]]
    first = [(*each["runs"], *each.get("unfinished", ()))[0] for each in result["recipes"]]
    values = {
        key: [own[places.index(run)] for run in first]
        for key, own in result["recipe"].items()
        if key not in NUMBERING
    }
    return {key: own for key, own in values.items() if len(set(own)) > 1}


def _print_options(what: str, names: Sequence[str], options: Mapping[str, Sequence[str]]) -> None:
    """Print options that differ, a row for each, or a column where that is too wide."""
    if not options:
        return
    head = ("option", *names)
    rows = [(key, *own) for key, own in options.items()]
    if fits_terminal(head, rows):
        print_table(head, rows)
    else:
        print_wide((what, *options), [*zip(names, *options.values(), strict=True)])


# Single runs


def _show_runs(result: dict[str, Any]) -> None:
    """Print a row a run, what differs in their recipes, and a row for each two runs."""
    names = {each["run"]: each["name"] for each in result["runs"]}
    corrected = ("p (Holm)",) if len(result["pairs"]) > 1 else ()
    head = ("first", "second", "difference", "only first", "only second", "p", *corrected)
    pairs = [_row(each, names)[: len(head)] for each in result["pairs"]]
    if not fits_terminal(head, pairs):  # numbers leave more room
        numbers = {run: f"{number}" for number, run in enumerate(names, 1)}
        pairs = [_row(each, numbers)[: len(head)] for each in result["pairs"]]
        names = {run: f"{numbers[run]} {name}" for run, name in names.items()}
    _print_figures(result["runs"], names)
    _print_options("run", [*names.values()], result["recipe"])
    if pairs:
        print(f"paired on {result['images']:,} test images; the difference is second minus first")
        print_table(head, pairs)


def _print_figures(runs: Sequence[dict[str, Any]], names: Mapping[str, str]) -> None:
    """Print a row a run: its figures, then its costs."""
    from vitlab.evaluation.metrics import METRICS

    rows = []
    shown = [each.name for each in METRICS.values() if each.key or not each.fn]
    for each in runs:
        ranges = {key: each["intervals"][key] for key in FIRST if key in each.get("intervals", {})}
        kept = {key: each[key] for key in ("task", *shown, *COSTS, "model") if key in each}
        rows.append(dict(readable({"run": names[each["run"]]} | kept | {"intervals": ranges})))
    head = tuple(dict.fromkeys(name for row in rows for name in row))
    print_wide(head, [tuple(row.get(name, "") for name in head) for row in rows])


def _row(pair: dict[str, Any], names: dict[str, str]) -> tuple[str, ...]:
    from vitlab.evaluation.metrics import METRICS

    key = next(key for key in FIRST if key in pair["differences"])
    value = METRICS[key].gap(**pair["differences"][key])
    counts = (f"{pair[key]:,}" for key in ("only_first", "only_second"))
    tests = (f"{pair[key]:.3g}" for key in ("p", "adjusted"))
    return (names[pair["first"]], names[pair["second"]], value, *counts, *tests)


COMMAND = Command(run, show=show, begin=begin)
