"""The runs of a study: every arm with every seed, and those that choose a learning rate before."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab.errors import OptionError
from vitlab.options import check_known
from vitlab.recipes.recipe import Recipe
from vitlab.studies.design import Arm

HELD_OUT = 0.1  # share of the training images that choose between learning rates
FURTHER = 3  # rates that a grid grows by at most while its best one is at its edge
FAILED, RATE = "diverged", "rate"  # figures of a run: why it has no others; the factor it tried
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
        choices: names of the jobs that have tried learning rates of the arm
        further: whether it tries a rate beyond those of `choices`, if their best one is at an edge
    """

    name: str
    arm: Arm
    seed: int
    rate: float = 0.0
    after: str = ""
    guide: str = ""
    choices: tuple[str, ...] = ()
    further: bool = False

    @property
    def searches(self) -> bool:
        """Whether it chooses a learning rate, rather than being a run of the table."""
        return self.further or self.rate > 0

    @property
    def needs(self) -> tuple[str, ...]:
        """The jobs that must be finished before."""
        return (*self.choices, *self.models)

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

    def factor(self, done: Mapping[str, Figures]) -> float:
        """Return the factor of its learning rate, once the jobs that it needs are done.

        0 for a further rate where none is needed.
        """
        if self.further:
            return beyond(tried(self.choices, done))
        return self.rate or best_of(tried(self.choices, done))

    def recipe(self, done: Mapping[str, Figures], epochs: float, place: Path) -> Recipe:
        """Return the recipe, once the jobs that it needs are done.

        Args:
            done: the figures of these
            epochs: passes over the training images per relative epoch of the arm
            place: the folder of all runs
        """
        recipe = self.arm.recipe
        recipe = recipe.changed(lr=recipe.optimizer.lr * self.factor(done), seed=self.seed)
        if not recipe.steps:
            recipe = recipe.lasting(float(f"{recipe.epochs * epochs:.6g}"))
        recipe = recipe.changed(**self.given(place))
        return recipe.changed(dev_share=HELD_OUT) if self.searches else recipe


def tried(choices: Iterable[str], done: Mapping[str, Figures]) -> dict[float, float]:
    """Return the accuracy on held-out images by factor, the smallest first; -1 if it diverged."""
    found = [done[name] for name in choices]
    return dict(sorted((run[RATE], run.get("accuracy", -1.0)) for run in found if RATE in run))


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
        wanted |= set(_needs(arm)) if arm.name in wanted else set()
    return tuple(arm for arm in arms if not only or arm.name in wanted)


def jobs_of(
    arms: Sequence[Arm], seeds: Sequence[int], rates: Sequence[float] = (), further: int = FURTHER
) -> tuple[Job, ...]:
    """Return all runs in the order in which they are started.

    Args:
        arms: of the study, each after the arm it starts from
        seeds: of the runs; the first one is that of the runs that choose a learning rate
        rates: factors of every row's learning rate, in place of the arms' own
        further: rates that a grid may grow by

    Raises:
        OptionError: two arms have the same name, or one needs an arm that is not there.
    """
    names = [arm.name for arm in arms]
    guides = {arm.guide for arm in arms}
    jobs, choices = list[Job](), dict[str, tuple[str, ...]]()
    for number, arm in enumerate(arms):
        needed = set(_needs(arm))
        if arm.name in choices or not needed <= set(names[:number]):
            raise OptionError(f"the arm {arm.name} is there twice, or comes before {needed}")
        searches = () if arm.rate_of else tuple(_searches(arm, seeds, rates, further))
        jobs += searches
        choices[arm.name] = choices.get(arm.rate_of, tuple(job.name for job in searches))
        for place, seed in enumerate(seeds[:1] if arm.name in guides else seeds):
            before = _before(arm, seeds, place)
            jobs.append(Job(f"{arm.name}-seed-{seed}", arm, seed, 0.0, *before, choices[arm.name]))
    return tuple(jobs)


def _searches(
    arm: Arm, seeds: Sequence[int], rates: Sequence[float], further: int
) -> Iterator[Job]:
    """Yield the runs that choose the learning rate of an arm, if it has several."""
    if len(arm.rates) == 1:
        return
    factors = sorted(set((rates if arm.row else ()) or arm.rates))
    if len(factors) == 1:
        raise OptionError("one learning rate leaves nothing to choose: set lr instead")
    before, names = _before(arm, seeds, 0), [f"{arm.name}-lr-{factor:g}" for factor in factors]
    for name, factor in zip(names, factors, strict=True):
        yield Job(name, arm, seeds[0], factor, *before)
    for number in range(further if factors else 0):
        names.append(f"{arm.name}-lr-further-{number + 1}")
        yield Job(names[-1], arm, seeds[0], 0.0, *before, tuple(names[:-1]), further=True)


def _needs(arm: Arm) -> list[str]:
    """Return the names of the arms that come before."""
    return [name for name in (arm.after, arm.guide, arm.rate_of) if name]


def _before(arm: Arm, seeds: Sequence[int], number: int) -> tuple[str, str]:
    """Return the names of the jobs that a run with one of the seeds starts from and learns from."""
    after = f"{arm.after}-seed-{seeds[number]}" if arm.after else ""
    return after, f"{arm.guide}-seed-{seeds[0]}" if arm.guide else ""
