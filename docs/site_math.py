"""Formulas as MathML: browsers draw it themselves, so pages need no script and no network."""

from docutils.nodes import SkipNode
from latex2mathml.converter import convert


def visit_inline(translator, node):
    translator.body.append(convert(node.astext()))
    raise SkipNode


def visit_block(translator, node):
    formula = convert(node.astext(), display="block")
    translator.body.append(f'<div class="formula">{formula}</div>\n')
    raise SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    return {"parallel_read_safe": True}
