"""Options of commands that train or fit: where and how a run works."""

from dataclasses import dataclass, replace
from typing import Self

from vitlab.effort import Effort
from vitlab.options import Options
from vitlab.recipes.recipe import Host


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """Where and how a run works, and what the user typed."""

    host: Host = Host()
    command: str = ""

    def with_effort(self, effort: Effort) -> Self:
        """Return them for a run whose figures are worked out this thoroughly."""
        return replace(self, host=replace(self.host, effort=effort))
