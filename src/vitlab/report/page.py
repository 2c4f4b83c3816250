"""From facts to one self-contained HTML file: no network, no scripts, no other files."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup, escape

from vitlab.evaluation.per_class import DENSE
from vitlab.models.model import Part
from vitlab.report import headline, matrix
from vitlab.report.facts import Facts, Judged, Picture, Ran, Survey
from vitlab.report.table_page import save_page, templates
from vitlab.report.trust import trust
from vitlab.units import percent, si

if TYPE_CHECKING:
    from jinja2 import Environment

NAMED = 20  # classes that a sentence names
SHOWN = 24  # pictures of mistakes that are shown at first; half of them on a phone


def write(file: Path, facts: Facts) -> Path:
    """Render the report into `file`; an older one is replaced only by a complete one.

    Raises:
        DiskError: the file cannot be written.
    """
    return save_page(file, _render(facts))


def page_templates() -> "Environment":
    """Return the templates with the filters of a report."""
    environment = templates()
    environment.filters |= {"percent": percent, "si": si, "setting": setting, "soft": soft}
    return environment


def _render(facts: Facts) -> str:
    """Return the page as text; the drawing and template libraries are imported here."""
    page = page_templates().get_template("page.html.jinja")
    return page.render(
        facts=facts,
        named=NAMED,
        **_top(facts),
        **_drawn(facts),
        **_extremes(facts),
        rows=(rows := matrix.rows(facts)),
        matrix=matrix.matrix(facts),
        numbered=len(facts.classes) <= matrix.NUMBERS,
        upright=any(len(name) > 3 for name in facts.classes),
        pairs=matrix.pairs(facts),
        all_listed=len(facts.per_class) <= matrix.LISTED,
        predicts=bool(facts.predicted),
        untested=[each.name for each in facts.per_class if not each.images],
        never=matrix.never_predicted(facts),
        trained=any(row.training is not None for row in rows),
        groups=_groups(facts.mistakes),
        flawless=bool(facts.confusion.images) and not facts.confusion.wrong,
        wrong=facts.confusion.wrong,
        cost=cost_rows(facts.cost),
        sections={k: v for k, v in facts.recipe.items() if isinstance(v, dict)},
        notes=[*facts.notes, *changes(facts)],
    )


def setting(choice: Any) -> str:
    """Return a value of the recipe as a reader expects it."""
    match choice:
        case None:
            return "–"
        case bool():
            return "yes" if choice else "no"
        case list() | tuple():
            return ", ".join(setting(item) for item in choice) or "–"
        case float():
            return f"{choice:g}"
        case _:
            return str(choice) or "–"


def soft(name: str) -> Markup:
    """Return a name, escaped, that may be broken after a hyphen, dot, slash or underscore."""
    return Markup("<wbr>").join(
        escape(part) for part in re.findall(r"[^-_./]*[-_./]|[^-_./]+", name)
    )


def changes(facts: Ran) -> list[str]:
    """Return the options that were changed while the run went on."""
    made: Any = facts.recipe.get("changes", [])
    return [
        f"from step {each['step']:,} on, {each['option']} is {setting(each.get('after'))} "
        f"(before: {setting(each.get('before'))})"
        for each in made
    ]


# What the page shows


@dataclass(frozen=True)
class Group:
    """The pictures of one confusion.

    Attributes:
        anchor: where links find them
        mistakes: most confident first
        late: CSS class of those that are hidden until a reader asks for them, else empty
    """

    anchor: str
    mistakes: list[Judged]
    late: str


@dataclass(frozen=True)
class Census:
    """One class of the data: its images in each split, and the widths of their bars in percent."""

    name: str
    counts: list[int]
    widths: list[float]
    samples: list[tuple[str, str]]  # data URI and name


@dataclass(frozen=True)
class Cost:
    """A part of the model and its share of all parameters and multiply-adds."""

    name: str
    params: int
    macs: int
    params_share: float
    macs_share: float


def _top(facts: Facts) -> dict[str, Any]:
    """Return what stands above the sections."""
    return {
        "title": headline.title(facts),
        "lead": headline.lead(facts),
        "gauge": headline.gauge(facts),
        "keys_": headline.key_cards(facts),
        "more": headline.more_cards(facts),
        "prices": headline.cost_cards(facts),
        "about": headline.about(facts),
        "command": facts.run.get("command", ""),
        "repeating": headline.repeating(facts),
    }


def _drawn(facts: Facts) -> dict[str, Any]:
    """Return the drawings, and the words that go with them."""
    from vitlab.report.atlas.marks import marks
    from vitlab.report.drawings import charts, curves, thumbnails
    from vitlab.report.inside.sights import view

    apart, many = headline.apart(facts), len(facts.classes) > matrix.MATRIX
    recalls = [each.recall or 0.0 for each in facts.per_class if each.images]
    held_out = "validation" if _validated(facts) else "test"
    shades = many and len(facts.classes) <= DENSE and facts.confusion.images
    return {
        "apart": apart,
        "held_out": held_out,
        "curves": curves.curves(facts.training, facts.testing, held_out, alike=not apart),
        "undrawn": curves.undrawn([*facts.training, *facts.testing]),
        "dense": thumbnails.matrix(matrix.shades(facts)) if shades else "",
        "spread": charts.spread(recalls) if many and recalls else "",
        "trust": trust(facts),
        "census": _census(facts, facts.survey),
        "counts": charts.sorted_counts(facts.survey.counts["train"])
        if many and facts.survey
        else "",
        "picture": thumbnails.picture,
        "overlay": thumbnails.overlay,
        "scale": thumbnails.scale(),
        "chance": headline.chance(facts),
        "inside": view(facts.inside) if facts.inside else None,
        "inspecting": _inspecting(facts),
        "pixels": lambda doubt: thumbnails.picture(Picture(doubt.pixels, doubt.name)),
        "marks": marks(facts.atlas, facts.classes),
    }


def _inspecting(facts: Facts) -> str:
    """Return the command that looks inside the model of this run."""
    run = str(facts.figures.get("run", "")) or "RUN"
    return f"vitlab inspect {shlex.quote(run)} IMAGE… --out inside"


def _extremes(facts: Facts) -> dict[str, Any]:
    """Return the classes with the fewest and the most training images, if all are not alike."""
    counts = facts.survey.counts["train"] if facts.survey else []
    if not counts or min(counts) == max(counts):
        return {"fewest": None, "most": None}
    few, many = counts.index(min(counts)), counts.index(max(counts))
    named = [(facts.classes[number], counts[number]) for number in (few, many)]
    return {"fewest": named[0], "most": named[1]}


def _validated(facts: Facts) -> bool:
    """Return whether the curves are of the validation images."""
    if facts.survey is not None:
        return "validation" in facts.survey.images
    return bool(facts.recipe.get("recipe", {}).get("patience"))


def _census(facts: Facts, survey: Survey | None) -> list[Census]:
    """Return the classes that have samples, or all if there are few."""
    from vitlab.report.drawings.thumbnails import SMALL, picture

    if survey is None:
        return []
    few = len(facts.classes) <= matrix.MATRIX
    totals = np.sum(list(survey.counts.values()), axis=0)
    found = []
    for number, name in enumerate(facts.classes):
        if few or number in survey.samples:
            own = [counts[number] for counts in survey.counts.values()]
            widths = [100 * count / max(int(totals.max()), 1) for count in own]
            samples = [(picture(each, SMALL), each.name) for each in survey.samples.get(number, [])]
            found.append(Census(name, own, widths, samples))
    return found


def _groups(mistakes: Sequence[Judged]) -> list[Group]:
    """Return the pictures, those of one confusion together."""
    groups: dict[str, list[Judged]] = {}
    for each in mistakes:
        groups.setdefault(matrix.anchor(*each.pair) if each.pair else "", []).append(each)
    rows, before = [], 0
    for anchor, found in groups.items():
        late = "late" if before >= SHOWN else "late-phone" if before >= SHOWN // 2 else ""
        rows.append(Group(anchor, found, late))
        before += len(found)
    return rows


def cost_rows(parts: Sequence[Part]) -> list[Cost]:
    """Return the parts, and a last row for the whole model."""
    params, macs = sum(part.params for part in parts), sum(part.macs for part in parts)
    return [
        Cost(
            part.name, part.params, part.macs,
            part.params / max(params, 1), part.macs / max(macs, 1),
        )
        for part in (*parts, Part("whole model", params, macs))
    ] if parts else []  # fmt: skip
