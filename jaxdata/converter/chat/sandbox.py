"""A sandbox for untrusted Jinja templates: no escape, and a limit on everything.

Jinja's sandbox keeps a template from reaching Python, but does not limit how much it may do.
Here every turn of a loop, call, comparison and filter is paid from one allowance, by the size of
what it works on; what it makes is paid from another; and nothing may grow beyond a limit. All of
them count, so they do not depend on the machine.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from functools import wraps
from itertools import islice
from sys import getsizeof
from typing import Any

from jinja2 import Environment
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.filters import make_attrgetter
from jinja2.nodes import EvalContext
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context, pass_environment

from jaxdata.converter.chat.limited_nodes import CLOSE, OPEN, Effort, Generation, Limits, effort
from jaxdata.converter.chat.sandbox_limits import (
    LONGEST,
    MOST_ITEMS,
    Weights,
    check_json,
    check_operation,
    check_result,
    check_size,
    check_use,
)

__all__ = ["CLOSE", "OPEN", "Sandbox"]

_ALLOWANCE = 2_000_000  # about a second at worst
_BYTES = 96 * 2**20  # of all that a template makes
_WRITTEN = 3 * LONGEST
_LONGEST_SOURCE = 2**17
_CALL = 10
_CHARACTERS = 64  # that are paid with one
_MADE = 96  # bytes of a short text, number or list in a list
_UNWANTED = {"random", "urlize", "wordwrap", "pprint", "filesizeformat"}
_UNWANTED |= {"urlencode", "xmlattr", "striptags", "wordcount"}
_FREE = {"length", "count", "first", "last", "default", "d", "attr"}
_SHALLOW = {"items", "list", "batch", "slice", "reverse", "safe", "map", "_within", "_literal"}
_SHALLOW |= {"select", "reject", "selectattr", "rejectattr"}
"""filters that neither write nor compare the parts of what they are given"""
_COMPARING = {"in", "lower", "upper", "==", "!=", "<", "<=", ">", ">=", "greaterthan", "lessthan"}
_COMPARING |= {"equalto", "eq", "ne", "lt", "le", "gt", "ge"}
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    **{"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "lteq": operator.le},
    **{"gt": operator.gt, "gteq": operator.ge},
    **{"in": lambda one, many: one in many, "notin": lambda one, many: one not in many},
}


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
        kept = {name: self.globals[name] for name in ("range", "dict", "joiner")}
        self.globals = kept | {"namespace": _Namespace, "raise_exception": _raise}
        given = self.filters | {"tojson": _tojson}
        wanted = {name: given[name] for name in given.keys() - _UNWANTED}
        self.filters = {name: self._paid(name, each) for name, each in wanted.items()}
        own = (self._turns, self._within, self._joined, self._compared, self._key, self._weighed)
        self.filters |= {each.__name__: each for each in own}
        self.filters |= {"join": self._paid("", _join), "_literal": _literal}
        self.tests |= {name: self._paid(name, self.tests[name]) for name in _COMPARING}
        self._turn = Effort(1, 0, 0)
        self._begin()

    def _begin(self) -> None:
        self._left, self._bytes, self._unwritten = _ALLOWANCE, _BYTES, _WRITTEN
        self.weights = Weights()

    def compiled(self, source: str) -> Callable[[Mapping[str, Any]], str]:
        """Return the function from variables to text; raises TemplateError where it cannot be."""
        if len(source) > _LONGEST_SOURCE:
            raise SecurityError(f"it is longer than {_LONGEST_SOURCE:,} characters")
        tree = self.parse(source)
        self._turn = effort(tree)
        template = self.from_string(Limits().visit(tree))

        def render(variables: Mapping[str, Any]) -> str:
            self._begin()
            return str(self._within(template.render(variables)))

        return render

    def getitem(self, obj: Any, argument: Any) -> Any:
        """See Jinja; a key is hashed, and named in errors."""
        key = self._key(argument) if isinstance(argument, tuple | list) else argument
        return super().getitem(obj, key)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """See Jinja; a call is paid for, and limited, like everything else."""
        given = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        if isinstance(obj, Macro | LoopContext) or (given is None and obj is not dict):
            self._pay_turns(1, self._turn)
        else:
            args = tuple(map(self._listed, args))
            self._check_method(obj.__name__, given, [*args, *kwargs.values()])
        return self._within(super().call(context, obj, *args, **kwargs))

    def _check_method(self, name: str, given: Any, args: list[Any]) -> None:
        """Pay for a method of a text, number or container, which the others are compared with."""
        self._pay(*args if isinstance(given, dict) else [given, *args], deep=True)
        if isinstance(given, str | int | float):
            check_use(name, (given, *args), self.weights)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """See Jinja: an operation whose result would be too large is refused before it is done."""
        check_operation(operator, left, right, self.weights)
        self._pay(left, right)
        return self._within(super().call_binop(context, operator, left, right))

    def _paid(self, name: str, function: Any) -> Any:
        if name in _FREE:
            return function

        @wraps(function)
        def paid(*args: Any, **kwargs: Any) -> Any:
            own = [*map(self._listed, args)]
            values = [each for each in own if not isinstance(each, _PASSED)] + [*kwargs.values()]
            self._pay(*values, deep=name not in _SHALLOW)
            check_use(name, values, self.weights)
            return self._within(function(*own, **kwargs))

        return paid

    def _listed(self, values: Any, turn: int = 1) -> Any:
        """The items of an iterator, which is gone through once, as a list."""
        if not isinstance(values, Iterator) or isinstance(values, LoopContext):
            return values
        items = list(islice(values, min(self._left // turn, MOST_ITEMS) + 1))
        self._left -= len(items)
        return self._within(items)

    def _written(self, value: Any) -> Any:
        """What an expression writes."""
        size = len(value) if isinstance(value, str) else self.weights.of(value)
        self._unwritten -= size
        self._left -= 1 + size // _CHARACTERS
        self._check()
        return value

    def _pay(self, *values: Any, deep: bool = False) -> None:
        """Pay for work on values; deep is work on their parts."""
        cost = _CALL
        for value in values:
            if isinstance(value, str):
                cost += len(value) // _CHARACTERS
            elif isinstance(value, list | tuple | dict | range):
                cost += 2 * len(value) if deep else len(value) // _CHARACTERS
                if deep:
                    check_size(weight := self.weights.of(value))
                    cost += weight // _CHARACTERS
            elif deep and isinstance(value, Iterable):  # views of dicts
                check_size(self.weights.of(value))
        self._left -= cost
        self._check()

    def _check(self) -> None:
        if self._left < 0:
            raise SecurityError("it does more than a conversation can need")
        if self._bytes < 0 or self._unwritten < 0:
            raise SecurityError("it makes more than a conversation can need")

    def _within(self, value: Any) -> Any:
        """What was made, paid by the bytes of it."""
        if isinstance(value, str | list | tuple | dict | int | bytes):
            check_result(value)
            self._bytes -= getsizeof(value)
            if isinstance(value, list | tuple) and isinstance(next(iter(value), None), _SMALL):
                self._bytes -= _MADE * len(value)
            self._check()
        return value

    def _turns(self, values: Any, *turn: int) -> Any:
        """What a loop goes over, all turns paid."""
        effort = Effort(*turn)
        values = self._listed(values, effort.allowance)
        self._pay_turns(len(values) if isinstance(values, Sized) else 1, effort)
        return values

    def _pay_turns(self, times: int, turn: Effort) -> None:
        self._left -= _CALL + times * turn.allowance
        self._unwritten -= times * turn.written
        self._bytes -= times * turn.made
        self._check()

    def _joined(self, values: list[Any]) -> Any:
        """What `~` does."""
        check_size(sum(map(self.weights.of, values)))
        self._pay(*values)
        return self._within("".join(map(str, values)))

    def _key(self, value: Any) -> Any:
        """A key, whose parts are hashed."""
        return self._weighed(value) if isinstance(value, tuple | list) else value

    def _weighed(self, value: Any) -> Any:
        """What is compared with something, or hashed."""
        self._pay(value, deep=True)
        return value

    def _compared(self, left: Any, name: str, right: Any) -> Any:
        """What `left == right` and the like do."""
        right = self._listed(right)
        self._left -= 1 + self._comparing(left, right, name in ("in", "notin")) // _CHARACTERS
        self._check()
        return _OPERATORS[name](left, right)

    def _comparing(self, left: Any, right: Any, inside: bool) -> int:
        """How many characters are compared, at most."""
        most = self.weights.of(left)
        if not inside:
            return min(most, self.weights.of(right))
        if isinstance(right, str):
            return len(right)
        if isinstance(right, list | tuple):
            most *= len(right)
            return most if most < _CHARACTERS**2 else min(most, self.weights.of(right))
        return most


_PASSED = (Context, EvalContext, Environment)
_SMALL = (str, int, float, list, tuple)


class _Namespace(Namespace):
    """Its parts may change, and hold itself: it is written as nothing but what it is."""

    def __repr__(self) -> str:
        return "<Namespace>"


@pass_environment
def _join(sandbox: Sandbox, values: Any, d: Any = "", attribute: str | int | None = None) -> str:
    """Jinja's filter; a value that is no list, like a text, has its parts joined."""
    between = str(d)
    if attribute is not None:
        values = map(make_attrgetter(sandbox, attribute), values)
    if isinstance(values, str):
        check_result([None] * min(len(values), MOST_ITEMS + 1))
    items = list(values)
    check_use("join", (between, items), sandbox.weights)
    return between.join(map(str, items))


@pass_context
def _literal(_context: Context, text: str) -> str:
    """A long text of the template itself: what is written is counted, not only when compiled."""
    return text


def _tojson(value: Any, indent: int | None = None, **options: Any) -> str:
    """As transformers does: readable in any script, no HTML escapes."""
    if isinstance(value, Undefined):
        raise TemplateError("tojson of something undefined")
    check_json(value, indent, *options.get("separators") or ())
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _raise(message: Any) -> None:
    raise TemplateError(message if isinstance(message, str) else "an error without a text")
