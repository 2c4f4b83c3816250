"""Numbers as people read them, and times as they type them."""

import math
import re
from collections.abc import Sequence
from typing import Any

from vitlab.errors import OptionError

# shares by their JSON key, and their names in a table
SHARES = {
    "accuracy": "accuracy",
    "accuracy_without": "accuracy without these",
    "top5": "top5",
    "ece": "ece",
    "balanced_accuracy": "balanced accuracy",
    "map": "map",
    "micro_f1": "micro F1",
    "macro_precision": "macro precision",
    "macro_recall": "macro recall",
    "macro_f1": "macro F1",
    "auroc": "AUROC",
    "majority": "largest class alone",
    "probe": "10-shot accuracy",
    "knn": "20-NN accuracy",
}
COUNTS = {"trained_on": "test images trained on", "held_out": "held-out images"}
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


def readable(figures: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the figures of a run or an evaluation as rows of a table: name and value.

    A figure with an interval is followed by it: `98.9% (98.1 to 99.4)`. Lists and tables are left
    out, and the top-5 accuracy where there are at most five classes, of which it says nothing.
    """
    rows: list[tuple[str, str]] = []
    ranges = figures.get("intervals", {})
    classes = figures.get("classes")
    few = isinstance(classes, list) and len(classes) <= 5
    for key, value in figures.items():
        match key:
            case _ if value is None or isinstance(value, dict | list) or (key == "top5" and few):
                pass
            case _ if key in SHARES:
                rows.append((SHARES[key], percent(value) + between(ranges.get(key), 100, 1)))
            case "skipped_steps" | "rollbacks":
                rows += [(key.replace("_", " "), f"{value:,}")] * (value != 0)
            case _ if key in COUNTS:
                rows.append((COUNTS[key], f"{value:,}"))
            case "temperature":
                rows += [(key, f"{value:.4g}")] * (value != 1)
            case "mcc":
                rows.append(("MCC", f"{value:.3f}" + between(ranges.get(key), 1, 3)))
            case "params" | "macs":
                rows.append((key, si(value, 2)))
            case "bytes" | "peak_memory":
                rows.append(("size" if key == "bytes" else "peak memory", storage(value)))
            case "latency":
                rows.append((key, f"{1000 * value:.2f} ms"))
            case "seconds":
                rows.append(("time", duration(value)))
            case "loss":
                rows.append((key, f"{value:.4f}"))
            case "nll" | "bce":
                rows.append((key, f"{value:.4f}" + between(ranges.get(key), 1, 4)))
            case "images_per_second":
                rows.append(("images/s", f"{value:,.0f}"))
            case _ if isinstance(value, bool):
                rows.append((key, "yes" if value else "no"))
            case _ if isinstance(value, float):
                rows.append((key.replace("_", " "), f"{value:.4g}"))
            case _:
                rows.append((key, f"{value:,}" if isinstance(value, int) else str(value)))
    return rows


def between(interval: Sequence[float] | None, factor: float = 100, decimals: int = 1) -> str:
    """Format an interval to stand behind its figure, ` (98.1 to 99.4)`; None gives nothing."""
    if interval is None:
        return ""
    low, high = (f"{factor * end:.{decimals}f}" for end in interval)
    return f" ({low} to {high})"


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
