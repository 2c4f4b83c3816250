"""Figure of compared recipes: mean and deviation of each over its runs, and the runs themselves."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

from vitlab.errors import OptionError
from vitlab.evaluation.metrics import METRICS, Metric, main_of
from vitlab.files import staged_file, write_text
from vitlab.inspect.plots.canvas import families
from vitlab.report.charts import (
    BLUE,
    INK,
    PERCENT,
    PLAIN,
    STYLE,
    new_figure,
    standalone,
    svg,
)
from vitlab.report.comparing.recipe_groups import ComparedRecipe

WIDTH = 480  # a phone shows it at two thirds
LETTERS = 22  # of a line of a name
METADATA = {"pdf": {"CreationDate": None}, "png": {"Software": None}}  # else bytes differ
SHARP = 200  # dots per inch of a PNG


def main_figure_of(recipes: Sequence[ComparedRecipe]) -> Metric | None:
    """Return the figure that comes first, of those that some recipe has."""
    known = {name for each in recipes for name in each.figures}
    return main_of(known) or next(
        (METRICS[name] for name in ("probe", "knn") if name in known), None
    )


def recipe_figure(recipes: Sequence[ComparedRecipe]) -> Markup | None:
    """Draw the recipes for a page; None if there is nothing to draw."""
    metric = main_figure_of(recipes)
    if metric is None:
        return None
    texts = [
        f"{each.name} {metric.text(each.mean[metric.name])}"
        + (f" ± {metric.deviation(each.std[metric.name])}" if metric.name in each.std else "")
        for each in recipes
        if metric.name in each.mean
    ]
    with mpl.rc_context(STYLE):
        return svg(_draw(recipes, metric), "recipes", f"{metric.title}: {'; '.join(texts)}.")


def write_figure(file: Path, recipes: Sequence[ComparedRecipe]) -> Path:
    """Write the figure of some recipes, as its file's ending says: .svg, .pdf or .png.

    Raises:
        OptionError: there is nothing to draw.
        DiskError: the file cannot be written.
    """
    kind = file.suffix.lower()[1:]
    metric = main_figure_of(recipes)
    if metric is None:
        raise OptionError("no run has a figure to draw: leave figure out")
    with mpl.rc_context(STYLE | {"font.family": [*families()]}):
        figure = _draw(recipes, metric)
        if kind == "svg":
            write_text(
                file, standalone(svg(figure, "recipes", f"{metric.title} of recipes.")) + "\n"
            )
            return file
        with staged_file(file) as draft:
            figure.savefig(draft, format=kind, dpi=SHARP, metadata=METADATA[kind])
    return file


def _draw(recipes: Sequence[ComparedRecipe], metric: Metric) -> Figure:
    """Draw dots rather than bars: an axis that does not start at 0 would make bars lie."""
    shown = [each for each in recipes if metric.name in each.mean]
    names = [fill(each.name, LETTERS) for each in shown]
    lines = sum(max(2, name.count("\n") + 1) for name in names)
    figure = new_figure(WIDTH, 75 + 17 * lines)
    axes = figure.subplots()
    for place, each in enumerate(shown):
        mean = each.mean[metric.name]
        reach = each.std.get(metric.name)
        axes.errorbar(mean, place, xerr=reach, fmt="o", color=BLUE, ms=8, capsize=5, lw=1.8)
        own = each.figures[metric.name]
        if len(own) > 1:
            axes.plot(own, [place] * len(own), "o", mfc="#ffffff", mec=INK, ms=5, zorder=3)
    axes.set_yticks(range(len(shown)), names, color=INK)
    several = any(len(each.runs) > 1 for each in shown)
    words = ": mean ± standard deviation, runs (circles)" if several else " of a single run"
    axes.set(ylim=(len(shown) - 0.5, -0.5), xlabel=f"{metric.title}{words}")
    axes.locator_params("x", nbins=5)
    axes.xaxis.set_major_formatter(PERCENT if metric.unit == "percent" else PLAIN)
    axes.tick_params(length=0)
    return figure
