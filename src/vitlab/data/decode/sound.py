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
Source: Gong et al., AST: Audio Spectrogram Transformer, 2021, section 2.1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode.colors import convert
from vitlab.data.decode.pixels import ChooseBox, Pixels
from vitlab.data.decode.stored import Recording
from vitlab.errors import ImageError
from vitlab.packages import needed

RATE, WINDOW, HOP, FFT = 16_000, 400, 160, 512  # per second, samples
BINS, FRAMES = 128, 1024  # of AST
LOWEST, STEP = -15.95, 0.11  # the logarithm at level 0, and between two levels
PADDING = round(-LOWEST / STEP)  # exactly a logarithm of 0
FLOOR = 1.1920929e-07  # of an energy
RATES = 1_000, 384_000  # that can be resampled in reasonable memory
MOST = 50_000_000  # samples of all channels: 200 MB
LOGARITHMS = {"mean": -4.2677393, "std": 2 * 4.5689974}  # AST's normalization, on AudioSet


@dataclass(frozen=True)
class Clip(Recording):
    """A sound file: WAV, FLAC or Ogg."""

    def shape(self) -> tuple[int, int, int]:
        """Return rows, columns and channels of the whole spectrogram, from the header alone."""
        with self._opened() as file:
            return BINS, frames_of(-(-file.frames * RATE // file.samplerate)), 1

    def decode(self, channels: int) -> Pixels:
        """Return the whole spectrogram, (128, frames, channels)."""
        return convert(levels(self._wave(), BINS), channels)

    def fitted(self, size: tuple[int, int], channels: int, choose: ChooseBox | None) -> Pixels:
        """Return the part that a model sees: uint8 (rows, columns, channels).

        Args:
            size: its rows and columns
            channels: 1 or 3
            choose: a random box of the whole, which decides the time alone; None for the start
        """
        (rows, columns), wave = size, self._wave()
        frames, first = frames_of(len(wave)), 0
        if choose is not None:
            left, _, right, _ = choose(rows, frames)
            free = frames - (right - left)
            first = round(left / free * (frames - columns)) if free > 0 else 0
        start, end = max(first, 0), min(first + columns, frames)
        pixels = np.full((rows, columns, 1), PADDING, np.uint8)
        seen = wave[start * HOP : (end - 1) * HOP + WINDOW]
        pixels[:, start - first : end - first] = levels(seen, rows)
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
                if file.frames * max(file.channels, RATE / file.samplerate) > MOST:
                    raise ImageError(
                        f"{self.name}: more than {MOST:,} samples: cut it into shorter clips"
                    )
                yield file
        except soundfile.SoundFileError as error:
            raise ImageError(f"{self.name}: {error}") from None

    def _wave(self) -> NDArray[np.float32]:
        """One channel of 16 kHz."""
        from scipy.signal import resample_poly

        with self._opened() as file:
            wave, rate = file.read(dtype="float32", always_2d=True).mean(1), file.samplerate
        if not np.isfinite(wave).all():
            raise ImageError(f"{self.name}: samples that are not finite")
        if rate != RATE:
            common = gcd(rate, RATE)
            wave = resample_poly(wave, RATE // common, rate // common)
        if len(wave) < WINDOW:  # damage that the header does not show
            raise ImageError(f"{self.name}: shorter than 25 ms")
        return wave


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
    values = np.rint((log_mel(wave, bins) - LOWEST) / STEP)
    return values.clip(0, 255).astype(np.uint8)[..., None]


def normalization(mean: float, std: float) -> dict[str, tuple[float]]:
    """Return mean and std of pixels in [0, 1] for those of logarithms."""
    return {"mean": ((mean - LOWEST) / (255 * STEP),), "std": (std / (255 * STEP),)}


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
