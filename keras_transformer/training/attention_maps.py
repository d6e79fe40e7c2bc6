"""Attention weights as images. Needs matplotlib (the extra `plots`)."""

import warnings

import numpy as np

from keras_transformer.fonts import font_families

# A power of two, so that pixels / DPI * DPI gives whole pixels again.
DPI = 128
CELL, GAP, TITLE, MARGIN = 20, 12, 24, 6  # pixels


class AttentionMaps:
    """Draws the attention of a layer for given tokens, one square grid for each head, side by side.

    The constructor draws the labels, because they take a hundred times as long as the cells. `draw` adds the cells.

    Args:
        rows: List of `target_len` str, the tokens that attend.
        columns: List of `source_len` str, the tokens that are attended to.
        num_heads: Number of heads.

    Raises:
        ImportError: If matplotlib is missing.

    >>> maps = AttentionMaps(["I", "go"], ["나는", "간다"], num_heads=1)
    >>> image = maps.draw(np.array([[[0.9, 0.1], [0.2, 0.8]]]))
    >>> image.dtype, image.ndim
    (dtype('uint8'), 3)
    """

    def __init__(self, rows, columns, num_heads):
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self._colours = matplotlib.colormaps["magma_r"]
        style = {"fontsize": 7, "family": font_families(*rows, *columns)}
        head_width, head_height = CELL * len(columns), CELL * len(rows)
        # An upper bound of the space that the labels take: the border without ink is cut off below.
        label_width, below = (20 + 15 * max(map(len, tokens)) for tokens in (rows, columns))
        width, height = label_width + num_heads * (head_width + GAP), TITLE + head_height + below
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        lefts = [label_width + head * (head_width + GAP) for head in range(num_heads)]
        for head, left in enumerate(lefts):
            rectangle = (left / width, below / height, head_width / width, head_height / height)
            axes = figure.add_axes(rectangle, xlim=(0, len(columns)), ylim=(len(rows), 0))
            axes.set_title(f"head {head + 1}", fontsize=8, pad=4)
            axes.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=90, **style)
            axes.set_yticks(*((np.arange(len(rows)) + 0.5, rows) if head == 0 else ([], [])), **style)
            axes.tick_params(length=0)
        canvas = FigureCanvasAgg(figure)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # `font_families` has warned
            canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba())[..., :3]
        ink = (pixels < 255).any(axis=2)
        start = max(0, ink.any(axis=0).argmax() - MARGIN)
        self._labels = pixels[: ink.any(axis=1).nonzero()[0][-1] + MARGIN, start:]
        self._lefts = [left - start for left in lefts]

    def draw(self, scores):
        """Draws the attention of one layer.

        Args:
            scores: Attention weights `(num_heads, target_len, source_len)`, in [0, 1].

        Returns:
            uint8 `(height, width, 3)`: an RGB image. A weight of 0 is nearly white, a weight of 1 black.
        """
        image = self._labels.copy()
        colours = self._colours(scores, bytes=True)[..., :3].repeat(CELL, axis=1).repeat(CELL, axis=2)
        for left, head in zip(self._lefts, colours, strict=True):
            height, width, _ = head.shape
            image[TITLE : TITLE + height, left : left + width] = head
        return image
