"""Builds slides of the course from its executed chapters: reveal.js, without the network. `make slides` runs it.

    python docs/build_slides.py [--only 05] [--output docs/_build/slides] [--no-pdf]

A slide shows a heading, the first two sentences of each paragraph, formulas, tables, code and pictures. The whole
paragraphs are the speaker's notes (key S). Solutions are left out. Where Chromium is installed, each chapter becomes a
PDF, too.

Sphinx makes them, as it makes the site: slides of nbconvert load reveal.js and MathJax from other hosts.
"""

import argparse
import base64
import re
import shutil
import sys
from pathlib import Path

import nbformat
import tqdm
from draw_motion import browser
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace

DOCS = Path(__file__).resolve().parent
COURSE = DOCS.parent / "course"
LANGUAGES = ("en", "ko")
TITLES = {"en": "Slides of the course", "ko": "강의 슬라이드"}
ROOM = 14  # lines of a slide
SENTENCE = re.compile(r"(?<=[.?!])(?<!al\.)(?<!e\.g\.)\s+(?=[^\s\d(])")
ONLY_IMPORTS = re.compile(
    r"(\s*(import |from |os\.environ|keras\.utils\.set_random_seed|random = ).*\n?|\s*\n)*"
)
SETTINGS = {
    "extensions": ["myst_nb", "sphinx_revealjs", "formulas"],
    "html_math_renderer": "mathml",
    "myst_enable_extensions": ["dollarmath"],
    "nb_execution_mode": "off",
    "nb_merge_streams": True,
    "nb_mime_priority_overrides": [
        ("revealjs", kind, place) for place, kind in enumerate(("text/html", "image/png", "text/plain"))
    ],
    "suppress_warnings": ["myst.header", "toc.not_included"],
    "revealjs_style_theme": "white",
    "revealjs_static_path": [str(DOCS / "_static")],
    "revealjs_css_files": ["slides.css"],
    "revealjs_script_conf": {"hash": True, "slideNumber": True, "width": 1200, "height": 720},
    "revealjs_script_plugins": [{"src": "revealjs/plugin/notes/notes.js", "name": "RevealNotes"}],
}


class Deck:
    """The slides of a chapter as cells of a notebook. A slide that is full makes room for the next one."""

    def __init__(self):
        self.cells, self.notes, self.used = [], [], 0

    def break_slide(self):
        """Begins a new slide under the same heading, with the notes of the last one below it."""
        self.close()
        self.cells.append(nbformat.v4.new_markdown_cell("```{revealjs-break}\n```"))

    def close(self):
        """Ends a slide with its notes."""
        if self.notes:
            text = "\n\n".join(self.notes)
            self.cells.append(nbformat.v4.new_markdown_cell(f"```{{revealjs-notes}}\n{text}\n```"))
        self.notes, self.used = [], 0

    def add_text(self, source):
        """Adds a cell of text."""
        for block in re.split(r"\n\s*\n", source.strip()):
            if block.startswith("#"):
                self.close()
                shown, lines = block, 2
            else:
                shown, lines = shown_part(block)
                if self.used and self.used + lines > ROOM:
                    self.break_slide()
                if shown != block:
                    self.notes.append(block)
            self.cells.append(nbformat.v4.new_markdown_cell(shown))
            self.used += lines

    def add_code(self, cell):
        """Adds a cell of code, and its results on a slide of their own unless both are short."""
        tags = cell.metadata.get("tags", ())
        if "hide-cell" in tags or ONLY_IMPORTS.fullmatch(cell.source):
            return
        code, outputs = (
            nbformat.v4.new_code_cell(cell.source, outputs=cell.outputs, metadata={"tags": [tag]})
            for tag in ("remove-output", "remove-input")
        )
        if "hide-input" not in tags:
            if self.used:
                self.break_slide()
            self.cells.append(code)
            self.used = code.source.count("\n") + 2
        if cell.outputs:
            lines = sum(lines_of(output) for output in cell.outputs)
            if self.used and self.used + lines > ROOM:
                self.break_slide()
            self.cells.append(outputs)
            self.used += lines


def shown_part(block):
    """Returns what a slide shows of a block of Markdown, and how many lines this takes."""
    if block.startswith("!["):
        return block, 10
    if block.startswith("$$"):
        return block, 3
    if re.match(r"[|-] |\d+\. |\|", block):
        return block, block.count("\n") + 2
    shown, *others = SENTENCE.split(block.replace("\n", " "))
    for count in range(
        len(others)
    ):  # a label such as "**What to look at.**" is no sentence, and a formula stays whole
        if count and not shown.endswith("**") and shown.count("$") % 2 == 0:
            break
        shown = f"{shown} {others.pop(0)}"
    return shown if others else block, 3


def lines_of(output):
    """Returns how many lines a result takes."""
    if "text" in output:
        return output["text"].count("\n") + 1
    return 11


def deck_of(notebook, folder):
    """Returns the slides of a chapter, a notebook; its pictures go to a folder."""
    deck = Deck()
    for cell in notebook.cells:
        for name, kinds in cell.get("attachments", {}).items():
            (folder / name).write_bytes(base64.b64decode("".join(kinds["image/svg+xml"])))
        if cell.cell_type == "markdown":
            deck.add_text(cell.source.replace("](attachment:", "]("))
        else:
            deck.add_code(cell)
    deck.close()
    metadata = {
        name: notebook.metadata[name] for name in ("kernelspec", "language_info") if name in notebook.metadata
    }
    return nbformat.v4.new_notebook(cells=deck.cells, metadata=metadata)


def build(language, only, output):
    """Builds the slides of one language; returns their files."""
    source = output / "source" / language
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir(parents=True)
    names = []
    for file in sorted((COURSE / "_build" / language).glob(f"{only}*.ipynb")):
        nbformat.write(deck_of(nbformat.read(file, 4), source), source / file.name)
        names.append(file.stem)
    if not names:
        return []
    chapters = "\n".join(names)
    page = f"# {TITLES[language]}\n\n```{{toctree}}\n{chapters}\n```\n"
    (source / "index.md").write_text(page, encoding="utf-8")
    settings = {**SETTINGS, "language": language, "project": TITLES[language]}
    folder = output / language
    doctrees = output / "doctrees" / language
    with docutils_namespace():  # another language follows
        app = Sphinx(source, None, folder, doctrees, "revealjs", settings, status=None, warningiserror=True)
        app.build(force_all=True)
    if app.statuscode:
        raise SystemExit(app.statuscode)
    return [folder / f"{name}.html" for name in names]


def print_pdfs(pages, program):
    """Prints slides into PDFs beside them, each when reveal.js says that its slides are laid out."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=program, args=["--disable-background-networking"]
        )
        tab = chromium.new_page()
        # reveal.js says when a deck is laid out. Chromium's `--print-to-pdf` prints too early on a busy machine.
        tab.add_init_script("window.addEventListener('pdf-ready', () => { window.isLaidOut = true; })")
        for page in tqdm.tqdm(pages, unit="deck"):
            tab.goto(f"{page.as_uri()}?print-pdf")
            tab.wait_for_function("window.isLaidOut", timeout=300_000)
            tab.pdf(path=page.with_suffix(".pdf"), prefer_css_page_size=True, print_background=True)
        chromium.close()


def main(arguments=None):
    """Builds the slides; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="beginning of the names of the chapters")
    parser.add_argument(
        "--output", default=DOCS / "_build" / "slides", type=Path, help="folder of the slides"
    )
    parser.add_argument(
        "--pdf", action=argparse.BooleanOptionalAction, default=True, help="print PDFs with Chromium"
    )
    options = parser.parse_args(arguments)
    output = options.output.resolve()
    pages = [page for language in LANGUAGES for page in build(language, options.only, output)]
    if not pages:
        print("No chapter is executed. Run `make course` first.", file=sys.stderr)
        return 1
    program = browser() if options.pdf else None
    if program:
        print_pdfs(pages, program)
    print(f"{len(pages)} decks in {output}, {'with' if program else 'without'} PDF")
    return 0


if __name__ == "__main__":
    sys.exit(main())
