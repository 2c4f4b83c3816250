"""The drawing of a learning-rate range test."""

from collections.abc import Sequence

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.ticker import FuncFormatter

from vitlab.report.drawings.drawing import BLUE, INK, MUTED, STYLE, WARM, new_figure, svg


def loss_by_rate(
    rates: Sequence[float],
    losses: Sequence[float],
    smoothed: Sequence[float],
    suggestion: float | None,
    steepest: float | None,
) -> Markup:
    """Draw the loss of each step, and its moving average, against the learning rate.

    What is far above the first loss is cut off.

    Args:
        rates: of the steps, rising
        losses: of the steps
        smoothed: their moving average
        suggestion: the rate to use
        steepest: the rate at which the average falls fastest
    """
    with mpl.rc_context(STYLE):
        figure = new_figure(720, 360)
        axes = figure.subplots()
        axes.plot(rates, losses, color=MUTED, linewidth=0.8, alpha=0.6, label="each step")
        axes.plot(rates, smoothed, color=BLUE, linewidth=2.0, label="smoothed")
        marks = ((suggestion, WARM, "-", "suggested"), (steepest, INK, ":", "steepest fall"))
        for rate, color, dash, name in marks:
            if rate is not None:
                label = f"{name}: {rate:.2g}"
                axes.axvline(rate, color=color, linestyle=dash, linewidth=1.4, label=label)
        # the blown-up end must not flatten the valley
        low, first = min(smoothed), smoothed[0]
        room = max(first - low, 0.05 * abs(first))
        axes.set_ylim(low - 0.5 * room, first + room)
        axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda rate, _: f"{rate:g}"))
        axes.legend(loc="best")
        words = "" if suggestion is None else f"; {suggestion:.2g} is suggested"
        return svg(figure, "rates", f"Loss against a rising learning rate{words}.")
