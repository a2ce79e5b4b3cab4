"""Expressions over fields of documents, as in `--where "lang == 'en' and score > 0.7"`.

Python's parser reads them, its `eval` is never called: each of the few forms that are known here
becomes a call of Arrow's compute functions, on the values of many documents at once. A comparison
with a missing value is neither true nor false, as in SQL.
"""

import ast
from collections.abc import Callable, Mapping, Sequence
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
_BOOL, _FLOAT, _TEXT = pa.bool_(), pa.float64(), pa.string()
Values = Any
"""an Arrow array with a value for each document, or a scalar for all"""


def _and(*values: Values) -> Values:
    return reduce(pc.and_kleene, values)


def _or(*values: Values) -> Values:
    return reduce(pc.or_kleene, values, pa.scalar(False))


def _divide(left: Values, right: Values) -> Values:
    if pa.types.is_integer(left.type):
        left = left.cast(_FLOAT)  # Arrow divides integers without their remainder
    return pc.divide(left, right)


_OPERATORS: dict[type[ast.AST], tuple[Callable[..., Values], Any]] = {
    ast.And: (_and, _BOOL),
    ast.Or: (_or, _BOOL),
    ast.Not: (pc.invert, _BOOL),
    ast.USub: (pc.negate, _FLOAT),
    ast.Add: (pc.add, _FLOAT),
    ast.Sub: (pc.subtract, _FLOAT),
    ast.Mult: (pc.multiply, _FLOAT),
    ast.Div: (_divide, _FLOAT),
    ast.Eq: (pc.equal, _BOOL),
    ast.NotEq: (pc.not_equal, _BOOL),
    ast.Lt: (pc.less, _BOOL),
    ast.LtE: (pc.less_equal, _BOOL),
    ast.Gt: (pc.greater, _BOOL),
    ast.GtE: (pc.greater_equal, _BOOL),
}
"""operator -> (function, type of what it returns where all is missing)"""
_LOGIC = (_and, _or, pc.invert)
_METHODS: dict[str, tuple[Callable[..., Values], Any]] = {
    "lower": (pc.utf8_lower, _TEXT),
    "upper": (pc.utf8_upper, _TEXT),
}
_TESTS = {"startswith": pc.starts_with, "endswith": pc.ends_with}


class _Named(dict[str, Any]):
    """Fields without values, which remember their names."""

    def __missing__(self, name: str) -> Any:
        return self.setdefault(name, pa.nulls(0))


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
        self.text, self.option = text, option
        found = _Named()
        try:
            if len(text) > _MOST_CHARACTERS:
                raise ValueError(f"it has more than {_MOST_CHARACTERS:,} characters")
            self._tree = ast.parse(text.strip(), mode="eval").body
            self.of(found, 0)  # refuses unknown forms
        except InputError:
            raise
        except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
            cause = getattr(error, "msg", None) or error or type(error).__name__
            raise InputError(
                f"{option} {text[:200]!r} is no expression ({cause}): expected one like "
                "\"lang == 'en' and score > 0.7\""
            ) from None
        self.names = set(found)

    def of(self, fields: Mapping[str, Any], documents: int) -> Any:
        """The value for each of some documents, an Arrow array.

        Args:
            fields: the values of each of `names`, Arrow arrays of (documents,).
            documents: how many there are.

        Raises:
            InputError: a form is unknown, or does not fit the types of its values.
        """
        found = self._value(self._tree, fields)
        if isinstance(found, pa.Scalar):
            return pa.array([found.as_py()] * documents, found.type)
        return found

    def truth(self, fields: Mapping[str, Any], documents: int) -> Any:
        """Of which documents it holds, an Arrow array of flags: null where it is unknown."""
        found = self.of(fields, documents)
        if not (pa.types.is_boolean(found.type) or pa.types.is_null(found.type)):
            raise InputError(
                f"{self.option} {self.text!r} is of type {found.type}: expected true or false, "
                "such as score > 0.7"
            )
        return found.cast(_BOOL)

    def _value(self, tree: ast.AST, fields: Mapping[str, Any]) -> Values:
        """The value of a part; of values that are all missing, that is missing, too."""
        if (name := _name_of(tree)) is not None:
            return fields[name]
        try:
            if isinstance(tree, ast.Constant) and isinstance(tree.value, str | int | float | None):
                return pa.scalar(tree.value)
            function, result, parts = _call_of(tree)
        except (pa.ArrowException, OverflowError, LookupError):
            raise InputError(
                f"{self.option}: {ast.unparse(tree)!r} cannot be computed; an expression may have "
                f"{_FORMS}"
            ) from None
        values = [self._value(part, fields) for part in parts]
        if function in _LOGIC:
            values = [each.cast(_BOOL) if pa.types.is_null(each.type) else each for each in values]
        elif function is not pc.is_null and any(pa.types.is_null(each.type) for each in values):
            arrays = [len(each) for each in values if isinstance(each, pa.Array)]
            return pa.nulls(arrays[0], result) if arrays else pa.scalar(None, result)
        try:
            return function(*values)
        except (pa.ArrowException, TypeError, ValueError):
            types = " and ".join(str(each.type) for each in values)
            raise InputError(
                f"{self.option}: {ast.unparse(tree)!r} cannot be computed of values of type {types}"
            ) from None


def _call_of(tree: ast.AST) -> tuple[Callable[..., Values], Any, Sequence[ast.expr]]:
    """A part of an expression as a function, the type of its result, and the function's arguments.

    Raises LookupError for a form that is not known.
    """
    match tree:
        case ast.BoolOp(op, values):
            return *_OPERATORS[type(op)], values
        case ast.UnaryOp(op, value):
            return *_OPERATORS[type(op)], [value]
        case ast.BinOp(left, op, right):
            return *_OPERATORS[type(op)], [left, right]
        case ast.Compare(left, [ast.Is()], [ast.Constant(None)]):
            return pc.is_null, _BOOL, [left]
        case ast.Compare(left, [ast.IsNot()], [ast.Constant(None) as none]):
            return pc.invert, _BOOL, [ast.Compare(left, [ast.Is()], [none])]
        case ast.Compare(left, [ast.NotIn()], [right]):
            return pc.invert, _BOOL, [ast.Compare(left, [ast.In()], [right])]
        case ast.Compare(left, [ast.In()], [ast.Tuple(each) | ast.List(each) | ast.Set(each)]):
            return _or, _BOOL, [ast.Compare(left, [ast.Eq()], [one]) for one in each]
        case ast.Compare(ast.Constant(str() as text), [ast.In()], [right]):
            return lambda of: pc.match_substring(of, text), _BOOL, [right]
        case ast.Compare(left, [op], [right]):
            return *_OPERATORS[type(op)], [left, right]
        case ast.Compare(left, ops, values):
            pairs = zip([left, *values], ops, values, strict=False)
            return _and, _BOOL, [ast.Compare(a, [op], [b]) for a, op, b in pairs]
        case ast.Call(ast.Name("len"), [value], []):
            return pc.utf8_length, pa.int64(), [value]
        case ast.Call(ast.Attribute(value, name), [], []):
            return *_METHODS[name], [value]
        case ast.Call(ast.Attribute(value, name), [ast.Constant(str() as text)], []):
            test = _TESTS[name]
            return lambda of: test(of, text), _BOOL, [value]
    raise LookupError


def _name_of(tree: ast.AST) -> str | None:
    """The field that a part of an expression is: `lang`, `meta.lang`, `field("x-y")`."""
    match tree:
        case ast.Name(name) | ast.Call(ast.Name("field"), [ast.Constant(str() as name)], []):
            return name
        case ast.Attribute(value, attribute):
            above = _name_of(value)
            return above and f"{above}.{attribute}"
    return None
