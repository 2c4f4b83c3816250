"""The limit on open files (ulimit -n), which worker processes reach first: each keeps a dozen."""

import resource

from vitlab.errors import OptionError

OWN, OF_WORKER = 24, 12  # files that a run keeps open, and that each of its workers adds


def check_open_files(workers: int | None) -> None:
    """Raise this process's limit to what so many workers need, as far as the system lets it.

    Where a worker cannot open a file, it hangs, or dies without a word.

    Args:
        workers: processes; None for a number that is not chosen yet

    Raises:
        OptionError: the system allows fewer files.
    """
    if not workers:
        return
    needed = OWN + OF_WORKER * workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in range(needed):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        except (ValueError, OSError, OverflowError):
            raise OptionError(
                f"workers={workers} keep up to {needed} files open, but this shell allows {hard}: "
                f"raise its limit (ulimit -n {needed}), or pass --workers 0"
            ) from None
