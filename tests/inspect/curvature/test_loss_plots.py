"""Plots of the loss: what is drawn of each model, on common axes, in light and dark."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from vitlab.errors import OptionError
from vitlab.inspect import plots
from vitlab.inspect.hessian import Spectrum
from vitlab.inspect.landscape import LossLine, LossSurface
from vitlab.pages.palette import DARK, LIGHT

STEPS = np.array([-1.0, 0, 1])
SPECTRA = {
    "wide": Spectrum(np.array([[-5.0, 0.0, 100.0]]), np.array([[0.1, 0.8, 0.1]])),
    "narrow": Spectrum(np.array([[-0.01, 0.0, 0.1]]), np.array([[0.1, 0.8, 0.1]])),
}
LINES = {
    "one": LossLine(STEPS, np.array([[3.0, 1, 2], [5, 1, 4]])),
    "two": LossLine(STEPS, np.array([[9.0, 2, 3]])),
}
SURFACES = {
    name: LossSurface(STEPS, np.array([[3.0, 2, 4], [2, low, 3], [5, 3, 9]]))
    for name, low in (("one", 1.0), ("two", 0.5))
}
DRAWN: dict[str, tuple[Callable[..., Figure], dict[str, Any], str, str]] = {
    "spectrum": (plots.hessian_spectrum, SPECTRA, "eigenvalue of the Hessian", "density"),
    "line": (plots.loss_line, LINES, "step (1: the filters' length)", "cross-entropy (nats)"),
    "surface": (plots.loss_surface, SURFACES, "first direction, step", "second direction"),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_panel_for_each_model_in_light_and_dark(name: str) -> None:
    draw, values, below, left = DRAWN[name]
    figure = draw(values, "two models", dark=True)
    panels = figure.axes[:2]
    assert [axes.get_title() for axes in panels] == list(values)
    assert panels[0].get_xlim() == panels[1].get_xlim()
    assert panels[0].get_ylim() == panels[1].get_ylim()
    assert figure.get_suptitle() == "two models"
    assert below in figure.get_supxlabel()
    assert left == figure.get_supylabel()
    for each, theme in ((figure, DARK), (draw(values), LIGHT)):
        assert to_hex(each.get_facecolor()) == theme["card"]
        each.savefig(io.StringIO(), format="svg")
    with pytest.raises(OptionError, match="no models: give at least one"):
        draw({})


def test_the_density_of_a_narrow_spectrum_is_seen_beside_a_wide_one() -> None:
    figure = plots.hessian_spectrum(SPECTRA)
    for axes, spectrum in zip(figure.axes, SPECTRA.values(), strict=True):
        places, density = (np.asarray(each, float) for each in axes.lines[0].get_data())
        assert np.trapezoid(density, places) == pytest.approx(1, rel=1e-3)
        width = 0.01 * np.ptp(spectrum.nodes)
        assert np.allclose(density, spectrum.density(places, width))
    assert figure.axes[0].get_yscale() == "log"


def test_each_direction_and_their_mean() -> None:
    one, two = plots.loss_line(LINES).axes
    assert [list(line.get_ydata()) for line in one.lines] == [[3, 1, 2], [5, 1, 4], [4, 1, 3]]
    assert [list(line.get_ydata()) for line in two.lines] == [[9, 2, 3]] * 2
    assert all(list(line.get_xdata()) == [-1, 0, 1] for line in one.lines)


def test_surfaces_share_their_colors_and_lie_the_right_way() -> None:
    figure = plots.loss_surface(SURFACES)
    fills = [axes.collections[0] for axes in figure.axes[:2]]
    assert [fill.get_clim() for fill in fills] == [fills[0].get_clim()] * 2
    levels = fills[0].levels
    assert (levels[0], levels[-1]) == (0.5, 9.0)
    highest = fills[0].get_paths()[-1].vertices  # the last color: around (1, 1)
    assert highest.min() > 0
    slope = plots.loss_surface(
        {"": LossSurface(STEPS, np.array([[0.0, 0, 0], [1, 1, 1], [2, 2, 2]]))}
    )
    right = slope.axes[0].collections[0].get_paths()[-1].vertices
    assert right[:, 0].min() > 0.8  # the first direction goes right
    assert right[:, 1].min() == -1


def test_losses_that_overflow_leave_gaps() -> None:
    losses = np.array([[np.inf, 2, 4], [2, 1.0, 3], [5, np.nan, 9]])
    figure = plots.loss_surface({"steep": LossSurface(STEPS, losses)})
    figure.savefig(io.BytesIO(), format="png")
    flat = plots.loss_surface({"flat": LossSurface(STEPS, np.ones((3, 3)))})
    flat.savefig(io.BytesIO(), format="png")
    plots.loss_surface({"gone": LossSurface(STEPS, np.full((3, 3), np.nan))})
