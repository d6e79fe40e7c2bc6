"""Builds the site of the documents and checks its links.

    python docs/build_site.py [--languages en,ko] [--output docs/_build/html] [--quick]

The English site is in the output folder, each other language in a folder of its own below it. Errors are a warning of
Sphinx, a link inside the site that leads to no page or no anchor, and a catalogue that lacks a translation. Links to
other sites are checked for their form only: nothing is loaded from the network. The chapters of the course are shown as
`make course` executed them; with `--quick` a chapter that was not executed has a page that says so. A site with all
chapters is also an archive, docs/_build/site.zip. Their notebooks and the program that checks a student's answer are
notebooks.zip beside it.
"""

import argparse
import functools
import html.parser
import json
import re
import shutil
import sys
import time
import urllib.parse
from pathlib import Path

from babel.messages.pofile import read_po
from sphinx.cmd.build import main as sphinx

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
COURSE = ROOT / "course"
RUN = ROOT / "demo" / "run"  # of `make demo`
DOWNLOADS = {"en": "Download this chapter as a notebook", "ko": "이 장을 노트북으로 내려받기"}
FOLDED = {  # on the fold over code that draws, or that an earlier chapter explained
    "en": ("Show this code", "Hide this code"),
    "ko": ("코드 보기", "코드 숨기기"),
}
NOT_EXECUTED = {
    "en": "This chapter is not executed here. `make docs` executes it, and shows its pictures and results.",
    "ko": "이 장은 여기서 실행하지 않았습니다. `make docs`가 실행하고 그림과 결과를 보여 줍니다.",
}
UNCHANGED = re.compile(r"`[^`]+`"), re.compile(r"\]\(([^)]*)\)")  # code and links of a translation
WITHOUT_CACHES = shutil.ignore_patterns("__pycache__")
SCROLLS = re.compile('<(pre(?=[ >])|div(?= class="table-wrapper))')
HOST = re.compile(r"localhost(:\d+)?|[\w-]+(\.[\w-]+)+")
FORWARD = (
    '<!doctype html><meta charset="utf-8"><title>keras_transformer</title>'
    '<meta http-equiv="refresh" content="0; url={0}"><a href="{0}">{0}</a>\n'
)


class Links(html.parser.HTMLParser):
    """Collects the anchors of a page and the addresses that it links to or shows."""

    def __init__(self, text):
        super().__init__()
        self.anchors, self.addresses = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.anchors |= {attributes[name] for name in ("id", "name") if attributes.get(name)}
        for name in ("href", "src", "xlink:href"):
            if attributes.get(name):
                self.addresses.append(attributes[name])


@functools.cache
def links_of(path):
    """Reads a page of the site once."""
    return Links(path.read_text(encoding="utf-8"))


def broken_links(site):
    """Yields a message for each link of a site that leads nowhere.

    Args:
        site: The folder of the site, a path.

    Yields:
        str: the page, and the address that is wrong.
    """
    for page in sorted(site.rglob("*.html")):
        for address in dict.fromkeys(links_of(page).addresses):
            parts = urllib.parse.urlsplit(address)
            if parts.scheme in ("http", "https"):
                if not HOST.fullmatch(parts.netloc):
                    yield f"{page.relative_to(site)}: {address} has no host"
            elif not parts.scheme:
                target = (
                    page if not parts.path else (page.parent / urllib.parse.unquote(parts.path)).resolve()
                )
                target = target / "index.html" if target.is_dir() else target
                if not target.is_relative_to(site.resolve()) or not target.is_file():
                    yield f"{page.relative_to(site)}: {address} leads to no page"
                elif parts.fragment and target.suffix == ".html":
                    anchor = urllib.parse.unquote(parts.fragment)
                    if anchor not in links_of(target).anchors:
                        yield f"{page.relative_to(site)}: {address} leads to no anchor"


def catalogue_faults(languages):
    """Yields a message for each text of a catalogue that is not translated, or has other code or links than its source.

    Args:
        languages: Names of languages; one without catalogues has no faults.
    """
    for file in sorted(file for language in languages for file in (DOCS / "locale" / language).rglob("*.po")):
        with open(file, "rb") as stream:
            entries = [entry for entry in read_po(stream) if entry.id]
        for entry in entries:
            same = all(
                sorted(part.findall(entry.id)) == sorted(part.findall(entry.string)) for part in UNCHANGED
            )
            if not entry.string or entry.fuzzy or not same:
                yield f"{file.relative_to(DOCS)}: {entry.id[:80]!r} is not translated, or its code or links differ"


def missing_chapters(languages):
    """Returns the chapters that `make course` has not executed, as `language/name`."""
    return [
        f"{language}/{source.stem}"
        for language in languages
        for source in sorted((COURSE / language).glob("*.py"))
        if not (COURSE / "_build" / language / f"{source.stem}.ipynb").is_file()
    ]


def place_chapters(language):
    """Copies the executed chapters of a language, and the plan, to docs/learn/course; a chapter links to its notebook.

    A chapter that was not executed becomes its first heading and a sentence.
    """
    folder = DOCS / "learn" / "course"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for file in sorted((COURSE / "_build" / language).glob("*.ipynb")):
        notebook = json.loads(file.read_text(encoding="utf-8"))
        link = f"{{download}}`{DOWNLOADS[language]} </{file.relative_to(ROOT).as_posix()}>`"
        notebook["cells"][0]["source"] = ["".join(notebook["cells"][0]["source"]), "\n\n", link]
        for cell in notebook["cells"]:
            if "hide-input" in cell["metadata"].get("tags", ()):
                show, hide = FOLDED[language]
                cell["metadata"]["mystnb"] = {"code_prompt_show": show, "code_prompt_hide": hide}
            if cell.pop("attachments", None):  # the site has the pictures as files
                cell["source"] = "".join(cell["source"]).replace("](attachment:", "](../../images/")
        (folder / file.name).write_text(json.dumps(notebook, ensure_ascii=False), encoding="utf-8")
    shutil.copy(COURSE / language / "plan.md", folder)
    for name in missing_chapters([language]):
        source = COURSE / f"{name}.py"
        heading = re.search(r"(?m)^# (# .+)$", source.read_text(encoding="utf-8"))[1]
        page = f"{heading}\n\n{NOT_EXECUTED[language]}\n"
        (folder / f"{source.stem}.md").write_text(page, encoding="utf-8")


def help_screen_readers(site):
    """Gives the captions of the sidebar a level, and lets the keyboard reach code and tables that scroll.

    Sphinx does neither.
    """
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        text = text.replace(
            '<p class="caption" role="heading">', '<p class="caption" role="heading" aria-level="2">'
        )
        page.write_text(SCROLLS.sub(r'<\1 tabindex="0"', text), encoding="utf-8")


def write_viewer(language, output):
    """Writes the attention viewer with the demo's model, for the first page of the site; `make demo` trains it."""
    sys.path.insert(0, str(ROOT / "examples"))
    from demo import SENTENCES

    from keras_transformer import plots, serving

    page = plots.attention(serving.load(RUN), list(SENTENCES), precision="int8", language=language)
    page.save(output / "docs" / "live_viewer.html")


def build(language, output):
    """Builds one language of the site; returns Sphinx's exit code."""
    place_chapters(language)
    cache = DOCS / "_build" / "doctrees" / language
    options = [
        "-W",
        "--keep-going",
        "-q",
        "-T",
        "-j",
        "auto",
        "-D",
        f"language={language}",
        "-D",
        f"live_viewer={int(RUN.is_dir())}",
        "-d",
        str(cache),
        "-c",
        str(DOCS),
    ]
    return sphinx([*options, "-b", "html", str(ROOT), str(output)])


def main(arguments=None):
    """Builds and checks the site; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--languages", default="en,ko", help="languages, the first one at the top")
    parser.add_argument("--output", default=DOCS / "_build" / "html", type=Path, help="folder of the site")
    parser.add_argument(
        "--quick", action="store_true", help="build it without the chapters that were not executed"
    )
    options = parser.parse_args(arguments)
    first, *others = options.languages.split(",")
    began = time.perf_counter()
    missing = missing_chapters((first, *others))
    if missing and not options.quick:
        print(f"Not executed yet: {', '.join(missing)}. Run `make course` first.", file=sys.stderr)
        return 1
    if faults := list(catalogue_faults((first, *others))):
        print("\n".join(faults), file=sys.stderr)
        return 1
    # A page of the reference does not know that a docstring changed, so all pages are written anew.
    for old in (options.output, DOCS / "_build" / "doctrees", DOCS / "reference" / "generated"):
        shutil.rmtree(old, ignore_errors=True)
    for language in (first, *others):
        output = options.output if language == first else options.output / language
        if code := build(language, output):
            return code
        if RUN.is_dir():
            write_viewer(language, output)
        (output / "index.html").write_text(FORWARD.format("docs/index.html"), encoding="utf-8")
    help_screen_readers(options.output)
    wrong = list(broken_links(options.output.resolve()))
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    if not wrong and not missing:
        shutil.make_archive(DOCS / "_build" / "site", "zip", options.output)
        shutil.copy(COURSE / "check.py", COURSE / "_build")
        shutil.copytree(
            COURSE / "checks", COURSE / "_build" / "checks", ignore=WITHOUT_CACHES, dirs_exist_ok=True
        )
        shutil.make_archive(DOCS / "_build" / "notebooks", "zip", COURSE / "_build")
    pages = sum(1 for _ in options.output.rglob("*.html"))
    print(
        f"{pages} pages in {options.output}, {len(wrong)} links lead nowhere, {time.perf_counter() - began:.0f} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
