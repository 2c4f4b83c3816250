"""Numbers as people read them, and times as they type them."""

import math
import re

from vitlab.errors import OptionError

SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def percent(share: float) -> str:
    """Format a share with one decimal; only all is `100.0%` and only nothing is `0.0%`."""
    if not math.isfinite(share):
        return "not finite"
    text = f"{share:.1%}"
    if text == "100.0%" and share < 1:
        return "> 99.9%"
    return "< 0.1%" if text == "0.0%" and share > 0 else text


def si(number: float, decimals: int = 1) -> str:
    """Format a count with a unit prefix: `842`, `1.2 M`."""
    if not math.isfinite(number):
        return "not finite"
    units = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
    for size, unit in units:
        # what would round up to a thousand belongs to the next unit
        if number >= size * (1 - 0.5 * 10 ** (-3 - decimals)):
            return f"{number / size:.{decimals}f} {unit}"
    return f"{number:.{decimals}f}".rstrip("0").rstrip(".") if number % 1 else f"{number:.0f}"


def storage(size: float) -> str:
    """Format bytes: `512 MB`, `1.4 GB`."""
    if size < 1000:
        return f"{size:.0f} bytes"
    return si(size, 1 if size >= 999.5e6 else 0) + "B"


def duration(seconds: float) -> str:
    """Format seconds: `2.4 s`, `1 min 40 s`, `3 h 5 min`."""
    if not math.isfinite(seconds):
        return "not finite"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def clock(seconds: float) -> str:
    """Format seconds as a clock counts them: `0:42`, `12:05`, `3:25:10`."""
    if not math.isfinite(seconds):
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def counted(number: int, thing: str) -> str:
    """Format a count of things: `1 step`, `12,000 steps`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def epochs(number: float) -> str:
    """Format a number of epochs: `1 epoch`, `0.25 epochs`, `4,000 epochs`."""
    text = f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
    return f"{text} epoch" if text == "1" else f"{text} epochs"


def seconds(budget: str) -> float:
    """Parse a time such as `90s`, `20m`, `2h` or `1.5h`; return seconds, 0 for an empty text.

    Raises:
        OptionError: it is not a time.
    """
    if not budget:
        return 0.0
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", budget.strip())
    if not found or not float(found[1]):
        raise OptionError(f"budget must be a time such as 90s, 20m or 2h, not {budget!r}")
    return float(found[1]) * SECONDS[found[2]]
