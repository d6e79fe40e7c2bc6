"""Curves: learning rates, and the measurements of a training."""

import numpy as np
from keras import ops

from keras_transformer.checks import check_positive
from keras_transformer.plots.style import BLUE, ORANGE, new_figure, styled

# The measures that have an axis of their own: scale and unit.
LOGARITHMIC = {"loss": "nats per token", "perplexity": "per token"}


@styled
def schedule(schedules, steps=20_000, xlabel="step", ylabel="learning rate"):
    """Draws learning rates against the optimizer's step.

    Args:
        schedules: A `keras.optimizers.schedules.LearningRateSchedule`, or a dict from a label to one.
        steps: Number of steps to draw.
        xlabel: The text below the steps, str.
        ylabel: The text to the left of the rates, str.

    Returns:
        A `matplotlib.figure.Figure`.

    >>> import keras_transformer as kt
    >>> figure = schedule({f"d_model {d}": kt.WarmupSchedule(d) for d in (512, 1024)}, steps=100)
    >>> [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    ['d_model 512', 'd_model 1024']
    """
    check_positive(steps=steps)
    labelled = isinstance(schedules, dict)
    schedules = schedules if labelled else {"": schedules}
    import matplotlib

    colours = matplotlib.colormaps["viridis"](np.linspace(0.1, 0.8, len(schedules)))
    figure = new_figure(7, 3.8, *schedules, xlabel, ylabel)
    axes = figure.subplots()
    numbers = np.unique(np.linspace(0, steps - 1, min(steps, 2000)).astype("int64"))
    for (label, each), colour in zip(schedules.items(), colours, strict=True):
        rates = [float(ops.convert_to_numpy(each(int(number)))) for number in numbers]
        axes.plot(numbers, rates, color=colour, label=label)
    axes.set(xlabel=xlabel, ylabel=ylabel, xlim=(0, steps), ylim=(0, None))
    axes.xaxis.set_major_formatter("{x:,.0f}")
    if labelled:
        axes.legend()
    return figure


@styled
def training_curves(history, measures=None, words=None):
    """Draws the measurements of each epoch, in training and in validation.

    Args:
        history: What `fit` returns, its `history`, or what `keras_transformer.runs.read_history` returns.
        measures: List of names without the prefix `val_`, such as `["loss", "accuracy"]`. If None: loss, perplexity and
            accuracy, where the history has them.
        words: A dict from English words of the figure to those of another language, such as
            `{"Loss": "손실", "epoch": "에포크"}`. The words are the titles, such as "Loss", and "training",
            "validation", "epoch", "nats per token" and "per token". Those that the dict lacks stay English.

    Returns:
        A `matplotlib.figure.Figure`. Loss and perplexity have logarithmic axes.

    Raises:
        ValueError: If the history has no epoch, or not a measure that was asked for.

    >>> figure = training_curves({"loss": [3.1, 1.2], "val_loss": [2.9, 1.5], "accuracy": [0.3, 0.8]})
    >>> [axes.get_title() for axes in figure.axes]
    ['Loss', 'Accuracy']
    """
    columns = _columns(history)
    if measures is None:
        measures = [name for name in ("loss", "perplexity", "accuracy") if name in columns]
    for name in measures:
        if name not in columns:
            raise ValueError(
                f"`measures` must be names of the history, which has {', '.join(columns)}. Received: {name!r}."
            )
    if not measures:
        raise ValueError("`history` must have at least one epoch with a loss. Received: none.")
    words = {} if words is None else words
    figure = new_figure(3.7 * len(measures), 3.6, *words.values())
    for axes, name in zip(figure.subplots(1, len(measures), squeeze=False)[0], measures, strict=True):
        for key, label, colour in ((name, "training", BLUE), (f"val_{name}", "validation", ORANGE)):
            if key in columns:
                values = columns[key]
                label = words.get(label, label)
                axes.plot(range(1, len(values) + 1), values, "o-", markersize=4, color=colour, label=label)
        _finish(axes, name, words)
    figure.axes[0].legend()
    return figure


def _finish(axes, name, words):
    """Gives the axes of a measure its title, scale and ticks."""
    from matplotlib.ticker import MaxNLocator, NullFormatter, PercentFormatter

    title = name.capitalize()
    axes.set(title=words.get(title, title), xlabel=words.get("epoch", "epoch"))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    if name in LOGARITHMIC:
        axes.set(yscale="log", ylabel=words.get(LOGARITHMIC[name], LOGARITHMIC[name]))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif name == "accuracy":
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1))


def _columns(history):
    """Any form of a history as a dict from a name to an array of float; an empty cell is NaN."""
    history = getattr(history, "history", history)
    if isinstance(history, list):
        names = history[0] if history else ()
        history = {name: [row[name] for row in history] for name in names}
    return {
        name: np.array([float(value) if value not in ("", None) else np.nan for value in values])
        for name, values in history.items()
        if name != "epoch"
    }
