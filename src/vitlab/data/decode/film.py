"""Frames of video files, evenly spaced in time, as pictures of three channels each.

A model of 3 T channels sees T frames: those shown at the middle of T equal parts of the film,
whatever its frame rate, steady or not. A model of one picture sees that of the middle. Rotation
that a file only asks its player for is not applied.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

from vitlab.data.decode.colors import MODES, convert
from vitlab.data.decode.headers import MAX_PIXELS
from vitlab.data.decode.pixels import Pixels
from vitlab.data.decode.stored import Recording
from vitlab.errors import ImageError
from vitlab.packages import needed

MOST = 100_000  # frames of a film: about an hour


@dataclass(frozen=True)
class Film(Recording):
    """A video file.

    Attributes:
        kind: the name of its format in FFmpeg, which thus never looks for another
    """

    kind: str

    def shape(self) -> tuple[int, int, int]:
        """Return rows, columns and channels of one frame, from the header alone."""
        with self._opened(1) as (_, stream):
            return stream.height, stream.width, 3

    def decode(self, channels: int) -> Pixels:
        """Return frames beside each other in the channels: (rows, columns, channels)."""
        if channels in MODES:
            return convert(self._frames(1), channels)
        if channels % 3:
            raise ImageError(f"{self.name}: frames have 3 channels, which do not make {channels}")
        return self._frames(channels // 3)

    def _frames(self, count: int) -> Pixels:
        """So many frames, in order of time."""
        with self._opened(count) as (film, stream):
            shown = (each.pts for each in film.demux(stream) if not each.is_discard)
            times = [pts for pts in shown if pts is not None][: MOST + 1]
        if not 0 < len(times) <= MOST:
            raise ImageError(f"{self.name}: {len(times):,} frames, not 1 to {MOST:,}")
        times.sort()
        length = times[-1] - times[0]
        end = length + length / max(1, len(times) - 1)  # the last one is shown as long as others
        middles = times[0] + (np.arange(count) + 0.5) * end / count
        wanted = [times[place - 1] for place in np.searchsorted(times, middles, "right")]
        found: dict[int, Pixels] = {}
        with self._opened(count) as (film, stream):
            for frame in film.decode(stream):
                if frame.pts in wanted:
                    found[frame.pts] = frame.to_ndarray(format="rgb24")
                if len(found) == len({*wanted}):
                    return np.concatenate([found[each] for each in wanted], axis=2)
        raise ImageError(f"{self.name}: frames cannot be decoded")

    @contextmanager
    def _opened(self, count: int) -> Iterator[tuple[Any, Any]]:
        """Open by FFmpeg; what goes wrong is an error of the file."""
        av = needed("av", "reading videos")
        try:
            with av.open(BytesIO(self.data), format=self.kind) as film:
                known = (each for each in film.streams.video if getattr(each, "height", 0))
                if (stream := next(known, None)) is None:
                    raise ImageError(f"{self.name}: no video in it that can be decoded")
                if stream.height * stream.width * count > MAX_PIXELS:
                    raise ImageError(
                        f"{self.name}: {count} frames of {stream.width:,} x {stream.height:,} "
                        f"pixels exceed the limit of {MAX_PIXELS:,}"
                    )
                yield film, stream
        except (av.error.FFmpegError, UnicodeError, OverflowError) as error:
            raise ImageError(f"{self.name}: {getattr(error, 'strerror', error)}") from None
