"""Write made sounds of six classes as WAV files: `python examples/made_sounds.py FOLDER`."""

import sys
from pathlib import Path

import numpy as np
import soundfile

RATE, SECONDS = 16_000, 1.0
CLASSES = ("tone", "rising", "falling", "hiss", "clicks", "warble")


def sound(kind: str, generator: np.random.Generator) -> np.ndarray:
    """Return one clip in noise: (samples,), between -1 and 1."""
    time = np.arange(round(RATE * SECONDS * generator.uniform(0.7, 1.3))) / RATE
    low, length = generator.uniform(300, 2000), time[-1]
    sweep = low + (generator.uniform(1.5, 3) - 1) * low * time / length  # Hz
    frequency = {
        "rising": sweep,
        "falling": sweep[::-1],
        "warble": low * (1 + 0.1 * np.sin(2 * np.pi * generator.uniform(4, 9) * time)),
    }.get(kind, np.full_like(time, low))
    wave = np.sin(2 * np.pi * np.cumsum(frequency) / RATE)
    if kind == "hiss":
        wave = generator.normal(size=time.size)
    if kind == "clicks":
        wave *= np.exp(-((time * generator.uniform(4, 9)) % 1) * 30)
    wave = wave / np.abs(wave).max() + generator.uniform(0.02, 0.5) * generator.normal(
        size=time.size
    )
    return generator.uniform(0.02, 0.2) * wave


def main(folder: Path, count: int = 200) -> None:
    """Write so many clips of each class, of 0.7 to 1.3 seconds, in folders of their names."""
    for label, kind in enumerate(CLASSES):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            wave = sound(kind, np.random.default_rng((label, number)))
            soundfile.write(folder / kind / f"{number:03d}.wav", wave, RATE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
