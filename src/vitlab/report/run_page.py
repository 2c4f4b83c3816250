"""Sections of a run's report: its first screen, and everything that folds below it."""

import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from vitlab.evaluation.metrics import METRICS
from vitlab.evaluation.per_class import DENSE, worst_first
from vitlab.evaluation.reliability import Bin
from vitlab.report import headline, thumbnails
from vitlab.report.curves import learning_curves, softened
from vitlab.report.drawings import charts
from vitlab.report.facts import Facts, Judged
from vitlab.report.inside.sights import inside_blocks
from vitlab.report.page import (
    Block,
    Page,
    Plot,
    Plots,
    Prose,
    Section,
    Table,
    Thumbnail,
    Thumbnails,
    bar,
    common_folder,
    mistaken,
    picture_of,
    setting,
)
from vitlab.units import counted, percent, si

WORST = 5  # classes of the first screen
FIRST = 14  # pictures of mistakes of the first screen
MANY = 40  # classes: of more, the worst are listed, and their spread is drawn
PAIRS = 10  # confused most
NAMED = 20  # classes that a sentence names
MARKED = 12  # most classes with a mark of their own on the map
SHEET_BYTES = 310_000  # of the picture of all thumbnails, at most
EVEN = 0.005  # a gap of confidence and accuracy below it is none
HIGH = 0.03  # an expected calibration error that needs a reason


def run_page(facts: Facts) -> Page:
    """Return the report of a run that learned from labels."""
    names = [each.name for each in (*facts.mistakes, *facts.examples, *facts.listed)]
    folder = common_folder(names)
    mistakes = mistake_photos(facts.mistakes, folder)
    first = [
        Section("result", "Result", [headline.head(facts), headline.measured_on(facts)], False),
        Section("worst", "Where it is weakest", _weakest(facts), False),
        Section("mistakes", "Its worst mistakes", _worst_mistakes(facts, mistakes), False),
        Section("uses", "Use it now", [headline.uses(facts)], False),
    ]
    return Page(
        headline.on_data(facts, headline.short_model(facts)),
        headline.lead(facts),
        [*first, *_folded(facts, mistakes, folder)],
        [*facts.notes, *headline.changes(facts)],
        kicker="report",
    )


def _folded(facts: Facts, mistakes: list[Thumbnail], folder: str) -> list[Section]:
    """Return the sections that are opened by who wants to know more."""
    text, trusted = trust(facts)
    inspecting = f"vitlab inspect {shlex.quote(facts.folder)} IMAGE… --out inside"
    return [
        Section("figures", "All figures", [headline.more_figures(facts)]),
        Section("classes", "All classes", _classes(facts), hint=_spread_words(facts)),
        Section("confusion", "Which classes are mistaken for which", _confusion(facts)),
        Section("more-mistakes", "More mistakes", _more_mistakes(facts, mistakes, folder)),
        Section("calibration", "Whether its confidence can be trusted", trusted, hint=text),
        Section("labels", "Labels that may be wrong", _doubts(facts)),
        Section("attention", "Where it looks", _attention(facts, folder)),
        Section("map", "Map of the test images", _map(facts)),
        Section("inside", "Inside the model", inside_blocks(facts.inside, inspecting)),
        Section("curves", "Learning curves", learning_curves(facts)),
        *run_sections(facts),
    ]


def run_sections(facts: Facts) -> list[Section]:
    """Return what the reports of all runs end with: cost, sweep, how it was made, settings."""
    cost = headline.cost_of(facts)
    return [
        Section("cost", "Cost", [*([cost] if cost.items else []), *_cost(facts)]),
        Section("sweep", "Learning rates that were tried", [facts.sweep] if facts.sweep else []),
        Section("made", "How it was made", headline.made(facts)),
        Section("recipe", "All settings", _settings(facts)),
    ]


# The first screen


def _weakest(facts: Facts) -> list[Block]:
    """Return the classes with the lowest F1, and what they are most often taken for."""
    worst = [each for each in worst_first(facts.per_class) if (each.f1 or 0) < 1][:WORST]
    if not worst or len(facts.classes) < 2:
        return []
    place = {name: number for number, name in enumerate(facts.classes)}
    training = facts.survey.counts.get("train") if facts.survey else None
    rows = []
    for each in worst:
        found = round((each.recall or 0) * each.images)
        own = place.get(each.name)
        taken = _taken_for(facts, own)
        learned = (f"{training[own]:,}",) if training and own is not None else ()
        row = (each.name, taken, f"{found:,} of {each.images:,}", percent(each.precision or 0))
        rows.append((*row, *learned))
    head = ("Class", "Most often taken for", "Found", "Right when named", "Training images")
    wide = min(len(row) for row in rows)
    return [Table("Where it is weakest", head[:wide], [row[:wide] for row in rows], texts=2)]


def _taken_for(facts: Facts, own: int | None) -> str:
    """Return what images of a class are most often mistaken for."""
    cells = facts.confusion
    if own is None or cells is None:
        return "–"
    counts = np.where((cells.true == own) & (cells.predicted != own), cells.counts, 0)
    return facts.classes[cells.predicted[counts.argmax()]] if counts.any() else "–"


def mistake_photos(mistakes: Sequence[Judged], folder: str) -> list[Thumbnail]:
    """Return mistakes as pictures, the first one of each confusion with an id."""
    before, found = set[tuple[int, int] | None](), []
    for each in mistakes:
        anchor = "" if each.pair is None or each.pair in before else anchor_of(each.pair)
        before.add(each.pair)
        found.append(photo_of(each, folder, anchor))
    return found


def anchor_of(pair: tuple[int, int]) -> str:
    """Return the id of the pictures of a confusion."""
    return f"m-{pair[0]}-{pair[1]}"


def photo_of(each: Judged, folder: str, anchor: str = "") -> Thumbnail:
    """Return a judged image as a picture with its caption."""
    words = f"{percent(each.confidence)} sure"
    if each.own is not None and each.truth != each.guess:
        words += f"; truth {percent(each.own)}"
    if each.unlike:
        words = Markup('{} <span class="wrong">unlike the training images</span>').format(words)
    images = [thumbnails.picture(each.picture)]
    if each.picture is not None and each.attention is not None:
        images.append(thumbnails.overlay(each.picture, each.attention))
    name = each.name.removeprefix(folder)
    return Thumbnail(tuple(images), mistaken(each.truth, each.guess), words, name, anchor)


def _worst_mistakes(facts: Facts, mistakes: Sequence[Thumbnail]) -> list[Block]:
    if facts.confusion and facts.confusion.images and not facts.confusion.wrong:
        return [Prose("None: every test image was classified correctly.")]
    return [Thumbnails(mistakes[:FIRST])] if mistakes else []


# Below it


def _more_mistakes(facts: Facts, mistakes: Sequence[Thumbnail], folder: str) -> list[Block]:
    blocks: list[Block] = []
    if len(mistakes) > FIRST:
        blocks = [Thumbnails(mistakes[FIRST:])]
    if facts.listed and facts.confusion:
        wrong = facts.confusion.wrong
        which = f"The {len(facts.listed)} most confident of {wrong:,}" if wrong > len(
            facts.listed) else f"All {wrong:,}"  # fmt: skip
        head = ("File", "True class", "Prediction", "How sure")
        rows = [
            (each.name.removeprefix(folder), each.truth, each.guess, percent(each.confidence))
            for each in facts.listed
        ]
        note = f"{which}, most confident first: labels that are wrong are often among them."
        note += f" All files are in {folder}." if folder else ""
        blocks.append(Table("Mistakes by name", head, rows, note=note, texts=3))
    return blocks


def _classes(facts: Facts) -> list[Block]:
    """Return each class that has test images, lowest F1 first; of very many, the worst."""
    ordered = worst_first(facts.per_class)
    if not ordered:
        return []
    many, blocks = len(facts.classes) > MANY, list[Block]()
    if many:
        recalls = [each.recall or 0.0 for each in ordered]
        label = f"Histogram of the share found of {len(recalls)} classes."
        drawing = charts.histogram("spread", label, recalls, "found")
        title = "Classes by the share of their images that is found"
        blocks.append(Plots([Plot(title, drawing)]))
    rows = [_class_row(facts, each) for each in ordered[: MANY if many else None]]
    head = ("Class", "", "Found", "Right when named", "F1", "Test", "Named", "Training")
    wide = min(len(row) for row in rows)
    note = (
        "Found (recall): the share of the images of a class that the model recognizes. Right when "
        "named (precision): of the images that it puts into the class, the share that belongs "
        "there. F1 is high only where both are. The other columns count images."
    )
    limits = facts.figures.get("thresholds", 0.5)
    if facts.several:
        above = "its threshold" if isinstance(limits, dict) else f"{limits:.3g}"
        note += f" A class is named where its probability is above {above}."
    note += _left_out(facts, len(rows))
    rows = [row[:wide] for row in rows]
    blocks.append(Table("All classes", head[:wide], rows, note=note, texts=2))
    return blocks


def _class_row(facts: Facts, each: Any) -> tuple[str, ...]:
    own = facts.classes.index(each.name) if each.name in facts.classes else -1
    samples = facts.survey.samples.get(own, []) if facts.survey else []
    strip = Markup().join(
        Markup('<img src="{}" alt="">').format(thumbnails.picture(one, thumbnails.SMALL))
        for one in samples
    )
    named = f"{facts.predicted[own]:,}" if own >= 0 and facts.predicted else "–"
    train = (f"{facts.survey.counts['train'][own]:,}",) if facts.survey and own >= 0 else ()
    return (
        each.name,
        Markup('<span class="strip">{}</span>{}').format(strip, bar(each.f1 or 0)),
        percent(each.recall or 0), percent(each.precision or 0), percent(each.f1 or 0),
        f"{each.images:,}", named, *train,
    )  # fmt: skip


def _left_out(facts: Facts, shown: int) -> str:
    """Return which classes the table does not show, and which are never predicted."""
    text, untested = "", [each.name for each in facts.per_class if not each.images]
    if shown < len(facts.per_class) - len(untested):
        text += f" The {shown} classes with the lowest F1 are shown."
    if untested:
        has = "has" if len(untested) == 1 else "have"
        text += f" {len(untested)} of {len(facts.classes)} classes {has} no test image"
        text += f" ({', '.join(untested)})." if len(untested) <= NAMED else "."
    pairs = zip(facts.per_class, facts.predicted, strict=False)
    if never := [each.name for each, count in pairs if each.images and not count]:
        more = f", and {len(never) - NAMED} more" * (len(never) > NAMED)
        text += f" Never named: {', '.join(never[:NAMED])}{more}."
    return text


def _spread_words(facts: Facts) -> str:
    """Return how far apart the classes are."""
    found = [each.recall for each in facts.per_class if each.recall is not None]
    if len(found) < 2:
        return ""
    return f"{percent(min(found))} to {percent(max(found))} of a class found"


def _confusion(facts: Facts) -> list[Block]:
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
    there = {each.pair for each in facts.mistakes}
    place = {name: number for number, name in enumerate(facts.classes)}
    rows = []
    for each in facts.confused[:PAIRS] if len(facts.classes) > 2 else []:
        pair = (place[each.true], place[each.predicted])
        images = f"{each.images:,}"
        if pair in there:
            images = Markup('<a href="#{}">{}</a>').format(anchor_of(pair), images)
        rows.append((each.true, each.predicted, images, percent(each.share)))
    if rows:
        head = ("True class", "Taken for", "Images", "Of the class")
        blocks.append(Table("Most confused pairs", head, rows, texts=2))
    return blocks


def trust(facts: Facts) -> tuple[str, list[Block]]:
    """Return in a few words whether the model is overconfident, and the section that shows it."""
    calibration, blocks = facts.figures.get("calibration", {}), list[Block]()
    if calibration:
        note = (
            f"All logits are divided by one temperature, {calibration['temperature']:.4g}, fitted "
            f"to {calibration['images']:,} validation images, none of which is a test image (Guo "
            "et al., 2017). It changes how sure the model is, not which class it predicts."
        )
        blocks += [_before_and_after(calibration, note)]
    count = sum(item.count for item in facts.reliability)
    if not count:
        return "", blocks
    confidence = sum(item.count * item.confidence for item in facts.reliability) / count
    accuracy = sum(item.count * item.accuracy for item in facts.reliability) / count
    gap = confidence - accuracy
    degree = "slightly " if abs(gap) < 0.03 else "" if abs(gap) < 0.1 else "strongly "
    word = f"{degree}{'over' if gap > 0 else 'under'}confident"
    word = "well calibrated on average" if abs(gap) < EVEN else word
    text = f"On average the model is {percent(confidence)} sure and {percent(accuracy)} right: "
    text += f"it is {word}."
    causes = [] if facts.uncalibrated else softened(facts)
    if causes and gap < -EVEN and _ece(facts.reliability) > HIGH:
        text += (
            f" It was trained with {' and '.join(causes)}, which keeps confidence below accuracy; "
            "with a validation split, vitlab evaluate --calibrate makes up for it."
        )
    pairs = [(facts.reliability, "")]
    if facts.uncalibrated:
        pairs = [(facts.uncalibrated, "before"), (facts.reliability, "after")]
    plots = []
    for bins, when in pairs:
        ece = percent(facts.number("ece") or _ece(bins)) if bins is facts.reliability else percent(
            _ece(bins))  # fmt: skip
        title = f"{when.capitalize() or 'Sure and right'}: gap {ece} (ECE)"
        drawing = charts.reliability(bins, f"reliability{when}", f"Reliability diagram. {title}.")
        plots.append(Plot(title, drawing))
    words = (
        "Images are grouped by how sure the model is. A blue bar shows how many of a group are "
        "right, the orange line how sure the model was of them; the two are level where its "
        "confidence can be trusted. Groups of fewer than 10 images are faint. The expected "
        "calibration error (ECE) is the mean gap over all images."
    )
    return word, [*blocks, Prose(text), Plots(plots), Prose(words, note=True)]


def _ece(bins: Sequence[Bin]) -> float:
    """Return the expected calibration error of bins."""
    gaps = sum(item.count * abs(item.confidence - item.accuracy) for item in bins)
    return gaps / max(sum(item.count for item in bins), 1)


def _before_and_after(calibration: dict[str, Any], note: str) -> Table:
    rows = []
    for key in (key for key in calibration.get("before", {}) if key in METRICS):
        cells = [METRICS[key].title]
        for when in ("before", "after"):
            found = calibration.get(when, {})
            ends = METRICS[key].range(found.get("intervals", {}).get(key))
            cells.append(METRICS[key].text(found[key]) + f" ({ends})" * bool(ends))
        rows.append(tuple(cells))
    return Table("Before and after calibration", ("Figure", "Before", "After"), rows, note=note)


def _doubts(facts: Facts) -> list[Block]:
    """Return the labels that are likely wrong, with their pictures."""
    found = facts.doubts
    if found is None:
        return []
    if not found.shown:
        return [Prose("None: no test image is confidently of another class than its label says.")]
    folder = common_folder(each.name for each in found.shown)
    photos = []
    for each in found.shown:
        words = f"label {percent(each.own)}"
        words += "" if each.other is None else f"; likely class {percent(each.other)}"
        image = thumbnails.picture(each.picture)
        title = mistaken(each.given, each.better)
        photos.append(Thumbnail((image,), title, words, each.name.removeprefix(folder)))
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


def _attention(facts: Facts, folder: str) -> list[Block]:
    photos = [photo_of(each, folder) for each in facts.examples if each.attention is not None]
    if not photos:
        return []
    text = (
        "Beside each picture: which parts of it the last layers of the model look at most, from "
        "dark to bright, each map scaled to its own range."
    )
    if headline.chance(facts):
        text = f"This model cannot be told from guessing: its maps mean little. {text}"
    return [Prose(text, note=True), Thumbnails(photos, "wide")]


def _map(facts: Facts) -> list[Block]:
    """Return the test images as points, colored by class, and as pictures in the same places."""
    shown = facts.image_map
    if shown is None:
        return []
    wrong = np.flatnonzero(shown.wrong)
    if shown.truth.max() >= 0 and len(facts.classes) <= MARKED:
        groups = [
            (name, np.flatnonzero(shown.truth == number).tolist())
            for number, name in enumerate(facts.classes)
        ]
    elif shown.truth.max() >= 0:
        groups = [("right", np.flatnonzero(~shown.wrong).tolist()), ("wrong", wrong.tolist())]
    else:
        groups = [("images", list(range(len(shown.points))))]
    groups = [(name, own) for name, own in groups if own]
    label = f"Map of {len(shown.points):,} test images, {len(wrong):,} of them mistakes."
    ringed = np.flatnonzero(shown.doubted | (shown.wrong & (len(groups) > 2))).tolist()
    drawing = charts.scatter("map", label, shown.points, groups, ringed, shown.aspect)
    which = f"{len(shown.points):,} of {shown.of:,}" if len(shown.points) < shown.of else "All"
    text = (
        f"{which} test images: those that the model sees as alike lie close together (t-SNE, van "
        "der Maaten & Hinton, 2008). A ring marks a mistake or a label in doubt. The axes have no "
        "unit; how large a group is, and how far from others, means little."
    )
    sheet = picture_of(thumbnails.sheet(shown.sheet, SHEET_BYTES), "The same images as pictures.")
    plots = [Plot("", drawing), Plot("The same images as pictures, in the same places", sheet)]
    return [Prose(text, note=True), Plots(plots)]


def _cost(facts: Facts) -> list[Block]:
    """Return the parts of the model that cost something, and their shares."""
    params, macs = (sum(getattr(part, key) for part in facts.cost) for key in ("params", "macs"))
    rows = [
        (part.name, si(part.params), percent(part.params / max(params, 1)), si(part.macs, 2),
         percent(part.macs / max(macs, 1)))
        for part in facts.cost if part.params or part.macs
    ]  # fmt: skip
    head = ("Part", "Parameters", "Share", "Multiply-adds per image", "Share")
    return [Table("Cost of each part", head, rows)] if rows else []


def _settings(facts: Facts) -> list[Block]:
    rows = [
        (name, field, setting(choice))
        for name, fields in facts.recipe.items()
        if isinstance(fields, dict)
        for field, choice in fields.items()
    ]
    head = ("Section", "Setting", "Value")
    return [Table("All settings", head, rows, texts=3)] if rows else []
