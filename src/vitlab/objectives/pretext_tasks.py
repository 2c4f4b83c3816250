"""The pretext tasks by name."""

from vitlab.objectives.pretext_task import PretextTask

TASKS: dict[str, type[PretextTask]] = {}
"""By the recipe's `task`; `classify` is not among them, for it needs labels."""
