"""Frames of video files, evenly spaced in time, as pictures of three channels each.

A model of 3 T channels sees T frames: those shown at the middle of T equal parts of the film,
whatever its frame rate, steady or not. A model of one picture sees that of the middle. Rotation
that a file only asks its player for is not applied.

A first pass over the packets tells which frames are wanted, without decoding. A second one decodes
from the last keyframe shown before each of them, which gives the frames that decoding all does.
Where the decoder finds that what the file calls a keyframe is none, all are decoded.
"""

import struct
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from typing import Any

import numpy as np

from vitlab.data.decode.colors import MODES, convert
from vitlab.data.decode.headers import MAX_PIXELS
from vitlab.data.decode.pixels import Pixels
from vitlab.data.decode.stored import Recording
from vitlab.errors import ImageError, UserError
from vitlab.packages import needed

MOST = 100_000  # frames of a film: about an hour
MAX_FRAME = 4096**2  # pixels: a decoder keeps up to 17 frames, 24 MB each
MOST_DECODED = 5_000_000_000  # pixels: ten seconds of 3,840 x 2,160 at 60 a second
_MARGIN = 2**18  # pixels, since decoders round sides up
SAMPLES = 20 * MOST  # of all streams of fragments; a few bytes can state billions
STREAMS = 100  # of a file, the further ones are not looked at


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
        packets = self._packets(count)
        times = sorted(each.shown for each in packets if each.shown is not None)
        if not 0 < len(times) <= MOST:
            raise ImageError(f"{self.name}: {len(times):,} frames, not 1 to {MOST:,}")
        length = times[-1] - times[0]
        end = length + length / max(1, len(times) - 1)  # the last one is shown as long as others
        middles = times[0] + (np.arange(count) + 0.5) * end / count
        wanted = [times[place - 1] for place in np.searchsorted(times, middles, "right")]
        starts = _starts(packets, {*wanted})
        found = self._decode(count, starts)
        if len(found) < len(starts):
            found = self._decode(count, dict.fromkeys(starts, 0))
        if len(found) < len(starts):
            raise ImageError(f"{self.name}: frames cannot be decoded")
        sizes = sorted({pixels.shape[1::-1] for pixels in found.values()})
        if len(sizes) > 1:
            named = " and ".join(
                f"{columns:,} x {rows:,}" for columns, rows in (sizes[0], sizes[-1])
            )
            raise ImageError(f"{self.name}: frames of {named} pixels: convert it to one size")
        return np.concatenate([found[each] for each in wanted], axis=2)

    def _packets(self, count: int) -> list["Packet"]:
        """What the file says of its frames, in the order in which they are decoded."""
        with self._opened(count) as (film, stream):
            packets = islice(film.demux(stream), MOST + 1)
            return [
                Packet(None if each.is_discard else each.pts, each.is_keyframe) for each in packets
            ]

    def _decode(self, count: int, starts: dict[int, int]) -> dict[int, Pixels]:
        """Decode frames, each from a packet on; those are left out whose keyframe is none.

        Args:
            count: how many frames are asked for
            starts: of each time that is wanted, the number of the first packet to decode
        """
        found: dict[int, Pixels] = {}
        left = dict(starts)
        pixels = 0
        with self._opened(count) as (film, stream):
            begin = min(starts.values())
            is_open = False
            is_sound = True
            for number, packet in enumerate(film.demux(stream)):
                if number < begin:
                    continue
                if number == begin:
                    is_sound = number == 0
                    if is_open:
                        stream.codec_context.flush_buffers()
                is_open = True
                for frame in packet.decode():
                    pixels += frame.width * frame.height
                    if pixels > MOST_DECODED:
                        raise ImageError(
                            f"{self.name}: over {MOST_DECODED:,} pixels to decode: cut it into "
                            "shorter films, or convert it to smaller frames or more keyframes"
                        )
                    is_sound = is_sound or bool(frame.key_frame)
                    if frame.pts in left and is_sound and not (begin and frame.is_corrupt):
                        self._check_size(frame, count)
                        found[frame.pts] = frame.to_ndarray(format="rgb24")
                        del left[frame.pts]
                if not left:
                    break
                if (following := min(left.values())) > number:
                    begin = following
        return found

    @contextmanager
    def _opened(self, count: int) -> Iterator[tuple[Any, Any]]:
        """Open by FFmpeg; what goes wrong is an error of the file."""
        av = needed("av", "reading videos")
        if self.kind == "mov" and (stated := sum(_fragment_samples(self.data))) > SAMPLES:
            raise ImageError(f"{self.name}: {stated:,} samples in fragments, over {SAMPLES:,}")
        # in the decoder's own words, since frames may be of another size than the header states
        limit = {"max_pixels": str(MAX_FRAME + _MARGIN)}
        container = {"max_streams": str(STREAMS)}
        try:
            with av.open(
                BytesIO(self.data),
                format=self.kind,
                container_options=container,
                stream_options=[limit] * STREAMS,
            ) as film:
                stream = self._picture_stream(film)
                self._check_size(stream, count)
                stream.codec_context.options = limit
                yield film, stream
        except UserError:
            raise
        except av.error.ArgumentError as error:  # what decoders say of a frame that is too large
            raise ImageError(
                f"{self.name}: {error.strerror} (damaged, or frames of over {MAX_FRAME:,} pixels)"
            ) from None
        except av.error.FFmpegError as error:
            raise ImageError(f"{self.name}: {error.strerror}") from None
        except Exception as error:  # of whatever type PyAV has for what it does not expect
            kind = type(error).__name__
            raise ImageError(f"{self.name}: damaged film ({kind}: {str(error)[:200]})") from None

    def _check_size(self, frame: Any, count: int) -> None:
        """Refuse so many frames of this size."""
        if frame.height * frame.width > min(MAX_FRAME, MAX_PIXELS / count):
            raise ImageError(
                f"{self.name}: {count} frames of {frame.width:,} x {frame.height:,} pixels exceed "
                f"the limit of {min(MAX_PIXELS, MAX_FRAME * count):,}"
            )

    def _picture_stream(self, film: Any) -> Any:
        """The first video that is no cover; the others are passed over."""
        av = needed("av", "reading videos")
        covers = av.stream.Disposition.attached_pic
        known = [each for each in film.streams.video if getattr(each, "height", 0)]
        stream = next((each for each in known if not each.disposition & covers), None)
        if stream is None:
            raise ImageError(
                f"{self.name}: no video in it that can be decoded, of up to {MAX_FRAME:,} pixels a "
                "frame"
            )
        for other in film.streams:
            if other is not stream:
                other.discard = av.stream.Discard.all
        return stream


@dataclass(frozen=True)
class Packet:
    """What a file says of a frame.

    Attributes:
        shown: when it is shown; None if it never is
        is_keyframe: whether it depends on no other
    """

    shown: int | None
    is_keyframe: bool


def _starts(packets: list[Packet], wanted: set[int]) -> dict[int, int]:
    """Return from which packet on to decode each frame: the last keyframe that is not shown later.

    Frames that follow a keyframe but are shown before it may depend on what is before it, too.
    """
    numbers = {each.shown: number for number, each in enumerate(packets)}
    keys = [n for n, each in enumerate(packets) if each.is_keyframe and each.shown is not None]
    starts = {}
    for time in wanted:
        before = reversed(keys[: bisect_right(keys, numbers[time])])
        starts[time] = next((n for n in before if (packets[n].shown or 0) <= time), 0)
    return starts


def _fragment_samples(data: bytes) -> Iterator[int]:
    """Yield how many samples each run of an MP4's fragments states (ISO/IEC 14496-12, 8.8.8)."""
    at = 0
    while at + 16 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, at)
        size = int.from_bytes(data[at + 8 : at + 16], "big") if size == 1 else size or len(data)
        end = min(at + max(size, 8), len(data))
        run = data.find(b"trun", at, end) if kind not in (b"mdat", b"free", b"skip") else -1
        while run >= 0:
            yield int.from_bytes(data[run + 8 : run + 12], "big")
            run = data.find(b"trun", run + 4, end)
        at = end


def matroska_film(data: bytes, name: str) -> Film:
    """Return a film in Matroska's container, or WebM's."""
    return Film(data, name, "matroska")


def avi_film(data: bytes, name: str) -> Film:
    """Return a film in an AVI file."""
    return Film(data, name, "avi")


def mov_film(data: bytes, name: str) -> Film:
    """Return a film in QuickTime's container, or MP4's."""
    return Film(data, name, "mov")
