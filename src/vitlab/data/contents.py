"""Contents of a data set, which tell it from others: every byte that identifies its images.

Where there are many images they are not read for it before training. Until they are, the names,
sizes and times of their files stand for them (`DataMark`), which no image is opened for.
"""

from dataclasses import replace

import numpy as np

from vitlab.data.data_mark import DataMark
from vitlab.data.holdout import fingerprint
from vitlab.data.identities import recall_identities, with_content
from vitlab.data.images import Images
from vitlab.data.mark_hash import MarkHash
from vitlab.models.seen import Seen

UNIDENTIFIED = np.uint64(2)  # in `Model.seen`: the hash of no image


def has_unidentified(seen: Seen) -> bool:
    """Return whether a model has learned from images that nobody has identified."""
    return bool((seen == UNIDENTIFIED).any())


class Contents:
    """What is known of the contents of some images.

    Args:
        source: the images
        at_once: so many are read here, if they must be

    Attributes:
        source: the images, with their identities as far as these cost nothing
        fingerprint: checksum of the contents; empty until they are read
        mark: of the files, where it was needed
    """

    def __init__(self, source: Images, at_once: int) -> None:
        self.source = source
        self.mark: DataMark | None = None
        self.fingerprint = ""
        if len(source) > at_once and not self.is_at_hand:
            self.survey()
        if self.mark is None or self.is_at_hand:
            self.learn()
        self._is_small = len(source) <= at_once

    @property
    def is_cheap(self) -> bool:
        """Whether the identities of the images cost little or nothing."""
        return self._is_small or self.is_at_hand

    @property
    def is_at_hand(self) -> bool:
        """Whether the identities of the images are known without reading one."""
        return self.source.content is not None

    def survey(self) -> DataMark | None:
        """Return the mark of the files; None of images that are not in files here."""
        if self.mark is None:
            files = MarkHash(self.source)
            identities = recall_identities(self.source, files)
            self.mark = files.mark
            if identities is not None and not self.is_at_hand:
                self.source = replace(self.source, content=identities)
        return self.mark

    @property
    def files_alone(self) -> str:
        """The checksum of the files as long as it stands for the contents; else empty."""
        is_read = bool(self.fingerprint) and self.is_cheap
        return self.mark.files if self.mark and not is_read else ""

    def remarks(self, data: str) -> list[str]:
        """Return a line on images that are not read, if they are not.

        Args:
            data: what the user calls them
        """
        line = (
            f"the {len(self.source):,} training images of {data} are not read beforehand: names, "
            "sizes and times of their files stand for them until an epoch is over"
        )
        return [line] if self.files_alone else []

    def adopt(self, mark: DataMark, fingerprint: str) -> None:
        """Take over what a run knows of the same images."""
        self.mark = mark
        self.fingerprint = fingerprint

    def learn(self) -> None:
        """Identify all images, and find their fingerprint, if it is not known."""
        if not self.is_at_hand:
            self.source = with_content(self.source)
        self.read()

    def read(self) -> str:
        """Return the fingerprint of the contents, for which all images are read, if need be."""
        if not self.fingerprint:
            self.fingerprint = fingerprint(self.source)
        return self.fingerprint
