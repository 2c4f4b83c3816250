"""Whether a run may use a folder."""

from vitlab.errors import RunError
from vitlab.runs.run_folder import RunFolder


def may_use(folder: RunFolder, resume: bool) -> bool:
    """Return whether the folder contains a run, which must not be in the way.

    Raises:
        RunError: it contains a run and `resume` is off, or it contains something else.
    """
    if folder.started and not resume:
        raise RunError(
            f"{folder.path} already contains a run: pass --resume to continue it, or choose "
            "another --out"
        )
    if not folder.started and not folder.free:
        raise RunError(f"{folder.path} exists and contains no run: choose a new or empty folder")
    return folder.started
