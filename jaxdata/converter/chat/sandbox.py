"""A sandbox for untrusted Jinja templates: no escape, and a limit on everything.

Jinja's sandbox keeps a template from reaching Python, but does not limit how much it may
do: here every turn of a loop, call and filter is paid from one allowance, by the size of what it
works on, and nothing may grow beyond a limit. Both count, so they do not depend on the machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sized
from functools import wraps
from itertools import islice
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from jaxdata.converter.chat.sandbox_limits import (
    LONGEST,
    TOO_LARGE,
    check_operation,
    check_use,
    check_written,
)

OPEN, CLOSE = "\ufdd0", "\ufdd1"  # around {% generation %} blocks: code points that are no text
_ALLOWANCE = 2_000_000  # some seconds at worst, and 128 MiB of text
_CALL = 10
_CHARACTERS = 64  # that are paid with one
_UNWANTED = ("random", "urlize", "wordwrap", "pprint", "filesizeformat")


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment as transformers makes it for chat templates, with limits."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", Generation],
            finalize=self._written,
        )
        kept = {name: self.globals[name] for name in ("range", "dict", "namespace", "joiner")}
        self.globals = kept | {"raise_exception": _raise}
        self.filters["tojson"] = _tojson
        self.filters = {
            name: self._paid(name, function)
            for name, function in self.filters.items()
            if name not in _UNWANTED
        }
        self.filters |= {"_turns": self._turns, "_within": self._within, "_joined": self._joined}
        self._left = _ALLOWANCE
        self._turn = 1

    def compiled(self, source: str) -> Callable[[Mapping[str, Any]], str]:
        """Return the function from variables to text; raises TemplateError where it cannot be."""
        self._turn = 1 + len(source) // _CHARACTERS  # no more than the source is written in one
        template = self.from_string(_Limits().visit(self.parse(source)))

        def render(variables: Mapping[str, Any]) -> str:
            self._left = _ALLOWANCE
            return str(self._within(template.render(variables)))

        return render

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """See Jinja; a call is paid for, and limited, like everything else."""
        given = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        if isinstance(given, str):
            check_use(obj.__name__, (given, *args, *kwargs.values()))
        self._pay(given, *args, more=self._turn)
        return self._within(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """See Jinja: an operation whose result would be too large is refused before it is done."""
        check_operation(operator, left, right)
        self._pay(left, right)
        return super().call_binop(context, operator, left, right)

    def _paid(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def paid(*args: Any, **kwargs: Any) -> Any:
            check_use(name, (*args, *kwargs.values()))
            self._pay(*args)
            return self._within(function(*args, **kwargs))

        return paid

    def _written(self, value: Any) -> Any:
        """What an expression writes."""
        check_written(value)
        self._pay(value, more=-_CALL)
        return value

    def _pay(self, *values: Any, more: int = 0) -> None:
        sizes = (len(value) for value in values if isinstance(value, str | list | dict | tuple))
        self._left -= _CALL + sum(sizes) // _CHARACTERS + more
        if self._left < 0:
            raise SecurityError("it does more than a conversation can need")

    def _within(self, value: Any) -> Any:
        if isinstance(value, str | list | tuple | dict) and len(value) > LONGEST:
            raise SecurityError(TOO_LARGE)
        return value

    def _turns(self, values: Any) -> Any:
        """What a loop goes over, all turns paid."""
        if not isinstance(values, Sized):
            values = list(islice(values, self._left // self._turn + 1))
        self._pay(more=len(values) * self._turn)
        return values

    def _joined(self, values: list[Any]) -> Any:
        """What `~` does."""
        self._pay(*values)
        return self._within("".join(map(str, values)))


class Generation(Extension):
    """`{% generation %} … {% endgeneration %}`: what is between is the assistant's."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        marks = [nodes.Output([nodes.TemplateData(mark)], lineno=line) for mark in (OPEN, CLOSE)]
        return [marks[0], *body, marks[1]]


class _Limits(NodeTransformer):
    """Puts a filter of ours around what loops go over, and what is joined and set."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja's name
        node.iter = _filtered(node.iter, "_turns")
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return self.generic_visit(_filtered(parts, "_joined"))

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:  # noqa: N802
        node.filter = _filtered(node.filter, "_within", node.lineno)
        return self.generic_visit(node)


def _filtered(node: Any, name: str, line: int | None = None) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno if node else line)


def _tojson(value: Any, indent: int | None = None, **options: Any) -> str:
    """As transformers does: readable in any script, no HTML escapes."""
    if isinstance(value, Undefined):
        raise TemplateError("tojson of something undefined")
    check_written(value, indent, *options.get("separators") or ())
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _raise(message: str) -> None:
    raise TemplateError(message)
