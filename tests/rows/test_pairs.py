"""Preference pairs: one order on both sides, one prompt, cut to one length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.base.errors import DatasetError, InputError, StateMismatch
from jaxdata.rows.pairs import Truncation, truncation_of

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


def test_a_row_has_both_sides_of_one_document() -> None:
    rows = jaxdata.pairs(CHOSEN, REJECTED, seq_len=16, shuffle=False)
    assert documents(rows) == list(range(23))
    row = rows[3]
    prompt, good, bad = SHAPES[3]
    for name, length, offset in (("chosen", good, 10_000), ("rejected", bad, 20_000)):
        answer = [offset + 300 + k + 1 for k in range(length)] + [0]
        tokens = [300 + k + 1 for k in range(prompt)] + answer
        slots = len(tokens) - 1
        assert row[f"{name}_inputs"].tolist() == tokens[:-1] + [0] * (16 - slots)
        assert row[f"{name}_targets"].tolist() == tokens[1:] + [0] * (16 - slots)
        mask = [False] * (prompt - 1) + [True] * len(answer)
        assert row[f"{name}_loss_mask"].tolist() == mask + [False] * (16 - slots)
        assert row[f"{name}_segment_ids"].tolist() == [1] * slots + [0] * (16 - slots)
        assert row[f"{name}_positions"].tolist() == [*range(slots), *[0] * (16 - slots)]
    assert {array.shape for array in row.values()} == {(16,)}


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
    prompt_ids = list(range(1, prompt + 1))
    ids = [[1000 * (k + 1) + n for n in range(length)] for k, length in enumerate(answers)]
    docs = [
        jaxdata.ArrayDocuments([prompt_ids + one], masks=[[0] * prompt + [1] * len(one)])
        for one in ids
    ]
    row = jaxdata.pairs(*docs, seq_len=seq_len, max_prompt=max_prompt)[0]
    fits = prompt + max(answers) <= seq_len + 1
    for name, answer in zip(("chosen", "rejected"), ids, strict=True):
        slots = int(row[f"{name}_segment_ids"].sum())
        tokens = (
            [*row[f"{name}_inputs"][:slots], row[f"{name}_targets"][slots - 1]] if slots else []
        )
        mask = row[f"{name}_loss_mask"]
        trained = row[f"{name}_targets"][mask].tolist()
        if fits:
            assert tokens == prompt_ids + answer or not slots
        assert trained == answer[: len(trained)]
        kept = len(tokens) - len(trained)
        if slots:
            assert tokens[:kept] == prompt_ids[-kept:]
            assert kept == (prompt if fits else min(prompt, max_prompt))
        if (
            prompt + max(answers) > seq_len + 1
            and min(prompt, max_prompt) + max(answers) > seq_len + 1
        ):
            assert len(trained) == min(len(answer), seq_len + 1 - max_prompt)
        else:
            assert len(trained) == len(answer)


def test_the_rules_of_what_fits() -> None:
    assert truncation_of(6, 4, 10, 4) == Truncation(6, 4), "all of it fits"
    assert truncation_of(7, 4, 10, 4) == Truncation(4, 4), "the prompt's last 4 are enough"
    assert truncation_of(7, 9, 10, 4) == Truncation(4, 6), "and the answers' first 10 - 4"
    assert truncation_of(2, 9, 10, 4) == Truncation(2, 6), "even where the prompt is shorter"


def test_a_loader_takes_pairs_and_resumes_on_other_hosts() -> None:
    rows = jaxdata.pairs(CHOSEN, REJECTED, seq_len=8).repeat(2)
    whole = list(jaxdata.Loader(rows, batch_size=6))
    first = jaxdata.Loader(rows, batch_size=6, num_workers=1)
    taken = [next(first), next(first)]
    state = first.get_state()
    first.close()
    parts = [jaxdata.Loader(rows, batch_size=6, shard=(host, 3)) for host in range(3)]
    for loader in parts:
        loader.set_state(state)
    rest = [
        {name: np.concatenate([one[name] for one in batch]) for name in batch[0]}
        for batch in zip(*parts, strict=True)
    ]
    np.testing.assert_equal(taken + rest, whole)
    other = jaxdata.Loader(jaxdata.pairs(CHOSEN, REJECTED, seq_len=8, seed=1), batch_size=6)
    with pytest.raises(StateMismatch, match="seed"):
        other.set_state(state)


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
