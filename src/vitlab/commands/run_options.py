"""Options of commands that train or fit: where and how a run works."""

from dataclasses import dataclass

from vitlab.options import Options
from vitlab.recipes.recipe import Host


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """Where and how a run works, and what the user typed."""

    host: Host = Host()
    command: str = ""
