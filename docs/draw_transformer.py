"""Draws the picture of the Transformer: figure 1 of "Attention Is All You Need", with this library's classes.

    python docs/draw_transformer.py

It writes docs/images: `transformer.svg` and `transformer.ko.svg`, the same with the part of a chapter of the course in
colour and all else pale (`transformer_1.svg` and so on), and `architecture.html`, the picture of the site's front page,
whose boxes are links. A browser that prefers dark pages gets light lines; on the site the reader's choice decides.
"""

from pathlib import Path
from xml.sax.saxutils import escape

IMAGES = Path(__file__).resolve().parent / "images"
WIDTH, TOP, HEIGHT = 800, 50, 900
LEFT, RIGHT = 200, 570  # the middle of the encoder and of the decoder
HALF = 110  # half of the width of a box
# The parts that a chapter is about; all of them where there is no chapter.
CHAPTERS = {
    None: None,
    1: {"cross"},
    9: {"residual", "feed", "self", "cross", "layers"},
    10: {"embedding", "positions", "self", "cross", "output", "search", "memory"},
}
TITLE = "The Transformer: an encoder of N layers reads the source, a decoder of N layers writes the target"
KOREAN = {
    "source: token ids": "원문: 토큰 ID",
    "target so far, shifted right: token ids": "지금까지 쓴 번역문(한 칸 밀림): 토큰 ID",
    "Embedding": "임베딩",
    "Positions": "위치",
    "Self-attention": "셀프 어텐션",
    "Masked self-attention": "마스크가 있는 셀프 어텐션",
    "Cross-attention": "교차 어텐션",
    "Add and norm": "잔차 연결과 정규화",
    "Feed-forward network": "피드 포워드 신경망",
    "Logits": "로짓",
    "Softmax": "소프트맥스",
    "Next token": "다음 토큰",
    "probabilities": "확률",
    "encoder, N layers": "인코더, N층",
    "decoder, N layers": "디코더, N층",
    "memory": "메모리",
    "padding mask": "패딩 마스크",
    "look-ahead mask": "룩어헤드 마스크",
    "padding mask of the source": "원문의 패딩 마스크",
    "the next turn": "다음 차례",
    TITLE: "트랜스포머: N층 인코더가 원문을 읽고 N층 디코더가 번역문을 씁니다",
}
LIGHT = {
    **{"ink": "#222", "line": "#666", "frame": "#f7f7f7", "frame-line": "#999", "paper": "#fff"},
    **{"embedding": "#f7dde6", "positions": "#e9e4f5", "attention": "#fde5d8"},
    **{"residual": "#f3efcf", "feed": "#d9e8f6", "output": "#dff0e0"},
}
DARK = {
    **{"ink": "#eee", "line": "#aaa", "frame": "#1d1f22", "frame-line": "#777", "paper": "#131416"},
    **{"embedding": "#5a2c3f", "positions": "#43386b", "attention": "#6b3a20"},
    **{"residual": "#56501f", "feed": "#23446b", "output": "#28512c"},
}


def style():
    """Returns the style sheet. The site's theme writes the reader's choice into an attribute of the page's body."""
    light, dark = (
        "{" + ";".join(f"--{name}:{colour}" for name, colour in colours.items()) + "}"
        for colours in (LIGHT, DARK)
    )
    return (
        f".t{light}@media(prefers-color-scheme:dark){{.t{dark}}}"
        f"body[data-theme=light] .t{light}body[data-theme=dark] .t{dark}"
        ".t text{font-family:sans-serif;fill:var(--ink);text-anchor:middle}"
        ".t .box,.t .frame{stroke:var(--line);stroke-width:1.5}"
        ".t .frame{fill:var(--frame);stroke:var(--frame-line)}"
        ".t path{fill:none;stroke:var(--line);stroke-width:1.5}.t .head{fill:var(--line);stroke:none}"
        ".t .skip{stroke-width:2.5}.t .again{stroke-dasharray:5 4}.t .pale{opacity:.22}"
        ".t a{text-decoration:none}.t a:hover .box,.t a:focus .box{stroke-width:3}"
    )


class Picture:
    """Collects the elements of the picture.

    Args:
        korean: Whether the words are Korean.
        shown: The names of the parts in full colour; None for all.
        linked: Whether boxes are links to the reference.
    """

    def __init__(self, korean, shown, linked):
        self.korean, self.shown, self.linked, self.elements = korean, shown, linked, []

    def add(self, part, element):
        pale = self.shown is not None and part not in self.shown
        self.elements.append(f'<g class="pale">{element}</g>' if pale else element)

    def word(self, text):
        return escape(KOREAN.get(text, text) if self.korean else text)

    def text(self, part, x, y, words, size=12, anchor="middle"):
        place = f' style="text-anchor:{anchor}"' if anchor != "middle" else ""
        self.add(part, f'<text x="{x}" y="{y}" font-size="{size}"{place}>{self.word(words)}</text>')

    def box(self, part, x, y, height, kind, words, name, note=None):
        """Draws a box around `x`, whose upper edge is at `y`, for a class of the library."""
        first = y + height / 2 - (2 if note else -5)
        lines = f'<text x="{x}" y="{first}" font-size="14">{self.word(words)}</text>'
        lines += f'<text x="{x}" y="{first + 16}" font-size="11">{self.word(note)}</text>' if note else ""
        fill = f'style="fill:var(--{kind})"'
        box = f'<rect class="box" x="{x - HALF}" y="{y}" width="{2 * HALF}" height="{height}" rx="6" {fill}/>'
        title = f"<title>{name}</title>"
        if self.linked:
            address = f"reference/generated/keras_transformer.{name}.html"
            self.add(part, f'<a href="{address}">{title}{box}{lines}</a>')
        else:
            self.add(part, f"<g>{title}{box}{lines}</g>")

    def arrow(self, part, *points, kind="", head=True):
        """Draws a line through points, with a head at its end."""
        line = " ".join(f"{'L' if i else 'M'}{x} {y}" for i, (x, y) in enumerate(points))
        mark = ' marker-end="url(#head)"' if head else ""
        self.add(part, f'<path class="{kind}" d="{line}"{mark}/>')

    def attention(self, x, y, part, words, note, source=None):
        """Draws an attention, whose upper edge is at `y`, and its queries, keys and values."""
        self.box(part, x, y, 46, "attention", words, "layers.MultiHeadAttention", note)
        below = y + 46
        for name, place in (("V", -60), ("K", 0), ("Q", 60)):
            if source is None:
                self.arrow(part, (x, below + 38), (x + place, below + 26), (x + place, below + 1))
            elif name == "Q":
                self.arrow(part, (x + place, below + 38), (x + place, below + 1))
            else:
                self.arrow(part, source, (x + place, source[1]), (x + place, below + 1))
            self.text(part, x + place + 10, below + 16, name, 11)

    def residual(self, x, y, side, start, aside=0):
        """Draws a sum and its norm, whose upper edge is at `y`, and the connection round the sublayer from `start`."""
        self.box("residual", x, y, 30, "residual", "Add and norm", "layers.Residual")
        outside = x + side * (HALF + 28)
        self.arrow(
            *("residual", (x + aside, start), (outside, start), (outside, y + 15), (x + side * HALF, y + 15)),
            kind="skip",
        )

    def feed_forward(self, x, y):
        """Draws a feed-forward network, whose upper edge is at `y`."""
        self.box("feed", x, y, 36, "feed", "Feed-forward network", "layers.FeedForward")
        self.arrow("feed", (x, y + 58), (x, y + 37))

    def inputs(self, x, words, shape):
        """Draws ids, embeddings and positions."""
        self.text("embedding", x, 892, words)
        self.arrow("embedding", (x, 878), (x, 857))
        self.box("embedding", x, 820, 36, "embedding", "Embedding", "layers.TokenEmbedding")
        self.arrow("positions", (x, 820), (x, 801))
        self.box("positions", x, 764, 36, "positions", "Positions", "layers.PositionalEncoding")
        self.text("embedding", x + 8, 754, shape, 10, "start")

    def drawn(self):
        """Draws all of it, from the ids below to the next token above. Returns the SVG."""
        for x, top, words, name in (
            (LEFT, 440, "encoder, N layers", "EncoderLayer"),
            (RIGHT, 316, "decoder, N layers", "DecoderLayer"),
        ):
            frame = f'<rect class="frame" x="{x - 155}" y="{top}" width="310" height="{745 - top}" rx="12"/>'
            self.add("layers", f"<g><title>layers.{name}</title>{frame}</g>")
            self.text("layers", x - 155, top - 8, words, 13, "start")
        self.inputs(LEFT, "source: token ids", "(batch, source, d_model)")
        self.inputs(RIGHT, "target so far, shifted right: token ids", "(batch, target, d_model)")
        # The encoder
        self.arrow("layers", (LEFT, 764), (LEFT, 712), head=False)
        self.attention(LEFT, 628, "self", "Self-attention", "padding mask")
        self.arrow("residual", (LEFT, 628), (LEFT, 611))
        self.residual(LEFT, 580, -1, 724)
        self.feed_forward(LEFT, 522)
        self.arrow("residual", (LEFT, 522), (LEFT, 505))
        self.residual(LEFT, 474, -1, 566)
        memory = (RIGHT - 200, 563)
        self.arrow("memory", (LEFT, 474), (LEFT, 422), (memory[0], 422), memory, head=False)
        self.text("memory", memory[0], 414, "memory")
        # The decoder
        self.arrow("layers", (RIGHT, 764), (RIGHT, 712), head=False)
        self.attention(RIGHT, 628, "self", "Masked self-attention", "look-ahead mask")
        self.arrow("residual", (RIGHT, 628), (RIGHT, 611))
        self.residual(RIGHT, 580, 1, 724)
        self.attention(RIGHT, 496, "cross", "Cross-attention", "padding mask of the source", memory)
        self.arrow("residual", (RIGHT, 496), (RIGHT, 479))
        self.residual(RIGHT, 448, 1, 570, aside=60)
        self.feed_forward(RIGHT, 390)
        self.arrow("residual", (RIGHT, 390), (RIGHT, 373))
        self.residual(RIGHT, 342, 1, 434)
        # The next token
        self.arrow("output", (RIGHT, 342), (RIGHT, 265))
        self.box(
            "output",
            RIGHT,
            222,
            42,
            "embedding",
            "Logits",
            "layers.TokenEmbedding",
            "(batch, target, vocabulary)",
        )
        self.arrow("output", (RIGHT, 222), (RIGHT, 203))
        self.box(
            "output", RIGHT, 160, 42, "attention", "Softmax", "losses.MaskedCrossentropy", "probabilities"
        )
        self.arrow("search", (RIGHT, 160), (RIGHT, 141))
        self.box("search", RIGHT, 98, 42, "output", "Next token", "decoding.Beam", "Greedy, Beam, Sample")
        again = (RIGHT, 98), (RIGHT, 76), (784, 76), (784, 888), (RIGHT + 132, 888)
        self.arrow("search", *again, kind="again")
        self.text("search", RIGHT + 10, 70, "the next turn", 12, "start")
        head = (
            '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" orient="auto" markerUnits="userSpaceOnUse" '
            'markerWidth="11" markerHeight="11"><path class="head" d="M0 0L10 5L0 10z"/></marker>'
        )
        role = "group" if self.linked else "img"  # a screen reader does not see what an img holds
        return (
            f'<svg class="t" viewBox="0 {TOP} {WIDTH} {HEIGHT - TOP}" role="{role}" aria-label="{self.word(TITLE)}" '
            f'xmlns="http://www.w3.org/2000/svg"><style>{style()}</style><defs>{head}</defs>'
            f'<rect x="0" y="{TOP}" width="{WIDTH}" height="{HEIGHT - TOP}" style="fill:var(--paper)"/>\n'
            + "\n".join(self.elements)
            + "\n</svg>\n"
        )


def main():
    """Writes all pictures."""
    for korean in (False, True):
        ending = ".ko" * korean
        for chapter, shown in CHAPTERS.items():
            name = "transformer" if chapter is None else f"transformer_{chapter}"
            picture = Picture(korean, shown, linked=False).drawn()
            (IMAGES / f"{name}{ending}.svg").write_text(picture, encoding="utf-8")
        page = f'<figure class="architecture">\n{Picture(korean, None, linked=True).drawn()}</figure>\n'
        (IMAGES / f"architecture{ending}.html").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
