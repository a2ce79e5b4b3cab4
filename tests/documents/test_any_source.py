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
