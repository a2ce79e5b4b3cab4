"""Rows of random shorter length."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata import InputError
from jaxdata.foreign.data_params import short_rows

DOCS = jaxdata.ArrayDocuments([np.arange(1, n % 90 + 3) for n in range(900)])


def rows(**options: Any) -> Any:
    return jaxdata.pack(DOCS, **{"seq_len": 64, "strategy": "concat"} | options)


def test_the_share_that_was_asked_for_is_cut_anywhere() -> None:
    whole = rows()
    short = short_rows(whole, 0.3, seed=5)
    assert len(short) == len(whole)
    cut = []
    for number in range(len(whole)):
        one, was = short[number], whole[number]
        kept = int((one["segment_ids"] > 0).sum())
        if kept < (was["segment_ids"] > 0).sum():
            cut.append(kept)
        for name in was:
            assert one[name].dtype == was[name].dtype
            assert (one[name][:kept] == was[name][:kept]).all()
            assert not one[name][kept:].any(), "padding as everywhere"
    assert abs(len(cut) / len(whole) - 0.3) < 0.07
    assert 1 <= min(cut) < 8
    other = short_rows(whole, 0.3, seed=6)
    assert any((other[n]["inputs"] != short[n]["inputs"]).any() for n in range(64))
    assert 56 < max(cut) <= 62


def test_none_and_all_and_more_than_all() -> None:
    whole = rows()
    for name, array in short_rows(whole, 0)[3].items():
        assert (array == whole[3][name]).all()
    every = short_rows(whole, 1)
    assert all((every[n]["segment_ids"] == 0).sum() >= 2 for n in range(50))
    assert short_rows(rows(seq_len=1), 1)[0]["inputs"].shape == (1,)
    with pytest.raises(InputError, match=r"rate=1\.5: expected a number from 0 to 1"):
        short_rows(whole, 1.5)
