"""Write made films of four directions as MP4 files: `python examples/made_films.py FOLDER`."""

import sys
from pathlib import Path

import av
import numpy as np

SIDE, FRAMES = 32, 16
DIRECTIONS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}


def film(direction: tuple[int, int], generator: np.random.Generator) -> np.ndarray:
    """Return frames with a square that moves over noise: (frames, rows, columns, 3)."""
    frames = generator.integers(0, 60, (FRAMES, SIDE, SIDE, 3), np.uint8)
    size, color = generator.integers(5, 9), generator.integers(120, 256, 3)
    row, column = generator.integers(0, SIDE, 2)
    for number, pixels in enumerate(frames):
        rows = (row + direction[0] * number + np.arange(size)) % SIDE
        columns = (column + direction[1] * number + np.arange(size)) % SIDE
        pixels[np.ix_(rows, columns)] = color
    return frames


def main(folder: Path, count: int = 150) -> None:
    """Write so many films of each direction, in folders of their names."""
    for label, (name, direction) in enumerate(DIRECTIONS.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            frames = film(direction, np.random.default_rng((label, number)))
            with av.open(folder / name / f"{number:03d}.mp4", "w") as file:
                track = file.add_stream("mpeg4", rate=25)
                track.width, track.height, track.bit_rate = SIDE, SIDE, 1_000_000
                for pixels in frames:
                    file.mux(track.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
                file.mux(track.encode(None))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
