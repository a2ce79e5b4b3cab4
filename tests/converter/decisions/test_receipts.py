"""Receipts come back as they were, and those that cannot be of a unit are refused by name."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.base.errors import DatasetError
from jaxdata.converter.receipts import OutputReceipt, Quarantined, Receipt, SideReceipt
from jaxdata.dataset.index import Member
from jaxdata.dataset.unfinished import UnfinishedJob
from jaxdata.storage import open_store
from jaxdata.storage.pages.page_cache import PAGE_BYTES
from tests.converter.decisions.made import pages_of, wrote

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
    if isinstance(value, SideReceipt | OutputReceipt | Receipt):
        return {name: plain(one) for name, one in vars(value).items()}
    return {name: plain(one) for name, one in value.items()} if isinstance(value, dict) else value


@given(receipts(), st.data())
@settings(max_examples=40)
def test_a_receipt_comes_back_whole_or_not_at_all(receipt: Receipt, data: st.DataObject) -> None:
    job = UnfinishedJob(open_store("memory://receipts"))
    job.commit("unit", receipt.encode())
    found = job.receipt("unit", Receipt.decode)
    assert plain(found) == plain(receipt)
    counters = [found.dropped, found.counts, found.encoding]
    counters += [one.counts for one in found.outputs.values()]
    assert {*map(type, counters)} == {Counter}
    broken = bytearray(job.store.read("work/unit.receipt") or b"")
    at = data.draw(st.integers(0, len(broken) - 1))
    broken[at] ^= 1 << data.draw(st.integers(0, 7))
    job.store.write("work/unit.receipt", bytes(broken))
    with pytest.raises(DatasetError, match=r"work/unit\.receipt is damaged"):
        job.receipt("unit", Receipt.decode)


WROTE = wrote(
    "train/a/x",
    [(5, 0, 0), (2, 1, 2)],
    size=PAGE_BYTES + 1,
    sides=["weight"],
    hashes=["exact_hash"],
)
WHOLE = Receipt(
    [3, 0],
    {"train/a": WROTE},
    [Quarantined(1, 0, "not JSON", b"x")],
    members={1: [(0, Member("a.txt", "line", 1))]},
    contents=["0" * 16, "1" * 16],
)
ASKED = {"train/a": ["exact_hash"], "train/b": []}


def of(**changes: Any) -> Receipt:
    return replace(WHOLE, **changes)


def output(**changes: Any) -> Receipt:
    return of(outputs={"train/a": replace(WROTE, **changes)})


def side(pages: int = 3, **changes: Any) -> Receipt:
    beside = WROTE.sides["weight"].shard.model_copy(update=changes)
    return output(sides={"weight": SideReceipt(beside, np.zeros(pages, np.uint32))})


def bad(part: int, record: int) -> Receipt:
    return of(quarantined=[Quarantined(part, record, "", None)])


def test_what_can_be_of_a_unit_is_taken() -> None:
    WHOLE.check(2, ASKED, ["weight"])
    with pytest.raises(ValueError, match=r"^it wrote train/a/x for train/a$"):
        WHOLE.check(2, {"train/b": []}, ["weight"])
    Receipt([], {}, []).check(0, {})
    big = wrote("train/a/x", [(2**32 - 1, 0, 0), (2**32 - 1, 0, 1)])
    Receipt([2], {"train/a": big}, [], contents=["0" * 16]).check(1, {"train/a": []})


TOKENS = WROTE.shard.model_copy(update={"tokens": 8})
PARTS = "it is not of 2 parts of files"
BESIDE = "train/a/x.weight is not beside train/a/x"
WRONG: list[tuple[Receipt, str]] = [
    (of(records=[3]), PARTS),
    (of(records=[3, 0, 0]), PARTS),
    (of(contents=["0" * 16]), PARTS),
    (of(contents=[]), PARTS),
    (bad(2, 0), PARTS),
    (of(members={2: []}), PARTS),
    (output(part=np.array([0, 2])), PARTS),
    (of(outputs={"val/a": WROTE}), "it wrote train/a/x for val/a"),
    (of(outputs={"train/b": WROTE}), "it wrote train/a/x for train/b"),
    (output(shard=TOKENS), "its lengths are not those of 8 tokens"),
    (output(lengths=np.array([7, 0], np.uint32)), "its lengths are not those of 7 tokens"),
    (output(record=np.array([0])), "its columns of train/a/x are of unequal lengths"),
    (output(pages=pages_of(0)), "it has checksums of 0 pages of train/a/x"),
    (output(pages=pages_of(1)), "it has checksums of 1 pages of train/a/x"),
    (output(sides={}), "it has the side arrays "),
    (output(hashes={}), "it has the hashes "),
    (side(documents=3), BESIDE),
    (side(tokens=8), BESIDE),
    (side(1), BESIDE),
    (side(name="val/a/x"), "val/a/x is not beside train/a/x"),
]


@pytest.mark.parametrize(("receipt", "message"), WRONG)
def test_what_cannot_be_of_a_unit_is_refused_by_name(receipt: Receipt, message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message is compared)
        receipt.check(2, ASKED, ["weight"])
    assert message in str(caught.value)


FIELDS = [
    (b'"records":[3,0]', b'"records":[-3,0]', "greater than or equal to 0"),
    (b'"record":0', b'"record":-1', "greater than or equal to 0"),
    (b'"stamp":""', b'"stamp":1', "valid string"),
    (b'"contents":["', b'"contents":[1,"', "valid string"),
    (b'"encoding":{}', b'"encoding":{"a":"1"}', "valid integer"),
    (b'"part":"AAAAAAEAAAA="', b'"part":"AAAAAAEAAAAA"', "buffer size must be a multiple"),
    (b'"records":[3,0],', b"", "required"),
]


@pytest.mark.parametrize(("was", "now", "message"), FIELDS)
def test_a_field_of_another_type_is_refused(was: bytes, now: bytes, message: str) -> None:
    content = WHOLE.encode()
    assert was in content
    with pytest.raises(ValueError, match=message):
        Receipt.decode(content.replace(was, now))
