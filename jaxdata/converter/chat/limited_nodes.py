"""A template's syntax tree with limits in it: filters of ours around what Jinja does by itself."""

from __future__ import annotations

from typing import Any, NamedTuple

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from jaxdata.converter.chat.sandbox_limits import check_result

OPEN, CLOSE = "\ufdd0", "\ufdd1"  # around {% generation %} blocks: code points that are no text
_MOST_NODES = 10_000
_NODES = 4  # that are paid with one
_SHORT = 64  # characters of a literal that is paid with its loop
_CONTAINER = 64  # bytes


class Effort(NamedTuple):
    """What going through a part of a template once costs."""

    allowance: int
    written: int
    """characters of its short literals"""
    made: int
    """bytes of its lists and mappings"""


class Generation(Extension):
    """`{% generation %} … {% endgeneration %}`: what is between is the assistant's."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marks = [nodes.Output([nodes.TemplateData(mark)], lineno=line) for mark in (OPEN, CLOSE)]
        return [marks[0], *body, marks[1]]


def effort(tree: nodes.Node) -> Effort:
    """What it costs to go through a part of a template once."""
    parts = list(tree.find_all(nodes.Node))
    if len(parts) > _MOST_NODES:
        raise SecurityError("it is too long")
    short = (len(part.data) for part in parts if isinstance(part, nodes.TemplateData))
    made = sum(isinstance(part, nodes.List | nodes.Tuple | nodes.Dict) for part in parts)
    written = sum(size for size in short if size <= _SHORT)
    return Effort(1 + len(parts) // _NODES, written, made * _CONTAINER)


class Limits(NodeTransformer):
    """Puts a filter of ours around what is gone over, compared, joined, set, cut or a key."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja's name
        costs = [nodes.Const(cost) for cost in effort(node)]
        node.iter = _filtered(node.iter, "_turns", *costs)
        return self.generic_visit(node)

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Node:  # noqa: N802
        if len(node.data) <= _SHORT:
            return node
        return _filtered(nodes.Const(node.data, lineno=node.lineno), "_literal")

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802
        check_result(node.value)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return self.generic_visit(_filtered(parts, "_joined"))

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802
        node.filter = _filtered(node.filter, "_within", line=node.lineno)
        return self.generic_visit(node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        cuts = isinstance(node.arg, nodes.Slice)
        found = self.generic_visit(node)
        return _filtered(found, "_within") if cuts else found

    def visit_Pair(self, node: nodes.Pair) -> nodes.Node:  # noqa: N802
        if not isinstance(node.key, nodes.Const):
            node.key = _filtered(node.key, "_key")
        return self.generic_visit(node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        if len(node.ops) > 1:
            node.expr = _filtered(node.expr, "_weighed")
            for each in node.ops:
                each.expr = _filtered(each.expr, "_weighed")
        elif not _is_cheap(node.expr, node.ops[0]):
            (operand,) = node.ops
            operator = nodes.Const(operand.op, lineno=node.lineno)
            return self.generic_visit(_filtered(node.expr, "_compared", operator, operand.expr))
        return self.generic_visit(node)


def _is_cheap(left: nodes.Expr, right: nodes.Operand) -> bool:
    """Tell whether a comparison ends at once, whatever a variable is: one with constants does."""
    if right.op in ("in", "notin"):
        return isinstance(right.expr, nodes.List | nodes.Tuple) and all(
            isinstance(item, nodes.Const) for item in right.expr.items
        )
    return isinstance(left, nodes.Const) or isinstance(right.expr, nodes.Const)


def _filtered(node: Any, name: str, *args: nodes.Expr, line: int | None = None) -> nodes.Filter:
    line = node.lineno if node else line
    return nodes.Filter(node, name, list(args), [], None, None, lineno=line)
