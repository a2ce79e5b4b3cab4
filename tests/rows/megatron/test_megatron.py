"""Megatron's rows: those of a slow implementation that walks."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.rows.megatron.order import document_order, plan_epochs, sample_order
from jaxdata.testing import distinct_documents
from tests.dataset.documents.test_foreign import only_source, write_megatron
from tests.rows.megatron.slow_megatron import SlowGpt, lengths_of_some, texts

BY_EOD: dict[str, Any] = {"reset": True, "eod_mask_loss": True, "by": "eod", "eod_id": 0}


@settings(max_examples=100)
@given(
    lengths_of_some,
    st.integers(1, 12),
    st.integers(0, 2**32 - 1),
    st.none() | st.integers(0, 60),
    st.sampled_from([0, 1]),
    st.booleans(),
)
def test_rows_are_those_of_the_slow_implementation(
    lengths: list[int], seq_len: int, seed: int, num_samples: int | None, extra: int, whole: bool
) -> None:
    """Also of validation data whose rest is a row too, and of samples without another token."""
    documents = distinct_documents(lengths)
    given: dict[str, Any] = {"seq_len": seq_len, "seed": seed, "num_samples": num_samples}
    given |= {"add_extra_token_to_sequence": extra, "part": "valid", "reset": bool(seed % 2)}
    given["drop_last_partial_validation_sequence"] = whole
    given["eod_mask_loss"] = masked = bool(seed % 3)
    firsts = {int(document[0]) for document in documents if masked and len(document)}
    source, least = jaxdata.ArrayDocuments(documents), (seq_len if whole else 1) + extra
    if sum(lengths) < least:
        with pytest.raises(InputError, match=f"a row of seq_len={seq_len} needs {least}"):
            jaxdata.rows.megatron.gpt(source, **given)
        return
    rows = jaxdata.rows.megatron.gpt(source, **given)
    slow = SlowGpt(documents, seq_len, seed, num_samples, extra=extra, drop_last=whole)
    assert len(rows) == slow.length
    for number in range(slow.length):
        row, text = rows[number], slow.text(number).tolist()
        filled = min(len(text), seq_len)
        padded = [*text, *[0] * seq_len]
        assert row["inputs"].tolist() == padded[:seq_len]
        targets = [*text[1:], *[0] * seq_len][:seq_len]
        assert row["targets"].tolist() == targets
        trained = [bool(target) and target not in firsts for target in targets]
        assert row["loss_mask"].tolist() == trained
        assert (row["segment_ids"] > 0).tolist() == [k < filled for k in range(seq_len)]


def test_an_order_of_its_own_functions() -> None:
    lengths = np.array([3, 7, 0, 5, 2, 11])
    plan = plan_epochs(int(lengths.sum()), 4, 8)
    assert (plan.count, plan.separate) == (2, True)
    random = np.random.RandomState(1234)
    order = document_order(np.arange(6, dtype=np.int32), plan, random)
    assert order.tolist() == [2, 1, 5, 0, 4, 3, 0, 4, 3, 2, 5, 1]
    assert sample_order(plan, random).tolist() == [1, 0, 3, 2, 5, 4, 8, 9, 11, 7, 10, 12, 6]


documents_with_eods = st.lists(st.lists(st.integers(0, 4), max_size=20), min_size=1, max_size=9)


@settings(max_examples=60)
@given(documents_with_eods, st.integers(1, 12), st.sampled_from([0, 1]), st.booleans())
def test_documents_end_with_each_eod(
    documents: list[list[int]], seq_len: int, extra: int, drop_last: bool
) -> None:
    """From ids alone, as Megatron does it; documents may hold EODs, 0, and may lack the last."""
    masks = [[k % 3 > 0 for k in range(len(one))] for one in documents]
    if sum(map(len, documents)) < (seq_len if drop_last else 1) + extra:
        return
    given: dict[str, Any] = {"seq_len": seq_len, "num_samples": 30, "part": "valid"}
    given |= {"add_extra_token_to_sequence": extra}
    given["drop_last_partial_validation_sequence"] = drop_last
    source = jaxdata.ArrayDocuments(documents, masks)
    by = {"by": "eod", "eod_id": 0, "eod_mask_loss": True}

    def every(**more: Any) -> dict[str, np.ndarray]:
        rows = jaxdata.rows.megatron.gpt(source, **given, **more)
        return next(jaxdata.Loader(rows, batch_size=len(rows), prefetch=0))  # type: ignore[no-any-return]

    expected = every()
    filled, slots = expected["segment_ids"], np.arange(seq_len)
    after = np.pad(expected["inputs"][:, :-1] == 0, ((0, 0), (1, 0)))
    expected["loss_mask"] &= expected["inputs"] != 0
    assert_equal(every(**by), expected)
    expected["segment_ids"] = (1 + np.cumsum(after, axis=1)) * filled
    assert_equal(every(**by, reset=True, positions="row"), expected)
    starts = np.maximum.accumulate(np.where(after, slots, 0), axis=1)
    expected["positions"] = (slots - starts) * filled
    assert_equal(every(**by, reset=True), expected)


def assert_equal(batch: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert {n: a.tolist() for n, a in batch.items()} == {n: a.tolist() for n, a in expected.items()}


def test_sequences_of_files_are_its_documents_also_in_a_part_of_a_split(tmp_path: Path) -> None:
    sequences = distinct_documents([9, 4, 12, 1, 7, 30, 2, 20])
    source = only_source(write_megatron(tmp_path / "old", sequences, "<i4", [0, 2, 2, 5, 8]))
    for part, chosen in (("train", range(6)), ("test", range(7, 8))):
        slow = SlowGpt(sequences, 5, 11, None, chosen)
        rows = jaxdata.rows.megatron.gpt(source, seq_len=5, seed=11, split="6,1,1", part=part)
        assert texts(rows) == [slow.text(k).tolist() for k in range(slow.length)]


@pytest.mark.parametrize("options", [{}, {"reset": True, "eod_mask_loss": True}, BY_EOD])
def test_pads_have_no_loss_and_are_0(options: dict[str, Any]) -> None:
    """Also those that a row's last target is; EODs of id 0 are found before."""
    random = np.random.default_rng(5)
    documents = [np.append(random.integers(0, 4, 20), 0).astype(np.uint16) for _ in range(30)]
    source = jaxdata.ArrayDocuments(documents)
    plain = jaxdata.rows.megatron.gpt(source, seq_len=8, **options)
    rows = jaxdata.rows.megatron.gpt(source, seq_len=8, pad_id=3, **options)
    seen = 0
    for one, other in zip(plain, pickle.loads(pickle.dumps(rows)), strict=True):
        for name in ("inputs", "targets"):
            assert (other[name] == np.where(one[name] == 3, 0, one[name])).all()
        assert (other["loss_mask"] == one["loss_mask"] & (one["targets"] != 3)).all()
        assert (other["segment_ids"] == one["segment_ids"]).all()
        seen += int((one["targets"] == 3).sum())
    assert seen > 50
