"""Log-mel spectrograms of sound files, with AST's settings, as pictures of one channel.

A clip is averaged over its channels and resampled to 16 kHz. Each column is a Hann window of 25 ms,
10 ms after the one before it; each row is a triangle on Kaldi's mel scale between 20 Hz and 8 kHz,
the lowest first: 128 of them, or as many as a model has rows. Values are natural logarithms of
energies, as in Kaldi (`fbank` without dither) and transformers' `ASTFeatureExtractor`.

Pixels are bytes from decoding to augmentation, so a value is rounded to one of 256 levels, 0.11
apart (half a decibel), from -15.95, just below the floor that Kaldi has, to 12.1, above a sine at
full scale. That is off by 0.055 at most, 0.006 after AST's normalization; pixels of photographs are
off by 0.004. What is louder is clipped.

A clip is never stretched: a model of 128 rows and 1,024 columns sees its first 10.24 seconds, and
AST's own padding, a logarithm of 0, after a shorter one. A random crop in training is one in time.
Only what is seen is read, resampled and transformed; its values are those of the whole.
Source: Gong et al., AST: Audio Spectrogram Transformer, 2021, section 2.1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.colors import convert
from vitlab.data.decode.pixels import ChooseBox, Pixels
from vitlab.data.decode.spectrograms import BINS, FFT, HOP, LOWEST, RATE, STEP, WINDOW
from vitlab.data.decode.stored import Recording
from vitlab.errors import ImageError
from vitlab.packages import needed

PADDING = round(-LOWEST / STEP)  # exactly a logarithm of 0
FLOOR = 1.1920929e-07  # of an energy
RATES = 1_000, 384_000  # that can be resampled in reasonable memory
MOST = 50_000_000  # samples of all channels: 200 MB
MOST_COLUMNS = 60_000  # of a whole spectrogram: 10 minutes, a second of computing
UNKNOWN = 2**62  # samples and more: what libsndfile says of a FLAC that was written to a pipe
TERMS = 48_000  # of a ratio of rates: the filter has 20 times as many coefficients
REACH = 10  # of the filter, in samples of the lower rate on each side
_BLOCK = 2**18  # samples of all channels that are read at a time
_PART = 4096  # columns that are computed at a time
_SEEKABLE = ("WAV", "WAVEX", "RF64", "FLAC")  # exactly, in any part


@dataclass(frozen=True)
class Clip(Recording):
    """A sound file: WAV, FLAC or Ogg."""

    is_sound = True

    def shape(self) -> tuple[int, int, int]:
        """Return rows, columns and channels of the whole spectrogram, from the header alone."""
        with self._opened() as file:
            return BINS, frames_of(_length(file)), 1

    def decode(self, channels: int) -> Pixels:
        """Return the whole spectrogram, (128, frames, channels).

        Raises:
            ImageError: it cannot be read, or lasts longer than 10 minutes.
        """
        with self._opened() as file:
            if (frames := frames_of(_length(file))) > MOST_COLUMNS:
                raise ImageError(
                    f"{self.name}: longer than {MOST_COLUMNS * HOP // RATE // 60} minutes: cut it "
                    "into shorter clips"
                )
            return convert(levels(self._wave(file, 0, frames), BINS), channels)

    def fitted(self, size: tuple[int, int], channels: int, choose: ChooseBox | None) -> Pixels:
        """Return the part that a model sees: uint8 (rows, columns, channels).

        Args:
            size: its rows and columns
            channels: 1 or 3
            choose: a random box of the whole, which decides the time alone; None for the start
        """
        rows, columns = size
        with self._opened() as file:
            frames = frames_of(_length(file))
            first = 0
            if choose is not None:
                left, _, right, _ = choose(rows, frames)
                free = frames - (right - left)
                first = round(left / free * (frames - columns)) if free > 0 else 0
            start = max(first, 0)
            end = min(first + columns, frames)
            pixels = np.full((rows, columns, 1), PADDING, np.uint8)
            pixels[:, start - first : end - first] = levels(self._wave(file, start, end), rows)
        return convert(pixels, channels)

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        """Open by libsndfile; what goes wrong is an error of the file."""
        soundfile = needed("soundfile", "reading sounds")
        try:
            with soundfile.SoundFile(BytesIO(self.data)) as file:
                if not RATES[0] <= file.samplerate <= RATES[1]:
                    raise ImageError(f"{self.name}: unsupported rate of {file.samplerate:,} Hz")
                if file.frames * RATE < WINDOW * file.samplerate:
                    raise ImageError(f"{self.name}: shorter than 25 ms")
                if file.frames >= UNKNOWN:
                    raise ImageError(
                        f"{self.name}: its header does not say how long it is: convert it again, "
                        "to a file instead of a pipe"
                    )
                if file.frames * max(file.channels, RATE / file.samplerate) > MOST:
                    raise ImageError(
                        f"{self.name}: more than {MOST:,} samples: cut it into shorter clips"
                    )
                yield file
        except soundfile.LibsndfileError as error:
            raise ImageError(f"{self.name}: damaged sound ({error.error_string})") from None
        except (soundfile.SoundFileError, RuntimeError, TypeError, OSError) as error:
            raise ImageError(f"{self.name}: damaged sound ({error})") from None

    def _wave(self, file: Any, start: int, end: int) -> NDArray[np.float32]:
        """The samples of some columns, in one channel of 16 kHz."""
        first = start * HOP
        last = (end - 1) * HOP + WINDOW
        ratio = _ratio(file.samplerate)
        up = ratio.numerator
        down = ratio.denominator
        reach = REACH * max(1, -(-down // up)) + 2  # samples of the file
        # from where a sample of the file and one of 16 kHz are at the same time
        from_there = max(0, first * down // up - reach) // down
        until = min(file.frames, last * down // up + reach + 1)
        wave = self._read(file, from_there * down, until)
        if ratio != 1:
            from scipy.signal import resample_poly

            wave = resample_poly(wave, up, down, window=_low_pass(up, down))
        first = first - from_there * up
        last = last - from_there * up
        # of a ratio that is rounded, the last sample may be missing
        return np.pad(wave[first:last], (0, max(0, last - max(first, len(wave)))))

    def _read(self, file: Any, start: int, end: int) -> NDArray[np.float32]:
        """The mean of all channels, of some samples of the file."""
        # what is lossy depends on what was decoded before
        at = start if file.format in _SEEKABLE else 0
        file.seek(at)
        wave = np.empty(end - start, np.float32)
        most = max(1, _BLOCK // file.channels)
        while at < end:
            step = min(most, (end if at >= start else start) - at)
            block = file.read(step, dtype="float32", always_2d=True)
            if not len(block):
                raise ImageError(f"{self.name}: damaged sound (it ends before its header says)")
            if at >= start:
                wave[at - start : at - start + len(block)] = block.mean(1)
            at += len(block)
        if not np.isfinite(wave).all():
            raise ImageError(f"{self.name}: samples that are not finite")
        return wave


def _length(file: Any) -> int:
    """How many samples it has at 16 kHz."""
    length: int = -(-file.frames * RATE // file.samplerate)
    return length


@lru_cache(maxsize=64)
def _ratio(rate: int) -> Fraction:
    """By what a rate is multiplied; above 48 kHz rounded, by 1e-9 at most, where it is odd."""
    return Fraction(RATE, rate).limit_denominator(TERMS)


@lru_cache(maxsize=8)
def _low_pass(up: int, down: int) -> NDArray[np.float32]:
    """The filter that `resample_poly` makes each time."""
    from scipy.signal import firwin

    most = max(up, down)
    window: NDArray[np.float32] = firwin(2 * REACH * most + 1, 1 / most, window=("kaiser", 5.0))
    return window.astype(np.float32)


def frames_of(samples: int) -> int:
    """Return how many whole windows there are."""
    return 1 + (samples - WINDOW) // HOP


def log_mel(wave: NDArray[np.float32], bins: int) -> NDArray[np.float64]:
    """Return logarithms of mel energies: (samples,) between -1 and 1 -> (bins, frames)."""
    frames = np.lib.stride_tricks.sliding_window_view(wave.astype(np.float64), WINDOW)[::HOP]
    frames = frames - frames.mean(1, keepdims=True)
    before = np.concatenate([frames[:, :1], frames[:, :-1]], 1)
    spectrum = np.fft.rfft((frames - 0.97 * before) * np.hanning(WINDOW), FFT)
    return np.log(np.maximum(_triangles(bins) @ (np.abs(spectrum) ** 2).T, FLOOR))


def levels(wave: NDArray[np.float32], bins: int) -> Pixels:
    """Return the same as uint8 (bins, frames, 1)."""
    frames = frames_of(len(wave))
    pixels = np.empty((bins, frames, 1), np.uint8)
    for at in range(0, frames, _PART):
        end = min(at + _PART, frames)
        values = log_mel(wave[at * HOP : (end - 1) * HOP + WINDOW], bins)
        pixels[:, at:end, 0] = np.rint((values - LOWEST) / STEP).clip(0, 255).astype(np.uint8)
    return pixels


@lru_cache(maxsize=8)
def _triangles(bins: int) -> NDArray[np.float64]:
    """Weights of frequencies in each mel bin: (bins, 257)."""
    low, high = (_mel(np.array(each)) for each in (20.0, RATE / 2))
    edges = np.linspace(low, high, bins + 2)[:, None]
    mel = _mel(np.arange(FFT // 2 + 1) * RATE / FFT)
    rising = (mel - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - mel) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling))


def _mel(frequency: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1127 * np.log1p(frequency / 700)
