"""Test images that tell models apart: those that only one gets right or wrong, or none right."""

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from vitlab.data.sources.source import Source
from vitlab.errors import UserError
from vitlab.evaluation.answers import Answers, SingleAnswers
from vitlab.evaluation.paired_tests import SameImages
from vitlab.evaluation.run_predictions import reopened
from vitlab.report.comparing.run_comparison import Compared
from vitlab.report.page import Block, Prose, Thumbnail, Thumbnails, common_folder
from vitlab.report.thumbnails import of_source
from vitlab.units import counted, percent

PICTURES = 72  # at most, of all galleries together
FEWEST, MOST = 3, 16  # of one gallery


def disagreements(compared: Compared) -> list[Block]:
    """Return the images on which the runs disagree, then those that all get wrong.

    Of two runs, those that only the one gets right are those that only the other gets wrong, and
    come once. Images that are no longer at hand are counted.
    """
    same = compared.same
    if same is None:
        return []
    source, of, reason = _pictured(compared)
    right: NDArray[np.bool_] = np.stack([each.right for each in same.answers])  # (runs, n)
    names, count = [f"{run + 1} {compared.entries[run].name}" for run in same.runs], right.sum(0)
    kinds = [
        (f"Only {name} is right", own & (count == 1))
        for name, own in zip(names, right, strict=True)
    ]
    if len(names) > 2:
        alone = count == len(names) - 1
        kinds += [
            (f"Only {name} is wrong", ~own & alone) for name, own in zip(names, right, strict=True)
        ]
    kinds.append((f"{'Both' if len(names) == 2 else 'All'} wrong", count == 0))
    most = min(MOST, max(FEWEST, PICTURES // len(kinds)))
    confidence = np.stack([each.confidence for each in same.answers])
    surest = np.where(right, 0, confidence).sum(0) / np.maximum((~right).sum(0), 1)  # who is wrong
    blocks: list[Block] = []
    if source is None:
        words = f"The images are not at hand ({reason}): they are counted, not shown."
        blocks.append(Prose(words))
    for title, chosen in kinds:
        places = np.flatnonzero(chosen)
        first = places[np.argsort(-surest[places], kind="stable")][:most].tolist()
        which = f", the {most} with the most confident mistakes" * (len(places) > len(first))
        heading = Markup("<b><bdi>{}</bdi>: {}</b>{}")
        blocks.append(Prose(heading.format(title, counted(len(places), "image"), which)))
        if source is not None and first:
            folder = common_folder(source.name(int(same.indices[of][place])) for place in first)
            shown = [_thumbnail(same, source, of, place, folder) for place in first]
            blocks.append(Thumbnails(shown))
    chance = "the probability of its likeliest class" if same.several else "its probability"
    text = (
        f"Above the answers stands the true class; beside each answer {chance}. Images that every "
        "model gets wrong with confidence are often labeled wrongly."
    )
    return [*blocks, Prose(text, note=True)]


def _pictured(compared: Compared) -> tuple[Source | None, int, str]:
    """Return the test images of the first run whose data is at hand, and the place of that run."""
    assert compared.same is not None
    reason = ""
    for place, number in enumerate(compared.same.runs):
        try:
            return reopened(compared.entries[number].folder).test, place, ""
        except UserError as error:
            reason = reason or str(error)
    return None, 0, reason


def _thumbnail(same: SameImages, source: Source, of: int, place: int, folder: str) -> Thumbnail:
    """Return an image with what each run says of it."""
    index, rows = int(same.indices[of][place]), []
    for run, answers in zip(same.runs, same.answers, strict=True):
        good = bool(answers.right[place])
        row = '<span>{}</span><span class="{}">{} <bdi>{}</bdi></span><span>{}</span>'
        rows.append(
            Markup(row).format(
                run + 1, "right" if good else "wrong", "✓" if good else "✗",
                _classes(answers, place, same.classes, truth=False),
                percent(float(answers.confidence[place])),
            )
        )  # fmt: skip
    words = Markup('<span class="says">{}</span>').format(Markup().join(rows))
    truth = _classes(same.answers[0], place, same.classes, truth=True)
    name = source.name(index).removeprefix(folder)
    return Thumbnail((of_source(source, index),), truth, words, name)


def _classes(answers: Answers, place: int, classes: Sequence[str], *, truth: bool) -> str:
    """Return the true classes of an image, or those that a run names."""
    if isinstance(answers, SingleAnswers):
        return classes[(answers.truth if truth else answers.guess)[place]]
    row = (answers.table if truth else answers.chosen)[place]
    return ", ".join(classes[number] for number in np.flatnonzero(row).tolist()) or "none"
