"""Histograms of the time that requests took."""

import numpy as np

from keras_transformer.checks import check
from keras_transformer.plots.style import BLUE, ORANGE, new_figure, styled

PERCENTS = (50, 90, 99)
BINS = 60


@styled
def latencies(seconds):
    """Draws how many requests took how long, with lines at the median and at the percentiles 90 and 99.

    Args:
        seconds: The latencies, such as those of a `LoadReport`, float `(requests,)`, each above 0.

    Returns:
        A `matplotlib.figure.Figure`. Its time axis is logarithmic and in milliseconds.

    Raises:
        ValueError: If there is no latency, or one that is not above 0.

    >>> figure = latencies([0.01, 0.02, 0.4])
    >>> figure.axes[0].get_xlabel()
    'milliseconds'
    """
    times = 1000 * np.asarray(seconds, "float64")
    rule = "`seconds` must be a list of at least one number above 0."
    check(times.ndim == 1 and len(times) and (times > 0).all(), rule, seconds=seconds)
    figure = new_figure(7, 3.8)
    axes = figure.subplots()
    edges = np.geomspace(times.min() * 0.99, times.max() * 1.01, min(BINS, 2 + len(times)))
    axes.hist(times, edges, color=BLUE)
    for percent in PERCENTS:
        value = np.percentile(times, percent)
        axes.axvline(value, color=ORANGE, linewidth=1)
        axes.annotate(
            f" p{percent} {value:.0f} ms",
            (value, 1),
            xycoords=("data", "axes fraction"),
            rotation=90,
            va="top",
            fontsize=8,
        )
    axes.set(xscale="log", xlabel="milliseconds", ylabel="requests")
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.xaxis.set_minor_formatter("")
    return figure
