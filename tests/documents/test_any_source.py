"""Anything with lengths and items can be packed: a data source of the user's own."""

from __future__ import annotations

from typing import Any

import grain
import numpy as np
import pytest

import jaxdata
from jaxdata.errors import DatasetError, InputError
from jaxdata.testing import assert_exactly_once
from tests.documents.test_foreign import Documents, made


class Arrays(grain.sources.RandomAccessDataSource[Any]):
    """A source of token arrays with lengths, as somebody might have one."""

    def __init__(self, documents: Documents, masks: Documents | None = None) -> None:
        self._documents, self._masks = documents, masks
        self.lengths = [len(document) for document in documents]

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, index: int) -> Any:
        if self._masks is None:
            return self._documents[index]
        return {"tokens": self._documents[index], "loss_mask": self._masks[index]}


def test_anything_with_lengths_and_items_can_be_packed() -> None:
    documents = made()
    rows = jaxdata.pack(Arrays(documents), seq_len=32, overlap=2)
    assert_exactly_once(jaxdata.Loader(rows, batch_size=1), [jaxdata.ArrayDocuments(documents)])
    masks = [np.arange(len(document)) % 2 for document in documents]
    masked = jaxdata.pack(Arrays(documents, masks), seq_len=32)
    ours = jaxdata.pack(jaxdata.ArrayDocuments(documents, masks), seq_len=32)
    assert masked.plan == ours.plan
    loss = [sum(int(r[k]["loss_mask"].sum()) for k in range(len(r))) for r in (masked, ours)]
    assert loss[0] == loss[1]


def test_what_a_source_gives_is_checked() -> None:
    wrong = Arrays(made())
    wrong.lengths[4] += 1
    with pytest.raises(DatasetError, match=r"document 4 has \d+ tokens, expected \d+ by its"):
        list(jaxdata.Loader(jaxdata.pack(wrong, seq_len=32), batch_size=1))
    negative = Arrays([np.array([1, -5, 2])])
    with pytest.raises(DatasetError, match="token 1 of document 0 is -5; expected a whole number"):
        jaxdata.pack(negative, seq_len=8)[0]
    with pytest.raises(InputError, match=r"cannot pack a list: expected .* or an object with"):
        jaxdata.pack([1, 2], seq_len=8)


def test_two_sources_of_the_same_lengths_are_told_apart() -> None:
    one, other = Arrays(made(count=300)), Arrays([d + 1 for d in made(count=300)])
    names = [jaxdata.Loader(jaxdata.pack(s, seq_len=32), batch_size=1) for s in (one, other, one)]
    states = [loader.get_state()["fingerprint"] for loader in names]
    assert states[0] == states[2] != states[1]


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
        ({"tokens": [[1, 2]], "masks": [[1, 2]]}, "the mask of token 1 of document 0 is 2; expec"),
        ({"tokens": [[1], [2]], "masks": [[1], [-1]]}, "mask of token 0 of document 1 is -1; exp"),
        ({"tokens": [[1, 2]], "masks": [[0.5, 1]]}, "mask of token 0 of document 0 is 0.5; expec"),
    ],
)
def test_arrays_are_ids_and_masks_or_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        jaxdata.ArrayDocuments(name="mine", **given)


def test_arrays_of_other_dtypes_are_the_same_documents() -> None:
    plain = jaxdata.ArrayDocuments([[1, 2, 0], [], [7, 0]], masks=[[0, 1, 1], [], [1, 1]])
    other = jaxdata.ArrayDocuments(
        [np.array([1, 2, 0], np.uint64), [], np.array([7, 0], np.float16)],
        masks=[[False, True, True], [], [1, 1.0]],
    )
    assert other.fingerprint == plain.fingerprint
    given = np.array([1, 2, 0])
    kept = jaxdata.ArrayDocuments([given, [], [7, 0]], masks=[[0, 1, 1], [], [1, 1]])
    given[:] = -1
    assert kept[0]["tokens"].tolist() == [1, 2, 0]
    assert kept.fingerprint == plain.fingerprint


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([2, -1], "Arrays 'documents': the length of document 1 is -1; expected a whole number"),
        ([2**33 + 2, 2], "the length of document 0 is 8589934594; expected .* 4294967295"),
        ([2.5, 2], "the length of document 0 is 2.5; expected a whole number"),
        ([2, 2, 2], "3 lengths, 2 documents; expected a length for each"),
        ([[2, 2]], r"lengths are of shape \(1, 2\) and dtype int64; expected a number of tokens"),
    ],
)
def test_lengths_are_numbers_of_tokens_or_refused(lengths: Any, message: str) -> None:
    source = Arrays([np.array([5, 0]), np.array([6, 0])])
    source.lengths = lengths
    with pytest.raises(InputError, match=message):
        jaxdata.pack(source, seq_len=8)


class Mixed(Arrays):
    """Items as they are given."""

    def __getitem__(self, index: int) -> Any:
        return self._documents[index]


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ({"tokens": [1, 2], "loss_mask": [1, 1]}, "document 1 has a 'loss_mask', document 0 has n"),
        ([1, "a"], "document 1 has tokens of dtype <U.*; expected numbers"),
        ([1, None], "document 1 has tokens of dtype object; expected numbers"),
    ],
)
def test_items_that_break_the_word_of_the_first(last: Any, message: str) -> None:
    source = Mixed([np.array([5, 0]), np.array([6, 0])])
    source._documents[1] = last
    with pytest.raises(DatasetError, match=f"Mixed 'documents': {message}"):
        jaxdata.pack(source, seq_len=8)[0]


def test_a_mask_of_ones_own_is_of_zeros_and_ones() -> None:
    source = Arrays([np.array([5, 0])], [np.array([0.5, 1])])
    with pytest.raises(DatasetError, match=r"mask of token 0 of document 0 is 0\.5; expected 0 or"):
        jaxdata.pack(source, seq_len=8)[0]
