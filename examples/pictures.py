"""Pictures of a run, of what the layers compute and of what a model says; the examples draw them.

Each function writes one PNG. Hangul is drawn where a font for it is installed, and romanised elsewhere.
"""

import functools

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import font_manager, ft2font
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, PercentFormatter

from keras_transformer import WarmupSchedule
from keras_transformer.layers import sinusoidal_positions

TRAINING, VALIDATION = "#3a6ea5", "#d1603d"
STYLE = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "axes.axisbelow": True,
    "lines.linewidth": 2,
    "legend.frameon": False,
    "figure.constrained_layout.use": True,
}
DPI = 110
# Preferred before other fonts that have Hangul: they draw it and Latin letters alike.
KOREAN_FONTS = ("Noto Sans CJK KR", "Noto Sans KR", "NanumGothic", "Malgun Gothic", "Apple SD Gothic Neo")

# The Revised Romanization of Korean: initial consonants, vowels and final consonants, in Unicode's order.
LATIN = """
g,kk,n,d,tt,r,m,b,pp,s,ss,,j,jj,ch,k,t,p,h
a,ae,ya,yae,eo,e,yeo,ye,o,wa,wae,oe,yo,u,wo,we,wi,yu,eu,ui,i
,k,k,k,n,n,n,t,l,k,m,l,l,l,p,l,m,p,p,t,t,ng,t,t,k,t,p,t
"""
INITIALS, MEDIALS, FINALS = (line.split(",") for line in LATIN.split())


def romanized(text):
    """Spells each Hangul syllable in Latin letters, without the sound changes between syllables.

    >>> romanized("저는 학생입니다.")
    'jeoneun haksaengipnida.'
    """

    def latin(character):
        code = ord(character) - ord("가")
        if not 0 <= code < len(INITIALS) * len(MEDIALS) * len(FINALS):
            return character
        initial, rest = divmod(code, len(MEDIALS) * len(FINALS))
        medial, final = divmod(rest, len(FINALS))
        return INITIALS[initial] + MEDIALS[medial] + FINALS[final]

    return "".join(map(latin, text))


@functools.cache
def korean_font():
    """Returns the name of an installed font that has Hangul, or None."""
    installed = {font.name: font.fname for font in reversed(font_manager.fontManager.ttflist)}
    for name in (*KOREAN_FONTS, *sorted(installed)):
        if name in installed and not name.startswith("Last Resort"):  # which has a box for everything
            try:
                if ft2font.FT2Font(installed[name]).get_char_index(ord("가")):
                    return name
            except (OSError, RuntimeError):  # no font that can be read
                continue
    return None


def readable(text):
    """Returns `text` as the installed fonts can draw it: as it is, or romanised."""
    return text if korean_font() else romanized(text)


def _saved(figure, path):
    figure.savefig(path, dpi=DPI)
    plt.close(figure)


def _styled(function):
    """Runs a function in this file's style, with a font for Hangul if there is one."""

    @functools.wraps(function)
    def styled(*args, **kwargs):
        families = [korean_font()] if korean_font() else []
        with plt.rc_context({**STYLE, "font.family": ["DejaVu Sans", *families]}):
            return function(*args, **kwargs)

    return styled


@_styled
def training_curve(history, path):
    """Draws loss, perplexity and accuracy of each epoch, in training and in validation.

    Args:
        history: What `keras_transformer.runs.read_history` returns.
        path: The PNG to write.
    """
    epochs = np.arange(1, len(history) + 1)
    figure, panels = plt.subplots(1, 3, figsize=(11, 3.6))
    for axes, name in zip(panels, ("loss", "perplexity", "accuracy"), strict=True):
        for prefix, label, color in (
            ("", "training, with dropout", TRAINING),
            ("val_", "validation", VALIDATION),
        ):
            if f"{prefix}{name}" in history[0]:
                values = [float(row[f"{prefix}{name}"]) for row in history]
                axes.plot(epochs, values, marker="o", markersize=4, color=color, label=label)
        axes.set(title=name.capitalize(), xlabel="epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    panels[0].set_ylabel("nats a token")
    for axes in panels[:2]:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
    panels[2].set_ylim(0, 1.02)
    panels[2].yaxis.set_major_formatter(PercentFormatter(1))
    panels[0].legend()
    _saved(figure, path)


@_styled
def positional_encoding(path, length=50, d_model=128):
    """Draws the sinusoidal positions as a map of `length` positions and `d_model` channels."""
    table = np.asarray(sinusoidal_positions(np.arange(length), d_model))
    figure, axes = plt.subplots(figsize=(9, 4.4))
    image = axes.imshow(table, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto", interpolation="nearest")
    axes.set(title="Positional encoding: sine on even channels, cosine on odd ones")
    axes.set(xlabel="channel", ylabel="position")
    axes.grid(False)
    figure.colorbar(image, ax=axes, ticks=(-1, -0.5, 0, 0.5, 1), pad=0.02)
    _saved(figure, path)


@_styled
def schedule(path, steps=20_000):
    """Draws the paper's learning rate for several widths, and for several lengths of the warm-up."""
    number = np.arange(steps)
    figure, (by_width, by_warmup) = plt.subplots(1, 2, figsize=(11, 3.8), sharey=True)
    figure.suptitle("Learning rate: a linear warm-up, then the inverse square root of the step")
    curves = plt.get_cmap("viridis")(np.linspace(0.1, 0.8, 4))
    for d_model, color in zip((128, 256, 512, 1024), curves, strict=True):
        by_width.plot(number, WarmupSchedule(d_model)(number), color=color, label=f"d_model {d_model}")
    by_width.set(title="4,000 warm-up steps", ylabel="learning rate")
    for warmup_steps, color in zip((1000, 2000, 4000, 8000), curves, strict=True):
        rates = WarmupSchedule(512, warmup_steps)(number)
        by_warmup.plot(number, rates, color=color, label=f"{warmup_steps:,} warm-up steps")
    by_warmup.set(title="d_model 512")
    for axes in (by_width, by_warmup):
        axes.set(xlabel="step", xlim=(0, steps), ylim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.legend()
    _saved(figure, path)


@_styled
def attention(translator, sentence, path):
    """Draws whom each head of each layer attends to while a sentence is translated.

    Args:
        translator: A `keras_transformer.serving.Translator`.
        sentence: The source, str.
        path: The PNG to write.
    """
    model = translator.model
    translation = translator.translate([sentence])[0]
    source = [*translator.source_tokenizer.tokenize([sentence])[0].numpy(), model.eos_id]
    target = [*translator.target_tokenizer.tokenize([translation])[0].numpy()]
    inputs = {"source": np.array([source]), "target": np.array([[model.bos_id, *target]])}
    _, scores = model(inputs, return_attention_scores=True)

    read = _labels(translator.source_tokenizer, source)
    past = _labels(translator.target_tokenizer, [model.bos_id, *target])
    written = _labels(translator.target_tokenizer, [*target, model.eos_id])
    groups = (
        ("encoder", "Encoder: each source token attends to the source", read, read),
        ("decoder", "Decoder: each token, about to be written, attends to those before it", written, past),
        ("cross", "Cross-attention: each token, about to be written, attends to the source", written, read),
    )
    layers, heads = len(scores["encoder"]), scores["encoder"][0].shape[1]

    # In inches: panels of one width, as high as they have rows, beside and below room for the labels.
    width, cell, gap, head_room = 2.0, 0.2, 0.12, 0.65
    label_room = 0.2 + 0.066 * max(map(len, read + past + written))
    heights = [layers * len(rows) * cell + (layers - 1) * gap for _, _, rows, _ in groups]
    left, panels_width = label_room, heads * width + (heads - 1) * gap
    figure_width = left + panels_width + 1.1
    figure_height = 0.35 + sum(heights) + len(groups) * (head_room + label_room)
    figure = plt.figure(figsize=(figure_width, figure_height), layout="none")

    def write(text, x, top, **style):
        figure.text(x / figure_width, 1 - top / figure_height, text, **style)

    middle, top = left + panels_width / 2, 0.35
    write(f"{readable(sentence)}  →  {translation}", middle, 0.3, ha="center", fontsize=14)
    for (name, title, rows, columns), height in zip(groups, heights, strict=True):
        top += head_room
        write(title, middle, top - 0.35, ha="center", fontsize=11)
        panels = figure.subplots(
            layers,
            heads,
            sharex=True,
            sharey=True,
            squeeze=False,
            gridspec_kw={
                "left": left / figure_width,
                "right": (left + panels_width) / figure_width,
                "top": 1 - top / figure_height,
                "bottom": 1 - (top + height) / figure_height,
                "wspace": gap / width,
                "hspace": gap / (len(rows) * cell),
            },
        )
        for layer, line in enumerate(panels):
            for head, axes in enumerate(line):
                weights = np.asarray(scores[name][layer][0, head])
                image = axes.imshow(weights, cmap="magma_r", vmin=0, vmax=1, aspect="auto")
                axes.set_xticks(range(len(columns)), columns, rotation=90)
                axes.set_yticks(range(len(rows)), rows)
                axes.tick_params(length=0, labelsize=8)
                axes.grid(False)
                axes.spines[:].set(visible=True, color="#cccccc")
                if layer == 0:
                    axes.set_title(f"head {head + 1}", fontsize=9, pad=4)
            place = top + (layer + 0.5) * len(rows) * cell + layer * gap
            write(
                f"layer {layer + 1}",
                left + panels_width + 0.08,
                place,
                rotation=-90,
                va="center",
                fontsize=9,
            )
        bar = (left + panels_width + 0.4, figure_height - top - height, 0.13, height)
        scale = np.array([figure_width, figure_height] * 2)
        figure.colorbar(image, cax=figure.add_axes(bar / scale), ticks=(0, 0.5, 1)).outline.set_visible(False)
        top += height + label_room
    _saved(figure, path)


def _labels(tokenizer, ids):
    """The text of each id, with an open box for the space that starts a word."""
    return [readable(piece).replace("▁", "␣") for piece in tokenizer.pieces(ids)]


@_styled
def classes(images, labels, found, path, columns=8):
    """Draws grey images with the classes that they were taken for; where these are wrong, with the right ones too.

    Args:
        images: Floats `(count, height, width, 1)`, of -1 for black to 1 for white.
        labels: The names of their classes.
        found: The names of those that a model says.
        path: The PNG to write.
        columns: Images side by side.
    """
    rows = -(-len(images) // columns)
    figure, panels = plt.subplots(rows, columns, figsize=(1.25 * columns, 1.5 * rows), squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
    for axes, image, label, name in zip(panels.flat, images, labels, found, strict=False):
        axes.imshow(image[..., 0], cmap="gray", vmin=-1, vmax=1)
        right = label == name
        axes.set_title(
            name if right else f"{name} (is {label})", color=TRAINING if right else VALIDATION, fontsize=9
        )
    _saved(figure, path)
