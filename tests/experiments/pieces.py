"""Work for processes side by side, which import this file alone."""

import time

from vitlab.errors import RunError


def work(what: str) -> str:
    """Something that another process does."""
    if what == "refuse":
        raise RunError("no")
    if what == "sleep":
        time.sleep(600)
    return what + what
