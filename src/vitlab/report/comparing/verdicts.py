"""What a comparison says in words."""

from vitlab.evaluation.paired_tests import Pair
from vitlab.report.comparing.run_comparison import Compared
from vitlab.units import percent

LEVEL = 0.05  # of a test


def first_figure(compared: Compared) -> str:
    """Return the key of the figure that is compared first."""
    if compared.same is not None:
        return "map" if compared.same.several else "accuracy"
    return "map" if any("map" in each.result for each in compared.entries) else "accuracy"


def lead(compared: Compared) -> str:
    """Return the result in one or two sentences."""
    entries = compared.entries
    done = [each for each in entries if each.result]
    if not done:
        return f"{len(entries)} runs, none of them finished: their curves and their recipes."
    if all(each.task for each in entries):
        return f"{len(entries)} runs that learned without labels."
    if compared.same is None:
        return f"{len(entries)} runs; no two of them can be compared image by image."
    if len(compared.pairs) == 1:
        return _of_two(compared, compared.pairs[0])
    key, names = first_figure(compared), [entries[number].name for number in compared.same.runs]
    best = max(range(len(names)), key=lambda place: compared.figures[place].get(key, 0.0))
    apart = sum(pair.adjusted < LEVEL for pair in compared.pairs)
    title = "mean average precision" if key == "map" else "accuracy"
    return (
        f"{names[best]} has the highest {title}, {percent(compared.figures[best].get(key, 0.0))} "
        f"of {len(compared.same):,} test images. {_some(apart)} of {len(compared.pairs)} pairs "
        f"differ{'s' * (apart == 1)} by more than chance explains (p < {LEVEL:g} after Holm's "
        "correction)."
    )


def _of_two(compared: Compared, pair: Pair) -> str:
    """Return how far two runs are apart, and whether chance explains it."""
    assert compared.same is not None
    key = first_figure(compared)
    one, other = (compared.entries[number].name for number in compared.same.runs)
    shares = [each.get(key, 0.0) for each in compared.figures]
    what = "mean average precision" if key == "map" else "accuracy"
    count = f"on {len(compared.same):,} test images"
    if shares[0] == shares[1]:
        return f"{one} and {other} have the same {what} {count}: {percent(shares[0])}."
    ends = pair.differences[key].interval
    better, worse = (other, one) if shares[1] > shares[0] else (one, other)
    low, high = ends or (0.0, 0.0)
    low, high = (low, high) if shares[1] > shares[0] else (-high, -low)
    within = f" ({100 * low:.1f} to {100 * high:.1f})" * (ends is not None)
    chance = "more than chance explains" if pair.p < LEVEL else "which chance may explain"
    test = "" if key == "map" else "McNemar's test, "
    return (
        f"{better} has the higher {what} {count}: {percent(max(shares))} against "
        f"{percent(min(shares))} of {worse}. The difference is "
        f"{100 * abs(shares[0] - shares[1]):.1f} points{within}, "
        f"{chance} ({test}{p_text(pair.p)})."
    )


def p_text(p: float) -> str:
    """Format a p-value for a sentence: `p = 0.012`, `p < 0.001`."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def p_cell(p: float) -> str:
    """Format a p-value for a table."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def _some(count: int) -> str:
    return "None" if not count else str(count)
