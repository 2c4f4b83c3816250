"""Sections of a run's report: its first screen, and everything that folds below it."""

import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from vitlab.evaluation.metrics import METRICS
from vitlab.evaluation.per_class import DENSE, worst_first
from vitlab.report import charts, headline
from vitlab.report.curves import learning_curves, softened
from vitlab.report.facts import Judged, RunFacts
from vitlab.report.inside.sights import inside_blocks
from vitlab.report.next_steps import next_steps
from vitlab.report.page import (
    Block,
    Columns,
    Commands,
    Page,
    Plot,
    Plots,
    Prose,
    ReportTable,
    Section,
    Thumbnail,
    Thumbnails,
    bar,
    common_folder,
    mistaken,
    table_of,
)
from vitlab.report.thumbnails import picture
from vitlab.units import counted, percent

WORST = 5  # classes of the first screen
FIRST = 14  # pictures of mistakes of the first screen
MANY = 40  # classes: of more, the worst are listed
PAIRS = 10  # confused most
NAMED = 20  # classes that a sentence names
EVEN = 0.005  # a gap of confidence and accuracy below it is none
HIGH = 0.03  # an expected calibration error that needs a reason


def run_page(facts: RunFacts) -> Page:
    """Return the report of a run that learned from labels."""
    folder = common_folder(each.name for each in facts.mistakes)
    worst, more = _mistakes(facts, mistake_photos(facts.mistakes, folder))
    word, trusted = trust(facts)
    result: list[Block] = [headline.head(facts), *headline.measured_on(facts)]
    sections = [
        Section("result", "Result", result, False),
        Section("worst", "Where it is weakest", _weakest(facts), False),
        Section("mistakes", "Its worst mistakes", worst, False),
        Section("uses", "Use it now", [next_steps(facts)], False),
        Section("figures", "All figures", [headline.more_figures(facts)]),
        Section("classes", "All classes", _classes(facts)),
        Section("confusion", "Which classes are mistaken for which", _confusion(facts)),
        Section("more-mistakes", "More mistakes", more),
        Section("calibration", "Whether its confidence can be trusted", trusted, hint=word),
        Section("labels", "Labels that may be wrong", _doubts(facts)),
        Section("inside", "Where it looks, and what is inside", _inside(facts)),
        Section("curves", "Learning curves", learning_curves(facts)),
        *headline.run_sections(facts),
    ]
    notes = [*facts.notes, *headline.changes(facts)]
    title = headline.on_data(facts, headline.short_model(facts))
    return Page(title, headline.lead(facts), sections, notes, kicker="report")


def _weakest(facts: RunFacts) -> list[Block]:
    """Return the classes with the lowest F1, and what they are most often taken for."""
    worst = [each for each in worst_first(facts.per_class) if (each.f1 or 0) < 1][:WORST]
    if not worst or len(facts.classes) < 2:
        return []
    found = [f"{round((each.recall or 0) * each.images):,} of {each.images:,}" for each in worst]
    names = [each.name for each in worst]
    columns: Columns = [
        ("Class", names),
        ("Most often taken for", [_taken_for(facts, name) for name in names]),
        ("Found", found),
        ("Right when named", [percent(each.precision or 0) for each in worst]),
        ("Training images", _learned_from(facts, names)),
    ]
    return [table_of("Where it is weakest", columns, texts=2)]


def _learned_from(facts: RunFacts, names: Sequence[str]) -> list[str] | None:
    """Return how many training images each class has, if that is known."""
    if facts.survey is None:
        return None
    counts = dict(zip(facts.classes, facts.survey.counts["train"], strict=False))
    return [f"{counts[name]:,}" for name in names]


def _taken_for(facts: RunFacts, name: str) -> str:
    """Return what images of a class are most often mistaken for."""
    cells = facts.confusion
    if cells is None:
        return "–"
    own = facts.classes.index(name)
    counts = np.where((cells.true == own) & (cells.predicted != own), cells.counts, 0)
    return facts.classes[cells.predicted[counts.argmax()]] if counts.any() else "–"


def mistake_photos(mistakes: Sequence[Judged], folder: str) -> list[Thumbnail]:
    """Return mistakes as pictures, the first one of each confusion with an id."""
    anchors, photos = set[str](), []
    for each in mistakes:
        anchor = anchor_of(each.pair) if each.pair else ""
        words = f"{percent(each.confidence or 0)} sure; truth {percent(each.own)}"
        if each.unlike:
            words = Markup('{} <span class="wrong">unlike the training images</span>').format(words)
        photos.append(_photo(each, folder, words, "" if anchor in anchors else anchor))
        anchors.add(anchor)
    return photos


def anchor_of(pair: tuple[int, int]) -> str:
    """Return the id of the pictures of a confusion."""
    return f"m-{pair[0]}-{pair[1]}"


def _photo(each: Judged, folder: str, words: str, anchor: str = "") -> Thumbnail:
    name = each.name.removeprefix(folder)
    return Thumbnail(
        (picture(each.picture),), mistaken(each.truth, each.guess), words, name, anchor
    )


def _mistakes(facts: RunFacts, photos: Sequence[Thumbnail]) -> tuple[list[Block], list[Block]]:
    """Return the first pictures of mistakes; the others, and the command that lists all answers."""
    if facts.confusion and facts.confusion.images and not facts.confusion.wrong:
        return [Prose("None: every test image was classified correctly.")], []
    if not photos:
        return [], []
    run, data = shlex.quote(facts.folder), shlex.quote(facts.data or "DATA")
    line = f"vitlab evaluate {run} {data} --out answers.csv"
    more: list[Block] = [Thumbnails(rest)] if (rest := photos[FIRST:]) else []
    more.append(Commands([("The answer to every image, as a table", line)]))
    return [Thumbnails(photos[:FIRST])], more


def _classes(facts: RunFacts) -> list[Block]:
    """Return each class that has test images, lowest F1 first; of very many, the worst."""
    ordered = worst_first(facts.per_class)[: MANY if len(facts.classes) > MANY else None]
    if not ordered:
        return []
    names = [each.name for each in ordered]
    named = dict(zip(facts.classes, facts.predicted, strict=False))
    columns: Columns = [
        ("Class", names),
        ("", [bar(each.f1 or 0) for each in ordered]),
        ("Found", [percent(each.recall or 0) for each in ordered]),
        ("Right when named", [percent(each.precision or 0) for each in ordered]),
        ("F1", [percent(each.f1 or 0) for each in ordered]),
        ("Test", [f"{each.images:,}" for each in ordered]),
        ("Named", [f"{named[name]:,}" if name in named else "–" for name in names]),
        ("Training", _learned_from(facts, names)),
    ]
    note = (
        "Found (recall): the share of the images of a class that the model recognizes. Right when "
        "named (precision): of the images that it puts into the class, the share that belongs "
        "there. F1 is high only where both are. The other columns count images."
    )
    limits = facts.figures.get("thresholds", 0.5)
    if facts.several:
        above = "its threshold" if isinstance(limits, dict) else f"{limits:.3g}"
        note += f" A class is named where its probability is above {above}."
    note += _left_out(facts, len(names))
    return [table_of("All classes", columns, note=note, texts=2)]


def _left_out(facts: RunFacts, shown: int) -> str:
    """Return which classes the table does not show."""
    text, untested = "", [each.name for each in facts.per_class if not each.images]
    if shown < len(facts.per_class) - len(untested):
        text += f" The {shown} classes with the lowest F1 are shown."
    if untested:
        has = "has" if len(untested) == 1 else "have"
        text += f" {len(untested)} of {len(facts.classes)} classes {has} no test image"
        text += f" ({', '.join(untested)})." if len(untested) <= NAMED else "."
    return text


def _confusion(facts: RunFacts) -> list[Block]:
    """Return the matrix, and the pairs that are confused most."""
    cells = facts.confusion
    if cells is None or not cells.images:
        return []
    blocks: list[Block] = []
    if cells.classes <= DENSE:
        label = f"Confusion matrix of {cells.classes} classes; the table names the largest cells."
        drawing = charts.matrix("matrix", label, cells.dense(), facts.classes)
        words = (
            "A row is a true class, a column what the model says. Right answers are blue, mistakes "
            "orange, stronger where they are a larger share of the row."
        )
        blocks.append(Plots([Plot("", drawing, words)]))
    there, rows = {each.pair for each in facts.mistakes}, []
    for each in facts.confused[:PAIRS] if len(facts.classes) > 2 else []:
        pair = facts.classes.index(each.true), facts.classes.index(each.predicted)
        images = f"{each.images:,}"
        if pair in there:
            images = Markup('<a href="#{}">{}</a>').format(anchor_of(pair), images)
        rows.append((each.true, each.predicted, images, percent(each.share)))
    if rows:
        head = ("True class", "Taken for", "Images", "Of the class")
        blocks.append(ReportTable("Most confused pairs", head, rows, texts=2))
    return blocks


def trust(facts: RunFacts) -> tuple[str, list[Block]]:
    """Return in a few words whether the model is overconfident, and the section that shows it."""
    blocks, bins = _calibrated(facts.figures.get("calibration", {})), facts.reliability
    count = sum(each.count for each in bins)
    if not count:
        return "", blocks
    confidence = sum(each.count * each.confidence for each in bins) / count
    accuracy = sum(each.count * each.accuracy for each in bins) / count
    ece = sum(each.count * abs(each.confidence - each.accuracy) for each in bins) / count
    gap = confidence - accuracy
    degree = "slightly " if abs(gap) < 0.03 else "" if abs(gap) < 0.1 else "strongly "
    word = f"{degree}{'over' if gap > 0 else 'under'}confident"
    word = "well calibrated on average" if abs(gap) < EVEN else word
    # as far as right answers, drawn with the model's own confidence, are off in 95% of all sets
    if EVEN <= abs(gap) <= 1.96 * (confidence * (1 - confidence) / count) ** 0.5:
        word = "off by no more than chance allows"
    text = f"On average the model is {percent(confidence)} sure and {percent(accuracy)} right: "
    text += f"it is {word}."
    causes = [] if blocks else softened(facts)
    if causes and gap < -EVEN and ece > HIGH:
        text += (
            f" It was trained with {' and '.join(causes)}, which keeps confidence below accuracy; "
            "with a validation split, vitlab evaluate --calibrate makes up for it."
        )
    title = f"Sure and right: gap {percent(facts.number('ece') or ece)} (ECE)"
    drawing = charts.reliability(bins, "reliability", f"Reliability diagram. {title}.")
    words = (
        "Images are grouped by how sure the model is. A blue bar shows how many of a group are "
        "right, the orange line how sure the model was of them; the two are level where its "
        "confidence can be trusted. Groups of fewer than 10 images are faint. The expected "
        "calibration error (ECE) is the mean gap over all images."
    )
    return word, [*blocks, Prose(text), Plots([Plot(title, drawing)]), Prose(words, note=True)]


def _calibrated(about: dict[str, Any]) -> list[Block]:
    """Return the figures before and after calibration, if there was one."""
    if not about:
        return []
    note = (
        f"All logits are divided by one temperature, {about['temperature']:.4g}, fitted to "
        f"{about['images']:,} validation images, none of which is a test image (Guo et al., 2017). "
        "It changes how sure the model is, not which class it predicts."
    )
    rows = []
    for metric in (METRICS[key] for key in about.get("before", {}) if key in METRICS):
        cells = [metric.title]
        for when in ("before", "after"):
            found = about.get(when, {})
            ends = metric.range(found.get("intervals", {}).get(metric.name))
            cells.append(metric.text(found[metric.name]) + f" ({ends})" * bool(ends))
        rows.append(tuple(cells))
    return [
        ReportTable("Before and after calibration", ("Figure", "Before", "After"), rows, note=note)
    ]


def _doubts(facts: RunFacts) -> list[Block]:
    """Return the labels that are likely wrong, with their pictures."""
    found = facts.doubts
    if found is None:
        return []
    if not found.shown:
        return [Prose("None: no test image is confidently of another class than its label says.")]
    folder, photos = common_folder(each.name for each in found.shown), []
    for each in found.shown:
        likely = "" if each.confidence is None else f"; likely class {percent(each.confidence)}"
        photos.append(_photo(each, folder, f"label {percent(each.own)}{likely}"))
    several = "Each class of an image is a question of its own. " if facts.several else ""
    text = (
        f"{several}An image is listed where the model is as sure of another class as it usually is "
        "of images with that label (confident learning, Northcutt et al., 2021). Of "
        f"{found.images:,} test images, {counted(found.listed, 'label')} may be wrong; about "
        f"{found.expected:,.0f} are estimated to be wrong in all. The weaker the model, the more "
        "of these are its own mistakes: look before a label is changed."
    )
    more = (
        f"{'The likeliest ones. ' if found.listed > len(photos) else ''}All of them as a table: "
        "vitlab evaluate RUN DATA --label-errors FILE.csv; those of the training images: vitlab "
        "train DATA --folds 5."
    )
    return [Prose(text, note=True), Thumbnails(photos), Prose(more, note=True)]


def _inside(facts: RunFacts) -> list[Block]:
    """Return where the model looks, and what changes from layer to layer."""
    command = f"vitlab inspect {shlex.quote(facts.folder)} IMAGE… --out inside"
    blocks = inside_blocks(facts.inside, command)
    if blocks and headline.chance(facts):
        words = "This model cannot be told from guessing: its maps mean little."
        blocks.insert(0, Prose(words, note=True))
    return blocks
