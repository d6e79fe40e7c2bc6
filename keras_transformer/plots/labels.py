"""Tables of labels: which were predicted as which."""

import numpy as np

from keras_transformer.plots.style import BLUE, GREY, is_wide, new_figure, styled

LARGEST_TEXT = 20


@styled
def confusion(scores, title="", xlabel="predicted", ylabel="right label", share="share of its row", f1="F1"):
    """Draws how often each label was predicted as each, and the F1 of each beside it.

    Args:
        scores: What `training.label_scores` or `training.entity_scores` gave.
        title: Title of the figure, str.
        xlabel: The text below the columns, str.
        ylabel: The text to the left of the rows, str.
        share: The text beside the colours, str.
        f1: The text below the bars, str.

    Returns:
        A `matplotlib.figure.Figure`. A cell has the number of texts or words, and its colour is their share of the
        row. The bars are the F1 of classes, or of kinds of entities.

    >>> from keras_transformer.training import label_scores
    >>> figure = confusion(label_scores(["a", "a", "b"], ["a", "b", "b"]))
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['1', '1', '0', '1']
    """
    table, count = scores.confusion, len(scores.classes)
    shares = table / np.maximum(1, table.sum(axis=1, keepdims=True))
    left = 0.1 * max(len(label) * (2 if is_wide(label) else 1) for label in [*scores.classes, *scores.labels])
    side = max(2.4, 0.55 * count)
    figure = new_figure(
        2 * (left + 1) + side + 2.5, side + left + 1, title, *scores.classes, xlabel, ylabel, share, f1
    )
    figure.suptitle(title)
    axes, bars = figure.subplots(1, 2, width_ratios=(side + left, 2 + left))
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if count <= LARGEST_TEXT:
        for (row, column), number in np.ndenumerate(table):
            color = "white" if shares[row, column] > 0.6 else "black" if number else GREY
            axes.text(column, row, str(number), ha="center", va="center", color=color)
    axes.set_xticks(range(count), scores.classes, rotation=90)
    axes.set_yticks(range(count), scores.classes)
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(False)
    figure.colorbar(image, ax=axes, label=share)
    bars.barh(scores.labels, scores.f1, color=BLUE)
    bars.set(xlim=(0, 1), xlabel=f1)
    bars.invert_yaxis()
    return figure
