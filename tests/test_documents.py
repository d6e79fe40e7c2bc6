"""The site of the documents: every public name has a page and an example, and a dead link is found."""

import ast
import builtins
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

from public_names import public_names, reference_context  # noqa: E402

needs_sphinx = pytest.mark.skipif(
    not importlib.util.find_spec("sphinx"), reason="Sphinx is not installed: pip install '.[docs]'"
)


def shown_code():
    """All code of the documents and examples in one text."""
    pages = [ROOT / "README.md", *DOCS.glob("*.md"), *(DOCS / "reference").glob("*.md")]
    return "\n".join(map(code_of, pages))


def code_of(page):
    """The Python code of a page, in one text."""
    fences = r"```(?:python|\{code-block\} python)\n(.*?)```"
    return "\n".join(re.findall(fences, page.read_text(encoding="utf-8"), re.DOTALL))


@pytest.mark.parametrize("name", ["plots", "speech"])
def test_each_name_in_the_code_of_a_page_is_defined_or_explained_in_a_comment(name):
    code = code_of(DOCS / f"{name}.md")
    nodes = [*ast.walk(ast.parse(code))]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    known = {(node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)}
    known |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
    known |= {*re.findall(r"`(\w+)`", "".join(re.findall("#.*", code)))}
    assert {node.id for node in names} <= known | {*dir(builtins)}


@pytest.mark.slow
@pytest.mark.tensorflow
def test_every_public_name_has_a_page_and_an_example():
    pages, code = reference_context(), shown_code()
    without = []
    for module, names in public_names().items():
        for name in names:
            item = getattr(importlib.import_module(module), name)
            if name in pages["constants"][module]:
                continue
            assert name in pages["objects"][module]
            docstring = item.__doc__ or ""
            if ">>> " not in docstring and "::\n" not in docstring and not re.search(rf"\b{name}\b", code):
                without.append(f"{module}.{name}")
    assert not without


def test_every_public_module_is_in_the_reference():
    listed = re.findall(
        r"^   (\w+)$", (DOCS / "reference" / "index.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert {f"keras_transformer.{name}" for name in listed} == public_names().keys()


def test_every_page_of_the_site_is_in_a_table_of_contents():
    # The page of decisions lists its records.
    lists = "\n".join((DOCS / name).read_text(encoding="utf-8") for name in ("index.md", "decisions.md"))
    listed = set(re.findall(r"^([\w./-]+)$", lists, re.MULTILINE))
    pages = {
        file.relative_to(DOCS).with_suffix("").as_posix()
        for file in [*DOCS.glob("*.md"), *DOCS.glob("*/*.md")]
    }
    assert pages - listed == {"index"}


def test_every_record_of_a_decision_is_in_the_index():
    files = sorted((DOCS / "decisions").glob("*.md"))
    rows = re.findall(
        r"^\| (\d+) \| ([\w, ]+) \| \[(.+)\]\(decisions/(.+)\) \| ([\d-]{10}) \| (.+) \|$",
        (DOCS / "decisions.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert len(files) > 50 and [row[3] for row in rows] == [file.name for file in files]
    for number, (file, row) in enumerate(zip(files, rows, strict=True), 1):
        _, area, title, name, date, status = row
        text = file.read_text(encoding="utf-8")
        assert row[0] == str(number) and name.startswith(f"{number:04d}-")
        assert text.startswith(f"# {number}. {title}\n\nDate: {date}. Status: {status}. Area: {area}.\n")
        assert re.findall("^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequence"]


def pages_of_the_site():
    """The pages of each kind, a dict from the caption of the sidebar to paths."""
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    groups = re.findall(r":caption: (.+)\n\n([^`]*)```", text)
    return {caption: [DOCS / f"{name}.md" for name in names.split()] for caption, names in groups}


# Nobody reads these from the first line to the last.
LONGER = ("Reference", "Explanation", "Project")


def pages_to_read():
    return [page for kind, pages in pages_of_the_site().items() if kind not in LONGER for page in pages]


@pytest.mark.parametrize("page", pages_to_read(), ids=lambda page: page.stem)
def test_a_page_that_is_read_as_a_whole_is_short(page):
    assert len(page.read_text(encoding="utf-8").split()) <= 1500


def sentences(text):
    """The sentences of a document as lists of words: of its paragraphs, items and cells, without code."""
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    for block in re.split(r"\n\s*\n|\n(?=[-*|#\d])", text):
        for cell in block.split("|"):
            yield from (part.split() for part in re.split(r"(?<=[.!?])\s+", cell.strip()))


def test_few_sentences_are_long():
    counted = [
        (len(words), " ".join(words))
        for page in [*pages_to_read(), ROOT / "README.md"]
        for words in sentences(page.read_text(encoding="utf-8"))
        if len(words) > 2
    ]
    long = [sentence for count, sentence in counted if count > 30]
    assert len(counted) > 1000
    assert len(long) <= len(counted) / 100, "\n".join(long)


@needs_sphinx
def test_a_dead_link_is_found(tmp_path):
    import build_site

    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.html").write_text('<p id="here"><a href="../a.html#there">a</a>', encoding="utf-8")
    (tmp_path / "a.html").write_text(
        '<h1 id="there"><a href="sub/b.html#here">1</a><a href="sub/b.html#gone">2</a><a href="none.html">3</a>'
        '<a href="https://example.org/x">4</a><a href="http:///x">5</a><img src="none.png"><a href="mailto:a@b.c">6</a>'
        '<a href="../outside.html">7</a>',
        encoding="utf-8",
    )
    found = list(build_site.broken_links(tmp_path))
    assert [message.split(": ")[1].split()[0] for message in found] == [
        "sub/b.html#gone",
        "none.html",
        "http:///x",
        "none.png",
        "../outside.html",
    ]


@needs_sphinx
def test_a_translation_that_lost_a_link_is_found(tmp_path, monkeypatch):
    import build_site

    monkeypatch.setattr(build_site, "DOCS", tmp_path)
    (tmp_path / "locale" / "ko").mkdir(parents=True)
    entries = {"a": "ㄱ", "[b](b.md)": "[ㄴ](b.md)", "[c](c.md)": "ㄷ", "`d`": "`e`", "f": ""}
    text = "\n\n".join(f'msgid "{source}"\nmsgstr "{target}"' for source, target in entries.items())
    (tmp_path / "locale" / "ko" / "page.po").write_text(text, encoding="utf-8")
    found = list(build_site.catalogue_faults(["en", "ko"]))
    assert [message.split("'")[1] for message in found] == ["[c](c.md)", "`d`", "f"]


def test_each_catalogue_is_of_a_page_that_translate_updates():
    import translate

    catalogues = DOCS / "locale" / "ko" / "LC_MESSAGES"
    found = {file.relative_to(catalogues).with_suffix("").as_posix() for file in catalogues.rglob("*.po")}
    assert found == {*translate.PAGES, "sphinx"}


def test_each_page_is_translated_or_named_as_english():
    import translate

    pages = [page for pages in pages_of_the_site().values() for page in pages]
    names = {page.resolve().relative_to(ROOT).with_suffix("").as_posix() for page in pages}
    assert {"docs/index", *names} == {*translate.PAGES, *translate.IN_ENGLISH}


@needs_sphinx
@pytest.mark.skipif(
    not list((ROOT / "course" / "_build").glob("*/*.ipynb")), reason="no chapter is executed: make course"
)
@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    command = [sys.executable, str(DOCS / "build_site.py"), "--output", str(tmp_path / "html")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "0 links lead nowhere" in done.stdout
    korean = (tmp_path / "html" / "ko" / "docs" / "index.html").read_text(encoding="utf-8")
    assert "트랜스포머" in korean and "인코더, N층" in korean and "Architecture (영어)</a>" in korean
    if (ROOT / "demo" / "run").is_dir():
        front = (tmp_path / "html" / "docs" / "index.html").read_text(encoding="utf-8")
        assert "live_viewer.html?short" in front
        assert (tmp_path / "html" / "ko" / "docs" / "live_viewer.html").is_file()
    for language, picture in (("", "masks.png"), ("ko/", "masks.ko.png")):
        assert picture in (tmp_path / "html" / f"{language}docs" / "plots.html").read_text(encoding="utf-8")
    page = (
        tmp_path
        / "html"
        / "docs"
        / "reference"
        / "generated"
        / "keras_transformer.layers.MultiHeadAttention.html"
    )
    assert "num_key_value_heads" in page.read_text(encoding="utf-8")


def test_a_picture_in_another_language_stands_beside_the_english_one():
    korean = list((DOCS / "images").glob("*.ko.*"))
    assert len(korean) > 10
    assert all(path.with_name(path.name.replace(".ko.", ".")).is_file() for path in korean)


def test_the_pictures_of_the_model_are_what_their_script_draws(tmp_path, monkeypatch):
    import draw_transformer

    pictures = {
        path.name: path.read_text(encoding="utf-8") for path in draw_transformer.IMAGES.glob("transformer*")
    }
    pictures |= {
        path.name: path.read_text(encoding="utf-8") for path in draw_transformer.IMAGES.glob("architecture*")
    }
    monkeypatch.setattr(draw_transformer, "IMAGES", tmp_path)
    draw_transformer.main()
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == pictures
    # Each Korean picture says all of its words in Korean.
    korean = pictures["transformer.ko.svg"]
    assert all(words in korean for words in draw_transformer.KOREAN.values())
