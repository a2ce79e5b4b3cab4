"""Expressions, against Python's own values with SQL's unknown."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.dataset.views.expressions import Expression

NUMBERS = [1, 2, -3, None, 7]
FLOATS = [0.5, None, 2.0, -1.25, 7.0]
TEXTS = ["en", "De", None, "", "en-GB"]
FLAGS = [True, False, None, True, False]
NOTHING = [None] * 5
FIELDS = {"n": NUMBERS, "x": FLOATS, "t": TEXTS, "b": FLAGS, "m.o": TEXTS, "z": NOTHING}
Values = list[Any]
Part = tuple[str, Values]


def both(known: Callable[..., Any], *of: Values) -> Values:
    """A function of values; unknown where one is."""
    return [None if None in row else known(*row) for row in zip(*of, strict=True)]


def either_and(one: Values, other: Values) -> Values:
    return [
        False if False in row else None if None in row else True
        for row in zip(one, other, strict=True)
    ]


def either_or(one: Values, other: Values) -> Values:
    return [
        not each if each is not None else None
        for each in either_and(inverted(one), inverted(other))
    ]


def inverted(values: Values) -> Values:
    return both(operator.not_, values)


def fields(*names: str) -> st.SearchStrategy[Part]:
    return st.sampled_from([(name, FIELDS[name]) for name in names])


def constants(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Part]:
    return values.map(lambda value: (repr(value), [value] * 5))


OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
COMPARISONS = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


def computed(one: Part, sign: str, other: Part) -> Part:
    return f"({one[0]} {sign} {other[0]})", both(OPERATORS[sign], one[1], other[1])


def negated(one: Part) -> Part:
    return f"(-{one[0]})", both(operator.neg, one[1])


_constant = constants(st.sampled_from([1, 2, 4, 0.5, -1.25]))
numbers = st.recursive(
    fields("n", "x", "z") | _constant,
    lambda inner: (
        st.builds(computed, inner, st.sampled_from(["+", "-", "*"]), inner)
        | st.builds(computed, inner, st.just("/"), _constant)
        | st.builds(negated, inner)
    ),
    max_leaves=4,
)


def method(part: Part, name: str) -> Part:
    return f"{part[0]}.{name}()", both(getattr(str, name), part[1])


texts = st.recursive(
    fields("t", "m.o", "z") | constants(st.sampled_from(["en", "de", "EN", ""])),
    lambda inner: st.builds(method, inner, st.sampled_from(["lower", "upper"])),
    max_leaves=2,
)
_lengths = texts.map(lambda part: (f"len({part[0]})", both(len, part[1])))
_numbers = numbers | _lengths


def compared(parts: list[Part], signs: list[str]) -> Part:
    text, found = parts[0][0], None
    for sign, left, right in zip(signs, parts, parts[1:], strict=False):
        text += f" {sign} {right[0]}"
        one = both(COMPARISONS[sign], left[1], right[1])
        found = one if found is None else either_and(found, one)
    assert found is not None
    return f"({text})", found


_signs = st.lists(st.sampled_from([*COMPARISONS]), min_size=2, max_size=2)


def compared_of(parts: st.SearchStrategy[Part]) -> st.SearchStrategy[Part]:
    return st.builds(compared, st.lists(parts, min_size=2, max_size=3), _signs)


def within(part: Part, among: list[Part], negative: bool) -> Part:
    found: Values = [False] * 5
    for each in among:
        found = either_or(found, both(operator.eq, part[1], each[1]))
    listed = "".join(f"{text}, " for text, _ in among)
    return (
        f"({part[0]} {'not in' if negative else 'in'} ({listed}))",
        inverted(found) if negative else found,
    )


def missing(part: Part, negative: bool) -> Part:
    none = [(value is None) is not negative for value in part[1]]
    return f"({part[0]} is {'not ' if negative else ''}None)", none


def edged(part: Part, name: str, edge: str) -> Part:
    return f"{part[0]}.{name}({edge!r})", both(lambda text: getattr(text, name)(edge), part[1])


def contained(edge: str, part: Part, negative: bool) -> Part:
    found = both(lambda text: edge in text, part[1])
    return (
        f"({edge!r} {'not in' if negative else 'in'} {part[0]})",
        inverted(found) if negative else found,
    )


_edges = st.sampled_from(["e", "en", "", "GB"])
_field = fields(*FIELDS)
_flags = (
    compared_of(_numbers)
    | compared_of(texts)
    | fields("b", "z")
    | constants(st.booleans())
    | st.builds(within, _numbers, st.lists(_constant, max_size=3), st.booleans())
    | st.builds(missing, _field, st.booleans())
    | st.builds(edged, texts, st.sampled_from(["startswith", "endswith"]), _edges)
    | st.builds(contained, _edges, texts, st.booleans())
)


def joined(word: str, parts: list[Part]) -> Part:
    found = parts[0][1]
    for _, values in parts[1:]:
        found = (either_and if word == "and" else either_or)(found, values)
    return f"({f' {word} '.join(text for text, _ in parts)})", found


truths = st.recursive(
    _flags,
    lambda inner: (
        st.builds(joined, st.sampled_from(["and", "or"]), st.lists(inner, min_size=2, max_size=3))
        | inner.map(lambda part: (f"(not {part[0]})", inverted(part[1])))
    ),
    max_leaves=4,
)


@given(truths | _numbers | texts)
def test_the_value_of_an_expression_is_python_s_where_all_of_it_is_known(part: Part) -> None:
    text, expected = part
    known = {
        name: pa.nulls(5) if values is NOTHING else pa.array(values)
        for name, values in FIELDS.items()
    }
    expression = Expression(f" {text} ", "--where")
    found = expression.of({name: known[name] for name in expression.names}, 5)
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


@pytest.mark.parametrize(
    "text",
    [
        "b'a'", "1j", "~n", "n % 2", "n is 1", "n in m", "1 in t", "len(t, t)", "len(t, x=1)",
        "size(t)", "t.lower('a')", "t.startswith()", "t.startswith('a', m)", "t.title()", "[n]",
        "n if n else n", "t[0]", "field(n)", "f(1)(2)", str(2**70), "__import__('os')",
        "(lambda: 1)()", "[l for l in t]", "f'{t}'", "(x := n)",
    ],
)  # fmt: skip
def test_an_unknown_form_is_named_when_the_expression_is_made(text: str) -> None:
    with pytest.raises(InputError) as error:
        Expression(text, "--where")
    assert str(error.value) == UNKNOWN.format(text)


def test_an_expression_names_its_fields() -> None:
    names = Expression("len(a.b) > 1 and field('x-y') == c.lower() and d.e.startswith('f')", "w")
    assert names.names == {"a.b", "x-y", "c", "d.e"}


def test_what_does_not_fit_is_said() -> None:
    assert refused("t + 1", t=["a"]) == (
        "--where: 't + 1' cannot be computed of values of type string and int64"
    )
    assert refused("not t", "--weight", t=["a"]) == (
        "--weight: 'not t' cannot be computed of values of type string"
    )
    assert refused("n and b", n=[1], b=[True]).endswith("of values of type int64 and bool")
    example = "expected one like \"lang == 'en' and score > 0.7\""
    assert refused("a ==") == f"--where 'a ==' is no expression (invalid syntax): {example}"
    long = refused("x" * 10_001)
    assert long == (
        f"--where {'x' * 200!r} is no expression (it has more than 10,000 characters): {example}"
    )
    Expression("x" * 10_000, "--where")
    assert "no expression" in refused("not " * 5_000 + "b")
