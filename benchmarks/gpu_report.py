"""The report of `gpu.py`: its parts as Markdown, and how far each goal was reached."""

import re
import shlex
from typing import Any

from gpu_parts import GOALS, PARTS, Goal, Row

Kept = dict[str, dict[str, Any]]  # what is known of each part that was run, by its name


def rows_of(text: str) -> list[Row]:
    """Return the rows of all Markdown tables of a text, by the titles of their columns."""
    rows: list[Row] = []
    titles: list[str] = []
    for line in [*text.splitlines(), ""]:
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.lstrip().startswith("|"):
            titles = []
        elif not titles:
            titles = cells
        elif not all(re.fullmatch(":?-+:?", cell) for cell in cells):
            rows.append(dict(zip(titles, cells, strict=False)))
    return rows


def goal_line(goal: Goal, kept: Kept, dry: bool) -> str:
    """Return a row of the table of goals; of a dry run without a verdict."""
    found = kept.get(goal.part)
    figure = goal.read(rows_of(found["stdout"])) if found else None
    aim = f"at least {goal.least:g}" if goal.least is not None else f"at most {goal.most:g}"
    if figure is None:
        return f"| {goal.text} | {aim} | not measured | |"
    verdict = "" if dry else "yes" if goal.reached(figure) else "no"
    return f"| {goal.text} | {aim} | {figure:.3f} | {verdict} |"


def goals(kept: Kept, dry: bool) -> str:
    """Return the table of goals."""
    head = "| goal | | found | reached |\n| --- | --- | --- | --- |"
    return "\n".join([head, *(goal_line(goal, kept, dry) for goal in GOALS)])


def state_of(found: dict[str, Any] | None) -> str:
    """Return in a few words how a part went."""
    if found is None:
        return "not measured"
    words = {"done": "done", "stopped": "stopped at its limit", "failed": "failed"}
    return f"{words[found['state']]}, {found['seconds']:.0f} s"


def section(title: str, found: dict[str, Any] | None) -> str:
    """Return a part's section."""
    if found is None:
        return f"## {title}\nNot measured."
    command = shlex.join(found["command"])
    lines = [f"## {title}", f"{found['date']}, `{command}`, {state_of(found)}.", ""]
    lines.append(_tables_apart(found["stdout"].strip()))
    if found["state"] != "done":
        lines += ["", "```text", found["stderr"].strip()[-1500:], "```"]
    return "\n".join(lines)


def _tables_apart(text: str) -> str:
    """Put an empty line before each table, without which Markdown does not see it."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("|") and lines and lines[-1] and not lines[-1].startswith("|"):
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def report(about: dict[str, str], kept: Kept) -> str:
    """Return the whole report."""
    machine = ", ".join(f"{key} {value}" for key, value in about.items())
    head = f"# On a GPU\n{machine}. Each part says when it was made and by which command."
    dry = about["device"] == "cpu"
    if dry:
        head += "\n\nA dry run at tiny sizes on a CPU: no figure here means anything."
    sections = [section(part.title, kept.get(part.name)) for part in PARTS]
    return "\n\n".join([head, "## Goals\n" + goals(kept, dry), *sections]) + "\n"
