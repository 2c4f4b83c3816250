"""Data sets of the Hugging Face Hub by their names: downloaded once, or from the local cache."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vitlab.data.exists import check_hub_data
from vitlab.errors import DataError, SourceError
from vitlab.hub import LOGGERS, OFFLINE, is_cached, is_offline, of_disk, passing, unheard
from vitlab.progress import named_if_slow, say


def load_from_hub(name: str) -> Any:
    """Return the splits of a data set on the Hub, by name: a `datasets.DatasetDict`.

    Without a network, or with HF_HUB_OFFLINE, the copy of an earlier call is used, and a line says
    so.

    Raises:
        SourceError: the Hub gives no answer, or failed after several tries.
        DataError: it has no such data set, or none that can be read.
        DiskError: the cache cannot be written.
    """
    cached = is_cached("datasets", name)
    why = OFFLINE if is_offline() else ""
    if not why:
        try:
            check_hub_data(name)
        except SourceError:
            if not cached:
                raise
            why = "the Hub does not answer"
    if why and cached:
        say(f"{why}: using {name} from the local cache")
    try:
        slow = named_if_slow(f"loading {name} from the Hub")
        with unheard_datasets(), _offline(bool(why)), slow:
            import datasets

            return datasets.load_dataset(name)
    except Exception as error:  # the library raises dozens of kinds
        raise explain_load(error, name, why) from error


def explain_load(error: Exception, name: str, why: str) -> Exception:
    """Return the error of a data set that could not be loaded, in one line."""
    if (of := of_disk(error, f"load {name} from the Hub")) is not None:
        return of
    if why:
        return DataError(f"no such folder: {name}; nor is it in the local cache: {why}")
    lines = str(error).strip().splitlines() or [type(error).__name__]
    reason = passing(error)
    kind = SourceError if reason else DataError
    return kind(
        f"no such folder: {name}; nor could it be loaded as a data set of the Hugging Face Hub: "
        f"{reason or lines[0]}"
    )


@contextmanager
def unheard_datasets() -> Iterator[None]:
    """Keep the lines of `datasets` from the user, and its bars from what is no terminal."""
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        with unheard(*LOGGERS):
            yield
    finally:
        datasets.enable_progress_bars()


@contextmanager
def _offline(wanted: bool) -> Iterator[None]:
    """Let `datasets` look into its cache alone."""
    import datasets

    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = before or wanted
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before
