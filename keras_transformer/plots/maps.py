"""Tables of numbers as maps of cells: masks, positions, attention weights."""

import numpy as np
from keras import ops

from keras_transformer.checks import check_count, check_positive
from keras_transformer.layers import PositionalEncoding
from keras_transformer.plots.style import GREY, is_wide, new_figure, styled, upright

ALLOWED, HIDDEN = "#cfe0f1", "#f4f4f4"
PANEL, MEAN_PANEL = "layer {layer}, head {head}", "layer {layer}, mean of heads"
KINDS = {
    "encoder": "Encoder: what each source token reads",
    "decoder": "Decoder: which earlier tokens each written token reads",
    "cross": "Cross-attention: which source tokens each written token reads",
}


@styled
def masks(masks, queries, keys=None, scores=None, xlabel="key: attended to", ylabel="query: attends"):
    """Draws masks as tables: a row for each query, a column for each key, a 1 where the query may attend to the key.

    Args:
        masks: A dict from a title to a boolean mask, True = may attend: `(target_len, source_len)`, or with leading
            axes of size 1, as `kt.masks` makes them. A mask of one row counts for all queries.
        queries: List of `target_len` str, the tokens that attend.
        keys: List of `source_len` str, the tokens that are attended to; the queries if None.
        scores: `(target_len, source_len)`: attention scores to write into the cells in place of 1. A hidden cell
            gets −∞.
        xlabel: The text below the columns, str.
        ylabel: The text to the left of the rows, str.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If a mask or the scores do not fit the tokens.

    >>> import keras_transformer as kt
    >>> tokens = ["<s>", "I", "am", "a", "student"]
    >>> figure = masks({"look-ahead": kt.masks.look_ahead_mask(5)}, tokens)
    >>> [text.get_text() for text in figure.axes[0].texts][:6]
    ['1', '0', '0', '0', '0', '1']
    """
    keys = queries if keys is None else keys
    shape = (len(queries), len(keys))
    tables = {title: _table(mask, shape, title) for title, mask in masks.items()}
    if scores is not None:
        scores = np.asarray(scores)
        if scores.shape != shape:
            raise ValueError(f"`scores` must have the shape {shape}. Received: {scores.shape}.")
    left, below = (0.12 * _longest(tokens) for tokens in (queries, keys))
    size = (1 + len(tables) * (0.5 * len(keys) + 0.6 + left), 1.3 + below + 0.42 * len(queries))
    figure = new_figure(*size, *queries, *keys, *tables, xlabel, ylabel)
    from matplotlib.colors import ListedColormap

    for axes, (title, table) in zip(_row(figure, len(tables)), tables.items(), strict=True):
        axes.imshow(table, cmap=ListedColormap([HIDDEN, ALLOWED]), vmin=0, vmax=1, aspect="auto")
        for (row, column), allowed in np.ndenumerate(table):
            text = "01"[int(allowed)]
            if scores is not None:
                text = f"{scores[row, column]:g}" if allowed else "−∞"
            axes.text(column, row, text, ha="center", va="center", color="black" if allowed else GREY)
        axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
        _label(axes, queries, keys)
    return figure


@styled
def positions(layer=None, length=50, d_model=128, title=None, xlabel="channel", ylabel="position"):
    """Draws what a layer of positions adds to embeddings: a row for each position, a column for each channel.

    Args:
        layer: A `PositionalEncoding` (the default) or `LearnedPositions`; any layer that adds to
            `(batch, length, d_model)`.
        length: Number of positions.
        d_model: Number of channels.
        title: Title of the figure, str; in English the layer and what to see if None.
        xlabel: The text below the channels, str.
        ylabel: The text to the left of the positions, str.

    Returns:
        A `matplotlib.figure.Figure`.

    >>> positions(length=8, d_model=16).axes[0].get_ylabel()
    'position'
    """
    check_positive(length=length, d_model=d_model)
    layer = PositionalEncoding() if layer is None else layer
    table = ops.convert_to_numpy(layer(np.zeros((1, length, d_model), "float32")))[0]
    largest = np.abs(table).max()
    if title is None and isinstance(layer, PositionalEncoding) and layer.interleaved:
        title = (
            "Positional encoding: sine on even channels, cosine on odd ones. Waves get longer to the right."
        )
    elif title is None:
        title = f"{type(layer).__name__}: what is added to an embedding"
    figure = new_figure(9, 4.4, title, xlabel, ylabel)
    (axes,) = _row(figure, 1)
    image = axes.imshow(
        table, cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest"
    )
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.grid(False)
    figure.colorbar(image, ax=axes, pad=0.02)
    return figure


@styled
def attention_weights(
    weights, queries, keys, title="", layers=None, heads=None, panel=None, label="attention weight"
):
    """Draws attention weights: a map for each layer and head, a row for each query, a column for each key.

    Args:
        weights: A list with the weights of each layer, `(num_heads, target_len, source_len)` or with a batch axis of
            size 1, as `return_attention_scores=True` gives them.
        queries: List of `target_len` str, the tokens that attend.
        keys: List of `source_len` str, the tokens that are attended to.
        title: Title of the figure, str.
        layers: List of the layers to draw, numbers from 1; all if None.
        heads: List of the heads to draw, numbers from 1; all if None. "mean" draws the mean of all heads.
        panel: Title of each map, str, in which `{layer}` and `{head}` become the numbers of its layer and head; in
            English if None.
        label: The text to the right of the colours, str.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: If the weights of a layer do not fit the tokens, or a layer or a head does not exist.

    >>> uniform = np.full((2, 3, 4), 0.25)  # two heads
    >>> figure = attention_weights([uniform], ["a", "b", "c"], ["가", "나", "다", "라"])
    >>> [axes.get_title() for axes in figure.axes[:2]]
    ['layer 1, head 1', 'layer 1, head 2']
    >>> attention_weights([uniform], ["a", "b", "c"], list("wxyz"), heads="mean").axes[0].get_title()
    'layer 1, mean of heads'
    """
    tables = [_weights_of_layer(each, (len(queries), len(keys)), i) for i, each in enumerate(weights)]
    if heads == "mean":
        tables, heads = [table.mean(axis=0, keepdims=True) for table in tables], None
        panel = MEAN_PANEL if panel is None else panel
    panel = PANEL if panel is None else panel
    layers = _numbers(len(tables), layers=layers)
    heads = _numbers(min(map(len, tables)), heads=heads)
    left, below = (0.1 * _longest(tokens) for tokens in (queries, keys))
    width = max(0.1 * _longest(title.split("\n")), 1 + left + len(heads) * max(1.6, 0.3 * len(keys)))
    height = 0.9 + len(layers) * (0.55 + below + 0.26 * len(queries))
    figure = new_figure(width, height, title, *queries, *keys, panel, label)
    figure.suptitle(title, fontsize=13)
    panels = figure.subplots(len(layers), len(heads), squeeze=False)
    for (row, column), axes in np.ndenumerate(panels):
        layer, head = layers[row], heads[column]
        image = axes.imshow(tables[layer - 1][head - 1], cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.set_title(panel.format(layer=layer, head=head), fontsize=9)
        _label(axes, queries if column == 0 else [""] * len(queries), keys, fontsize=9)
    bar = figure.colorbar(image, ax=panels, ticks=(0, 0.5, 1), shrink=0.8, aspect=30, pad=0.01)
    bar.set_label(label)
    bar.outline.set_visible(False)
    return figure


def translation_attention(
    translator, text, kind="cross", layers=None, heads=None, title=None, panel=None, label="attention weight"
):
    """Draws which tokens each head attends to while a translator translates a text.

    Args:
        translator: A `keras_transformer.serving.Translator`.
        text: The source, str.
        kind: "cross" for the decoder's attention to the source, "encoder" or "decoder" for self-attention.
        layers: List of the layers to draw, numbers from 1; all if None.
        heads: List of the heads to draw, numbers from 1; all if None. "mean" draws the mean of all heads.
        title: The line of the title below the two texts, str; in English what the rows read if None.
        panel: Title of each map, str, in which `{layer}` and `{head}` become the numbers of its layer and head; in
            English if None.
        label: The text to the right of the colours, str.

    Returns:
        A `matplotlib.figure.Figure`. A row is the token that is about to be written, or in the encoder the token that
        reads. A "␣" marks the space before a word.

    Raises:
        ValueError: If `kind`, a layer or a head does not exist.
    """
    if kind not in KINDS:
        raise ValueError(f"`kind` must be one of {', '.join(KINDS)}. Received: kind={kind!r}.")
    model = translator.model
    translation = translator.translate([text])[0]
    tokens = translator.source_tokenizer.tokenize([text])[0].numpy()
    frame, target = translator.frame, translator.target_tokenizer.tokenize([translation])[0].numpy()
    source, target_in = frame.source(tokens), frame.target_inputs(target)
    inputs = {"source": np.array([source]), "target": np.array([target_in])}
    _, scores = model(inputs, return_attention_scores=True)
    read = _pieces(translator.source_tokenizer, source)
    before = _pieces(translator.target_tokenizer, target_in)
    written = _pieces(translator.target_tokenizer, frame.targets(target))
    rows, columns = {"encoder": (read, read), "decoder": (written, before), "cross": (written, read)}[kind]
    title = f"{text}  →  {translation}\n{KINDS[kind] if title is None else title}"
    return attention_weights(scores[kind], rows, columns, title, layers, heads, panel, label)


def _pieces(tokenizer, ids):
    """The text of each id, with an open box for the space that starts a word."""
    return [piece.replace("▁", "␣") for piece in tokenizer.pieces(ids)]


def _row(figure, count):
    """`count` axes side by side."""
    return figure.subplots(1, count, squeeze=False)[0]


def _label(axes, rows, columns, **style):
    """Names the rows and columns of a map. Hangul stands upright, one letter below the other."""
    turned = max(map(len, columns)) > 3
    changed = [upright(text) if turned else {} for text in columns]
    texts = [each.pop("text", text) for each, text in zip(changed, columns, strict=True)]
    axes.set_xticks(range(len(columns)), texts, rotation=90 if turned else 0, **style)
    for tick, each in zip(axes.get_xticklabels(), changed, strict=True):
        tick.set(**each)
    axes.set_yticks(range(len(rows)), rows, **style)
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set(visible=True, color="#cccccc")


def _longest(tokens):
    """Returns the length of the longest token in Latin letters; a letter of Hangul is as wide and high as two."""
    return max(sum(2 if is_wide(letter) else 1 for letter in token) for token in tokens)


def _numbers(count, **given):
    """Returns the requested numbers, or all from 1 to `count`."""
    ((name, numbers),) = given.items()
    numbers = list(range(1, count + 1)) if numbers is None else list(numbers)
    for number in numbers:
        check_count(1, count, **{name: number})
    if not numbers:
        raise ValueError(f"`{name}` must have at least one number. Received: {name}=[].")
    return numbers


def _table(mask, shape, title):
    """A mask as a bool table of this shape."""
    mask = ops.convert_to_numpy(mask)
    *leading, rows, columns = (1, 1, *mask.shape)
    if mask.dtype != bool or any(size != 1 for size in leading) or rows not in (1, shape[0]):
        columns = None
    if columns != shape[1]:
        raise ValueError(
            f"A mask must be boolean with the shape {shape}, or one row of it, and leading axes of size 1. "
            f"Received: {title!r} with shape {mask.shape} of {mask.dtype}."
        )
    return np.broadcast_to(mask.reshape(rows, columns), shape)


def _weights_of_layer(weights, shape, index):
    """The weights of a layer as an array `(num_heads, *shape)`."""
    weights = ops.convert_to_numpy(weights)
    if weights.ndim == 4 and len(weights) == 1:
        weights = weights[0]
    if weights.ndim != 3 or weights.shape[1:] != shape:
        raise ValueError(
            f"`weights` must hold (num_heads, {shape[0]}, {shape[1]}) for each layer, as many as there are queries "
            f"and keys. Received: shape {weights.shape} for layer {index + 1}."
        )
    return weights
