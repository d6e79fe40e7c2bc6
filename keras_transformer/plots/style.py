"""The look that all figures share, and figures that do without `pyplot`'s global state."""

import functools
import importlib.util
import unicodedata
import warnings

from keras_transformer.fonts import font_families

BLUE, ORANGE, GREY = "#3a6ea5", "#d1603d", "#707070"
STYLE = {
    "figure.dpi": 110,
    "figure.facecolor": "white",
    "savefig.dpi": "figure",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "lines.linewidth": 2,
    "legend.frameon": False,
}


def check_matplotlib(name):
    """Raises `ImportError` where matplotlib, which `name` needs, is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError(f"{name} needs matplotlib. Run `pip install matplotlib`.")


def styled(function):
    """Runs a function that draws a figure in this style, whatever matplotlib's settings are."""

    @functools.wraps(function)
    def draw(*args, **kwargs):
        check_matplotlib(f"`plots.{function.__name__}`")
        import matplotlib

        with matplotlib.rc_context(STYLE), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # `font_families` has warned
            figure = function(*args, **kwargs)
            for axes in figure.axes:
                label, side = axes.yaxis.label, axes.yaxis.get_label_position()
                if changed := upright(label.get_text()):
                    label.set(**changed, va="center", ha="left" if side == "right" else "right")
            # matplotlib makes ticks late, by the settings of that moment.
            figure.draw_without_rendering()
        return figure

    return draw


def upright(text):
    """Returns the properties that make turned Hangul stand upright, one letter below the other; none for other text."""
    return {"text": "\n".join(text), "rotation": 0} if is_wide(text) else {}


def is_wide(text):
    """Whether a text has a letter of a script that is written in squares, such as Hangul or hanja."""
    return any(unicodedata.east_asian_width(character) in "WF" for character in text)


def new_figure(width, height, *texts):
    """Makes a figure.

    Args:
        width: Inches.
        height: Inches.
        *texts: All texts of the figure that may hold other letters than Latin ones; they choose the fonts.

    Returns:
        A `matplotlib.figure.Figure` that Jupyter shows as a PNG, whether `pyplot` has drawn a figure before or not.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from keras_transformer.plots.notebook import NotebookFigure

    matplotlib.rcParams["font.family"] = font_families(*texts)
    figure = NotebookFigure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
