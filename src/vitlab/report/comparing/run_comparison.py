"""Comparison of several runs: figures, tests on the same images, remarks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from vitlab.errors import UserError
from vitlab.evaluation.paired_tests import Pair, SameImages, figures_of, pairs_of, same_images
from vitlab.evaluation.run_predictions import examine
from vitlab.report.comparing.compared_run import ComparedRun, differing, entry_of
from vitlab.report.comparing.recipe_groups import ComparedRecipe, recipes_of, unit_of
from vitlab.report.comparing.recipe_tests import (
    NO_FIGURE,
    OF_LOSS,
    SAME_GAP,
    RecipePair,
    recipe_pairs,
    same_tests,
)
from vitlab.report.comparing.short_names import run_names
from vitlab.runs.several_runs import several_runs

Progress = Callable[[str, int, int], None]
PAIRED_RUNS = 40  # each two of them, at most: 780 pairs
REASONS = {  # of `RecipePair.reason`
    NO_FIGURE: "no figure in common that is the same quantity",
    SAME_GAP: "the difference is exactly the same in all runs, which leaves nothing to test it by",
}


@dataclass(frozen=True, eq=False)
class Compared:
    """Several runs, and what is known of them together.

    Attributes:
        entries: the runs, in the order that they were named in
        same: the answers of those that were tested on the same images; None if no two were
        figures: of each of these, on the images they have in common
        pairs: tests of each two of them; `first` and `second` are places in `same.runs`
        recipes: the runs by recipe
        recipe_pairs: tests of each two of these, if one has several runs
        notes: what could not be compared, and why
    """

    entries: list[ComparedRun]
    same: SameImages | None
    figures: list[dict[str, float]]
    pairs: list[Pair]
    recipes: list[ComparedRecipe]
    recipe_pairs: list[RecipePair]
    notes: list[str]

    @property
    def has_several(self) -> bool:
        """Whether a recipe has several runs."""
        return any(len(each.runs) > 1 for each in self.recipes)


def gathered(runs: Sequence[str], device: str, workers: int | None, progress: Progress) -> Compared:
    """Read the runs, let their models answer where it is not known what they do, and test them."""
    folders = several_runs(runs)
    names = run_names([folder.path for folder in folders])
    entries = [entry_of(folder, name) for folder, name in zip(folders, names, strict=True)]
    recipes_of(entries)  # refuses too many before any model answers
    entries = [_examined(entry, device, workers, progress) for entry in entries]
    recipes = recipes_of(entries)
    tests = recipe_pairs(recipes)
    same = same_images([each.examined for each in entries])
    figures = [figures_of(each) for each in same.answers] if same else []
    pairs = pairs_of(same.answers) if same and len(same.runs) <= PAIRED_RUNS else []
    notes = [*_notes(entries, same), *_of_recipes(recipes, tests)]
    return Compared(entries, same, figures, pairs, recipes, tests, notes)


def _examined(
    entry: ComparedRun, device: str, workers: int | None, progress: Progress
) -> ComparedRun:
    """Return a run with the answers of its model, if it is finished and they can be had."""
    if not entry.facts.figures:
        return entry
    if entry.facts.task:
        return replace(entry, unknown="")
    try:
        found = examine(
            entry.folder,
            device=device,
            workers=workers,
            progress=lambda images, total: progress(entry.name, images, total),
        )
    except UserError as error:
        return replace(entry, unknown=str(error))
    return replace(entry, examined=found, unknown="")


def _notes(entries: Sequence[ComparedRun], same: SameImages | None) -> list[str]:
    """Return what a reader must know of the runs before comparing them."""
    notes = [
        f"{each.name} is not finished: it has curves and a recipe, but no figures"
        if not each.facts.figures
        else f"{each.name}: not compared image by image, because {each.unknown}"
        for each in entries
        if each.unknown
    ]
    notes += [
        f"{each.name}: {each.facts.figures['learned_from']:,} of its test images were learned "
        "from before the run: its figures are too good"
        for each in entries
        if each.facts.figures and each.facts.figures.get("learned_from")
    ]
    notes += _without_labels(entries)
    known = [each for each in entries if each.examined is not None]
    if same is None:
        if len(known) > 1:
            notes.append(
                "no two runs were tested on the same images: their figures are of different tests, "
                "and neither tests nor images can be compared"
            )
        return notes + _of_curves(entries)
    notes += _note_other_images(entries, same)
    if len(same.runs) > PAIRED_RUNS:
        notes.append(
            f"pairs of runs are left out: there are {len(same.runs)} runs; name at most "
            f"{PAIRED_RUNS} for them"
        )
    chosen = [entries[number] for number in same.runs]
    sizes = [len(each.examined.answers) for each in chosen if each.examined]
    if max(sizes) > len(same) + same.relabeled:
        notes.append(
            f"compared on the {len(same):,} test images that all have in common; each run has "
            f"{min(sizes):,} to {max(sizes):,}"
        )
    if same.relabeled:
        notes.append(
            f"{same.relabeled:,} images that are labeled otherwise in another run are left out"
        )
    return notes + _moved(chosen) + _of_curves(entries)


def _note_other_images(entries: Sequence[ComparedRun], same: SameImages) -> list[str]:
    """Return a line on the runs that were tested on other images than most."""
    folds = {unit_of(entries[number])[1] for number in same.runs}
    others = [number for number in same.apart if not all(folds) or not unit_of(entries[number])[1]]
    names = [entries[number].name for number in others]
    notes = []
    if len(names) == 1:
        notes.append(
            f"{names[0]} was tested on other images: its figures are of another test, and it is "
            "left out of what compares image by image"
        )
    elif names:
        notes.append(
            f"{', '.join(names)} were tested on other images: their figures are of other tests, "
            "and they are left out of what compares image by image"
        )
    if all(folds) and len(others) < len(same.apart):
        notes.append(
            f"each fold is tested on images of its own: runs are compared image by image on those "
            f"of {' and '.join(sorted(folds))} alone"
        )
    return notes


def _of_recipes(recipes: Sequence[ComparedRecipe], pairs: Sequence[RecipePair]) -> list[str]:
    """Return what to know of means over several runs, and why differences have no test."""
    if not pairs and not any(len(each.runs) > 1 for each in recipes):
        return []
    notes = [
        f"{run.name} repeats the recipe, the seed and the fold of another run: it is left out of "
        f"the mean of {each.name}"
        for each in recipes
        for run in each.again
    ]
    if len(tests := same_tests(recipes)) > 1:
        own = "; ".join(", ".join(each.name for each in group) for group in tests)
        notes.append(f"tested on other images, so that there is no difference of figures: {own}")
    for reason, words in REASONS.items():
        two = [
            f"{recipes[each.first].name} and {recipes[each.second].name}"
            for each in pairs
            if each.reason == reason
        ]
        notes += [f"{words}: {'; '.join(two)}"] * bool(two)
    single = [each.name for each in recipes if len(each.runs) == 1]
    if single and len(recipes) > 1:
        notes.append(
            f"there is a single run of {', '.join(single)}: how far another seed is from it is not "
            "known, and so its differences have no interval and no test"
        )
    if any(len(each.folds) > 1 for each in recipes):
        notes.append(
            "folds share most of their training images, so that their deviation is too small, and "
            "so is p (Nadeau & Bengio, 2003)"
        )
    return notes


def _without_labels(entries: Sequence[ComparedRun]) -> list[str]:
    """Return what to know of runs that learned without labels, if there are any."""
    own = [each for each in entries if each.facts.task and each.facts.figures]
    if not own:
        return []
    names = ", ".join(each.name for each in own)
    notes = [
        f"learned without labels, and so without a test accuracy: {names}; compare runs of vitlab "
        "finetune DATA --from RUN, or the curves of --probe"
    ]
    tasks = dict.fromkeys(each.facts.task for each in entries)
    if len(tasks) > 1:
        named = ", ".join(f"{each.name}: {each.facts.task or 'labels'}" for each in entries)
        notes.append(f"losses are different quantities, those of different tasks ({named})")
    return notes


def _moved(entries: Sequence[ComparedRun]) -> list[str]:
    """Return a line on each run whose model now answers otherwise than when it was tested."""
    notes = []
    for each in entries:
        if (then := each.facts.number("accuracy")) is None or each.examined is None:
            continue
        now = figures_of(each.examined.answers).get("accuracy", then)
        if abs(now - then) > 1e-9:
            notes.append(
                f"{each.name}: accuracy {then:.2%} when it was trained, {now:.2%} now, on another "
                "device or with other libraries; tests and images are of now"
            )
    return notes


def _of_curves(entries: Sequence[ComparedRun]) -> list[str]:
    """Return what is not the same quantity on the axes of the curves."""
    notes = []
    if apart := [option for option in differing(entries) if option in OF_LOSS]:
        notes.append(
            f"training losses are different quantities: the runs differ in {', '.join(apart)}"
        )
    if len({each.facts.held_out for each in entries if each.facts.testing}) > 1:
        own = ", ".join(f"{each.name} on {each.facts.held_out} images" for each in entries)
        notes.append(f"the curves of accuracy were measured on different images: {own}")
    return notes
