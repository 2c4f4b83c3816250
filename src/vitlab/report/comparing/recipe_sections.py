"""Sections on recipes of a page that compares runs: means, figure, differences, all figures."""

from collections.abc import Sequence

from markupsafe import Markup

from vitlab.evaluation.metrics import METRICS
from vitlab.report.comparing.recipe_figure import main_figure_of, recipe_figure
from vitlab.report.comparing.recipe_groups import ComparedRecipe
from vitlab.report.comparing.recipe_tests import TITLES, RecipePair
from vitlab.report.comparing.run_comparison import Compared
from vitlab.report.page import Block, Columns, Plot, Plots, Prose, ReportTable, table_of
from vitlab.units import counted

LEVEL = 0.05  # of a test
MEANS = "mean and sample standard deviation over runs that differ in their seed or fold alone"


def lead_of_recipes(compared: Compared) -> str:
    """Return the result in one or two sentences."""
    recipes = compared.recipes
    pairs = compared.recipe_pairs
    metric = main_figure_of(recipes)
    known = [each for each in recipes if metric and metric.name in each.mean]
    if metric is None or not known:
        return f"{counted(len(recipes), 'recipe')} of several runs."
    best = max(known, key=lambda each: metric.score(each.mean[metric.name]))
    text = f"{best.name} has the best mean {metric.word}, {mean_of(best, metric.name)} over "
    text += f"{counted(len(best.runs), 'run')}. "
    if len(recipes) < 2:
        return f"{best.name}: {metric.word} {mean_of(best, metric.name)}, {MEANS}."
    tested = [each for each in pairs if each.adjusted is not None]
    if not tested:
        return f"{text}No two recipes can be tested against each other."
    apart = sum((each.adjusted or 0.0) < LEVEL for each in tested)
    if len(tested) == 1:
        (pair,) = tested
        gap = pair.differences[pair.metric]
        chance = "more than chance of training explains" if apart else "which chance may explain"
        two = f"{recipes[pair.second].name} less {recipes[pair.first].name}"
        return (
            f"{text}The difference, {two}, is {METRICS[pair.metric].gap(gap.value, gap.interval)}, "
            f"{chance} ({TITLES[pair.test]}, {p_text(pair.p)})."
        )
    return (
        f"{text}{apart or 'None'} of {len(tested)} pairs of recipes differ{'s' * (apart == 1)} by "
        f"more than chance of training explains (p < {LEVEL:g} after Holm's correction)."
    )


def mean_of(recipe: ComparedRecipe, name: str) -> str:
    """Return the mean of a figure, with its deviation if there are several runs."""
    metric = METRICS[name]
    if name not in recipe.mean:
        return "–"
    text = metric.text(recipe.mean[name])
    return f"{text} ± {metric.deviation(recipe.std[name])}" if name in recipe.std else text


def p_text(p: float | None) -> str:
    """Return a p-value within a sentence."""
    return "no p" if p is None else "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def recipe_blocks(compared: Compared) -> list[Block]:
    """Return the recipes, their figure, and the difference of each two."""
    if not compared.has_several:
        return []
    recipes, drawing = compared.recipes, recipe_figure(compared.recipes)
    names = _names_shown(recipes)
    columns: Columns = [
        ("Recipe", [_recipe_name(*each) for each in enumerate(recipes)]),
        *((METRICS[name].title, [mean_of(each, name) for each in recipes]) for name in names),
    ]
    columns.insert(2, ("Runs", [_runs(each) for each in recipes]))
    note = f"Each is {MEANS}: how far chance of training moves it, which one run does not show."
    found: list[Block] = [table_of("Recipes", columns, note)]
    if drawing:
        found.append(Plots([Plot("", drawing)]))
    return found + _differences(recipes, compared.recipe_pairs)


def _names_shown(recipes: Sequence[ComparedRecipe]) -> list[str]:
    """Return the figures of the table, the one that is compared first."""
    known = {name for each in recipes for name in each.figures}
    shown = [each.name for each in METRICS.values() if each.key and each.name in known]
    main = main_figure_of(recipes)
    return list(dict.fromkeys([*[main.name] * bool(main), *shown]))  # type: ignore[union-attr]


def _recipe_name(number: int, recipe: ComparedRecipe) -> str:
    return Markup("<b>{}</b> <bdi>{}</bdi><small><bdi>{}</bdi></small>").format(
        number + 1, recipe.name, recipe.first.facts.model
    )


def _runs(recipe: ComparedRecipe) -> str:
    """Return how many runs there are, of how many."""
    whole = len(recipe.runs) + len(recipe.unfinished)
    return f"{len(recipe.runs)} of {whole}" if recipe.unfinished else f"{whole}"


def _differences(recipes: Sequence[ComparedRecipe], pairs: Sequence[RecipePair]) -> list[Block]:
    """Return a row for each two recipes whose figures are of the same test."""
    pairs = [each for each in pairs if each.differences]
    if not pairs:
        return []
    words = list(dict.fromkeys(METRICS[pair.metric].word for pair in pairs if pair.metric))
    columns: Columns = [
        ("Recipes", [_name_pair(recipes, pair) for pair in pairs]),
        (
            f"Difference in {words[0]}" if len(words) == 1 else "Difference",
            [_gap(pair, named=len(words) > 1) for pair in pairs],
        ),
        ("p", [_p_or_dash(pair.p) for pair in pairs]),
        ("p (Holm)", [_p_or_dash(pair.adjusted) for pair in pairs] if len(pairs) > 1 else None),
        ("Test", [TITLES.get(pair.test, "–") for pair in pairs]),
    ]
    note = (
        "Second minus first, the mean over runs, with its 95% interval by Student's t. Where both "
        "have the same seeds and folds the test is paired, else it is Welch's; p is two-sided. "
    )
    note += "Holm's correction is for all pairs together. " * (len(pairs) > 1)
    note += (
        "An interval that contains 0 does not show that two recipes are alike: more runs make it "
        "narrower."
    )
    return [table_of("Differences", columns, note)]


def _name_pair(recipes: Sequence[ComparedRecipe], pair: RecipePair) -> str:
    two = (f"{number + 1} {recipes[number].name}" for number in (pair.first, pair.second))
    return " → ".join(two)


def _gap(pair: RecipePair, *, named: bool) -> str:
    """Return a difference with its interval, and of what it is, if pairs differ in that."""
    metric, gap = METRICS[pair.metric], pair.differences[pair.metric]
    text = metric.gap(gap.value, gap.interval)
    return f"{metric.word} {text}" if named else text


def _p_or_dash(p: float | None) -> str:
    return "–" if p is None else p_cell(p)


def p_cell(p: float) -> str:
    """Format a p-value for a table."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def all_figures(compared: Compared) -> list[Block]:
    """Return every figure of every recipe."""
    recipes = compared.recipes
    if not compared.has_several:
        return []
    known = [name for name in METRICS if any(name in each.figures for each in recipes)]
    rows = [(METRICS[name].title, *(mean_of(each, name) for each in recipes)) for name in known]
    runs = [
        Prose(
            Markup("<b>{}</b> <bdi>{}</bdi>: <bdi>{}</bdi>").format(
                number + 1, each.name, ", ".join(run.name for run in each.runs) or "no finished run"
            ),
            note=True,
        )
        for number, each in enumerate(recipes)
    ]
    head = ("Figure", *(f"{number + 1}" for number in range(len(recipes))))
    return [ReportTable("All figures of the recipes", head, rows, note=f"The {MEANS}."), *runs]
