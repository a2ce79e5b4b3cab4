"""Documents on their way to shards, what is counted of them, and what is said at the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import InputError
from jaxdata.converter import worker as unit_reader
from jaxdata.converter.conversion import _call
from jaxdata.converter.document_batch import Document, in_pieces
from jaxdata.converter.engines import ProgressSum
from jaxdata.converter.inputs.parsing import TextPiece, Unreadable
from jaxdata.converter.statistics import (
    COUNTED,
    PERCENTILES,
    ConversionReport,
    count_documents,
    count_tokens,
    derived,
    sizes_of,
)
from jaxdata.converter.tasks.base import Encoded
from jaxdata.converter.transform import (
    TransformFailed,
    load_transform,
    transform_digest,
    transform_name,
    transformed,
)
from jaxdata.tokenizers import load
from jaxdata.tokenizers.encoders import EncodingSummary


def document(number: int, characters: int = 1) -> Document:
    sizes = [characters, 10 + number, 20 + number, 30 + number]
    return Document(f"d{number}", number % 2, 100 + number, "train", *sizes, b"%d\n" % number)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(0, 3)), max_size=5))
def test_pieces_are_documents_of_which_the_first_has_the_sizes(
    given: list[tuple[int, int, int]],
) -> None:
    documents, encoded, expected = [], [], []
    for number, (size, other, cuts) in enumerate(given):
        documents.append(document(number))
        many = min(size, other, cuts + 1)
        edges = tuple(range(1, many))
        streams = (Encoded(np.arange(size), cuts=edges), Encoded(-np.arange(other), cuts=edges))
        encoded.append(streams)
        for place in range(many):
            stops = (size, other) if place + 1 == many else (place + 1,) * 2
            tokens = [[*range(place, stops[0])], [-n for n in range(place, stops[1])]]
            sizes = {"characters": 0, "text_bytes": 0, "raw_characters": 0, "raw_bytes": 0}
            whole = document(number)
            expected.append((whole._replace(**sizes) if place else whole, tokens))
    made, pieces = in_pieces(documents, encoded)
    found = [[one.tokens.tolist() for one in streams] for streams in pieces]
    assert [*zip(made, found, strict=True)] == expected


MASKED = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=1, max_size=5)


@given(st.lists(MASKED, max_size=4), st.booleans(), st.none() | st.integers(0, 3))
def test_targets_with_loss_and_unknown_tokens_are_counted(
    documents: list[list[tuple[int, int]]], masked: bool, unknown: int | None
) -> None:
    encoded = [
        Encoded(
            np.array([token for token, _ in one]),
            np.array([loss for _, loss in one], np.uint8) if masked else None,
        )
        for one in documents
    ]
    counts = Counter({"loss_tokens": 5})
    count_tokens(counts, encoded, unknown)
    losses = [loss if masked else 1 for one in documents for _, loss in one[1:]]
    assert counts["loss_tokens"] == 5 + sum(losses)
    assert counts["unknown_tokens"] == [t for one in documents for t, _ in one].count(unknown)  # type: ignore[arg-type]


@given(st.lists(st.integers(1, 2_000), max_size=40), st.sampled_from([0, 30]), st.integers(0, 9))
def test_a_source_is_described_by_its_lengths_and_counts(
    lengths: list[int], text_bytes: int, unknown: int
) -> None:
    counts = {"text_bytes": text_bytes, "characters": 21, "unknown_tokens": unknown, "blank": 3}
    found = derived(counts, np.array(lengths, np.uint32))
    many, total = len(lengths), sum(lengths)
    ranked = sorted(lengths)
    assert found.pop("length_percentiles") == {
        f"p{p:02}": ranked[max(0, -(-p * many // 100) - 1)] for p in PERCENTILES if many
    }
    assert {name: found.pop(name) for name in COUNTED} == dict.fromkeys(COUNTED, 0) | {
        name: n for name, n in counts.items() if name != "blank"
    }
    assert found == {
        "longest_document": max(lengths, default=0),
        "tokens_per_byte": total / text_bytes if text_bytes else 0.0,
        "tokens_per_document": total / many if many else 0.0,
        "characters_per_document": 21 / many if many else 21,
        "bytes_per_document": text_bytes / many if many else text_bytes,
        "unknown_token_rate": unknown / total if total else unknown,
    }
    assert PERCENTILES == (1, 5, 25, 50, 75, 95, 99)


def test_sizes_are_of_all_texts_of_a_document() -> None:
    assert sizes_of(["é!", "a", ""]) == (3, 4)
    assert sizes_of([]) == (0, 0)
    counts = Counter({"characters": 1})
    count_documents(counts, [document(number) for number in range(3)])
    assert counts == {"characters": 4, "text_bytes": 33, "raw_characters": 63, "raw_bytes": 93}


REPORT = ConversionReport(
    "out", "train/web", documents=2_000, tokens=3_000, text_bytes=6_000, shards=1, bytes=12_500,
    files=1, seconds=2.0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        (
            {},
            [
                "read 2,000 documents, 6.0 kB of text, from 1 file",
                "wrote train/web: 3,000 tokens (0.500 per byte), 1 shard, 12.5 kB, in out",
                "took 2.0 s, 3.0 kB/s",
            ],
        ),
        (
            {"text_bytes": 0, "documents": 1, "files": 2, "shards": 3, "sources": ("a", "b")},
            [
                "read 1 document, from 2 files",
                "wrote a, b: 3,000 tokens, 3 shards, 12.5 kB, in out",
                "took 2.0 s, 1,500 tokens/s",
            ],
        ),
        (
            {
                "quarantined": {"x": 1, "y": 2},
                "quarantine_file": "q",
                "dropped": {"z": 1},
                "files_not_read": {".pdf": 1},
                "already_complete": True,
            },
            [
                "read 2,000 documents, 6.0 kB of text, from 1 file; passed over 1 file of other "
                "kinds (1 .pdf); quarantined 3 records (2 y; 1 x), in q; dropped 1 record (1 z)",
                "wrote train/web: 3,000 tokens (0.500 per byte), 1 shard, 12.5 kB, in out",
                "already complete: nothing to do",
            ],
        ),
        (
            {"seconds": 0.0, "encoding": EncodingSummary(library="lib 1", counts={"": {}})},
            [
                "read 2,000 documents, 6.0 kB of text, from 1 file",
                "wrote train/web: 3,000 tokens (0.500 per byte), 1 shard, 12.5 kB, in out",
                "took 0.0 s, 6.0 TB/s",
            ],
        ),
    ],
)
def test_a_report_says_what_was_read_and_written(changes: dict[str, Any], lines: list[str]) -> None:
    assert str(replace(REPORT, **changes)).splitlines() == lines


def test_texts_are_taken_at_once_where_all_records_are_usual() -> None:
    of = unit_reader._plain_texts
    assert of([b'{"t": "a"}', '{"t": "é"}'.encode()], "t") == (["a", "é"], [1, 2])
    assert of([{"t": "a"}, {"t": "語"}], "t") == (["a", "語"], [1, 3])
    for unusual in (
        [b'{"t": "a"}', {"t": "a"}],
        [b'{"t": "a"}', b""],
        [b'{"t": "a"}', b'{"u": "a"}'],
        [b'{"t": "a"}', b'{"t": 1}'],
        [{"t": "a"}, {"t": None}],
        [{"t": "a"}, {"u": "a"}],
        [{"t": "\ud800"}],
        [b"[1]"],
        [TextPiece(b"a")],
    ):
        assert of(unusual, "t") is None  # type: ignore[arg-type]
    kept = {b"why": Unreadable("no", b"why"), b"text": TextPiece(b"text"), b"line": b"line"}
    assert [unit_reader._raw(one) for one in kept.values()] == [*kept]
    rows: list[Any] = [{"a": "x"}, {"a": b"x"}, {"a": None}, {"a": 1, "b": 2}, {"a": [1]}]
    found = [unit_reader._raw(row) for row in rows]
    assert found == [b'"x"', b"x", None, b'{"a": 1, "b": 2}', b"[1]"]


def called(inputs: Any, *, output: Any, split: str = "train", **options: Any) -> None:
    """A function as `convert` is."""


def test_a_call_is_told_without_its_defaults() -> None:
    def of(**given: Any) -> str:
        return _call(given).removeprefix("jaxdata.convert(").removesuffix(")")

    assert of(inputs=Path("a"), output="b", split="train", command="c", progress=print) == (
        "'a', output='b'"
    )
    assert of(split="val", bos=True, n=1.5, x=None) == "split='val', bos=True, n=1.5, x=None"
    assert of(inputs=[*range(8)]) == "[0, 1, 2, 3, 4, 5, 6, 7]"
    assert of(inputs=tuple(range(9))) == "[0, 1, 2, 3, 4, 5, 6, 7, …]"
    assert of(a={"x": 1}, b=Path("y")) == "a={'x': 1}, b='y'"
    assert of(a=object(), b=called, c=load("bytes")) == "a=<object>, b='called', c='bytes'"


def test_a_transform_gives_records_or_says_what_it_gave() -> None:
    one = {"text": "a"}
    for made, records in ((None, []), (one, [one]), ([one, one], [one] * 2), ((), [])):
        assert [*transformed(lambda _, made=made: made, one)] == records  # type: ignore[misc]
    for wrong in ("x" * 200, [one, "y"], 3):
        with pytest.raises(TransformFailed) as caught:
            [*transformed(lambda _, wrong=wrong: wrong, one)]  # type: ignore[misc]
        said = f"the transform returned {type(wrong).__name__} {str(wrong)[:100]!r}; expected a re"
        assert str(caught.value).startswith(said)
    name = f"{__name__}:called"
    assert transform_name(called) == transform_name(name) == name
    assert load_transform(name).__name__ == "called"
    assert len(transform_digest(called) or "") == 16
    assert transform_name(None) is transform_digest(None) is None
    for unnamed, says in (
        (lambda record: record, "cannot be imported by worker processes"),
        (3, 'transform=3: expected a function, or "module:function"'),
    ):
        with pytest.raises(InputError, match=says):
            transform_name(unnamed)  # type: ignore[arg-type]
    for name, says in (
        ("module", "expected .module:function."),
        (":function", "expected .module:function."),
        (f"{__name__}:none", "has no function 'none'"),
        (f"{__name__}:MASKED", "has no function 'MASKED'"),
        ("no.such:f", "'no.such' cannot be imported"),
    ):
        with pytest.raises(InputError, match=says):
            load_transform(name)


def test_progress_is_told_from_nothing_on() -> None:
    told: list[tuple[int, int]] = []
    bar = ProgressSum(9, lambda *both: told.append(both))
    for size in (3, 0, 6):
        bar.advance(size)
    assert told == [(0, 9), (3, 9), (3, 9), (9, 9)]
    ProgressSum(9, None).advance(1)
