"""Expressions, against Python's own values with SQL's unknown."""

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from jaxdata.base.errors import InputError
from jaxdata.dataset.views.selecting import Expression

TEXTS = ["en", "De", None, "", "en-GB"]
FIELDS: dict[str, list[Any]] = {"n": [1, 2, -3, None, 7], "x": [0.5, None, 2.0, -1.25, 7.0]}
FIELDS |= {"t": TEXTS, "b": [True, False, None, True, False], "m.o": TEXTS, "z": [None] * 5}
Part = tuple[str, list[Any]]
"""an expression, and its value for each of five documents"""
Parts = st.SearchStrategy[Part]


def part(form: str, known: Callable[..., Any], *of: Part) -> Part:
    """A form of parts; its value is unknown where one of theirs is."""
    rows = zip(*(values for _, values in of), strict=True)
    found = [None if None in row else known(*row) for row in rows]
    return form.format(*(text for text, _ in of)), found


def parts(forms: dict[str, Callable[..., Any]], *of: Parts) -> Parts:
    """Any of some forms of parts."""
    return st.tuples(st.sampled_from([*forms.items()]), *of).map(lambda d: part(*d[0], *d[1:]))


def fields(*names: str) -> Parts:
    return st.sampled_from([(name, FIELDS[name]) for name in names])


def constants(*values: Any) -> Parts:
    return st.sampled_from([(repr(value), [value] * 5) for value in values])


def each_and(one: Part, other: Part) -> Part:
    rows = zip(one[1], other[1], strict=True)
    found = [False if False in row else None if None in row else True for row in rows]
    return f"({one[0]} and {other[0]})", found


def inverted(one: Part) -> Part:
    return part("(not {})", operator.not_, one)


def each_or(one: Part, other: Part) -> Part:
    return f"({one[0]} or {other[0]})", inverted(each_and(inverted(one), inverted(other)))[1]


_constant = constants(1, 2, 4, 0.5, -1.25)
_signs = {"({} + {})": operator.add, "({} - {})": operator.sub, "({} * {})": operator.mul}
_texts = st.recursive(
    fields("t", "m.o", "z") | constants("en", "de", "EN", ""),
    lambda inner: parts({"{}.lower()": str.lower, "{}.upper()": str.upper}, inner),
    max_leaves=2,
)
_numbers = st.recursive(
    fields("n", "x", "z") | _constant,
    lambda inner: (
        parts(_signs, inner, inner)
        | parts({"({} / {})": operator.truediv}, inner, _constant)
        | parts({"(-{})": operator.neg}, inner)
    ),
    max_leaves=4,
) | parts({"len({})": len}, _texts)
_compared = {
    "({} == {})": operator.eq, "({} != {})": operator.ne, "({} < {})": operator.lt,
    "({} <= {})": operator.le, "({} > {})": operator.gt, "({} >= {})": operator.ge,
}  # fmt: skip
_edges = ("e", "en", "", "GB")
_edged = {f"{{}}.startswith({e!r})": lambda text, e=e: text.startswith(e) for e in _edges}
_edged |= {f"{{}}.endswith({e!r})": lambda text, e=e: text.endswith(e) for e in _edges}
_edged |= {f"({e!r} in {{}})": lambda text, e=e: e in text for e in _edges}
_edged |= {f"({e!r} not in {{}})": lambda text, e=e: e not in text for e in _edges}


def between(low: Part, middle: Part, high: Part) -> Part:
    both = each_and(part("", operator.lt, low, middle), part("", operator.ge, middle, high))
    return f"({low[0]} < {middle[0]} >= {high[0]})", both[1]


def within(one: Part, among: list[Part], negative: bool) -> Part:
    found = reduce(each_or, (part("", operator.eq, one, each) for each in among), ("", [False] * 5))
    listed = "".join(f"{text}, " for text, _ in among)
    values = inverted(found)[1] if negative else found[1]
    return f"({one[0]} {'not in' if negative else 'in'} ({listed}))", values


def missing(one: Part, negative: bool) -> Part:
    none = [(value is None) is not negative for value in one[1]]
    return f"({one[0]} is {'not ' if negative else ''}None)", none


truths = st.recursive(
    parts(_compared, _numbers, _numbers)
    | parts(_compared, _texts, _texts)
    | parts(_edged, _texts)
    | st.builds(between, _numbers, _numbers, _numbers)
    | fields("b", "z")
    | constants(True, False)
    | st.builds(within, _numbers, st.lists(_constant, max_size=3), st.booleans())
    | st.builds(missing, fields(*FIELDS), st.booleans()),
    lambda one: st.builds(each_and, one, one) | st.builds(each_or, one, one) | one.map(inverted),
    max_leaves=4,
)


@given(truths | _numbers | _texts)
def test_the_value_of_an_expression_is_python_s_where_all_of_it_is_known(part: Part) -> None:
    text, expected = part
    expression = Expression(f" {text} ", "--where")
    known = {n: pa.nulls(5) if n == "z" else pa.array(FIELDS[n]) for n in expression.names}
    found = expression.of(known, 5)
    assert len(found) == 5
    assert found.to_pylist() == expected, text


def refused(text: str, option: str = "--where", **values: Any) -> str:
    with pytest.raises(InputError) as error:
        Expression(text, option).of({name: pa.array(each) for name, each in values.items()}, 1)
    return str(error.value)


UNKNOWN = (
    "--where: {!r} cannot be computed; an expression may have names of fields, numbers, 'texts', "
    "comparisons, in, is None, and, or, not, + - * /, len(), lower(), upper(), startswith() and "
    "endswith()"
)


def test_an_unknown_form_is_named_when_the_expression_is_made() -> None:
    for text in (
        "b'a'", "1j", "~n", "n % 2", "n is 1", "n in m", "1 in t", "len(t, t)", "len(t, x=1)",
        "size(t)", "t.lower('a')", "t.startswith()", "t.startswith('a', m)", "t.title()", "[n]",
        "n if n else n", "t[0]", "field(n)", "f(1)(2)", str(2**70), "__import__('os')",
        "(lambda: 1)()", "[l for l in t]", "f'{t}'", "(x := n)",
    ):  # fmt: skip
        assert refused(text) == UNKNOWN.format(text)


def test_an_expression_names_its_fields() -> None:
    names = Expression("len(a.b) > 1 and field('x-y') == c.lower() and d.e.startswith('f')", "w")
    assert names.names == {"a.b", "x-y", "c", "d.e"}


def test_what_does_not_fit_is_said() -> None:
    said = "--where: 't + 1' cannot be computed of values of type string and int64"
    assert refused("t + 1", t=["a"]) == said
    said = "--weight: 'not t' cannot be computed of values of type string"
    assert refused("not t", "--weight", t=["a"]) == said
    assert refused("n and b", n=[1], b=[True]).endswith("of values of type int64 and bool")
    example = "expected one like \"lang == 'en' and score > 0.7\""
    assert refused("a ==") == f"--where 'a ==' is no expression (invalid syntax): {example}"
    said = "is no expression (it has more than 10,000 characters)"
    assert refused("x" * 10_001) == f"--where {'x' * 200!r} {said}: {example}"
    Expression("x" * 10_000, "--where")
    assert "no expression" in refused("not " * 5_000 + "b")
