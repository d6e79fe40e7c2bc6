"""Images with the classes that a model gives them."""

import numpy as np

from keras_transformer.plots.style import BLUE, ORANGE, new_figure, styled


@styled
def classified_images(images, labels, predictions, columns=8, wrong="{prediction} (is {label})"):
    """Draws images with the classes that a model gives them; under a wrong one the right class.

    Args:
        images: `(count, height, width, channels)` with 1 or 3 channels: floats of -1 for black to 1 for white.
        labels: The `count` names of the right classes, str.
        predictions: The `count` names that the model gives, str.
        columns: Number of images in a row.
        wrong: Title of an image with a wrong class, str, in which `{prediction}` and `{label}` become the two classes.

    Returns:
        A `matplotlib.figure.Figure`. The title of an image with a wrong class is orange.

    Raises:
        ValueError: If there are no images, or not one label and one prediction for each.

    >>> figure = classified_images(np.zeros((2, 4, 4, 1)), ["circle", "cross"], ["circle", "square"])
    >>> [axes.get_title() for axes in figure.axes[:2]]
    ['circle', 'square (is cross)']
    """
    images = np.asarray(images)
    if not len(images) == len(labels) == len(predictions) > 0:
        raise ValueError(
            "`images`, `labels` and `predictions` must have the same length, at least 1. "
            f"Received: {len(images)}, {len(labels)} and {len(predictions)}."
        )
    columns = min(columns, len(images))
    rows = -(-len(images) // columns)
    figure = new_figure(1.25 * columns, 1.5 * rows, *labels, *predictions, wrong)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels:
        axes.set_axis_off()
    for axes, image, label, prediction in zip(panels, images, labels, predictions, strict=False):
        axes.imshow(
            (np.squeeze(image, -1) if image.shape[-1] == 1 else image) / 2 + 0.5, "gray", vmin=0, vmax=1
        )
        right = label == prediction
        title = prediction if right else wrong.format(prediction=prediction, label=label)
        axes.set_title(title, color=BLUE if right else ORANGE, fontsize=9)
    return figure
