"""The runs of a study: every arm with every seed, and those that choose a learning rate before."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
        choices: names of the jobs that tried the arm's learning rates, with their factors
    """

    name: str
    arm: Arm
    seed: int
    rate: float = 0.0
    after: str = ""
    choices: tuple[tuple[str, float], ...] = ()

    @property
    def needs(self) -> tuple[str, ...]:
        """The jobs that must be finished before."""
        return (*(name for name, _ in self.choices), *([self.after] if self.after else ()))

    def recipe(self, done: Mapping[str, Figures], epochs: float, weights: str) -> Recipe:
        """Return the recipe, once the jobs that it needs are done.

        Args:
            done: the figures of these
            epochs: passes over the training images per relative epoch of the arm
            weights: where the model is that it starts from; empty for random weights
        """
        factor = self.rate or chosen(self.choices, done)
        recipe = self.arm.recipe
        recipe = recipe.changed(lr=recipe.optimizer.lr * factor, seed=self.seed)
        if not recipe.steps:
            recipe = recipe.lasting(round_down(recipe.epochs * epochs))
        if weights:
            recipe = recipe.changed(weights=weights)
        return recipe.changed(dev_share=HELD_OUT) if self.rate else recipe


def chosen(choices: Sequence[tuple[str, float]], done: Mapping[str, Figures]) -> float:
    """Return the factor that was best on the held-out images, ties to the smallest; 1 for none.

    What diverged is not chosen; if everything did, it is the smallest.
    """
    ranked = [(-done[name].get("accuracy", -1.0), factor) for name, factor in choices]
    return min(ranked)[1] if ranked else 1.0


def round_down(epochs: float) -> float:
    """Return a number of epochs with two significant digits, so that noise does not change it."""
    exponent = len(f"{epochs:.0f}") if epochs >= 1 else 0
    while epochs * 10 ** (2 - exponent) < 10:
        exponent -= 1
    return int(epochs * 10 ** (2 - exponent) + 1e-9) / 10 ** (2 - exponent)


def chosen_arms(arms: Sequence[Arm], only: Sequence[str]) -> tuple[Arm, ...]:
    """Return the arms with these names, and those that they start from; all if none is named.

    Raises:
        OptionError: an unknown name.
    """
    known = {arm.name: arm for arm in arms}
    check_known(only, (arm.name for arm in arms if arm.row), "row")
    if not only:
        return tuple(arms)
    wanted = set(only)
    for name in only:
        while name := known[name].after:
            wanted.add(name)
    return tuple(arm for arm in arms if arm.name in wanted)


def jobs_of(
    arms: Sequence[Arm], seeds: Sequence[int], rates: Sequence[float] = ()
) -> tuple[Job, ...]:
    """Return all runs in the order in which they are started.

    Args:
        arms: of the study, each after the arm it starts from
        seeds: of the runs; the first one is that of the runs that choose a learning rate
        rates: factors of every row's learning rate, in place of the arms' own

    Raises:
        OptionError: two arms have the same name, or one starts from an arm that is not there.
    """
    names = [arm.name for arm in arms]
    for number, arm in enumerate(arms):
        if arm.name in names[:number] or (arm.after and arm.after not in names[:number]):
            raise OptionError(f"the arm {arm.name} is there twice, or comes before {arm.after}")
    return tuple(job for arm in arms for job in _jobs(arm, seeds, rates))


def _jobs(arm: Arm, seeds: Sequence[int], rates: Sequence[float]) -> Iterator[Job]:
    factors = (rates if arm.row else ()) or arm.rates
    searches = []
    if len(factors) > 1:
        for factor in sorted(set(factors)):
            name = f"{arm.name}-lr-{factor:g}"
            searches.append((name, factor))
            yield Job(name, arm, seeds[0], factor, _before(arm, seeds[0]))
    elif factors:
        raise OptionError("one learning rate leaves nothing to choose: set lr instead")
    for seed in seeds:
        name = f"{arm.name}-seed-{seed}"
        yield Job(name, arm, seed, 0.0, _before(arm, seed), tuple(searches))


def _before(arm: Arm, seed: int) -> str:
    return f"{arm.after}-seed-{seed}" if arm.after else ""
