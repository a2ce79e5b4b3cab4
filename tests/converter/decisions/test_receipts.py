"""Receipts come back as they were, and those that cannot be of a unit are refused by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.converter.receipts import OutputReceipt, Quarantined, Receipt, SideReceipt
from jaxdata.format.archive_members import Member
from jaxdata.format.checksums import with_checksum
from jaxdata.format.storage import PAGE_BYTES
from tests.converter.decisions.made import pages_of, shard, wrote

COUNTS = st.dictionaries(st.sampled_from(["blank", "added", "short"]), st.integers(0, 2**40))
NUMBERS = st.integers(0, 2**32 - 1)


@st.composite
def outputs(draw: st.DrawFn, name: str) -> OutputReceipt:
    return wrote(
        f"{name}/00000-00000",
        draw(st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=4)),
        size=draw(st.sampled_from([0, 1, PAGE_BYTES, PAGE_BYTES + 1, 5 * PAGE_BYTES])),
        kept=draw(st.binary(max_size=9)),
        counts=draw(COUNTS),
        sides=draw(st.lists(st.sampled_from(["weight", "phase"]), unique=True)),
        hashes=draw(st.lists(st.sampled_from(["exact_hash", "band_hash"]), unique=True)),
    )


BAD = st.builds(
    Quarantined,
    st.integers(0, 3),
    st.integers(0, 99),
    st.text(max_size=5),
    st.none() | st.binary(max_size=9),
    st.lists(st.text(max_size=3), max_size=2).map(tuple),
)
MEMBERS = st.builds(Member, st.text(max_size=5), st.sampled_from(["line", "row"]), NUMBERS)


@st.composite
def receipts(draw: st.DrawFn) -> Receipt:
    names = draw(st.lists(st.sampled_from(["train/a", "val/a", "train/b"]), unique=True))
    starts = st.lists(st.tuples(st.integers(0, 99), MEMBERS), max_size=3)
    return Receipt(
        draw(st.lists(st.integers(0, 2**40), max_size=3)),
        {name: draw(outputs(name)) for name in names},
        draw(st.lists(BAD, max_size=3)),
        Counter(draw(COUNTS)),
        Counter(draw(COUNTS)),
        draw(st.dictionaries(st.integers(0, 3), starts)),
        draw(st.lists(st.text("0123456789abcdef", min_size=16, max_size=16), max_size=3)),
        draw(st.text(max_size=4)),
        draw(st.sampled_from(["", "tiktoken 0.14.0"])),
        Counter(draw(COUNTS)),
    )


def plain(value: Any) -> Any:
    """The same with lists in the place of arrays, and the type of these."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tolist()
    if isinstance(value, SideReceipt):
        return value.shard, plain(value.pages)
    if isinstance(value, OutputReceipt | Receipt):
        return {name: plain(one) for name, one in vars(value).items()}
    return {name: plain(one) for name, one in value.items()} if isinstance(value, dict) else value


@given(receipts(), st.data())
@settings(max_examples=40)
def test_a_receipt_comes_back_whole_or_not_at_all(receipt: Receipt, data: st.DataObject) -> None:
    content = receipt.encode()
    found = Receipt.decode(content)
    assert plain(found) == plain(receipt)
    counters = [found.dropped, found.counts, found.encoding]
    counters += [one.counts for one in found.outputs.values()]
    assert {*map(type, counters)} == {Counter}
    at = data.draw(st.integers(0, len(content) - 1))
    broken = bytearray(content)
    broken[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError, match=r"^a receipt differs from its checksum$"):
        Receipt.decode(bytes(broken))


def test_what_an_earlier_jaxdata_did_not_write_is_empty() -> None:
    header = (
        b'{"records": [2], "quarantined": [], "dropped": {}, "counts": {}, "members": [],'
        b' "outputs": {"train/a": {"shard": {"name": "train/a/x", "documents": 1, "records": 1,'
        b' "tokens": 3, "bytes": 9, "sha256": "s"}, "kept_bytes": 0, "counts": {}}}}\n'
    )
    columns = np.array([3, 0, 1], "<u4").tobytes()
    found = Receipt.decode(with_checksum(header + columns))
    assert (found.contents, found.stamp, found.encoder) == ([], "", "")
    assert found.encoding == Counter()
    output = found.outputs["train/a"]
    assert (output.pages.tolist(), output.sides, output.hashes) == ([], {}, {})
    assert [output.lengths[0], output.part[0], output.record[0]] == [3, 0, 1]
    found.check(1, {"train/a": []})


@pytest.mark.parametrize(
    "field", ['"stamp": 1', '"contents": [1]', '"encoder": 1', '"encoding": {"a": "1"}']
)
def test_a_field_of_another_type_is_refused(field: str) -> None:
    header = '{"records": [], "quarantined": [], "dropped": {}, "counts": {}, "members": [],'
    with pytest.raises(ValueError, match="type="):
        Receipt.decode(with_checksum(f'{header} "outputs": {{}}, {field}}}\n'.encode()))


WHOLE = Receipt(
    [3, 0],
    {
        "train/a": wrote(
            "train/a/x",
            [(5, 0, 0), (2, 1, 2)],
            size=PAGE_BYTES + 1,
            sides=["weight"],
            hashes=["exact_hash"],
        )
    },
    [Quarantined(1, 0, "not JSON", b"x")],
    members={1: [(0, Member("a.txt", "line", 1))]},
    contents=["0" * 16, "1" * 16],
)
ASKED = {"train/a": ["exact_hash"], "train/b": []}


def test_what_can_be_of_a_unit_is_taken() -> None:
    WHOLE.check(2, ASKED, ["weight"])
    replace(WHOLE, contents=[]).check(2, ASKED, ["weight"])
    with_output(pages=pages_of(0)).check(2, ASKED, ["weight"])
    Receipt([], {}, []).check(0, {})


def with_output(**changes: Any) -> Receipt:
    output = replace(WHOLE.outputs["train/a"], **changes)
    return replace(WHOLE, outputs={"train/a": output})


def side(pages: int = 3, **changes: Any) -> Receipt:
    beside = WHOLE.outputs["train/a"].sides["weight"].shard.model_copy(update=changes)
    return with_output(sides={"weight": SideReceipt(beside, np.zeros(pages, np.uint32))})


SHARD = shard("train/a/x", [5, 2], PAGE_BYTES + 1)
TOKENS = SHARD.model_copy(update={"tokens": 8})
WRONG: list[tuple[Callable[[], Receipt], str]] = [
    (lambda: replace(WHOLE, records=[3]), "it is not of 2 parts of files"),
    (lambda: replace(WHOLE, records=[3, 0, 0]), "it is not of 2 parts of files"),
    (lambda: replace(WHOLE, contents=["0" * 16]), "it is not of 2 parts of files"),
    (
        lambda: replace(WHOLE, quarantined=[Quarantined(2, 0, "", None)]),
        "it is not of 2 parts of files",
    ),
    (lambda: replace(WHOLE, members={2: []}), "it is not of 2 parts of files"),
    (lambda: with_output(part=np.array([0, 2])), "it is not of 2 parts of files"),
    (lambda: replace(WHOLE, outputs={"val/a": WHOLE.outputs["train/a"]}), "it wrote train/a/x f"),
    (
        lambda: replace(WHOLE, outputs={"train/b": WHOLE.outputs["train/a"]}),
        "it wrote train/a/x for train/b",
    ),
    (lambda: with_output(shard=TOKENS), "its lengths are not those of 8 tokens"),
    (
        lambda: with_output(lengths=np.array([7, 0], np.uint32)),
        "its lengths are not those of 7 tokens",
    ),
    (lambda: with_output(pages=pages_of(1)), "it has checksums of 1 pages of train/a/x"),
    (lambda: with_output(sides={}), "it has the side arrays "),
    (lambda: with_output(hashes={}), "it has the hashes "),
    (lambda: side(documents=3), "train/a/x.weight is not beside train/a/x"),
    (lambda: side(tokens=8), "train/a/x.weight is not beside train/a/x"),
    (lambda: side(1), "train/a/x.weight is not beside train/a/x"),
    (lambda: side(name="val/a/x"), "val/a/x is not beside train/a/x"),
    (lambda: replace(WHOLE, records=[-1, 0]), "greater than or equal to 0"),
    (lambda: replace(WHOLE, dropped=Counter({"a": -1})), "greater than or equal to 0"),
    (lambda: replace(WHOLE, counts=Counter({"a": -1})), "greater than or equal to 0"),
    (lambda: with_output(counts=Counter({"a": -1})), "greater than or equal to 0"),
    (
        lambda: replace(WHOLE, quarantined=[Quarantined(-1, 0, "", None)]),
        "greater than or equal to 0",
    ),
    (
        lambda: replace(WHOLE, quarantined=[Quarantined(0, -1, "", None)]),
        "greater than or equal to 0",
    ),
    (
        lambda: replace(WHOLE, members={0: [(0, Member("a", "line", -1))]}),
        "greater than or equal to 0",
    ),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_what_cannot_be_of_a_unit_is_refused_by_name(
    make: Callable[[], Receipt], message: str
) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is compared)
        make().check(2, ASKED, ["weight"])
    assert message in str(caught.value)


def test_a_source_that_no_unit_feeds_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^it wrote train/a/x for train/a$"):
        WHOLE.check(2, {"train/b": []}, ["weight"])


def test_lengths_are_added_without_overflow() -> None:
    big = wrote("train/a/x", [(2**32 - 1, 0, 0), (2**32 - 1, 0, 1)])
    Receipt([2], {"train/a": big}, []).check(1, {"train/a": []})
