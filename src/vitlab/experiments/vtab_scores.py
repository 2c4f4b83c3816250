"""What VTAB comes to: the mean of each group and of all tasks, beside the ViT paper's.

A mean over fewer tasks than belong to it is never given as the mean: it stands under another name,
with the number of tasks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from vitlab.data.vtab import GROUPS, TASKS
from vitlab.report.table_page import Table, TablePage
from vitlab.units import percent

# ViT paper, Table 9: its models and their pre-training, in percent, in the order of TASKS
PAPER: dict[str, tuple[float, ...]] = {
    "H/14 JFT": (
        95.3, 85.5, 75.2, 99.7, 97.2, 65.0, 88.9,
        83.3, 96.7, 91.4, 76.6,
        91.7, 63.8, 53.1, 79.4, 63.3, 84.5, 33.2, 51.2,
    ),
    "L/16 JFT": (
        95.4, 81.9, 74.3, 99.7, 96.7, 63.5, 87.4,
        83.6, 96.5, 89.7, 77.1,
        86.4, 63.1, 49.7, 74.5, 60.5, 82.2, 36.2, 51.1,
    ),
    "L/16 I21k": (
        90.8, 84.1, 74.1, 99.3, 92.7, 61.0, 80.9,
        82.5, 95.6, 85.2, 75.3,
        70.3, 56.1, 41.9, 74.7, 64.9, 79.9, 30.5, 41.7,
    ),
}  # fmt: skip


def paper_rows() -> dict[str, dict[str, float]]:
    """Return the paper's accuracy of each of its models on each task, as fractions."""
    names = [task.name for task in TASKS]
    return {
        model: {name: value / 100 for name, value in zip(names, values, strict=True)}
        for model, values in PAPER.items()
    }


def summary(accuracy: Mapping[str, float]) -> dict[str, Any]:
    """Return the means of each group and of all tasks (Figure 2).

    Args:
        accuracy: of each finished task, by its name

    Returns:
        accuracy (the mean of all 19 tasks, None if some are missing), done, of, mean_of_done, and
        groups: the same of each group.
    """
    groups = {
        group: _mean([task.name for task in TASKS if task.group == group], accuracy)
        for group in GROUPS
    }
    return _mean([task.name for task in TASKS], accuracy) | {"groups": groups}


def _mean(names: Sequence[str], accuracy: Mapping[str, float]) -> dict[str, Any]:
    known = [accuracy[name] for name in names if name in accuracy]
    mean = sum(known) / len(known) if known else None
    return {
        "accuracy": mean if len(known) == len(names) else None,
        "done": len(known),
        "of": len(names),
        "mean_of_done": mean,
    }


HEAD = ("task", "lr", "accuracy", *PAPER)


def table(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the tasks and the means as text, in the columns of `HEAD`."""
    paper, lines = paper_rows().values(), list[tuple[str, ...]]()
    means = [summary(values) for values in paper]
    for group in GROUPS:
        for task in TASKS:
            if task.group == group:
                theirs = [percent(values[task.name]) for values in paper]
                lines.append((task.title, *_ours(task.name, result), *theirs))
        of_group = [each["groups"][group] for each in (result, *means)]
        lines.append(_line(group, *of_group))
    return [*lines, _line("all", result, *means)]


def _ours(task: str, result: dict[str, Any]) -> tuple[str, str]:
    """Return the learning rate and the accuracy of a task."""
    row = next((row for row in result["tasks"] if row["task"] == task), None)
    if row is None:
        return "", "no data" if task in result["missing"] else "not run"
    accuracy = row["accuracy"]
    return f"{row['lr']:g}", "diverged" if accuracy is None else percent(accuracy)


def _line(title: str, mean: dict[str, Any], *theirs: dict[str, Any]) -> tuple[str, ...]:
    """Return the line of a mean, which says so if tasks are missing."""
    head, text, known = f"mean, {title}", "", mean["mean_of_done"]
    if mean["accuracy"] is None:
        head = f"{mean['done']} of {mean['of']} {title}"
    if known is not None:
        text = percent(known) if mean["accuracy"] is not None else f"({percent(known)})"
    return (head, "", text, *(percent(each["accuracy"]) for each in theirs))


def page(result: dict[str, Any]) -> TablePage:
    """Return the page of a result: the groups as in Figure 2, and every task."""
    lines = table(result)
    titles = {task.title for task in TASKS}
    lead = remark(result) or f"Mean of all 19 tasks: {percent(result['accuracy'])}."
    groups = [(line[0], *line[2:]) for line in lines if line[0] not in titles]
    about = ", ".join(f"{key} {value}" for key, value in result["setting"].items())
    missing = [f"No data: {', '.join(result['missing'])}."] if result["missing"] else []
    return TablePage(
        f"VTAB-1k from {result['weights']}",
        lead,
        [Table("Groups", (HEAD[0], *HEAD[2:]), groups), Table("Tasks", HEAD, lines)],
        notes=[*missing, "The other columns: ViT paper, Table 9.", f"Setting: {about}."],
    )


def remark(result: dict[str, Any]) -> str:
    """Return what must be said below the table if tasks are missing; else nothing."""
    if result["accuracy"] is not None:
        return ""
    return (
        f"In parentheses: means of the finished tasks alone ({result['done']} of {result['of']}), "
        "not to be compared with the paper's."
    )
