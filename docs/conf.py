"""Settings of Sphinx.

The source folder is the repository, so that links between `docs` and `benchmarks` work on a code site, too.
"""

import functools
import inspect
import os
import posixpath
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS))

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from babel.messages.pofile import read_po
from docutils import nodes
from public_names import reference_context
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective
from sphinx.util.i18n import search_image_for_language
from sphinx.util.nodes import extract_messages

from keras_transformer.cli.parser import make_parser
from keras_transformer.version import __version__

logger = logging.getLogger(__name__)
project = "keras_transformer"
author = "the keras_transformer contributors"
copyright = author
release = version = __version__
language = "en"

extensions = [
    "myst_nb",  # Markdown, and the executed chapters of the course
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "formulas",
]
html_math_renderer = "mathml"
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "benchmarks/*.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
]
exclude_patterns = [
    ".*",
    "docs/_build",
    "docs/_templates",
    "docs/locale",
    "tests",
    "keras_transformer",
    "examples",
    "demo",
]
templates_path = [str(DOCS / "_templates")]  # Sphinx takes them from two folders
myst_enable_extensions = ["dollarmath", "attrs_inline"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # `make course` executes them
nb_merge_streams = True
nb_output_stderr = "remove"
IN_ENGLISH = {"ko": " (영어)"}  # after a link to a page that is not translated
# Tables of texts in several languages.
QUOTES = ("docs/learn/terms", "benchmarks/multi30k", "benchmarks/korean_english")
WORD = re.compile(r"\b[A-Za-z][a-z]+\b")
NOT_PROSE = re.compile(r"`[^`]*`|\]\([^)]*\)|[\uac00-\ud7a3].*", re.DOTALL)
SIDEBAR = re.compile(r'<li class="toctree-l1[^>]*><a [^>]*href="([^"]*)">.*?(?=</a>)')  # its first level
LIVE_VIEWER = {
    "en": (
        "Type a Korean sentence:",
        "the demo's model translates it in this page. It knows 479 word forms, such as those of the list.",
        "All heads and numbers",
    ),
    "ko": (
        "한국어 문장을 써 보세요.",
        "데모의 모델이 이 페이지 안에서 번역합니다. 목록의 문장처럼 479개 어형만 압니다.",
        "모든 헤드와 숫자 보기",
    ),
}
VIEWER = "live_viewer.html"
SOLUTION = {"en": ("Show a solution", "Hide the solution"), "ko": ("풀이 보기", "풀이 숨기기")}

autosummary_generate = True
autosummary_context = reference_context()
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [
    ("Call arguments", "params_style"),
    ("Attributes", "params_style"),
    ("Returns of a call", "returns_style"),
]
default_role = "code"

html_theme = "furo"
html_title = "keras_transformer"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = [("motion.js", {"defer": "defer"})]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
html_context = {"languages": {"en": "English", "ko": "한국어"}}
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "languages.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_search_language = "en"

locale_dirs = [str(DOCS / "locale")]
gettext_compact = False
gettext_uuid = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


class LiveViewer(SphinxDirective):
    """Shows the attention viewer with the demo's model in a frame; without that model, nothing.

    `build_site.py` writes the page beside the one that shows it.
    """

    def run(self):
        if not self.config.live_viewer:
            return []
        label, note, more = LIVE_VIEWER[self.config.language]
        frame = (
            f'<p class="viewer"><strong>{label}</strong> {note} <a href="{VIEWER}">{more}</a></p>'
            f'<iframe class="viewer" src="{VIEWER}?short" title="{label}" sandbox="allow-scripts"></iframe>'
        )
        return [nodes.raw("", frame, format="html")]


class CommandHelp(SphinxDirective):
    """Writes the help of each command of `keras-transformer`, in a section for each."""

    def run(self):
        os.environ["COLUMNS"] = "84"
        parser = make_parser()
        sections = []
        for name, command in _commands(parser).items():
            section = nodes.section(ids=[f"command-{name}"], names=[name])
            section += nodes.title(name, name)
            section += nodes.literal_block(command.format_help(), command.format_help(), language="text")
            sections.append(section)
        return sections


def _commands(parser):
    """The parsers of the commands by their names."""
    return next(action.choices for action in parser._actions if isinstance(action.choices, dict))


def _skip(app, what, name, item, skip, options):
    """Leaves out attributes whose value is a class: Sphinx's Korean "alias of" is broken markup."""
    return True if isinstance(item, type) else None


def _code_blocks(app, what, name, item, options, lines):
    """Turns the fenced code of a docstring into reStructuredText."""
    fenced = False
    for i, line in enumerate(lines):
        if line.strip().startswith("```"):
            lines[i] = "" if fenced else f"{line[: line.index('`')]}.. code-block:: python"
            lines[i + 1 : i + 1] = [""]
            fenced = not fenced
        elif fenced and line:
            lines[i] = f"    {line}"


def _signature(app, what, name, item, options, signature, returned):
    """Gives a class the signature of its constructor; Keras's layers have a `__new__` that takes anything."""
    if isinstance(item, type) and "__init__" in vars(item):
        parameters = list(inspect.signature(item.__init__).parameters.values())[1:]
        return str(inspect.Signature(parameters)), None
    return None


def _name_solutions(app, config):
    """Labels hidden cells: they hold the solutions of the exercises."""
    config.nb_code_prompt_show, config.nb_code_prompt_hide = SOLUTION[config.language]


def _files_in_their_language(app, document, source):
    """Includes `NAME.ko.html` for `NAME.html` on the Korean site; Sphinx itself shows `NAME.ko.png` for `NAME.png`."""
    source[0] = re.sub(
        r"(?<=:file: )\S+", lambda found: search_image_for_language(found[0], app.env), source[0]
    )


def _is_translated(app, name):
    """Returns whether a page is in the language of the site."""
    catalog = DOCS / "locale" / app.config.language / "LC_MESSAGES" / f"{name}.po"
    return app.config.language == "en" or name.startswith("docs/learn/course/") or catalog.exists()


@functools.cache
def _messages(catalog):
    """Returns the texts that a catalogue translates, a set."""
    with open(catalog, "rb") as stream:
        return {entry.id for entry in read_po(stream)}


def _leave_out_of_search(app, document):
    """Lets the search find the titles alone of pages that name everything: answers stand in other pages."""
    name = app.env.docname
    if name.startswith("docs/decisions") or name in ("CHANGELOG", "benchmarks/tried"):
        app.env.metadata[name]["nosearch"] = ""


def _warn_of_english(app, document):
    """Warns of each sentence of a translated page that its catalogue lacks: the page would show it in English.

    Numbers and names need no translation. The examples of the benchmarks and the terms are in their own languages.
    """
    name = app.env.docname
    catalog = DOCS / "locale" / app.config.language / "LC_MESSAGES" / f"{name}.po"
    if app.config.language == "en" or name in QUOTES or not catalog.exists():
        return
    for node, message in extract_messages(document):
        is_english = node.get("translated") is False and message not in _messages(catalog)
        if is_english and len(WORD.findall(NOT_PROSE.sub("", message))) > 2:
            logger.warning("%s lacks %.100r", catalog.relative_to(DOCS), message, location=node)


def _target(name, address):
    """Returns the page that a link of the page `name` leads to."""
    path = address.partition("#")[0].removesuffix(".html")
    return posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name


def _mark_links(app, document, name):
    """Marks links from a translated page to an English one."""
    if app.config.language == "en" or not _is_translated(app, name):
        return
    for link in document.findall(nodes.reference):
        address = link.get("refuri", "").partition("#")[0]
        target = _target(name, address)
        mark = IN_ENGLISH[app.config.language]
        is_toc = link.get("anchorname") is not None
        leads_to_page = link.get("internal") and address and not is_toc
        if leads_to_page and not _is_translated(app, target) and not link.astext().endswith(mark):
            link += nodes.Text(mark)


def _mark_sidebar(app, name, template, context, document):
    """Marks the English pages in the sidebar of a translated site; the pages below one of them have no mark."""
    if app.config.language == "en":
        return

    def marked(entry):
        translated = _is_translated(app, _target(name, entry[1]))
        return entry[0] if translated else entry[0] + IN_ENGLISH[app.config.language]

    context["furo_navigation_tree"] = SIDEBAR.sub(marked, context["furo_navigation_tree"])


def setup(app):
    """Connects this file's functions."""
    app.connect("doctree-read", _leave_out_of_search)
    app.connect("doctree-read", _warn_of_english)
    app.connect("doctree-resolved", _mark_links)
    app.connect("html-page-context", _mark_sidebar, priority=600)  # after the theme, at 500
    app.connect("source-read", _files_in_their_language)
    app.connect("config-inited", _name_solutions)
    app.connect("autodoc-process-docstring", _code_blocks, priority=100)  # before Napoleon, at 500
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-signature", _signature)
    app.add_directive("command-help", CommandHelp)
    app.add_directive("live-viewer", LiveViewer)
    app.add_config_value("live_viewer", False, "env", types=[bool])
