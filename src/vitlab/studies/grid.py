"""The cells of a study: every arm with every seed, and those that choose its learning rate before.

ARM-seed-N/        the runs of the table
ARM-lr-X/          those that tried a learning rate
ARM-lr-further-N/  those that tried one beyond these, while the best one was at their edge
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from vitlab.errors import OptionError
from vitlab.experiments.cells import Cell, Row
from vitlab.options import check_known
from vitlab.studies.design import Arm

HELD_OUT = 0.1  # share of the training images that choose between learning rates
FURTHER = 3  # rates that a grid grows by at most while its best one is at its edge
RATE = "rate"  # label of a cell that tries a factor of the learning rate


def cells_of(
    arms: Sequence[Arm],
    seeds: Sequence[int],
    place: Path,
    *,
    rates: Sequence[float] = (),
    further: int = FURTHER,
    epochs: float = 1.0,
) -> list[Cell]:
    """Return all runs in the order in which they are started.

    Args:
        arms: of the study, each after the arm it starts from
        seeds: of the runs; the first one is that of the runs that choose a learning rate
        place: the folder of all runs
        rates: factors of every row's learning rate, in place of the arms' own
        further: rates that a grid may grow by
        epochs: passes over the training images per relative epoch of an arm

    Raises:
        OptionError: two arms have the same name, or one needs an arm that is not there.
    """
    cells, choices = list[Cell](), dict[str, tuple[str, ...]]()
    guides = {arm.guide for arm in arms}
    for arm in arms:
        needed = set(needs(arm))
        if arm.name in choices or not needed <= choices.keys():
            raise OptionError(f"the arm {arm.name} is there twice, or comes before {needed}")
        first, *_ = own = [
            _cell(arm, seed, seeds[0], place, epochs)
            for seed in (seeds[:1] if arm.name in guides else seeds)
        ]
        searches = [] if arm.rate_of else _searches(arm, first, rates, further)
        names = choices.get(arm.rate_of, tuple(each.name for each in searches))
        choices[arm.name] = names
        cells += searches
        cells += [
            replace(each, after=(*names, *each.after), settle=_at_best if names else None)
            for each in own
        ]
    return cells


def _cell(arm: Arm, seed: int, first: int, place: Path, epochs: float) -> Cell:
    """Return a run of an arm at its own learning rate."""
    guide = "tokenizer" if arm.recipe.pretext.unlabeled else "teacher"
    named = {"weights": (arm.after, seed), guide: (arm.guide, first)}
    models = {option: f"{name}-seed-{n}" for option, (name, n) in named.items() if name}
    recipe = arm.recipe.changed(seed=seed)
    if not recipe.steps:
        recipe = recipe.lasting(float(f"{recipe.epochs * epochs:.6g}"))
    recipe = recipe.changed(**{option: str(place / name) for option, name in models.items()})
    return Cell(
        f"{arm.name}-seed-{seed}",
        recipe,
        {"row": arm.name, "seed": seed},
        after=(*models.values(),),
        models=(*models.values(),),
        may_diverge=True,
        kind=arm.name,
    )


def _searches(arm: Arm, first: Cell, rates: Sequence[float], further: int) -> list[Cell]:
    """Return the runs that choose the learning rate of an arm, if it has several.

    Raises:
        OptionError: there is one alone.
    """
    factors = sorted(set((rates if arm.row else ()) or arm.rates))
    if len(arm.rates) == 1 or not factors:
        return []
    if len(factors) == 1:
        raise OptionError("one learning rate leaves nothing to choose: set lr instead")
    own = replace(first, recipe=first.recipe.changed(dev_share=HELD_OUT), searches=True)
    found = [replace(_at(own, each), name=f"{arm.name}-lr-{each:g}") for each in factors]
    for number in range(further):
        after = (*(each.name for each in found), *own.models)
        name = f"{arm.name}-lr-further-{number + 1}"
        found.append(replace(own, name=name, after=after, settle=_beyond_best))
    return found


def _at(cell: Cell, factor: float) -> Cell:
    """Return a cell with a factor of its learning rate."""
    recipe = cell.recipe.changed(lr=cell.recipe.optimizer.lr * factor)
    tried = {"row": cell.kind, RATE: factor} if cell.searches else cell.labels
    return replace(cell, recipe=recipe, labels=tried)


def _at_best(cell: Cell, rows: list[Row]) -> Cell:
    return _at(cell, best_of(tried(rows)))


def _beyond_best(cell: Cell, rows: list[Row]) -> Cell | None:
    factor = beyond(tried(rows))
    return _at(cell, factor) if factor else None


def tried(rows: Iterable[Row]) -> dict[float, float]:
    """Return the accuracy on held-out images by factor, the smallest first; -1 if it diverged."""
    return dict(sorted((row[RATE], row.get("accuracy", -1.0)) for row in rows if RATE in row))


def best_of(accuracies: Mapping[float, float]) -> float:
    """Return the factor that was best on the held-out images, ties to the smallest; 1 for none.

    What diverged is not chosen; if everything did, it is the smallest.
    """
    return max(accuracies, key=lambda factor: (accuracies[factor], -factor), default=1.0)


def edge_of(accuracies: Mapping[float, float]) -> int:
    """Return -1 if the best factor is the smallest of several, 1 if it is the largest, else 0."""
    if len(accuracies) < 2:
        return 0
    best = best_of(accuracies)
    return (best == max(accuracies)) - (best == min(accuracies))


def beyond(accuracies: Mapping[float, float]) -> float:
    """Return the factor beyond the best one, as far as the last two are apart; 0 inside."""
    edge, factors = edge_of(accuracies), sorted(accuracies)
    if not edge:
        return 0.0
    last, before = (factors[0], factors[1]) if edge < 0 else (factors[-1], factors[-2])
    return float(f"{last * last / before:.6g}")


def chosen_arms(
    arms: Sequence[Arm], only: Sequence[str], *, steps: bool = False
) -> tuple[Arm, ...]:
    """Return the arms with these names, and those whose models they need; all if none is named.

    Args:
        arms: of the study
        only: names of rows
        steps: whether arms that are no rows may be named too

    Raises:
        OptionError: an unknown name.
    """
    check_known(only, (arm.name for arm in arms if arm.row or steps), "row")
    wanted = set(only)
    for arm in reversed(arms):  # each comes after those that it needs
        wanted |= set(needs(arm)) if arm.name in wanted else set()
    return tuple(arm for arm in arms if not only or arm.name in wanted)


def needs(arm: Arm) -> list[str]:
    """Return the names of the arms that come before."""
    return [name for name in (arm.after, arm.guide, arm.rate_of) if name]
