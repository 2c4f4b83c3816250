"""Other processes of this machine: whether one is stopped, so that it would be waited for."""

from pathlib import Path


def is_stopped(process: int | None) -> bool:
    """Return whether a process is stopped (SIGSTOP), as far as the system tells (Linux)."""
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] == "T"
