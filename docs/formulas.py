"""Formulas of the site as MathML, which browsers draw themselves: no script, and no load from the network.

Without a network MathJax, Sphinx's own way, would show the source of each formula.
"""

from docutils import nodes
from latex2mathml.converter import convert


def _inline(translator, node):
    """Writes a formula inside a sentence."""
    translator.body.append(f'<span class="math">{convert(node.astext())}</span>')
    raise nodes.SkipNode


def _block(translator, node):
    """Writes a formula of its own line."""
    translator.body.append(f'<div class="math" tabindex="0">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app):
    """Adds the renderer `mathml`."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True}
