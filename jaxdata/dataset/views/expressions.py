"""Expressions over fields of documents, as in `--where "lang == 'en' and score > 0.7"`.

Python's parser reads them, its `eval` is never called: each of the few forms that are known here
becomes a call of Arrow's compute functions, on the values of many documents at once. A comparison
with a missing value is neither true nor false, as in SQL.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
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
_METHODS: dict[str, tuple[int, Callable[..., Any], Any]] = {
    "lower": (0, pc.utf8_lower, pa.string()),
    "upper": (0, pc.utf8_upper, pa.string()),
    "startswith": (1, pc.starts_with, pa.bool_()),
    "endswith": (1, pc.ends_with, pa.bool_()),
}
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
        known = getattr(self, f"_{type(tree).__name__}", None)
        if known is None:
            raise self._unknown(tree)
        return known(tree)

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

    def _Constant(self, tree: ast.Constant) -> Values:  # noqa: N802 - named after its node
        if not isinstance(tree.value, str | int | float | bool | None):
            raise self._unknown(tree)
        try:
            return pa.scalar(tree.value)
        except (pa.ArrowException, OverflowError):
            raise self._unknown(tree) from None

    def _BoolOp(self, tree: ast.BoolOp) -> Values:  # noqa: N802
        function = pc.and_kleene if isinstance(tree.op, ast.And) else pc.or_kleene
        found = self._truth(tree.values[0])
        for each in tree.values[1:]:
            found = self._call(tree, pa.bool_(), function, found, self._truth(each))
        return found

    def _truth(self, tree: ast.AST) -> Values:
        found = self.of(tree)
        return found.cast(pa.bool_()) if pa.types.is_null(found.type) else found

    def _UnaryOp(self, tree: ast.UnaryOp) -> Values:  # noqa: N802
        if isinstance(tree.op, ast.Not):
            return self._call(tree, pa.bool_(), pc.invert, self._truth(tree.operand))
        if isinstance(tree.op, ast.USub):
            return self._call(tree, pa.float64(), pc.negate, self.of(tree.operand))
        raise self._unknown(tree)

    def _BinOp(self, tree: ast.BinOp) -> Values:  # noqa: N802
        function = _COMPUTE.get(type(tree.op))
        if function is None:
            raise self._unknown(tree)
        left, right = self.of(tree.left), self.of(tree.right)
        if isinstance(tree.op, ast.Div) and pa.types.is_integer(left.type):
            left = left.cast(pa.float64())  # Arrow divides integers without their remainder
        return self._call(tree, pa.float64(), function, left, right)

    def _Compare(self, tree: ast.Compare) -> Values:  # noqa: N802
        found, left = None, tree.left
        for operator, right in zip(tree.ops, tree.comparators, strict=True):
            one = self._compared(tree, operator, left, right)
            found = one if found is None else pc.and_kleene(found, one)
            left = right
        return found

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
        if isinstance(right, ast.Tuple | ast.List | ast.Set):
            equal = (self._compared(tree, ast.Eq(), left, each) for each in right.elts)
            found = next(equal, pa.scalar(False))
            for each in equal:
                found = pc.or_kleene(found, each)
            return found
        if isinstance(left, ast.Constant) and isinstance(left.value, str):
            text = left.value
            return self._call(
                tree, pa.bool_(), lambda of: pc.match_substring(of, text), self.of(right)
            )
        raise self._unknown(tree)

    def _Call(self, tree: ast.Call) -> Values:  # noqa: N802
        of, given = tree.func, tree.args
        if isinstance(of, ast.Name) and of.id == "len" and len(given) == 1 and not tree.keywords:
            return self._call(tree, pa.int64(), pc.utf8_length, self.of(given[0]))
        known = _METHODS.get(of.attr) if isinstance(of, ast.Attribute) else None
        texts = [each.value for each in given if isinstance(each, ast.Constant)]
        if known is None or len(texts) != known[0] or tree.keywords or len(given) != known[0]:
            raise self._unknown(tree)
        if not all(isinstance(text, str) for text in texts):
            raise self._unknown(tree)
        _, function, result = known
        assert isinstance(of, ast.Attribute)
        return self._call(tree, result, lambda values: function(values, *texts), self.of(of.value))
