"""The figures of whole models as rows of tables."""

from typing import Any

from vitlab.units import percent, si, storage

Row = dict[str, Any]

HEAD = ("size", "ms", "5-95%", "best", "per s", "MFU", "roof", "memory", "largest")


def device_rows(row: Row) -> list[tuple[str, str]]:
    """Return what the device can do, as names and values."""
    rates = row["rates"]
    found = [(f"{kind} products", f"{si(rate)}FLOP/s") for kind, rate in rates["products"].items()]
    return [
        ("device", row["device"]),
        ("mode", row["mode"]),
        ("precision", row["precision"]),
        *found,
        ("memory copied", f"{storage(rates['bandwidth'])}/s"),
        ("largest batch", _how(row)),
    ]


def kinds_of(row: Row) -> list[str]:
    """Return what was measured: inference, and training if any size has it."""
    return [kind for kind in ("inference", "training") if any(kind in s for s in row["sizes"])]


def rows_of(row: Row, kind: str) -> list[tuple[str, ...]]:
    """Return a row for each size, in the columns of `HEAD`.

    Milliseconds and their percentiles are those of one image, the next five columns those of the
    best batch.
    """
    found: list[tuple[str, ...]] = []
    for size in row["sizes"]:
        if kind not in size:
            continue
        one, best, most = (size[kind][what] for what in ("single", "best", "largest"))
        cells = (*_latency(one), *_at_best(best)) if one and best else ("does not fit",)
        cells += ("",) * (len(HEAD) - 2 - len(cells))
        found.append((str(size["image_size"]), *cells, f"{most['batch']:,}"))
    return found


def _latency(one: Row) -> tuple[str, str]:
    low, middle, high = (1000 * one[key] for key in ("latency_p5", "latency", "latency_p95"))
    return f"{middle:.4g}", f"{low:.3g}-{high:.3g}"


def _at_best(best: Row) -> tuple[str, ...]:
    return (
        f"{best['batch']:,}",
        f"{best['images_per_second']:,.4g}",
        percent(best["share_of_products"]),
        percent(best["share_of_roofline"]),
        storage(best["peak_memory"]),
    )


def _how(row: Row) -> str:
    """Say how the largest batch was found."""
    most = row["sizes"][0]["inference"]["largest"]
    if most["how"] == "tried":
        return "tried"
    return f"counted, for about {storage(most['free'])}"
