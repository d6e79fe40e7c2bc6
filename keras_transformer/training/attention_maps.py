"""Attention weights as images; needs matplotlib, which the extra `plots` brings."""

import warnings

import numpy as np

# Asked in turn for what DejaVu Sans, which comes with matplotlib, lacks.
FONTS = (
    "Noto Sans CJK KR",
    "Noto Sans CJK SC",
    "Noto Sans CJK JP",
    "NanumGothic",
    "Malgun Gothic",
    "Arial Unicode MS",
)
CELL = 0.17  # inches


def draw_heads(weights, rows, columns):
    """Draws the attention of one layer, its heads side by side.

    Args:
        weights: `(num_heads, target_len, source_len)`, in [0, 1].
        rows: List of str, what attends: `target_len` tokens.
        columns: List of str, what is attended to: `source_len` tokens.

    Returns:
        uint8 `(height, width, 3)`.
    """
    from matplotlib import font_manager
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    installed = set(font_manager.get_font_names())
    style = {"fontsize": 8, "family": ["DejaVu Sans", *(font for font in FONTS if font in installed)]}
    num_heads, target_len, source_len = weights.shape
    margin = 0.3 + 0.08 * max(map(len, [*rows, *columns]))
    size = (num_heads * (max(6, source_len) * CELL + 0.1) + margin, max(6, target_len) * CELL + margin + 0.3)
    figure = Figure(figsize=size, dpi=100, layout="constrained")
    panels = figure.subplots(1, num_heads, sharey=True, squeeze=False)[0]
    for head, axes in enumerate(panels, start=1):
        axes.imshow(weights[head - 1], cmap="magma_r", vmin=0, vmax=1, aspect="auto")
        axes.set_title(f"head {head}", fontsize=9)
        axes.set_xticks(range(source_len), columns, rotation=90, **style)
        axes.set_yticks(range(target_len), rows, **style)
        axes.tick_params(length=0)
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a box stands for what no font has
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3]
