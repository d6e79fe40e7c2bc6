"""What each written token reads of a picture, or hears of a recording."""

import numpy as np

from keras_transformer.checks import check
from keras_transformer.plots.style import new_figure, styled

# How strongly a picture is dimmed where no token looks.
DIMMED = 0.75


@styled
def image_attention(image, weights, tokens, columns=5, title=""):
    """Draws a picture once for each written token: bright where the token looks, dark elsewhere.

    Args:
        image: `(height, width, channels)` with 1 or 3 channels: uint8, or floats of 0 for black to 1 for white.
        weights: `(target_len, patches)`, attention to the patches of the picture row by row, such as
            `model.score(images, tokens).alignments[0]`. As many rows of patches as columns.
        tokens: List of `target_len` str, the written tokens.
        columns: Number of pictures in a row.
        title: Title of the figure, str.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If the weights do not fit the tokens, or the patches make no square.

    >>> figure = image_attention(np.ones((4, 4, 3)), np.eye(2, 4), ["red", "circle"])
    >>> [axes.get_title() for axes in figure.axes[:2]]
    ['red', 'circle']
    """
    image, weights = np.asarray(image), np.asarray(weights)
    side = round(weights.shape[-1] ** 0.5)
    rule = "`weights` must have a row for each of `tokens`, and patches that make a square."
    fits = weights.ndim == 2 and len(weights) == len(tokens) > 0 and side**2 == weights.shape[-1]
    check(fits, rule, shape=weights.shape, tokens=tokens)
    shades = image / 255 if image.dtype == np.uint8 else image
    shades = np.broadcast_to(shades, (*shades.shape[:2], 3))
    rows, columns = -(-len(tokens) // columns), min(columns, len(tokens))
    figure = new_figure(1.7 * columns, 0.3 + 1.9 * rows, title, *tokens)
    figure.suptitle(title, fontsize=13)
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels:
        axes.set_axis_off()
    box = (0, image.shape[1], image.shape[0], 0)
    for axes, row, token in zip(panels, weights, tokens, strict=False):
        axes.imshow(shades, vmin=0, vmax=1, extent=box)
        dark = DIMMED * (1 - row.reshape(side, side) / max(row.max(), 1e-9))
        cover = np.zeros((side, side, 4))
        cover[..., 3] = dark
        axes.imshow(cover, extent=box, interpolation="nearest")
        axes.set_title(token, fontsize=10)
    return figure


@styled
def speech_attention(
    spectrogram, weights, tokens, seconds, title="", xlabel="seconds", ylabel="band", label="attention weight"
):
    """Draws the spectrogram of a recording, and below it what each written token hears of it.

    Args:
        spectrogram: `(frames, num_mel_bins)`, as `LogMelSpectrogram` gives it.
        weights: `(target_len, source_len)`, attention to the frames, or to the fewer places after convolutions, such as
            `model.score(spectrograms, tokens).alignments[0]`.
        tokens: List of `target_len` str, the written tokens.
        seconds: How long the recording is, a float.
        title: Title of the figure, str.
        xlabel: The text below the time, str.
        ylabel: The text to the left of the spectrogram, str.
        label: The text to the right of the colours, str.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If the weights do not fit the tokens.

    >>> figure = speech_attention(np.zeros((8, 3)), np.full((2, 4), 0.25), ["four", "two"], 0.08)
    >>> [text.get_text() for text in figure.axes[1].get_yticklabels()]
    ['four', 'two']
    """
    spectrogram, weights = np.asarray(spectrogram), np.asarray(weights)
    rule = "`weights` must have shape `(target_len, source_len)`, a row for each of `tokens`."
    check(weights.ndim == 2 and len(weights) == len(tokens) > 0, rule, shape=weights.shape, tokens=tokens)
    figure = new_figure(8, 2.9 + 0.3 * len(tokens), title, *tokens, xlabel, ylabel, label)
    figure.suptitle(title, fontsize=13)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(2, 0.4 * len(tokens)))
    box = (0, seconds, 0, spectrogram.shape[1])
    above.imshow(spectrogram.T, origin="lower", aspect="auto", cmap="magma", extent=box)
    above.set_ylabel(ylabel)
    box = (0, seconds, len(tokens), 0)
    # A weight is a share of many frames, so it is small.
    image = below.imshow(weights, cmap="Blues", vmin=0, aspect="auto", extent=box, interpolation="nearest")
    below.set_yticks(np.arange(len(tokens)) + 0.5, tokens)
    below.set_xlabel(xlabel)
    for axes in (above, below):
        axes.grid(False)
    figure.colorbar(image, ax=[above, below], label=label, pad=0.01)
    return figure
