"""The contract of documents, in memory and of objects of users' own, over lists of a few tokens."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset import array_documents
from jaxdata.dataset import documents as base
from jaxdata.dataset.array_documents import ArrayDocuments, CustomDocuments, as_documents
from jaxdata.dataset.documents import DerivedDocuments, Documents, Gathered, StatedLengths, run_ends
from jaxdata.storage.pages.index_columns import FarColumn


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


_documents = st.lists(
    st.lists(st.integers(0, 2**16 - 1) | st.just(2**31 - 1), max_size=6), max_size=6
)
contents = st.builds(Content, _documents, st.booleans())


def asked_of(data: st.DataObject, content: Content) -> list[tuple[int, int, int]]:
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
def test_any_ranges_are_those_of_the_lists(
    content: Content, kind: str, data: st.DataObject
) -> None:
    docs = getattr(content, kind)()
    rows = asked_of(data, content)
    dtype = docs.dtype.newbyteorder("<")
    size = 2 if kind == "in_memory" and max(sum(content.tokens, [0])) < 2**16 else 4
    assert (docs.dtype.itemsize, docs.dtype.kind) == (size, "u")
    assert docs.name == "train/web"
    found = docs.tokens(*columns(rows))
    assert by_range(found, len(rows), dtype) == ranges(content.tokens, rows)
    assert docs.masked is bool(content.masked and (content.tokens or kind == "in_memory"))
    if docs.masked:
        found = docs.masks(*columns(rows))
        assert by_range(found, len(rows), np.uint8) == ranges(content.masks, rows)
    found = docs.side["w"].tokens(*columns(rows))
    assert by_range(found, len(rows), docs.side["w"].dtype) == ranges(content.weights, rows)
    assert docs.side["w"].dtype.byteorder in "=<"
    assert docs.store is None
    assert docs.lengths.tolist() == list(map(len, content.tokens))
    assert docs.lengths.dtype == np.uint32
    assert docs.total_tokens == sum(map(len, content.tokens))
    for number, tokens in enumerate(content.tokens):
        for item in (docs[number], docs[number - len(docs)]):
            assert item["tokens"].tolist() == tokens
            assert item["w"].tolist() == content.weights[number]
            assert ("loss_mask" in item) is docs.masked
            if docs.masked:
                assert item["loss_mask"].dtype == np.bool_
                assert item["loss_mask"].tolist() == [bool(n) for n in content.masks[number]]
    for start, stop in ((1, 3), (-2, None), (3, 1), (0, -1), (2, 99)):
        for number, tokens in enumerate(content.tokens):
            assert docs.read(number, start, stop).tolist() == tokens[start:stop]
    assert [each["tokens"].tolist() for each in docs[1:]] == content.tokens[1:]
    for number in (len(docs), -len(docs) - 1):
        with pytest.raises(IndexError) as refused:
            docs[number]
        assert str(refused.value) == f"no document {number}: {len(docs)} are numbered from 0"


@given(contents, st.integers(1, 9))
def test_pages_end_where_the_first_bytes_of_documents_leave_them(
    content: Content, size: int
) -> None:
    docs = content.in_memory()
    item = docs.dtype.itemsize + docs.masked
    firsts, at = [], 0
    for tokens in content.tokens:
        firsts.append(at)
        at += len(tokens) * item
    pages = [first // size for first in firsts]
    ends = [n for n in range(1, len(pages)) if pages[n] != pages[n - 1]]
    with pytest.MonkeyPatch.context() as patch:
        for at_once in (1, 2, 100):
            patch.setattr(base, "_DOCUMENTS_AT_ONCE", at_once)
            found = docs.page_ends(size)
            assert found.tolist() == ends + [len(pages)] * (len(pages) > 0)
            assert found.dtype == np.int64
            numbers = np.array(pages)
            assert run_ends(numbers.__getitem__, len(pages)).tolist() == found.tolist()
    assert docs.file_sizes.tolist() == [at]
    file, first = docs.first_bytes(np.arange(len(firsts)))
    assert (file.tolist(), first.tolist()) == ([0] * len(firsts), firsts)


@given(contents, st.data())
def test_places_in_one_file_hold_the_tokens_then_the_masks(
    content: Content, data: st.DataObject
) -> None:
    docs, rows, file = content.in_memory(), asked_of(data, content), b""
    for tokens, mask in zip(content.tokens, content.masks, strict=True):
        file += np.array(tokens, docs.dtype.newbyteorder("<")).tobytes()
        file += bytes(mask) if content.masked else b""
    found = docs.places(*columns(rows))
    assert not found.file.any()
    assert found.owner.tolist() == [*range(len(rows))] * (1 + content.masked)
    held = [file[a:b] for a, b in zip(found.start.tolist(), found.stop.tolist(), strict=True)]
    wanted = [np.array(each, docs.dtype).tobytes() for each in ranges(content.tokens, rows)]
    masks = [bytes(each) for each in ranges(content.masks, rows)] if content.masked else []
    assert held == wanted + masks


@given(st.lists(st.integers(0, 3), max_size=6), st.data())
def test_a_filler_follows_the_ranges_that_want_it(counts: list[int], data: st.DataObject) -> None:
    values = np.arange(sum(counts), dtype=np.uint16)
    found = Gathered.cut(values, np.array(counts, np.int64))
    assert [values[0:0].tolist(), *by_range(found, len(counts), "u2")] == [
        [], *(values[sum(counts[:n]) :][:count].tolist() for n, count in enumerate(counts)),
    ]  # fmt: skip
    some = [n for n in range(len(counts)) if data.draw(st.booleans())]
    followed = found.followed(
        np.array(some, np.int64), b"\x07\x00", np.array([n + 1 for n in some], np.int64)
    )
    plain = by_range(found, len(counts), "u2")
    assert by_range(followed, len(counts), "u2") == [
        each + [7] * (n in some) * (n + 1) for n, each in enumerate(plain)
    ]


class Tokens(Documents):
    """The least that documents are: what they need not know has an answer."""

    def __init__(self, name: str = "train/a", far: bool = False) -> None:
        self.name, self.fingerprint, self.dtype = name, "f", np.dtype("<u2")
        self.lengths = np.array([2, 0, 3], np.uint32)
        self.asked: list[Any] = []
        if far:
            self.store = SimpleNamespace(local=False)  # type: ignore[assignment]

    def tokens(self, documents: Any, starts: Any, counts: Any) -> Gathered:
        self.asked.append([each.tolist() for each in (documents, starts, counts)])
        return Gathered.cut(np.arange(counts.sum(), dtype="<u2"), counts)


def test_documents_need_no_more_than_lengths_and_tokens() -> None:
    docs, numbers = Tokens(), np.arange(3)
    assert (len(docs), docs.total_tokens, docs.masked) == (3, 5, False)
    assert (docs.store, docs.entry, docs.loss_tokens, docs.stated_lengths) == (None,) * 4
    assert (docs.side, docs.is_far, docs.origin(0), docs.kept(0)) == ({}, False, None, {})
    assert docs.base is docs.sequences is docs
    assert docs.in_base(numbers, numbers) == (numbers, numbers)
    docs.check_lengths()
    docs.fetch_lengths(numbers)
    assert docs[2] == {"tokens": pytest.approx([0, 1, 2])}
    assert Tokens(far=True).is_far
    for ask in (docs.masks, docs.page_ranges):
        with pytest.raises(NotImplementedError):
            ask(numbers, numbers, numbers)
    with pytest.raises(TypeError, match=r"abstract method '?tokens"):
        Documents()  # type: ignore[abstract]


def test_what_is_said_of_lengths_is_used_instead_of_reading_them() -> None:
    class Said(Tokens):
        stated_lengths = StatedLengths(7, "s")  # type: ignore[assignment]

    assert Said().total_tokens == 7


def test_lengths_in_a_bucket_are_fetched_in_one_go() -> None:
    data, reads = np.arange(9_000, dtype="<u4"), []

    def read(start: Any, stop: Any) -> list[bytes]:
        reads.append(len(start))
        return [data.tobytes()[a:b] for a, b in zip(start, stop, strict=True)]

    docs: Any = Tokens()
    docs.lengths = FarColumn(len(data), data.dtype, read, lambda: data)
    docs.fetch_lengths(np.array([1, 2_000]))
    assert docs.lengths[np.array([1, 2_000])].tolist() == [1, 2_000]
    assert reads == [2] or reads == [], "both spans together, or all"


def test_derived_documents_ask_their_source_where_they_lie_in_it() -> None:
    class Later(DerivedDocuments):
        def in_source(self, documents: Any, starts: Any) -> Any:
            return documents + 1, starts + 10

    class Known(Tokens):
        masked = True
        pages = "pages"  # type: ignore[assignment]
        masks = page_ranges = Tokens.tokens  # type: ignore[assignment]

        @property
        def side(self) -> Any:
            return {"w": self.values}

        def origin(self, index: int) -> Any:
            return "file", index

        def kept(self, index: int) -> Any:
            return {"number": index}

    source: Any = Known(far=True)
    source.values = Tokens("train/a w")
    docs, asked = Later(Later(source)), tuple(np.array([each]) for each in (0, 1, 2))
    assert (docs.name, docs.fingerprint, docs.masked, docs.is_far) == ("train/a", "f", True, True)
    assert (docs.dtype, docs.lengths.tolist(), docs.pages) == (np.dtype("<u2"), [2, 0, 3], "pages")
    for ask in (docs.tokens, docs.masks, docs.page_ranges):
        ask(*asked)
        assert source.asked.pop() == [[2], [21], [2]]
    beside = docs.side["w"]
    assert (beside.name, beside.masked, beside.lengths is docs.lengths) == (
        "train/a w",
        False,
        True,
    )
    beside.tokens(*asked)
    assert source.values.asked == [[[2], [21], [2]]]
    assert docs.base is source
    assert [each.tolist() for each in docs.in_base(*asked[:2])] == [[2], [21]]
    assert (docs.origin(0), docs.kept(-3)) == (("file", 2), {"number": 2})
    assert (docs.stated_lengths, docs.entry) == (None, None), "which are the source's alone"


def test_documents_are_taken_as_they_are_and_objects_are_wrapped() -> None:
    docs, given = ArrayDocuments([[1]]), Given(Content([[1, 2]], False))
    assert as_documents(docs) is docs
    assert isinstance(as_documents(given), CustomDocuments)
    for wrong in (SimpleNamespace(lengths=[1]), [1], SimpleNamespace(tokens=[1])):
        with pytest.raises(InputError) as refused:
            as_documents(wrong)
        assert str(refused.value) == (
            f"cannot pack a {type(wrong).__name__}: expected a source with lengths, as "
            "dataset.source(split, name) gives it, jaxdata.ArrayDocuments([tokens, …]), or an "
            "object with `lengths` whose items are arrays of tokens"
        )


@given(contents)
def test_the_fingerprint_of_an_object_is_of_its_lengths_and_a_sample(content: Content) -> None:
    docs = content.custom()
    expected = hashlib.sha256(np.array(docs.lengths, "<u4").tobytes())
    for number, tokens in enumerate(content.tokens):
        expected.update(np.array(tokens, "<u4").tobytes())
        if docs.masked:
            expected.update(bytes(content.masks[number]))
        expected.update(np.array(content.weights[number], "<f4").tobytes())
    assert docs.fingerprint == expected.hexdigest()


def test_a_sample_is_64_documents_from_the_first_to_the_last() -> None:
    given: Any = Given(Content([[n] for n in range(1000)], False))
    docs = CustomDocuments(given)
    assert given.asked == [0], "whether there are masks"
    assert len(docs.fingerprint) == 64
    asked = sorted({*given.asked})
    assert (len(asked), asked[0], asked[-1]) == (64, 0, 999)
    assert {b - a for a, b in pairwise(asked)} == {15, 16}
    given.fingerprint, given.name, given.loss_tokens = 7, "mine", 5
    own = CustomDocuments(given)
    assert (own.fingerprint, own.name, own.loss_tokens) == ("7", "mine", 5)
    del given.name, given.loss_tokens
    assert CustomDocuments(SimpleNamespace(lengths=[])).name == "documents"
    assert CustomDocuments(given).loss_tokens is None


_EXPECTED = "by its lengths; lengths and items must agree"


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([[1, 2], [3]], f"document 1 has 1 tokens, expected 2 {_EXPECTED}"),
        ([[1, 2], [[3, 4]]], f"document 1 has the shape (1, 2), expected 2 {_EXPECTED}"),
        ([[1, 2], {"x": [3, 4]}], "document 1 has no 'tokens'"),
        ([[1, 2], [True, False]], "document 1 has tokens of dtype bool; expected numbers"),
        ([[1, 2], [3, 2**31]], "token 1 of document 1 is 2147483648; expected a whole number from "
         "0 to 2147483647"),
        ([[1, 2], [0.5, 1]], "token 0 of document 1 is 0.5; expected a whole number from 0 to "
         "2147483647"),
        ([[1, 2], {"tokens": [3, 4], "loss_mask": [1, 1]}],
         "document 1 has a 'loss_mask', document 0 has none; expected all or none"),
    ],
)  # fmt: skip
def test_an_item_that_breaks_the_word_of_its_object_is_named(items: Any, message: str) -> None:
    class Items(list[Any]):
        lengths = (2, 2)

    docs = CustomDocuments(Items(items))
    assert docs[0]["tokens"].tolist() == [1, 2]
    with pytest.raises(DatasetError) as refused:
        docs[1]
    assert str(refused.value) == f"Items 'documents': {message}"


def test_values_beside_tokens_are_of_their_type_and_length() -> None:
    class Items(list[Any]):
        lengths, side = (2,), {"w": "int8"}

    def refused(**item: Any) -> str:
        with pytest.raises(DatasetError) as found:
            CustomDocuments(Items([{"tokens": [1, 2]} | item]))[0]
        return str(found.value)

    assert refused() == "Items 'documents': document 0 has no 'w'"
    assert refused(w=[1]) == (
        f"Items 'documents': document 0 has 1 values of 'w', expected 2 {_EXPECTED}"
    )
    assert refused(w=[1, 200]) == (
        "Items 'documents': 'w' of document 0 holds a number that int8 does not hold; give another "
        "dtype in its `side`"
    )
    assert refused(w=["a", "b"]) == (
        "Items 'documents': document 0 has values of 'w' of dtype <U1; expected numbers"
    )
    assert refused(w=[1, 2], loss_mask=[1, 2]) == (
        "Items 'documents': the mask of token 1 of document 0 is 2; expected 0 or 1"
    )
    fine = CustomDocuments(Items([{"tokens": [1, 2], "w": [True, False]}]))
    assert fine[0]["w"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([1, 2**32], "the length of document 1 is 4294967296; expected a whole number from 0 to "
         "4294967295"),
        ([1.5], "the length of document 0 is 1.5; expected a whole number from 0 to 4294967295"),
        ([[1]], "lengths are of shape (1, 1) and dtype int64; expected a number of tokens for each "
         "document"),
        (["a"], "lengths are of shape (1,) and dtype <U1; expected a number of tokens for each "
         "document"),
        ([1, 2, 3], "3 lengths, 2 documents; expected a length for each"),
    ],
)  # fmt: skip
def test_lengths_that_are_none_are_named(lengths: Any, message: str) -> None:
    class Items(list[Any]):
        pass

    Items.lengths = lengths  # type: ignore[attr-defined]
    with pytest.raises(InputError) as refused:
        CustomDocuments(Items([[1], [2]][: max(len(lengths), 2)]))
    assert str(refused.value) == f"Items 'documents': {message}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tokens": [[5, 0], [7, -1, 0]]}, "'mine': token 1 of document 1 is -1; expected a whole"),
        ({"tokens": [[2**33 + 5]]}, "token 0 of document 0 is 8589934597; expected .* 2147483647"),
        ({"tokens": [[1, 0], [1.5, 0]]}, "token 0 of document 1 is 1.5; expected a whole number"),
        ({"tokens": [np.array([1, np.nan])]}, "token 1 of document 0 is nan; expected a whole"),
        ({"tokens": [[2**70]]}, "document 0: tokens are of dtype object; expected numbers"),
        ({"tokens": [[1], [True]]}, "document 1: tokens are of dtype bool; expected numbers"),
        ({"tokens": ["a text"]}, r"document 0: tokens of shape \(\); expected a list of ids"),
        ({"tokens": [[[1], [2, 3]]]}, "document 0: tokens are no array: setting an array element"),
        ({"tokens": [[1], [2]], "masks": [[1]]}, "masks of 1 document, tokens of 2"),
        ({"tokens": [[1, 2]], "masks": [[1]]}, r"document 0: 2 tokens, masks of shape \(1,\)"),
        ({"tokens": [[1], [2]], "masks": [[1], [-1]]}, "mask of token 0 of document 1 is -1; exp"),
        ({"tokens": [[1, 2]], "masks": [[0.5, 1]]}, "mask of token 0 of document 0 is 0.5; expec"),
        ({"tokens": [[1, 2]], "side": {"w": [[1]]}}, r"document 0: 2 tokens, 'w' of shape \(1,\)"),
        ({"tokens": [[1], [2]], "side": {"w": [[1]]}}, "'w' of 1 document, tokens of 2"),
        ({"tokens": [[1], [], [2]], "side": {"w": [[1], [], [0.5]]}},
         "'w' of document 2 is of float64, of document 0 of int64; give arrays of one dtype"),
        ({"tokens": [[1]], "side": {"w": [["a"]]}}, "'w' is of <U1; expected whole numbers or"),
        ({"tokens": [[1]], "side": {"targets": [[1]]}}, "'targets': batches have another array of"),
        ({"tokens": [[1]], "side": {"target_x": [[1]]}}, "'target_x': batches have another array"),
    ],
)  # fmt: skip
def test_arrays_are_ids_and_masks_or_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ArrayDocuments(name="mine", **given)


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
    beside = [ArrayDocuments(tokens, masks, side=side) for side in sides]
    beside.append(ArrayDocuments(tokens))
    assert other.fingerprint == plain.fingerprint
    changed = [
        ArrayDocuments([[9, 2, 0], [], [7, 0]], masks),
        ArrayDocuments(tokens, [[1, 1, 1], [], [1, 1]]),
        ArrayDocuments([[1, 2, 0, 7], [], [0]], [[0, 1, 1, 1], [], [1]]),
    ]
    assert len({each.fingerprint for each in (other, *beside, *changed)}) == 9
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(array_documents, "_TOKENS_AT_ONCE", 2)
        assert ArrayDocuments(tokens, masks).fingerprint == plain.fingerprint
