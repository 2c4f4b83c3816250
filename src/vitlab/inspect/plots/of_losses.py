"""Plots of the loss around the weights of some models, side by side on common axes."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vitlab.errors import OptionError
from vitlab.inspect.curvature.landscape import LossLine, LossSurface
from vitlab.inspect.curvature.spectrum import Spectrum
from vitlab.inspect.plots.canvas import HEAT, blank, themed

COLUMNS = 4  # panels of a row
SMOOTH = 0.01  # width of a node of a spectrum, relative to the spectrum
DECADES = 7  # below the highest density
LEVELS = 16  # colors of a surface
LOSS = "cross-entropy (nats)"
STEP = "step (1: the filters' length)"


def hessian_spectrum(
    spectra: Mapping[str, Spectrum], title: str = "", *, dark: bool = False
) -> Figure:
    """Draw the density of the Hessian's eigenvalues, in a panel for each model.

    Each node is smoothed to a normal distribution whose standard deviation is 1% of the range of
    its spectrum.

    Args:
        spectra: of `vitlab.inspect.hessian_spectrum`, by the models' names
        title: of the figure
        dark: for a dark page

    Raises:
        OptionError: no models.
    """
    with themed(dark=dark) as theme:
        figure, panels = _panels(spectra, title)
        low = min(float(each.nodes.min()) for each in spectra.values())
        high = max(float(each.nodes.max()) for each in spectra.values())
        highest = 0.0
        for axes, spectrum in zip(panels, spectra.values(), strict=True):
            own = float(spectrum.nodes.min()), float(spectrum.nodes.max())
            width = max(SMOOTH * (own[1] - own[0]), 1e-12)
            common = np.linspace(low - 4 * width, high + 4 * width, 800)
            near = np.linspace(own[0] - 4 * width, own[1] + 4 * width, 800)
            places = np.union1d(common, near)  # a narrow spectrum among wide ones is seen
            density = spectrum.density(places, width)
            axes.plot(places, density, color=theme["blue"], lw=1.2)
            highest = max(highest, float(density.max()))
        panels[0].set(yscale="log", ylim=(highest / 10**DECADES, 2 * highest))
        figure.supxlabel("eigenvalue of the Hessian", fontsize=11)
        figure.supylabel("density", fontsize=11)
        return figure


def loss_line(lines: Mapping[str, LossLine], title: str = "", *, dark: bool = False) -> Figure:
    """Draw the loss along random directions, and its mean, in a panel for each model.

    Args:
        lines: of `vitlab.inspect.loss_line`, by the models' names
        title: of the figure
        dark: for a dark page

    Raises:
        OptionError: no models.
    """
    with themed(dark=dark) as theme:
        figure, panels = _panels(lines, title)
        for axes, line in zip(panels, lines.values(), strict=True):
            axes.plot(line.steps, line.losses.T, color=theme["blue"], lw=0.8, alpha=0.55)
            axes.plot(line.steps, line.losses.mean(0), color=theme["warm"], lw=1.8)
        panels[0].set_ylim(bottom=0)
        figure.supxlabel(STEP, fontsize=11)
        figure.supylabel(LOSS, fontsize=11)
        return figure


def loss_surface(
    surfaces: Mapping[str, LossSurface], title: str = "", *, dark: bool = False
) -> Figure:
    """Draw the loss on a plane as colors and contours, in a panel for each model.

    A cross marks the model. All panels share their colors.

    Args:
        surfaces: of `vitlab.inspect.loss_surface`, by the models' names
        title: of the figure
        dark: for a dark page

    Raises:
        OptionError: no models.
    """
    with themed(dark=dark):
        figure, panels = _panels(surfaces, title)
        every = np.concatenate([each.losses.ravel() for each in surfaces.values()])
        seen = every[np.isfinite(every)]
        low = float(seen.min(initial=np.inf)) if len(seen) else 0.0
        high = float(seen.max(initial=-np.inf)) if len(seen) else 1.0
        levels = np.linspace(low, max(high, low + 1e-9), LEVELS + 1)
        for axes, surface in zip(panels, surfaces.values(), strict=True):
            where = surface.steps, surface.steps, surface.losses.T
            drawn = axes.contourf(*where, levels=levels, cmap=HEAT)
            axes.contour(*where, levels=levels, colors="white", linewidths=0.4, alpha=0.6)
            for color, wide in (("white", 3.0), ("black", 1.2)):  # seen on any ground
                axes.plot(0, 0, "+", ms=9, mew=wide, color=color)
            axes.set_aspect("equal")
        bar = figure.colorbar(drawn, ax=panels, label=LOSS, format="%.3g")
        bar.outline.set(visible=False)
        figure.supxlabel(f"first direction, {STEP}", fontsize=11)
        figure.supylabel("second direction", fontsize=11)
        return figure


def _panels(models: Mapping[str, Any], title: str) -> tuple[Figure, list[Axes]]:
    """Return a figure with a panel for each model, on common axes, its name above."""
    if not models:
        raise OptionError("no models: give at least one, by its name")
    columns = min(COLUMNS, len(models))
    rows = math.ceil(len(models) / columns)
    figure = blank((1.4 + 2.6 * columns, 0.8 + 2.5 * rows), title)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.ravel()[len(models) :]:
        axes.remove()
    panels = list(grid.ravel()[: len(models)])
    for axes, name in zip(panels, models, strict=True):
        axes.set_title(name)
    return figure, panels
