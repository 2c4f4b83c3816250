"""The pass that identifies a run's images beside its training, once an epoch has read them all.

A process of low priority fills the index (data/index.py); then the run knows its data by contents.
"""

import multiprocessing
import os
import signal
import sys
from multiprocessing.process import BaseProcess
from types import FrameType

from vitlab.data.contents import Contents
from vitlab.data.identities import identities
from vitlab.data.images import Images
from vitlab.data.loading.loader import end_with_parent
from vitlab.progress import QUIET, named_if_slow
from vitlab.runs.run_folder import RunFolder

PATIENT = 0.5  # share of the time that processes wait for each other: longest wait at the end
NICE = 10  # priority: training goes first
READING = "reading the images, to know the data by its contents"
UNREAD = (
    "the run ended before its images were identified: names, sizes and times of their files stand "
    "for them, and the model does not say which images it has learned from"
)


class ContentsPass:
    """Reads every image of a run's data once, beside the training.

    Args:
        contents: of the data; nothing happens where they are known
        folder: of the run, which gets the fingerprint
        most: seconds that the end of the run waits for it; None without a limit
    """

    def __init__(self, contents: Contents, folder: RunFolder, most: float | None) -> None:
        self.contents = contents
        self.folder = folder
        self.most = most
        self.is_settled = not contents.files_alone
        self.has_begun = False
        self.process: BaseProcess | None = None

    def follow(self, has_epoch: bool) -> None:
        """Begin once the run has had an epoch; note the fingerprint once all images are read."""
        if self.is_settled or not has_epoch:
            return
        if not self.has_begun:
            self.has_begun = True
            self.process = start_pass(self.contents.source)
        elif self.process is not None and self.process.exitcode == 0:
            self.settle()

    def finish(self, has_epoch: bool) -> list[str]:
        """Wait for the pass at the end of a run; return a line where the images are not known.

        A run without a whole epoch leaves it out; so do processes that would wait too long.
        """
        self.follow(has_epoch)
        if not self.is_settled and has_epoch:
            with named_if_slow(READING):
                if self.process is not None:
                    self.process.join(self.most)
            is_done = self.process is not None and self.process.exitcode == 0
            if is_done or self.most is None:
                self.settle()
        return [] if self.is_settled else [UNREAD]

    def settle(self) -> None:
        """Take the identities from the index, and write the fingerprint down."""
        with named_if_slow(READING):
            self.contents.learn()
        self.is_settled = True
        if self.folder.fingerprint != self.contents.fingerprint:
            self.folder.keep_fingerprint(self.contents.fingerprint)

    def close(self) -> None:
        """End the process, which keeps what it has read."""
        if self.process is not None:
            self.process.terminate()
            self.process.join()


def start_pass(source: Images) -> BaseProcess | None:
    """Start a process that identifies images; None where it cannot start."""
    context = multiprocessing.get_context()
    process: BaseProcess = context.Process(target=identify_quietly, args=(source,), daemon=True)
    try:
        process.start()
    except (OSError, AttributeError, TypeError, ValueError):  # no memory, or nothing to send
        return None
    return process


def identify_quietly(source: Images) -> None:
    """Identify images in a process of its own, which a terminal's signals leave alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, leave)
    end_with_parent()
    os.nice(NICE)
    QUIET.set(True)
    identities(source)


def leave(number: int, frame: FrameType | None) -> None:
    """End this process, and keep what it has read."""
    sys.exit(0)
