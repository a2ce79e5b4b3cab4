"""What raw records hold: fields, texts and sizes; and the hash by which they are known again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jaxdata.converter.changes import ContentHash, joined_content
from jaxdata.converter.inputs.parsing import (
    BadRecord,
    TextPiece,
    Unreadable,
    field_of,
    field_or_none,
    joined_text_of,
    parse,
    size_of,
    text_of,
    texts_of,
    too_long,
)
from jaxdata.dataset.index import Member


def test_hashes_of_arrays_are_those_of_their_lists_and_several_are_one() -> None:
    one, other = ContentHash(), ContentHash()
    one.add([{"ids": [1, 2]}])
    other.add([{"ids": np.array([1, 2])}])
    assert one.hexdigest() == other.hexdigest()
    assert joined_content("0" * 16) == "0" * 16
    assert joined_content("0" * 32) == "84e0c0eafaa95a34"
    every = ContentHash()
    every.begin(Member("a", "line", 3))
    odd = [b"x", TextPiece(b"y", True, False), Unreadable("no", None), {"a": 1}]
    for run in ([{"a": "é", "n": 2**70}], [{"a": 1}, {"b": [1, None]}], odd, []):
        every.add(run)  # type: ignore[arg-type]
    assert every.hexdigest() == "ef9e3f82dc1b1bd2"


def test_records_have_the_size_of_their_texts_and_arrays() -> None:
    row = {"a": "xyz", "b": b"1234", "c": np.zeros(3, np.uint16), "d": 5, "e": None}
    sizes = {3: b"abc", 13: row, 2: TextPiece(b"ab"), 0: Unreadable("no", b"kept")}
    assert [size_of(one) for one in sizes.values()] == [*sizes]
    edges = [(begins, ends) for begins in (True, False) for ends in (True, False)]
    assert [TextPiece(b"", *one).whole for one in edges] == [True, False, False, False]
    long = "longer than 1,500 bytes (--max-record-bytes)"
    assert too_long(b"x" * 2_000, 1_500) == (long, b"x" * 1_024)


def reason(call: Callable[..., Any], *given: Any) -> Any:
    try:
        return call(*given)
    except BadRecord as bad:
        return bad.reason


RECORD = {"a": {"b": {"c": "deep"}, "n": None}, "x.y": "dotted", 3: 4}


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("a", RECORD["a"]),
        ("a.b.c", "deep"),
        ("x.y", "dotted"),
        ("a.n", None),
        ("a.n.c", "no key 'a.n.c'"),
        ("a.b.c.d", "no key 'a.b.c.d'"),
        ("a.c", "no key 'a.c'"),
        ("b", "no key 'b'"),
    ],
)
def test_a_key_with_dots_goes_into_objects(key: str, found: Any) -> None:
    assert reason(field_of, RECORD, key) == found
    missing = isinstance(found, str) and found.startswith("no key")
    assert field_or_none(RECORD, key) == (None if missing else found)
    if missing:
        with pytest.raises(BadRecord) as caught:
            field_of(RECORD, key)
        assert (caught.value.keys, str(caught.value)) == (("a", "x.y", "3"), found)


def test_texts_of_several_fields_are_joined() -> None:
    record = {"a": "x", "b": None, "c": b"\xc3\xa9", "d": 1, "s": "\ud800"}
    for keys, found in {
        ("a",): "x",
        ("a", "c"): "x-é",
        ("b", "a", "e"): "x",
        ("b", "e"): "'b' is null",
        ("b",): "'b' is null",
        ("e", "b", "f"): "no key 'e'",
        ("a", "d"): "'d' is not a string",
        ("s",): "'s' holds half a surrogate pair",
    }.items():
        assert reason(joined_text_of, record, keys, "-") == found
    assert reason(text_of, {"a": b"\xff"}, "a") == "not UTF-8"


@pytest.mark.parametrize(
    ("record", "key", "found"),
    [
        ({"m": [{"c": "a"}, {"c": "b"}]}, "m.c", ["a", "b"]),
        ({"m": {"c": "a"}}, "m.c", "a"),
        ({"m.c": "a", "m": 1}, "m.c", "a"),
        ({"m": ["a"]}, "m.c", "'m' is not a list of objects"),
        ({"m": "a"}, "m.c", "'m' is not an object"),
        ({"m": [{"d": "a"}]}, "m.c", "no key 'c'"),
        ({"m": [{"c": [{"d": "a"}]}]}, "m.c.d", "'m.c.d' goes through more than one list"),
        ({"m": [{"c": ["a"]}]}, "m.c", "'c' is not a string"),
        ({}, "m.c", "no key 'm.c'"),
    ],
)
def test_a_key_goes_through_one_list_of_objects(record: Any, key: str, found: Any) -> None:
    assert reason(texts_of, record, key) == found


@pytest.mark.parametrize("texts_only", [False, True])
def test_lines_and_texts_are_parsed(texts_only: bool) -> None:
    huge = 2.0**70 if texts_only else 2**70
    for raw, found in (
        (b'{"n": %d}' % 2**70, {"n": huge}),
        (b'{"n": 1}', {"n": 1}),
        (b'{"t": "a\xe2\x80\xa8b"}', {"t": "a\u2028b"}),
        (rb'{"t": "\ud83e\udda5"}', {"t": "\U0001f9a5"}),
        (b" \t", None),
        (b"null", "JSON, but not an object"),
        (b"[1]", "JSON, but not an object"),
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'{"n": 1} {', "not JSON"),
        (b'{"n": NaN', "not JSON"),
        (b"\xff", "not UTF-8"),
        (b'{"t": "\xed\xa0\x80"}', "not UTF-8"),
        (TextPiece("é".encode()), {"body": "é"}),
        (TextPiece(b"\xff"), "not UTF-8"),
        (Unreadable("why", None), "why"),
        ({"a": 1}, {"a": 1}),
    ):
        assert reason(parse, raw, "body", texts_only) == found
    made = parse(b'{"n": %d}' % 2**70, "body", texts_only)
    assert made is not None
    assert type(made["n"]) is type(huge)
