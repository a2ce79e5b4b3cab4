"""Expressions over fields of documents, as in `--where "lang == 'en' and score > 0.7"`.

Python's parser reads them, its `eval` is never called: each of the few forms that are known here
becomes a call of Arrow's compute functions, on the values of many documents at once. A comparison
with a missing value is neither true nor false, as in SQL.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from jaxdata.base.errors import InputError

_MOST_CHARACTERS = 10_000
_FORMS = (
    "names of fields, numbers, 'texts', comparisons, in, is None, and, or, not, + - * /, "
    "len(), lower(), upper(), startswith() and endswith()"
)
_COMPARE = {
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
}
_COMPUTE = {ast.Add: pc.add, ast.Sub: pc.subtract, ast.Mult: pc.multiply, ast.Div: pc.divide}
Values = Any
"""an Arrow array with a value for each document, or a scalar for all"""


class Expression:
    """An expression, checked when it is made.

    Args:
        text: what the user wrote.
        option: what messages call it, like `--where`.

    Raises:
        InputError: it is not an expression of the known forms.

    >>> found = Expression("lang == 'en' and score > 0.7", "where")
    >>> sorted(found.names)
    ['lang', 'score']
    >>> fields = {"lang": pa.array(["en", "de", None]), "score": pa.array([0.9, 0.9, 0.8])}
    >>> found.of(fields, 3).to_pylist()
    [True, False, None]
    """

    def __init__(self, text: str, option: str) -> None:
        self.text, self._option = text, option
        try:
            if len(text) > _MOST_CHARACTERS:
                raise ValueError(f"it has more than {_MOST_CHARACTERS:,} characters")
            self._tree = ast.parse(text.strip(), mode="eval").body
            self.names = _names(self._tree)
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            raise InputError(
                f"{option} {text[:200]!r} is no expression ({_cause(error)}): expected one like "
                "\"lang == 'en' and score > 0.7\""
            ) from None
        self.of({name: pa.nulls(0) for name in self.names}, 0)  # refuses unknown forms

    def of(self, fields: Mapping[str, Any], documents: int) -> Any:
        """The value for each of some documents, an Arrow array.

        Args:
            fields: the values of each of `names`, Arrow arrays of (documents,).
            documents: how many there are.

        Raises:
            InputError: a form is unknown, or does not fit the types of its values.
        """
        try:
            found = _Evaluation(fields, self._option).of(self._tree)
        except RecursionError:
            raise InputError(f"{self._option}: the expression is nested too deep") from None
        if isinstance(found, pa.Scalar):
            return pa.array([found.as_py()] * documents, found.type)
        return found


def _cause(error: Exception) -> str:
    return str(getattr(error, "msg", None) or error or type(error).__name__)


def _names(tree: ast.AST) -> set[str]:
    """The fields that an expression names."""
    if (name := _name_of(tree)) is not None:
        return {name}
    inner = list(ast.iter_child_nodes(tree))
    if isinstance(tree, ast.Call):  # the name of a function is none of a field
        called = [tree.func.value] if isinstance(tree.func, ast.Attribute) else []
        inner = [*called, *tree.args]
    return {name for each in inner for name in _names(each)}


def _name_of(tree: ast.AST) -> str | None:
    """The field that a part of an expression is: `lang`, `meta.lang`, `field("x-y")`."""
    if isinstance(tree, ast.Name):
        return tree.id
    if isinstance(tree, ast.Attribute):
        above = _name_of(tree.value)
        return above and f"{above}.{tree.attr}"
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "field":
        given = [each.value for each in tree.args if isinstance(each, ast.Constant)]
        return given[0] if len(given) == 1 and isinstance(given[0], str) else None
    return None


class _Evaluation:
    """The values of the parts of an expression."""

    def __init__(self, fields: Mapping[str, Any], option: str) -> None:
        self._fields, self._option = fields, option

    def of(self, tree: ast.AST) -> Values:
        """The value of a part."""
        if (name := _name_of(tree)) is not None:
            return self._fields[name]
        match tree:
            case ast.Constant(value=str() | int() | float() | None):
                with suppress(pa.ArrowException, OverflowError):
                    return pa.scalar(tree.value)
            case ast.BoolOp(op, values):
                function = pc.and_kleene if isinstance(op, ast.And) else pc.or_kleene
                return self._each(tree, function, map(self._truth, values))
            case ast.UnaryOp(ast.Not(), value):
                return self._call(tree, pa.bool_(), pc.invert, self._truth(value))
            case ast.UnaryOp(ast.USub(), value):
                return self._call(tree, pa.float64(), pc.negate, self.of(value))
            case ast.BinOp(left, op, right) if type(op) in _COMPUTE:
                return self._computed(tree, _COMPUTE[type(op)], self.of(left), self.of(right))
            case ast.Compare(left, operators, values):
                pairs = zip(operators, [left, *values], values, strict=False)
                return self._each(tree, pc.and_kleene, (self._compared(tree, *p) for p in pairs))
            case ast.Call(ast.Name("len"), [value], []):
                return self._call(tree, pa.int64(), pc.utf8_length, self.of(value))
            case ast.Call(ast.Attribute(value, "lower" | "upper" as name), [], []):
                return self._call(tree, pa.string(), getattr(pc, f"utf8_{name}"), self.of(value))
            case ast.Call(
                ast.Attribute(value, "startswith" | "endswith" as name),
                [ast.Constant(value=str() as text)],
                [],
            ):
                function = pc.starts_with if name == "startswith" else pc.ends_with
                return self._call(tree, pa.bool_(), lambda of: function(of, text), self.of(value))
        raise self._unknown(tree)

    def _unknown(self, tree: ast.AST) -> InputError:
        return InputError(
            f"{self._option}: {ast.unparse(tree)!r} cannot be computed; an expression may have "
            f"{_FORMS}"
        )

    def _call(
        self, tree: ast.AST, result: Any, function: Callable[..., Any], *of: Values
    ) -> Values:
        """Call a function of Arrow; of values that are all missing, the result is, too."""
        if any(pa.types.is_null(each.type) for each in of):
            longest = max((len(each) for each in of if isinstance(each, pa.Array)), default=None)
            return pa.scalar(None, result) if longest is None else pa.nulls(longest, result)
        try:
            return function(*of)
        except (pa.ArrowException, TypeError, ValueError):
            types = " and ".join(str(each.type) for each in of)
            raise InputError(
                f"{self._option}: {ast.unparse(tree)!r} cannot be computed of values of type "
                f"{types}"
            ) from None

    def _each(
        self, tree: ast.AST, function: Callable[..., Any], values: Iterable[Values]
    ) -> Values:
        """The function of the first two, of that and the third, and so on."""
        return reduce(lambda one, other: self._call(tree, pa.bool_(), function, one, other), values)

    def _truth(self, tree: ast.AST) -> Values:
        found = self.of(tree)
        return found.cast(pa.bool_()) if pa.types.is_null(found.type) else found

    def _computed(
        self, tree: ast.AST, function: Callable[..., Any], left: Values, right: Values
    ) -> Values:
        if function is pc.divide and pa.types.is_integer(left.type):
            left = left.cast(pa.float64())  # Arrow divides integers without their remainder
        return self._call(tree, pa.float64(), function, left, right)

    def _compared(self, tree: ast.AST, by: ast.cmpop, left: ast.expr, right: ast.expr) -> Values:
        inverted = isinstance(by, ast.NotIn | ast.IsNot)
        if isinstance(by, ast.Is | ast.IsNot):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise self._unknown(tree)
            found = pc.is_null(self.of(left))
        elif isinstance(by, ast.In | ast.NotIn):
            found = self._in(tree, left, right)
        else:
            values = self.of(left), self.of(right)
            return self._call(tree, pa.bool_(), _COMPARE[type(by)], *values)
        return pc.invert(found) if inverted else found

    def _in(self, tree: ast.AST, left: ast.expr, right: ast.expr) -> Values:
        """`lang in ("en", "de")`, and `"/news/" in url`."""
        match left, right:
            case _, ast.Tuple(values) | ast.List(values) | ast.Set(values):
                equal = (self._compared(tree, ast.Eq(), left, each) for each in values)
                return reduce(pc.or_kleene, equal, pa.scalar(False))
            case ast.Constant(value=str() as text), _:
                of = self.of(right)
                return self._call(tree, pa.bool_(), lambda of: pc.match_substring(of, text), of)
        raise self._unknown(tree)
