"""Preference pairs: one order on both sides, one prompt, cut to one length."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.base.errors import DatasetError, InputError

SHAPES = [(1 + i % 5, 1 + (i * 7) % 9, 1 + (i * 3) % 6) for i in range(23)]


def side(answers: int, offset: int, eod: int = 0) -> jaxdata.ArrayDocuments:
    """Prompt tokens 100 i + k, answers of another hundred thousand, EOD."""
    tokens, masks = [], []
    for number, shape in enumerate(SHAPES):
        prompt = [100 * number + k + 1 for k in range(shape[0])]
        answer = [offset + 100 * number + k + 1 for k in range(shape[answers])] + [eod]
        tokens.append(prompt + answer)
        masks.append([0] * len(prompt) + [1] * len(answer))
    return jaxdata.ArrayDocuments(tokens, masks=masks, name=f"train/x/{offset}")


CHOSEN, REJECTED = side(1, 10_000), side(2, 20_000)


def documents(rows: Any) -> list[int]:
    """Which document each row is, checked to be the same on both sides."""
    found = []
    for number in range(len(rows)):
        row = rows[number]
        chosen, rejected = row["chosen_inputs"], row["rejected_inputs"]
        assert chosen[0] == rejected[0]
        found.append(int(chosen[0] - 1) // 100)
    return found


def test_rows_that_are_not_shuffled_are_the_documents_in_their_order() -> None:
    assert documents(jaxdata.pairs(CHOSEN, REJECTED, seq_len=16, shuffle=False)) == [*range(23)]


def test_every_epoch_has_every_pair_in_its_own_order() -> None:
    rows = jaxdata.pairs(CHOSEN, REJECTED, seq_len=16, seed=3)
    orders = [documents(rows.repeat(3)[n * 23 : (n + 1) * 23]) for n in range(3)]
    assert all(sorted(order) == list(range(23)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3
    assert documents(jaxdata.pairs(CHOSEN, REJECTED, seq_len=16, seed=3)) == orders[0]
    again = rows.repeat(2, reseed_each_epoch=False)
    assert documents(again[23:46]) == orders[0]
    assert documents(jaxdata.pairs(CHOSEN, REJECTED, seq_len=16, seed=4)) != orders[0]
    np.testing.assert_equal(rows[25], rows.repeat(3)[25])


@given(
    prompt=st.integers(1, 40),
    answers=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    seq_len=st.integers(1, 50),
    data=st.data(),
)
def test_what_is_kept_is_the_end_of_the_prompt_and_the_begin_of_the_answers(
    prompt: int, answers: tuple[int, int], seq_len: int, data: st.DataObject
) -> None:
    max_prompt = data.draw(st.integers(1, seq_len))
    kept, longest = prompt, max(answers)
    if prompt + longest > seq_len + 1:
        kept = min(prompt, max_prompt)
    if kept + longest > seq_len + 1:
        longest = seq_len + 1 - max_prompt
    prompts = [*range(1, prompt + 1)]
    ids = [[1000 * (k + 1) + n for n in range(length)] for k, length in enumerate(answers)]
    docs = [
        jaxdata.ArrayDocuments([prompts + one], masks=[[0] * prompt + [1] * len(one)])
        for one in ids
    ]
    row = jaxdata.pairs(*docs, seq_len=seq_len, max_prompt=max_prompt)[0]
    for name, answer in zip(("chosen", "rejected"), ids, strict=True):
        expected = prompts[-kept:] + answer[:longest]
        rest = [0] * (seq_len + 1 - len(expected))
        assert row[f"{name}_inputs"].tolist() == expected[:-1] + rest
        assert row[f"{name}_targets"].tolist() == expected[1:] + rest
        mask = [False] * (kept - 1) + [True] * len(answer[:longest])
        assert row[f"{name}_loss_mask"].tolist() == mask + [False] * len(rest)
        ids_of = [1] * (len(expected) - 1)
        assert row[f"{name}_segment_ids"].tolist() == ids_of + rest
        assert row[f"{name}_positions"].tolist() == [*range(len(ids_of)), *rest]


def test_what_is_no_pair_is_refused() -> None:
    short = jaxdata.ArrayDocuments([[1, 2]], masks=[[0, 1]], name="train/short")
    with pytest.raises(InputError, match=r"has 23 documents and train/short 1: expected the two"):
        jaxdata.pairs(CHOSEN, short, seq_len=4)
    with pytest.raises(InputError, match="has no loss masks to mark the ends of its prompts"):
        jaxdata.pairs(short, jaxdata.ArrayDocuments([[1, 2]]), seq_len=4)
    with pytest.raises(InputError, match="max_prompt=5: expected 1 to seq_len = 4"):
        jaxdata.pairs(CHOSEN, REJECTED, seq_len=4, max_prompt=5)
    with pytest.raises(InputError, match="seq_len=0: expected 1 to"):
        jaxdata.pairs(CHOSEN, REJECTED, seq_len=0)
    other = jaxdata.ArrayDocuments([[2, 2]], masks=[[0, 1]], name="train/other")
    with pytest.raises(DatasetError, match="document 0 of train/short and 0 of train/other have"):
        jaxdata.pairs(short, other, seq_len=4)[0]
