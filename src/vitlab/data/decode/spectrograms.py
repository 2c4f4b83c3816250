"""Spectrograms: rates, windows, bins and levels of those of AST, and how they are normalized."""

RATE, WINDOW, HOP, FFT = 16_000, 400, 160, 512  # per second, samples
BINS, FRAMES = 128, 1024  # of AST
# the logarithm at level 0, and between two levels
LOWEST = -15.95
STEP = 0.11
LOGARITHMS = {"mean": -4.2677393, "std": 2 * 4.5689974}  # AST's normalization, on AudioSet


def normalization(mean: float, std: float) -> dict[str, tuple[float]]:
    """Return mean and std of pixels in [0, 1] for those of logarithms."""
    return {"mean": ((mean - LOWEST) / (255 * STEP),), "std": (std / (255 * STEP),)}
