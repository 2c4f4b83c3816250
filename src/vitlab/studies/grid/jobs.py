"""The runs of a study: every arm with every seed, and those that choose a learning rate before."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab.errors import OptionError
from vitlab.options import check_known
from vitlab.recipes.recipe import Recipe
from vitlab.studies.grid.design import Arm

HELD_OUT = 0.1  # share of the training images that choose between learning rates
Figures = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        name: of its folder
        arm: what it trains
        seed: its seed
        rate: the factor of the learning rate that it tries; 0 to use the best one of `choices`
        after: name of the job whose model it starts from
        guide: name of the job whose model is its tokenizer or its teacher
        choices: names of the jobs that tried the arm's learning rates, with their factors
    """

    name: str
    arm: Arm
    seed: int
    rate: float = 0.0
    after: str = ""
    guide: str = ""
    choices: tuple[tuple[str, float], ...] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """The jobs that must be finished before."""
        return (*(name for name, _ in self.choices), *self.models)

    @property
    def models(self) -> tuple[str, ...]:
        """The jobs whose models it needs."""
        return tuple(filter(None, (self.after, self.guide)))

    def given(self, place: Path) -> dict[str, str]:
        """Return the options that name these models, in the folders of their runs.

        Args:
            place: the folder of all runs
        """
        guide = "tokenizer" if self.arm.recipe.pretext.unlabeled else "teacher"
        named = {"weights": self.after, guide: self.guide}
        return {option: str(place / name) for option, name in named.items() if name}

    def recipe(self, done: Mapping[str, Figures], epochs: float, place: Path) -> Recipe:
        """Return the recipe, once the jobs that it needs are done.

        Args:
            done: the figures of these
            epochs: passes over the training images per relative epoch of the arm
            place: the folder of all runs
        """
        factor = self.rate or chosen(self.choices, done)
        recipe = self.arm.recipe
        recipe = recipe.changed(lr=recipe.optimizer.lr * factor, seed=self.seed)
        if not recipe.steps:
            recipe = recipe.lasting(float(f"{recipe.epochs * epochs:.6g}"))
        recipe = recipe.changed(**self.given(place))
        return recipe.changed(dev_share=HELD_OUT) if self.rate else recipe


def chosen(choices: Sequence[tuple[str, float]], done: Mapping[str, Figures]) -> float:
    """Return the factor that was best on the held-out images, ties to the smallest; 1 for none.

    What diverged is not chosen; if everything did, it is the smallest.
    """
    ranked = [(-done[name].get("accuracy", -1.0), factor) for name, factor in choices]
    return min(ranked)[1] if ranked else 1.0


def round_down(epochs: float) -> float:
    """Return a number above 0 with two significant digits, so that noise does not change it."""
    exponent = len(f"{epochs:.0f}") if epochs >= 1 else 0
    while epochs * 10 ** (2 - exponent) < 10:
        exponent -= 1
    return int(epochs * 10 ** (2 - exponent) + 1e-9) / 10 ** (2 - exponent)


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
    known = {arm.name: arm for arm in arms}
    check_known(only, (arm.name for arm in arms if arm.row or steps), "row")
    if not only:
        return tuple(arms)
    wanted = with_needed(only, known)
    return tuple(arm for arm in arms if arm.name in wanted)


def with_needed(names: Iterable[str], arms: Mapping[str, Arm]) -> set[str]:
    """Return the names of arms, and of those whose models or learning rates they need."""
    found, open_ = set[str](), list(names)
    while open_:
        if (name := open_.pop()) not in found:
            found.add(name)
            open_ += filter(None, _needs(arms[name]))
    return found


def jobs_of(
    arms: Sequence[Arm], seeds: Sequence[int], rates: Sequence[float] = ()
) -> tuple[Job, ...]:
    """Return all runs in the order in which they are started.

    Args:
        arms: of the study, each after the arm it starts from
        seeds: of the runs; the first one is that of the runs that choose a learning rate
        rates: factors of every row's learning rate, in place of the arms' own

    Raises:
        OptionError: two arms have the same name, or one needs an arm that is not there.
    """
    names = [arm.name for arm in arms]
    for number, arm in enumerate(arms):
        needed = set(filter(None, _needs(arm)))
        if arm.name in names[:number] or not needed <= set(names[:number]):
            raise OptionError(f"the arm {arm.name} is there twice, or comes before {needed}")
    guides = {arm.guide for arm in arms}
    jobs, choices = list[Job](), dict[str, tuple[tuple[str, float], ...]]()
    for arm in arms:
        searches = () if arm.rate_of else tuple(_searches(arm, seeds, rates))
        jobs += searches
        tried = tuple((job.name, job.rate) for job in searches)
        choices[arm.name] = choices[arm.rate_of] if arm.rate_of else tried
        for number, seed in enumerate(seeds[:1] if arm.name in guides else seeds):
            before = _before(arm, seeds, number)
            jobs.append(Job(f"{arm.name}-seed-{seed}", arm, seed, 0.0, *before, choices[arm.name]))
    return tuple(jobs)


def _searches(arm: Arm, seeds: Sequence[int], rates: Sequence[float]) -> Iterator[Job]:
    """Yield the runs that choose the learning rate of an arm, if it has several."""
    factors = (rates if arm.row else ()) or arm.rates
    if len(factors) == 1:
        raise OptionError("one learning rate leaves nothing to choose: set lr instead")
    for factor in sorted(set(factors)):
        name = f"{arm.name}-lr-{factor:g}"
        yield Job(name, arm, seeds[0], factor, *_before(arm, seeds, 0))


def _needs(arm: Arm) -> tuple[str, ...]:
    """Return the names of the arms that come before, some of them empty."""
    return arm.after, arm.guide, arm.rate_of


def _before(arm: Arm, seeds: Sequence[int], number: int) -> tuple[str, str]:
    """Return the names of the jobs that a run with one of the seeds starts from and learns from."""
    after = f"{arm.after}-seed-{seeds[number]}" if arm.after else ""
    return after, f"{arm.guide}-seed-{seeds[0]}" if arm.guide else ""
