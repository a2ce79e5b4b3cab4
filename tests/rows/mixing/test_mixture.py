"""`mix`: phases, weights and what ends a mixture; far out it picks as the oracle does."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.base.errors import InputError, SourceExhausted
from jaxdata.rows.mixing.mixture import mixture
from jaxdata.rows.mixing.phases import Phase
from jaxdata.rows.table import RowShape
from jaxdata.testing import distinct_documents
from tests.rows.mixing.oracle import tree_of


def packed(name: str, rows: int, first: int = 1, seq_len: int = 8) -> jaxdata.rows.PackedDataset:
    """A source of exactly `rows` rows, each of one document."""
    documents = distinct_documents([seq_len + 1] * rows, first)
    return jaxdata.pack(jaxdata.ArrayDocuments(documents, name=name), seq_len=seq_len)


class Declared:
    """A packed source that is only said to have so many rows: the arithmetic needs no more."""

    shape, documents = RowShape(8, "segment", 1), (None,)
    summary = SimpleNamespace(trained_tokens=8 * 10**13)

    def __len__(self) -> int:
        return 10**13

    def first_row(self, epoch: int) -> int:
        return epoch * len(self)

    def rows_in(self, epochs: Fraction) -> int:
        return math.ceil(epochs * len(self))


weights_lists = st.lists(st.sampled_from([0, 1e-6, 0.3, 1, 7]), min_size=5, max_size=5).filter(any)


@given(st.lists(weights_lists, min_size=3, max_size=3), st.integers(100, 10**12))
def test_phases_of_a_million_million_rows(shares: list[list[float]], offset: int) -> None:
    """Each source goes on where the phase before left it."""
    tables: Any = {f"s{number}": Declared() for number in range(5)}
    weights = [dict(zip(tables, each, strict=True)) for each in shares]
    made = mixture(tables, [Phase(rows=10**12, weights=each) for each in weights], {}, "refuse")
    before = dict.fromkeys(range(5), 0)
    for phase, each in enumerate(shares):
        tree, first = tree_of([Fraction(str(share)) for share in each]), phase * 10**12
        for at in (0, offset - 1):
            source, rank = tree.pick(at)
            (found,) = zip(*(c.tolist() for c in made.select(np.array([first + at]))), strict=True)
            assert found == (phase, source, before[source] + rank)
        counts = tree.counts(offset)
        expected = [before[number] + counts.get(number, 0) for number in before]
        assert [*made.counts(first + offset).values()] == expected
        for number, rows in tree.counts(10**12).items():
            before[number] += rows


def test_rows_that_64_bits_do_not_count_are_refused() -> None:
    tables: Any = {"s": Declared()}

    def made(*rows: int) -> int:
        phases = [Phase(rows=each, weights={"s": 1}) for each in rows]
        return len(mixture(tables, phases, {"s": 10**7}, "refuse"))

    assert made(2**62, 2**62 - 1) == 2**63 - 1
    with pytest.raises(InputError, match=r"more than 2\^63 rows: give its phases smaller budgets"):
        made(2**62, 2**62)


def test_shares_of_tokens_not_of_rows() -> None:
    # Rows of `half` are half full: to get half of the tokens it needs two thirds of the rows.
    half = jaxdata.pack(
        jaxdata.ArrayDocuments(distinct_documents([5] * 4_000), name="half"),
        seq_len=8,
        max_segments=1,
    )
    rows = {"half": half, "full": packed("full", 4_000)}
    mixed = jaxdata.mix(rows, phases=[Phase(rows=3_000, weights={"half": 1, "full": 1})])
    assert mixed.counts() == {"half": 2_000, "full": 1_000}


def test_a_halt_delivers_the_last_batch_and_then_says_so() -> None:
    mixed = jaxdata.mix(
        {"a": packed("a", 10)},
        phases=[Phase(rows=20, weights={"a": 1})],
        on_exhaustion="halt",
    )
    loader = jaxdata.Loader(mixed, batch_size=4)
    batches = [next(loader) for _ in range(3)]
    assert batches[2]["loss_mask"].any(axis=1).tolist() == [True, True, False, False]
    with pytest.raises(SourceExhausted, match="source 'a' runs dry in phase 0 at row 10"):
        next(loader)


def test_only_packed_rows_are_mixed() -> None:
    with pytest.raises(InputError, match=r"transform rows after mixing: mix\(\.\.\.\)\.map\(f\)"):
        jaxdata.mix({"a": packed("a", 10).map(dict)}, phases=[])


def test_weights_by_a_rule() -> None:
    rows = {"web": packed("web", 90), "code": packed("code", 10, 10_000)}
    even = jaxdata.mix(rows, phases=[Phase(rows=40, weights="size**0.5")], epochs={"code": 2})
    assert even.counts() == {"web": 30, "code": 10}
    alike = jaxdata.mix(rows, phases=[Phase(rows=20, weights="proportional")])
    assert alike.counts() == {"web": 18, "code": 2}
    flat = jaxdata.mix(rows, phases=[Phase(steps=5, batch_size=4, weights="size ** 0")])
    assert flat.counts() == {"web": 10, "code": 10}


def test_a_mix_without_phases() -> None:
    rows = {"web": packed("web", 30), "code": packed("code", 10, 10_000)}
    until_dry = jaxdata.mix(rows, weights={"web": 1, "code": 1})
    assert until_dry.counts() == {"web": 10, "code": 10}
    assert until_dry.table.end() is None, "it was asked for no more"
    assert jaxdata.mix(rows, weights={"web": 1, "code": 1}, epochs={"code": 1.5}).counts() == {
        "web": 15,
        "code": 15,
    }
    to_the_end = jaxdata.mix(rows, weights="proportional", on_exhaustion="renormalize")
    assert to_the_end.counts() == {"web": 30, "code": 10}
    assert jaxdata.mix(rows, epochs={"web": 2}).counts() == {"web": 60, "code": 10}
    last = [Phase(rows=4, weights={"web": 1}), Phase(weights={"code": 1})]
    assert jaxdata.mix(rows, phases=last).counts() == {"web": 4, "code": 10}
    with pytest.raises(InputError, match="phase 0 needs a budget: tokens, rows or steps; only the"):
        jaxdata.mix(rows, phases=last[::-1])
    with pytest.raises(InputError, match=r"mix takes phases=\[…\] or weights=\{…\}, not both"):
        jaxdata.mix(rows, phases=last, weights="proportional")
