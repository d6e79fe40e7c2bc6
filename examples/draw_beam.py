"""Draws a beam search: the tree of all hypotheses that it held while it translated one sentence.

    python examples/draw_beam.py RUN "A dog runs on the grass." --width 3 --output beam.png
    python examples/draw_beam.py RUN "A dog runs on the grass." --cache --output tree_cache.png

RUN is the folder of a training run or of a saved translator, such as demo/run after `make demo`. With --cache the
picture shows how the hypotheses of one step share the cache of keys and values. With --language ko its words are
Korean.
"""

import argparse
import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

# Before TensorFlow loads: its notices are not the picture's.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.patches import FancyBboxPatch, PathPatch, Rectangle
from matplotlib.path import Path as Curve

from keras_transformer.decoding import Search, decode
from keras_transformer.fonts import font_families
from keras_transformer.layers.cache import branch_mask
from keras_transformer.plots.style import STYLE
from keras_transformer.plots.viewer_beam import RecordingBeam, hypotheses
from keras_transformer.serving import Translator

WIDTH = 3  # open hypotheses
CACHE_STEP = 5  # whose cache is drawn, if the search takes as many steps
MAX_STEPS = 60  # more do not make a picture
EXIT_INPUT = 2  # what the user gave cannot be used

# Inches, but for the dots an inch; colours are (edge, face, text).
BOX, ROW, GAP, CELL, LETTER, MARGIN, TOP, DPI = 0.44, 0.62, 0.34, 0.3, 0.098, 0.3, 1.3, 150
GREY = "#707070"
WINNER = ("#2d5a8c", "#3a6ea5", "white")
OTHER = ("#d1603d", "#fbeae4", "#7a3017")
SLOT = ("#606060", "white", "black")
DEAD = ("#d0d0d0", "#fafafa", "#8c8c8c")
BRANCHES = ("#3a6ea5", "#d1603d", "#5b9a5b", "#8b6bb1", "#b8a038", "#4aa3a2", "#a05a7a", "#7a7a7a")


LANGUAGES = ("en", "ko")
KOREAN = {
    "step {number}": "{number}단계",
    "Beam search, {width} wide. A column: what is open after a step, and what has ended.": (
        "빔 서치, 폭 {width}. 열 하나: 한 단계가 끝났을 때 열려 있는 가설과 끝난 가설."
    ),
    "A box: a token, and its probability after all that stands to its left.": (
        "칸 하나: 토큰, 그리고 왼쪽의 토큰이 모두 나온 다음 이 토큰이 나올 확률."
    ),
    "the best: its normalised score, shown\nat its end, is the highest": (
        "가장 좋은 가설: 끝에 적은 보정한\n점수가 가장 높습니다"
    ),
    "led to other\nfinished hypotheses": "끝난 다른 가설로\n이어졌습니다",
    "fell out of the beam:\nothers were likelier": "빔에서 빠졌습니다:\n다른 가설이 더 유력했습니다",
    "open when the search\nstopped: can no longer win": "탐색이 멈출 때 열려 있었고,\n더는 이길 수 없습니다",
    "How {width} hypotheses share one cache": "가설 {width}개가 캐시 하나를 함께 쓰는 방법",
    "Step {number} of a search: a slot is written once, in its step, and never moves.": (
        "탐색의 {number}단계: 슬롯은 그 단계에 한 번 쓰고 옮기지 않습니다."
    ),
    "When hypotheses change places, the small table of ancestors is all that does.": (
        "가설의 자리가 바뀌면 조상을 적은 작은 표만 바뀝니다."
    ),
    "Slots: each step adds one for each hypothesis; here with the token it was made from": (
        "슬롯: 단계마다 가설 하나에 하나씩 추가, 칸에는 슬롯을 만든 토큰"
    ),
    "Ancestors: which slot of each step is on a hypothesis's branch": (
        "조상: 단계마다, 가설의 가지에 있는 슬롯의 번호"
    ),
    "Mask: a row for each hypothesis, a cell for each slot; filled = may attend": (
        "마스크: 행은 가설, 칸은 슬롯, 색이 있는 칸은 볼 수 있는 슬롯"
    ),
    "slot {number}": "슬롯 {number}",
    "hypothesis {number}": "가설 {number}",
}


def in_korean(text, **values):
    """Returns a text of the pictures in Korean, with its values in place."""
    return KOREAN[text].format(**values)


@dataclasses.dataclass
class Node:
    """A hypothesis: the ids it is made of, the sum of their log probabilities, and its place in the picture."""

    tokens: tuple
    score: float
    rank: float | None = None  # the normalised score, by which finished hypotheses are ordered
    best: float = -np.inf  # the best rank of the finished hypotheses it led to
    children: list = dataclasses.field(default_factory=list)
    row: int = 0

    @property
    def column(self):
        return len(self.tokens)


@dataclasses.dataclass
class Recording:
    """A search: its hypotheses by their ids, the finished ones best first, and what the cache held at each step.

    slots: For each step the newest tokens `(width,)` and the ancestors `(width, steps)`.
    """

    source: str
    translation: str
    nodes: dict
    finished: list
    slots: list
    tokenizer: Any

    def pieces(self, ids):
        """The text of each id, with an open box for the space that starts a word."""
        return [piece.replace("▁", "␣") for piece in self.tokenizer.pieces(ids)]


def record(translator, sentence, width=WIDTH):
    """Translates one sentence with a beam, outside of any graph, and returns the `Recording`.

    The search is for as many results as it is wide; its best is what a search for one result finds. The
    translator's own strategy and constraints play no part.
    """
    model, tokenizer = translator.model, translator.target_tokenizer
    ids = translator.source_tokenizer.tokenize([sentence])[0].numpy()[: translator.max_source_length - 1]
    if not len(ids):
        raise ValueError(f"The sentence holds nothing to translate: {sentence!r}.")
    source = np.array([[*ids, model.eos_id]], "int32")
    limit = translator.max_length or 2 * source.shape[1] + 16  # as in `generate`
    recorder, slots = RecordingBeam(width, n_best=width), []
    step, cache, prompt, _ = model.start(source, width)

    def kept(tokens, cache, index):
        logits, cache = step(tokens, cache, index)
        slots.append((np.array(tokens)[0, :, 0], np.array(cache.ancestors)[0, :, : len(slots) + 1]))
        return logits, cache

    search = Search(limit, eos_ids=(model.eos_id,), pad_id=model.pad_id)
    found = decode(kept, cache, recorder, prompt, search)
    if len(slots) > MAX_STEPS:
        raise ValueError(
            f"A picture holds {MAX_STEPS} steps, and the search took {len(slots)}: {sentence!r}."
        )
    nodes, finished = tree(recorder, model.eos_id)
    translation = tokenizer.detokenize(found.tokens[:, 0])[0].numpy().decode()
    return Recording(sentence, translation, nodes, finished, slots, tokenizer)


def tree(recorder, eos_id):
    """The hypotheses of a search by their ids, and the finished ones, best first."""
    nodes = {(): Node((), 0.0)}

    def add(ids, score, rank=None):
        if ids not in nodes:
            nodes[ids] = Node(ids, score, rank)
            nodes[ids[:-1]].children.append(nodes[ids])

    for beams, ended, limits in recorder.steps:
        for ids, score in hypotheses(ended):
            add(ids, score, score / float(recorder.divisor(len(ids))))
        for ids, score in hypotheses(beams):
            if ids[-1] != eos_id and len(ids) < int(limits[0]):  # else it has ended, too late to be a result
                add(ids, score)
    finished = sorted((node for node in nodes.values() if node.rank is not None), key=lambda node: -node.rank)
    for node in finished:
        for length in range(node.column + 1):
            ancestor = nodes[node.tokens[:length]]
            ancestor.best = max(ancestor.best, node.rank)
    return nodes, finished


def lay_out(root):
    """Gives each node its row: the best branch along the top, the others below it, and no two edges cross."""
    free = {}  # the first free row of each column (even) and of the gap after it (odd)

    def place(node, parent_column):
        chain = [node]
        while chain[-1].children:
            chain[-1].children.sort(key=lambda child: (-child.best, -child.score))
            chain.append(chain[-1].children[0])
        end = chain[-1].column + (chain[-1].rank is not None)  # its score stands beside it
        taken = range(2 * parent_column + 1, 2 * end + 1)
        row = max(free.get(spot, 0) for spot in taken)
        free.update(dict.fromkeys(taken, row + 1))
        for each in chain:
            each.row = row
        for each in reversed(chain):
            for child in each.children[1:]:
                place(child, each.column)

    place(root, -1)


class Sheet:
    """A picture that is measured in inches from its top left corner."""

    def __init__(self, width, height, title, *lines):
        self.figure = plt.figure(figsize=(width, height), layout="none")
        self.axes = self.figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0))
        self.axes.axis("off")
        self.write(MARGIN, 0.42, title, fontsize=14)
        self.write(MARGIN, 0.72, "\n".join(lines), va="top")

    def write(self, x, y, text, **style):
        self.axes.text(x, y, text, **{"zorder": 5, "va": "center", **style})

    def rectangle(self, x, y, size, **style):
        self.axes.add_patch(Rectangle((x, y), size, size, **style))

    def box(self, left, middle, width, colors, text, small="", line="solid"):
        """A box with a text, and perhaps a small one under it."""
        edge, face, ink = colors
        style = FancyBboxPatch(
            (left, middle - BOX / 2), width, BOX, "round,pad=0,rounding_size=0.08", zorder=4
        )
        style.set(ec=edge, fc=face, ls=line, lw=1.2)
        self.axes.add_patch(style)
        self.write(left + width / 2, middle - (0.07 if small else 0), text, color=ink, ha="center")
        self.write(left + width / 2, middle + 0.12, small, color=ink, ha="center", fontsize=8)

    def curve(self, start, end, color, weight):
        """A line from one box to the next that leaves and arrives level."""
        middle = (start[0] + end[0]) / 2
        line = Curve([start, (middle, start[1]), (middle, end[1]), end], [Curve.MOVETO] + [Curve.CURVE4] * 3)
        self.axes.add_patch(PathPatch(line, fc="none", ec=color, lw=weight, zorder=weight))

    def save(self, path):
        self.figure.savefig(path, dpi=DPI)
        plt.close(self.figure)


def draw_beam(search, path, say=str.format):
    """Draws the tree, a column for each step. `say` gives a text of the picture in its language."""
    lay_out(search.nodes[()])
    nodes, winner = list(search.nodes.values()), search.finished[0].tokens
    labels = {node.tokens: search.pieces(node.tokens[-1:] or search.slots[0][0][:1])[0] for node in nodes}
    widths = [0.5] * (max(node.column for node in nodes) + 1)
    for node in nodes:
        widths[node.column] = max(widths[node.column], 0.2 + LETTER * len(labels[node.tokens]))
    lefts = np.cumsum([MARGIN, *(width + GAP for width in widths)])
    bottom = TOP + (max(node.row for node in nodes) + 1) * ROW
    sheet = Sheet(
        max(9.6, lefts[-1] + 0.8),
        bottom + 0.75,
        f"{search.source}  →  {search.translation}",
        say(
            "Beam search, {width} wide. A column: what is open after a step, and what has ended.",
            width=len(search.slots[0][0]),
        ),
        say("A box: a token, and its probability after all that stands to its left."),
    )
    for column, (left, width) in enumerate(zip(lefts, widths, strict=False)):
        name = ["", say("step {number}", number=1), column][min(column, 2)]
        sheet.write(left + width / 2, TOP - 0.05, name, ha="center", color=GREY, fontsize=9)
    for node in nodes:
        colors, weight, line, share = DEAD, 1.8, "solid", ""
        if node.tokens == winner[: node.column]:
            colors, weight = WINNER, 3
        elif node.best > -np.inf:
            colors, weight = OTHER, 2
        elif node.column == len(search.slots):
            line = "dashed"
        left, width, y = lefts[node.column], widths[node.column], TOP + (node.row + 0.5) * ROW
        if node.tokens:
            parent = search.nodes[node.tokens[:-1]]
            sheet.curve((left - GAP, TOP + (parent.row + 0.5) * ROW), (left, y), colors[0], weight)
            share = np.exp(node.score - parent.score)
            share = f"{share:.2f}" if share >= 0.005 else "<0.01"
        sheet.box(left, y, width, colors, labels[node.tokens], share, line)
        if node.rank is not None:
            text = f"{search.finished.index(node) + 1}.  {node.rank:.2f}".replace("-", "−")
            sheet.write(left + width + 0.08, y, text, color=colors[0], fontsize=11)
    x = MARGIN
    for (edge, face, _), line, room, text in (
        (WINNER, "solid", 3.2, "the best: its normalised score, shown\nat its end, is the highest"),
        (OTHER, "solid", 1.9, "led to other\nfinished hypotheses"),
        (DEAD, "solid", 1.9, "fell out of the beam:\nothers were likelier"),
        (DEAD, "dashed", 0, "open when the search\nstopped: can no longer win"),
    ):
        sheet.rectangle(x, bottom + 0.25, 0.24, ec=edge, fc=face, ls=line)
        sheet.write(x + 0.34, bottom + 0.37, say(text), fontsize=9)
        x += room
    sheet.save(path)


def draw_cache(search, path, say=str.format):
    """Draws the slots of the cache at one step, the table of ancestors and the mask that it gives."""
    now = min(CACHE_STEP, len(search.slots) - 1)
    ancestors = search.slots[now][1]
    width, steps = ancestors.shape
    mask = np.array(branch_mask(ancestors[None], now)).reshape(width, steps, width)
    labels = [search.pieces(tokens) for tokens, _ in search.slots[: now + 1]]
    column = max(width * CELL, 0.2 + LETTER * max(len(label) for step in labels for label in step))
    lefts = 1.45 + (column + GAP) * np.arange(steps)
    slots = TOP + 0.45
    table = slots + width * ROW + 0.6
    matrix = table + width * CELL + 0.7
    sheet = Sheet(
        max(8.8, lefts[-1] + column + MARGIN),
        matrix + width * CELL + 0.3,
        say("How {width} hypotheses share one cache", width=width),
        say("Step {number} of a search: a slot is written once, in its step, and never moves.", number=now),
        say("When hypotheses change places, the small table of ancestors is all that does."),
    )
    for y, heading in (
        (slots - 0.35, "Slots: each step adds one for each hypothesis; here with the token it was made from"),
        (table - 0.2, "Ancestors: which slot of each step is on a hypothesis's branch"),
        (matrix - 0.2, "Mask: a row for each hypothesis, a cell for each slot; filled = may attend"),
    ):
        sheet.write(MARGIN, y, say(heading))
    for number in range(width):
        color = BRANCHES[number % len(BRANCHES)]
        lane = slots + (0.5 + (number - (width - 1) / 2) * 0.5 / width) * ROW
        sheet.write(MARGIN, slots + (number + 0.5) * ROW, say("slot {number}", number=number), fontsize=9)
        name = say("hypothesis {number}", number=number)
        for top in (table, matrix):
            sheet.write(MARGIN, top + (number + 0.5) * CELL, name, color=color, fontsize=9)
        for step, left in enumerate(lefts):
            middle, slot = left + column / 2, ancestors[number, step]
            colors = SLOT if number in ancestors[:, step] else DEAD
            sheet.box(left, slots + (number + 0.5) * ROW, column, colors, labels[step][number])
            if step:
                before = lane + ancestors[number, step - 1] * ROW
                sheet.curve((left - GAP, before), (left, lane + slot * ROW), color, 2.5)
            sheet.write(middle, table + (number + 0.5) * CELL, slot, ha="center", color=color, fontsize=11)
            for cell in range(width):
                face = color if mask[number, step, cell] else "white"
                x, y = middle + (cell - width / 2) * CELL, matrix + number * CELL
                sheet.rectangle(x, y, CELL, fc=face, ec="#c8c8c8", lw=0.8)
    for step, left in enumerate(lefts):
        name = say("step {number}", number=step)
        sheet.write(left + column / 2, slots - 0.1, name, ha="center", color=GREY, fontsize=9)
    sheet.save(path)


def main(arguments=None):
    """Writes the picture; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of a run or of a saved translator")
    parser.add_argument("sentence", metavar="SENTENCE", help="what to translate")
    parser.add_argument("--width", default=WIDTH, type=int, help="open hypotheses")
    parser.add_argument("--output", default="beam.png", type=Path, help="the PNG or SVG to write")
    parser.add_argument("--cache", action="store_true", help="draw how the hypotheses share the cache")
    parser.add_argument("--language", default="en", choices=LANGUAGES, help="language of the picture's words")
    options = parser.parse_args(arguments)
    korean = options.language == "ko"
    try:
        search = record(Translator.load(options.run), options.sentence, options.width)
        families = font_families(search.source, search.translation, *(KOREAN.values() if korean else ()))
        draw = draw_cache if options.cache else draw_beam
        with plt.rc_context({**STYLE, "font.family": families}):
            draw(search, options.output, in_korean if korean else str.format)
    except (ValueError, OSError) as error:
        print(f"draw_beam: error: {error}", file=sys.stderr)
        return EXIT_INPUT
    print(f"{search.translation}\n{options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
