"""The colors of the pages as CSS variables."""

from markupsafe import Markup

from vitlab.pages.palette import DARK, LIGHT, SERIES, Theme

__all__ = ["DARK", "LIGHT", "SERIES", "Theme", "variables"]


def variables(theme: Theme) -> Markup:
    """Return a theme as CSS variables."""
    return Markup(" ".join(f"--{name}: {color};" for name, color in theme.items()))
