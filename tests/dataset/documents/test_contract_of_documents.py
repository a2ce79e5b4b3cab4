"""The contract of documents, in memory and of objects of users' own, over lists of a few tokens."""

import hashlib
import re
from types import MappingProxyType, SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, strategies as st

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset import documents as base
from jaxdata.dataset.array_documents import ArrayDocuments, CustomDocuments, as_documents
from jaxdata.dataset.documents import Documents, Gathered, StatedLengths


class Content:
    """Documents as lists: their tokens, masks, and a side array of floats."""

    def __init__(self, tokens: list[list[int]], masked: bool) -> None:
        self.tokens = tokens
        self.masks = [[(n + t) % 3 % 2 for t in range(len(d))] for n, d in enumerate(tokens)]
        self.weights = [[n + t / 4 for t in range(len(d))] for n, d in enumerate(tokens)]
        self.masked = masked

    def in_memory(self) -> ArrayDocuments:
        masks = self.masks if self.masked else None
        weights = [np.array(each, np.float32) for each in self.weights]
        return ArrayDocuments(self.tokens, masks, "train/web", {"w": weights})

    def custom(self) -> CustomDocuments:
        return CustomDocuments(Given(self))


class Given:
    """An object with lengths and items."""

    name, side = "train/web", {"w": ">f4"}

    def __init__(self, content: Content) -> None:
        self._content = content
        self.lengths = [len(each) for each in content.tokens]
        self.asked: list[int] = []

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.asked.append(index)
        item = {"tokens": self._content.tokens[index], "w": self._content.weights[index]}
        return item | ({"loss_mask": self._content.masks[index]} if self._content.masked else {})


Data = st.DataObject
_ids = st.integers(0, 2**16 - 1) | st.sampled_from([2**16, 2**31 - 1])
contents = st.builds(Content, st.lists(st.lists(_ids, max_size=6), max_size=6), st.booleans())


def asked_of(data: Data, content: Content) -> list[tuple[int, int, int]]:
    """Some ranges: document, start and count."""
    if not content.tokens:
        return []
    found = []
    for number in data.draw(st.lists(st.integers(0, len(content.tokens) - 1), max_size=5)):
        start = data.draw(st.integers(0, len(content.tokens[number])))
        count = data.draw(st.integers(0, len(content.tokens[number]) - start))
        found.append((number, start, count))
    return found


def columns(rows: list[tuple[int, int, int]]) -> Any:
    return tuple(np.array(rows, np.int64).reshape(-1, 3).T)


def ranges(values: list[list[Any]], rows: list[tuple[int, int, int]]) -> list[list[Any]]:
    return [values[number][start : start + count] for number, start, count in rows]


def by_range(found: Gathered, count: int, dtype: Any) -> list[list[Any]]:
    """The values of each range, from the views that belong to it."""
    parts: list[bytes] = [b""] * count
    assert found.range.tolist() == sorted(found.range.tolist())
    for number, view in zip(found.range.tolist(), found.views.each(), strict=True):
        parts[number] += bytes(view)
    return [np.frombuffer(part, dtype).tolist() for part in parts]


@given(contents, st.sampled_from(["in_memory", "custom"]), st.data())
def test_any_ranges_are_those_of_the_lists(content: Content, kind: str, data: Data) -> None:
    docs = getattr(content, kind)()
    rows = asked_of(data, content)
    dtype = docs.dtype.newbyteorder("<")
    size = 2 if kind == "in_memory" and max(sum(content.tokens, [0])) < 2**16 else 4
    assert (docs.dtype.itemsize, docs.dtype.kind, docs.name) == (size, "u", "train/web")
    found = docs.tokens(*columns(rows))
    assert by_range(found, len(rows), dtype) == ranges(content.tokens, rows)
    assert docs.masked is bool(content.masked and (content.tokens or kind == "in_memory"))
    if docs.masked:
        found = docs.masks(*columns(rows))
        assert by_range(found, len(rows), np.uint8) == ranges(content.masks, rows)
    found = docs.side["w"].tokens(*columns(rows))
    assert by_range(found, len(rows), docs.side["w"].dtype) == ranges(content.weights, rows)
    assert docs.side["w"].dtype.byteorder in "=<"
    assert docs.lengths.tolist() == list(map(len, content.tokens))
    for number, tokens in enumerate(content.tokens):
        for item in (docs[number], docs[number - len(docs)]):
            assert item["tokens"].tolist() == tokens
            assert item["w"].tolist() == content.weights[number]
            assert ("loss_mask" in item) is docs.masked
            if docs.masked:
                assert item["loss_mask"].dtype == np.bool_
                assert item["loss_mask"].tolist() == [bool(n) for n in content.masks[number]]
        for start, stop in ((1, 3), (-2, None), (3, 1), (0, -1), (2, 99)):
            assert docs.read(number, start, stop).tolist() == tokens[start:stop]
    for number in (len(docs), -len(docs) - 1):
        with pytest.raises(IndexError, match=f"no document {number}: {len(docs)} are numbered"):
            docs[number]


@given(contents, st.integers(1, 9))
def test_pages_end_where_first_bytes_of_documents_leave_them(content: Content, size: int) -> None:
    docs = content.in_memory()
    item = docs.dtype.itemsize + docs.masked
    before = [sum(map(len, content.tokens[:n])) * item for n in range(len(content.tokens) + 1)]
    pages = [first // size for first in before[:-1]]
    ends = [n for n in range(1, len(pages)) if pages[n] != pages[n - 1]]
    for at_once in (1, 2, 100):
        with mock.patch.object(base, "_DOCUMENTS_AT_ONCE", at_once):
            assert docs.page_ends(size).tolist() == ends + [len(pages)] * (len(pages) > 0)
    assert docs.file_sizes.tolist() == before[-1:]


@given(st.lists(st.integers(0, 3), max_size=6), st.data())
def test_a_filler_follows_the_ranges_that_want_it(counts: list[int], data: Data) -> None:
    values = np.arange(sum(counts), dtype=np.uint16)
    found = Gathered.cut(values, np.array(counts, np.int64))
    some = np.array([n for n in range(len(counts)) if data.draw(st.booleans())], np.int64)
    assert by_range(found.followed(some, b"\x07\x00", some + 1), len(counts), "u2") == [
        [*values[sum(counts[:n]) :][:count], *[7] * (n in some) * (n + 1)]
        for n, count in enumerate(counts)
    ]


class Tokens(Documents):
    """The least that documents are: what they need not know has an answer."""

    name, fingerprint, dtype = "train/a", "f", np.dtype("<u2")
    lengths = np.array([2, 0, 3], np.uint32)

    def tokens(self, documents: Any, starts: Any, counts: Any) -> Gathered:
        return Gathered.cut(np.arange(counts.sum(), dtype="<u2"), counts)


def test_documents_need_no_more_than_lengths_and_tokens() -> None:
    docs, numbers = Tokens(), np.arange(3)
    assert (len(docs), docs.total_tokens, docs.is_far) == (3, 5, False)
    assert (docs.origin(0), docs.kept(0), docs.are_blank(numbers).any()) == (None, {}, False)
    assert docs.base is docs.sequences is docs
    assert docs.in_base(numbers, numbers) == (numbers, numbers)
    docs.fetch_lengths(numbers)
    assert docs[2] == {"tokens": pytest.approx([0, 1, 2])}
    docs.stated_lengths = StatedLengths(7, "s")
    assert docs.total_tokens == 7, "what is said is not read"
    assert as_documents(docs) is docs
    for wrong, what in ((SimpleNamespace(lengths=[1]), "SimpleNamespace"), ([1], "list")):
        with pytest.raises(InputError, match=f"cannot pack a {what}: expected a so"):
            as_documents(wrong)


def test_the_fingerprint_of_an_object_is_of_its_lengths_and_of_64_from_first_to_last() -> None:
    content = Content([[n, 7] for n in range(1000)], True)
    given: Any = Given(content)
    docs = CustomDocuments(given)
    assert given.asked == [0], "whether there are masks"
    expected = hashlib.sha256(np.array(docs.lengths, "<u4").tobytes())
    arrays: dict[str, Any] = {"<u4": content.tokens, "u1": content.masks, "f4": content.weights}
    for n in np.linspace(0, 999, 64).astype(int).tolist():
        for kind, values in arrays.items():
            expected.update(np.array(values[n], kind).tobytes())
    assert docs.fingerprint == expected.hexdigest()
    assert CustomDocuments(Given(Content([], True))).fingerprint == hashlib.sha256(b"").hexdigest()
    given.fingerprint, given.name = 7, "mine"
    own = CustomDocuments(given)
    assert (own.fingerprint, own.name) == ("7", "mine")


class Items(list[Any]):
    """An object of a user's: two documents of two tokens, and a side array."""

    side: Any = MappingProxyType({"w": "int8"})

    def __init__(self, item: dict[str, Any], lengths: Any = (2, 2)) -> None:
        fine = {"tokens": [1, 2], "w": [True, False]}
        super().__init__([fine, fine | item])
        self.lengths = lengths


BROKEN: list[Any] = [
    ({"tokens": [[3, 4]]}, "document 1: its tokens are of shape (1, 2); expected 2 values"),
    ({"tokens": [[3], [4, 5]]}, "document 1: its tokens are no array: "),
    ({"tokens": [3, 2**31]}, "token 1 of document 1 is 2147483648; expected a whole number "),
    ({"loss_mask": [1, 1]}, "document 1 has loss_mask, tokens, w; expected tokens, w, as the "),
    ({"w": ["a", "b"]}, "document 1: its w are of dtype <U1; expected numbers"),
    ({"tokens": np.array([3, 2**31], "u4")}, "token 1 of document 1 is 2147483648; expected "),
    ({"tokens": np.array([-1, 3])}, "token 0 of document 1 is -1; expected a whole number "),
    ({"w": np.array([1, 200])}, "document 1: its w hold a number that int8 does not hold"),
    ({"w": [1, 200]}, "document 1: its w hold a number that int8 does not hold"),
]


@pytest.mark.parametrize(("item", "message"), BROKEN)
def test_an_item_that_breaks_the_word_of_its_object_is_named(item: Any, message: str) -> None:
    docs = CustomDocuments(Items(item))
    assert [values.tolist() for values in docs[0].values()] == [[1, 2], [1, 0]]
    with pytest.raises(DatasetError, match=re.escape(f"Items 'documents': {message}")):
        docs[1]


def test_lengths_and_arrays_are_whole_numbers_ids_and_masks_or_refused() -> None:
    expected = "expected as lengths a whole number from 0 to 4294967295 for each of its 2 documents"
    for lengths in ([1, 2**32], [1.5, 1], [-1, 1], [1, 2, 3]):
        with pytest.raises(InputError, match=re.escape(f"{expected}; they are {lengths}")):
            CustomDocuments(Items({}, lengths))
    given: list[tuple[dict[str, Any], str]] = [
        ({"tokens": [[5, 0], [7, -1, 0]]}, "'mine': token 1 of document 1 is -1; expected a whole"),
        ({"tokens": [[1, 0], [1.5, 0]]}, "token 0 of document 1 is 1.5; expected a whole number"),
        ({"tokens": [[2**70]]}, "document 0: its tokens are of dtype object; expected numbers"),
        ({"tokens": [[1], [2]], "masks": [[1]]}, "masks of 1 document, tokens of 2"),
        ({"tokens": [[1], [2]], "masks": [[1], [-1]]}, "mask of token 0 of document 1 is -1; exp"),
        ({"tokens": [[1, 2]], "side": {"w": [[1]]}}, "document 0: its 'w' are of shape (1,)"),
        (
            {"tokens": [[1], [], [2]], "side": {"w": [[1], [], [0.5]]}},
            "'w' is of float64 and of int64: give arrays of one dtype",
        ),
        ({"tokens": [[1]], "side": {"targets": [[1]]}}, "'targets': batches have another array of"),
    ]
    for arrays, message in given:
        with pytest.raises(InputError, match=re.escape(message)):
            ArrayDocuments(name="mine", **arrays)


def test_arrays_of_other_dtypes_are_the_same_documents() -> None:
    masks = [[0, 1, 1], [], [1, 1]]
    given = np.array([1, 2, 0])
    plain = ArrayDocuments([given, [], [7, 0]], masks)
    given[:] = -1
    assert plain[0]["tokens"].tolist() == [1, 2, 0], "what is given later is not seen"
    tokens = [np.array([1, 2, 0], np.uint64), [], np.array([7, 0], np.float16)]
    other = ArrayDocuments(tokens, [[False, True, True], [], [1, 1.0]])
    sides = [{"w": masks}, {"v": masks}, {"w": [[0, 1, 2], [], [1, 1]]}]
    sides.append({"w": [np.array(each, np.int8) for each in masks]})
    changed = [
        *(ArrayDocuments(tokens, masks, side=side) for side in sides),
        ArrayDocuments(tokens),
        ArrayDocuments([[9, 2, 0], [], [7, 0]], masks),
        ArrayDocuments(tokens, [[1, 1, 1], [], [1, 1]]),
        ArrayDocuments([[1, 2, 0, 7], [], [0]], [[0, 1, 1, 1], [], [1]]),
    ]
    assert other.fingerprint == plain.fingerprint
    assert len({each.fingerprint for each in (other, *changed)}) == 9
