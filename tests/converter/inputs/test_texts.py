"""What raw records hold: fields, texts and sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

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


def reason(call: Callable[..., Any], *given: Any) -> Any:
    try:
        return call(*given)
    except BadRecord as bad:
        return bad.reason


def test_records_have_the_size_of_their_texts_and_arrays() -> None:
    row = {"a": "xyz", "b": b"1234", "c": np.zeros(3, np.uint16), "d": 5, "e": None}
    sizes = {3: b"abc", 13: row, 2: TextPiece(b"ab"), 0: Unreadable("no", b"kept")}
    assert [size_of(one) for one in sizes.values()] == [*sizes]
    edges = [(begins, ends) for begins in (True, False) for ends in (True, False)]
    assert [TextPiece(b"", *one).whole for one in edges] == [True, False, False, False]
    long = "longer than 1,500 bytes"
    assert too_long(b"x" * 2_000, 1_500) == (long, b"x" * 1_024)


RECORD = {"a": {"b": {"c": "deep"}, "n": None}, "x.y": "dotted", 3: 4}
JOINED = {"a": "x", "b": None, "c": b"\xc3\xa9", "d": 1, "s": "\ud800", "z": b"\xff"}
LISTS = {"m": [{"c": "a", "e": ["a"], "f": [{"d": "a"}]}, {"c": "b"}], "n": {"c": "a"}, "t": ["a"]}


def test_keys_name_fields_texts_of_several_and_texts_in_a_list() -> None:
    for key, found in {
        "a": RECORD["a"],
        "a.b.c": "deep",
        "x.y": "dotted",
        "a.n": None,
        "a.n.c": "no key 'a.n.c'",
        "a.c": "no key 'a.c'",
    }.items():
        assert reason(field_of, RECORD, key) == found
        missing = isinstance(found, str) and found.startswith("no key")
        assert field_or_none(RECORD, key) == (None if missing else found)
    with pytest.raises(BadRecord) as caught:
        field_of(RECORD, "b")
    assert (caught.value.keys, str(caught.value)) == (("a", "x.y", "3"), "no key 'b'")
    for keys, text in {
        "ac": "x\n\né",
        "bae": "x",
        "b": "'b' is null",
        "ebf": "no key 'e'",
        "ad": "'d' is not a string",
        "s": "'s' holds half a surrogate pair",
    }.items():
        assert reason(joined_text_of, JOINED, (*keys,)) == text
    assert reason(text_of, JOINED, "z") == "not UTF-8"
    for key, texts in {
        "m.c": ["a", "b"],
        "n.c": "a",
        "t.c": "'t' is not a list of objects",
        "m.q": "no key 'q'",
        "m.f.d": "no key 'f.d'",
        "m.e": "'e' is not a string",
        "q.c": "no key 'q.c'",
    }.items():
        assert reason(texts_of, LISTS, key) == texts
    assert reason(texts_of, {"m": LISTS["m"][:1]}, "m.f.d") == (  # type: ignore[index]
        "'m.f.d' goes through more than one list"
    )
    assert reason(texts_of, {"m": "a"}, "m.c") == "'m' is not an object"
    assert texts_of({"m.c": "a", "m": 1}, "m.c") == "a"


@pytest.mark.parametrize("texts_only", [False, True])
def test_lines_and_texts_are_parsed(texts_only: bool) -> None:
    huge = 2.0**70 if texts_only else 2**70
    for raw, found in (
        (b'{"n": 1, "t": "a\xe2\x80\xa8b"}', {"n": 1, "t": "a\u2028b"}),
        (rb'{"t": "\ud83e\udda5"}', {"t": "\U0001f9a5"}),
        (b" \t", None),
        (b"[1]", "JSON, but not an object"),
        (b"[" * 100_000, "not JSON"),
        (b'{"t": "\xed\xa0\x80"}', "not UTF-8"),
        (TextPiece("é".encode()), {"body": "é"}),
        (TextPiece(b"\xff"), "not UTF-8"),
        (Unreadable("why", None), "why"),
        ({"a": 1}, {"a": 1}),
    ):
        assert reason(parse, raw, "body", texts_only) == found
    made = parse(b'{"n": %d}' % 2**70, "body", texts_only)
    assert made is not None
    assert (made["n"], type(made["n"])) == (huge, type(huge))
