"""Attention weights as images; needs matplotlib, which the extra `plots` brings."""

import warnings

import numpy as np

DPI = 128  # a power of two: inches times this are whole pixels again
CELL, GAP, TITLE, MARGIN = 20, 12, 24, 6  # pixels
# Asked in turn for what DejaVu Sans, which comes with matplotlib, lacks.
FONTS = (
    "Noto Sans CJK KR",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "NanumGothic",
    "Malgun Gothic",
    "Arial Unicode MS",
)


class AttentionMaps:
    """Draws a layer's attention for given tokens, its heads side by side.

    The labels, which take a hundred times as long as the rest, are drawn once.

    Args:
        rows: List of str, what attends: `target_len` tokens.
        columns: List of str, what is attended to: `source_len` tokens.
        num_heads: Number of heads.

    Raises:
        ImportError: If matplotlib is missing.
    """

    def __init__(self, rows, columns, num_heads):
        import matplotlib
        from matplotlib import font_manager
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        self._colours = matplotlib.colormaps["magma_r"]
        installed = set(font_manager.get_font_names())
        style = {"fontsize": 7, "family": ["DejaVu Sans", *(font for font in FONTS if font in installed)]}
        head_width, head_height = CELL * len(columns), CELL * len(rows)
        # More than labels take.
        beside, below = (20 + 15 * max(map(len, tokens)) for tokens in (rows, columns))
        width, height = beside + num_heads * (head_width + GAP), TITLE + head_height + below
        figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
        lefts = [beside + head * (head_width + GAP) for head in range(num_heads)]
        for head, left in enumerate(lefts):
            place = (left / width, below / height, head_width / width, head_height / height)
            axes = figure.add_axes(place, xlim=(0, len(columns)), ylim=(len(rows), 0))
            axes.set_title(f"head {head + 1}", fontsize=8, pad=4)
            axes.set_xticks(np.arange(len(columns)) + 0.5, columns, rotation=90, **style)
            axes.set_yticks(*((np.arange(len(rows)) + 0.5, rows) if head == 0 else ([], [])), **style)
            axes.tick_params(length=0)
        canvas = FigureCanvasAgg(figure)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # a box stands for what no font has
            canvas.draw()
        frame = np.asarray(canvas.buffer_rgba())[..., :3]
        ink = (frame < 255).any(axis=2)
        start = max(0, ink.any(axis=0).argmax() - MARGIN)
        self._frame = frame[: ink.any(axis=1).nonzero()[0][-1] + MARGIN, start:]
        self._lefts = [left - start for left in lefts]

    def draw(self, weights):
        """Draws one layer.

        Args:
            weights: `(num_heads, target_len, source_len)`, in [0, 1].

        Returns:
            uint8 `(height, width, 3)`.
        """
        image = self._frame.copy()
        colours = self._colours(weights, bytes=True)[..., :3].repeat(CELL, axis=1).repeat(CELL, axis=2)
        for left, head in zip(self._lefts, colours, strict=True):
            height, width, _ = head.shape
            image[TITLE : TITLE + height, left : left + width] = head
        return image
