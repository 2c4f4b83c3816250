"""The map of a data set, made beside everything else."""

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from vitlab.errors import DataError, UserError

if TYPE_CHECKING:
    from vitlab.explore.dataset_map import DatasetMap

Progress = Callable[[float, str], None]


class MapJob:
    """Makes one map in a thread of its own, while the page shows how far it is.

    Args:
        make: makes it, and calls its argument with the share of the work that is done and what is
            being done; it must share no modules with what else computes at the same time
        say: tells a person that there will be no map
    """

    def __init__(
        self,
        make: "Callable[[Progress], DatasetMap]",
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._make, self._say = make, say
        self._state: tuple[DatasetMap | None, float, str] = (None, 0.0, "beginning")
        self._error = ""
        self._thread = threading.Thread(target=self._run, name="vitlab-map", daemon=True)
        self._stopped = False

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Give up at the next step."""
        self._stopped = True

    def state(self) -> "tuple[DatasetMap | None, float, str]":
        """Return the map if it is made, the share of the work done, and what is being done.

        Raises:
            DataError: there will be no map.
        """
        if self._error:
            raise DataError(self._error)
        return self._state

    def _run(self) -> None:
        try:
            made = self._make(self._progress)
            self._state = (made, 1.0, "")
        except _StoppedError:
            pass
        except UserError as error:
            self._error = str(error)
            self._say(f"no map: {error}")
        except Exception as error:  # a bug: the page goes on without a map
            self._error = f"the map cannot be made ({type(error).__name__})"
            logging.getLogger("vitlab").exception("no map")

    def _progress(self, share: float, what: str) -> None:
        if self._stopped:
            raise _StoppedError
        self._state = (None, share, what)


class _StoppedError(Exception):
    """The explorer ends."""
