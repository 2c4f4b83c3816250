"""The colors of the pages, light and dark, and of the cells of a confusion matrix.

Everything that is read stands out from what is behind it by a contrast of at least 4.5 (WCAG 2.2,
success criterion 1.4.3); tests compute it.
"""

from markupsafe import Markup

Theme = dict[str, str]

LIGHT: Theme = {
    "page": "#f8f7f4", "card": "#ffffff", "ink": "#1c1e22", "muted": "#5b616a", "line": "#dedbd4",
    "blue": "#0a4c8a", "warm": "#a84300",
}  # fmt: skip
DARK: Theme = {
    "page": "#111316", "card": "#191c20", "ink": "#e9e7e3", "muted": "#a4aab3", "line": "#343940",
    "blue": "#69abea", "warm": "#ee9a4d",
}  # fmt: skip
# Lines of several runs, light and dark: any two of a row look different under all three kinds of
# color blindness too (CIE76 distance of at least 30 in the model of Machado et al., 2009).
SERIES = (
    ("#0a4c8a", "#69abea"), ("#c25a00", "#ee9a4d"), ("#8c1ff9", "#c1fdb4"),
    ("#402637", "#c63968"), ("#a97970", "#d9bfcc"), ("#632303", "#9938fa"),
)  # fmt: skip
LIGHT |= {f"series{number}": light for number, (light, _) in enumerate(SERIES)}
DARK |= {f"series{number}": dark for number, (_, dark) in enumerate(SERIES)}
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
