"""Which folder a run, or several runs with one purpose, gets if none is given."""

from contextlib import suppress
from pathlib import Path

from vitlab.distributed.world import World
from vitlab.files import explained
from vitlab.runs import naming
from vitlab.runs.run_folder import RunFolder


def placed(out: str | Path | None, name: Path, *, resume: bool, world: World) -> Path:
    """Return the folder to use: the given one, the newest of a name, or a new one of that name.

    The first process decides for all of them.

    Args:
        out: the folder that the user gave
        name: the first folder of the name; further ones get a number
        resume: continue the newest one, if there is one
        world: this process among those of the run

    Raises:
        DiskError: nothing can be there.
    """
    if out:
        with explained(Path(out)):
            for part in Path(out).parts:
                with suppress(FileNotFoundError):
                    Path(part).lstat()  # a name may be too long
        return Path(out)
    chosen = ""
    with world.agreed():
        if world.first:
            chosen = str(_chosen(name, resume, world))
    return Path(world.broadcast(chosen))


def _chosen(name: Path, resume: bool, world: World) -> Path:
    """Return the newest folder of a name if it is to be continued, else a new one."""
    newest = naming.newest(name)
    # after a restart the newest one is this run's own, unless that had not begun yet
    own = newest is not None and world.restarted and RunFolder(newest).result() is None
    if newest is None or not (resume or own):
        return naming.next_free(name)
    world.say(f"continuing {newest}")
    return newest
