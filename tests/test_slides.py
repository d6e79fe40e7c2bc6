"""The slides of the course: what they show of a chapter, and that they need no network."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="pip install '.[course]'")
pytest.importorskip("sphinx", reason="pip install '.[docs]'")
sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import build_slides  # noqa: E402

PARAGRAPH = "One thing (Luong et al., 2015). Two $a. b$ things. Three things. Four things."


def code(source, tags=(), text=""):
    outputs = [nbformat.v4.new_output("stream", text=text)] if text else []
    return nbformat.v4.new_code_cell(source, outputs=outputs, metadata={"tags": list(tags)})


def chapter():
    picture = nbformat.v4.new_markdown_cell("![a shape](attachment:shape.svg)")
    picture["attachments"] = {"shape.svg": {"image/svg+xml": "PHN2Zy8+"}}
    language = {"name": "python", "pygments_lexer": "ipython3"}
    return nbformat.v4.new_notebook(
        metadata={"language_info": language},
        cells=[
            nbformat.v4.new_markdown_cell(
                f"# 1. Title\n\n{PARAGRAPH}\n\n**What to look at.** First. Second."
            ),
            picture,
            code("import numpy as np\n\nfrom a import b"),
            nbformat.v4.new_markdown_cell("## Part\n\n$$x = 1$$"),
            code("print(6 * 7)", text="42\n"),
            code("draw()", ["hide-input"], "drawn"),
            code("assert 'answer'", ["hide-cell"]),
        ],
    )


def test_a_slide_has_two_sentences_and_the_rest_is_in_its_notes(tmp_path):
    cells = build_slides.deck_of(chapter(), tmp_path).cells
    text = "\n".join(cell.source for cell in cells)
    shown, notes = (
        "\n".join(cell.source for cell in cells if ("revealjs-notes" in cell.source) is in_notes)
        for in_notes in (False, True)
    )
    assert "Two $a. b$ things." in shown and "Three things." not in shown
    assert PARAGRAPH in notes
    assert "**What to look at.** First." in shown
    assert "import numpy" not in text and "answer" not in text, "imports and solutions are left out"
    assert "![a shape](shape.svg)" in shown and (tmp_path / "shape.svg").read_text() == "<svg/>"
    tags = [(cell.source, cell.metadata["tags"]) for cell in cells if cell.cell_type == "code"]
    assert ("print(6 * 7)", ["remove-output"]) in tags and ("print(6 * 7)", ["remove-input"]) in tags
    assert ("draw()", ["remove-output"]) not in tags and ("draw()", ["remove-input"]) in tags
    assert len({cell.id for cell in cells}) == len(cells)


def test_a_full_slide_is_broken():
    deck = build_slides.Deck()
    deck.add_text("# Title\n\n" + "\n\n".join(f"Sentence {i}." for i in range(9)))
    breaks = [cell for cell in deck.cells if "revealjs-break" in cell.source]
    assert len(breaks) == 2


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("sphinx_revealjs"), reason="pip install '.[docs]'")
def test_slides_are_built_in_both_languages_without_the_network(tmp_path, monkeypatch):
    monkeypatch.setattr(build_slides, "COURSE", tmp_path)
    for language in build_slides.LANGUAGES:
        folder = tmp_path / "_build" / language
        folder.mkdir(parents=True)
        nbformat.write(chapter(), folder / "01_title.ipynb")
    assert build_slides.main(["--output", str(tmp_path / "slides"), "--no-pdf"]) == 0
    for language in build_slides.LANGUAGES:
        page = (tmp_path / "slides" / language / "01_title.html").read_text(encoding="utf-8")
        assert f'lang="{language}"' in page and "<aside" in page and "42" in page and "<math" in page
        loaded = re.findall(r'<(?:script|link|img)[^>]* (?:src|href)="([^"]+)"', page)
        assert loaded and not [address for address in loaded if "//" in address]
    assert build_slides.main(["--only", "99", "--output", str(tmp_path / "none")]) == 1
