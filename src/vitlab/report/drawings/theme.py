"""The colors of the pages as CSS, and those of the cells of a confusion matrix.

Everything that is read stands out from what is behind it by a contrast of at least 4.5 (WCAG 2.2,
success criterion 1.4.3); tests compute it.
"""

from markupsafe import Markup

from vitlab.pages.palette import DARK, LIGHT, SERIES, Theme

__all__ = ["DARK", "HUES", "LEVELS", "LIGHT", "SERIES", "Theme", "cells", "mixed", "variables"]

LEVELS = 12  # shades of a cell, beside none
HUES = {"r": "blue", "w": "warm"}  # right answers and wrong ones


def variables(theme: Theme) -> Markup:
    """Return a theme as CSS variables."""
    return Markup(" ".join(f"--{name}: {color};" for name, color in theme.items()))


def cells(theme: Theme) -> Markup:
    """Return the CSS of the cells: class `r3` is a right answer of shade 3, `w12` a wrong one.

    Figures in them are black or white, whichever stands out more: one of the two always reaches a
    contrast of 4.58.
    """
    rules = []
    for letter, hue in HUES.items():
        for level in range(1, LEVELS + 1):
            ground = mixed(theme[hue], theme["card"], level / LEVELS)
            rules.append(f".{letter}{level}{{background:{ground};color:{_figure(ground)}}}")
    return Markup("".join(rules))


def mixed(color: str, other: str, share: float) -> str:
    """Return a mixture of two colors, `#rrggbb`; `share` is that of the first."""
    pairs = zip(_channels(color), _channels(other), strict=True)
    return "#" + "".join(f"{round(share * one + (1 - share) * two):02x}" for one, two in pairs)


def _figure(ground: str) -> str:
    weights = (0.2126, 0.7152, 0.0722)  # WCAG 2.2, relative luminance
    linear = (_linear(value / 255) for value in _channels(ground))
    luminance = sum(weight * value for weight, value in zip(weights, linear, strict=True))
    return "#000" if (luminance + 0.05) ** 2 > 1.05 * 0.05 else "#fff"


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4


def _channels(color: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(color[1:]))
