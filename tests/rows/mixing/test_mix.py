"""`mix` as users call it: phases, weights and what ends a mixture; also far out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from numpy.typing import NDArray

import jaxdata
from jaxdata.base.errors import InputError, SourceExhausted
from jaxdata.rows.arrays import assemble
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


@examples(max_examples=25)
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


def test_phases_weights_or_nothing_are_asked() -> None:
    rows = {"web": packed("web", 90), "code": packed("code", 10, 10_000)}

    def counts(**recipe: Any) -> dict[str, int]:
        return jaxdata.mix(rows, **recipe).counts()

    root = [Phase(rows=40, weights="size**0.5")]
    assert counts(phases=root, epochs={"code": 2}) == {"web": 30, "code": 10}
    assert counts(phases=[Phase(rows=20, weights="proportional")]) == {"web": 18, "code": 2}
    until_dry = jaxdata.mix(rows, weights={"web": 1, "code": 1})
    assert until_dry.counts() == {"web": 10, "code": 10}
    assert until_dry.table.end() is None, "it was asked for no more"
    assert counts(weights={"web": 1, "code": 1}, epochs={"code": 1.5})["web"] == 15
    to_the_end = counts(weights="proportional", on_exhaustion="renormalize")
    assert to_the_end == counts() == {"web": 90, "code": 10}
    assert counts(epochs={"web": 2}) == {"web": 180, "code": 10}
    last = [Phase(rows=4, weights={"web": 1}), Phase(weights={"code": 1})]
    assert counts(phases=last) == {"web": 4, "code": 10}
    with pytest.raises(InputError, match=r"mix takes phases=\[…\] or weights=\{…\}, not both"):
        counts(phases=last, weights="proportional")
    for given_rows in ({"a": rows["web"].map(dict)}, {"a": rows["web"].repeat(2)}):
        with pytest.raises(InputError, match=r"transform rows after mixing: mix\(\.\.\.\)\.map"):
            jaxdata.mix(given_rows, phases=last)
    with pytest.raises(InputError, match=r"mix: given a list, expected names and packed sources"):
        jaxdata.mix([rows["web"]], phases=last)  # type: ignore[arg-type]


PACKS = [
    {"strategy": "best_fit", "overlap": 5},
    {"strategy": "concat"},
    {"strategy": "crop"},
    {"strategy": "pad"},
]
lengths_lists = st.lists(
    st.one_of(st.integers(1, 4), st.integers(1, 17), st.integers(1, 90)), min_size=4, max_size=60
).filter(lambda lengths: max(lengths) > 1)


def trained(rows: Any, count: int) -> NDArray[np.int64]:
    """Targets with loss of each row, counted in the rows themselves."""
    return next(assemble(rows.table, [np.arange(count)], count))["loss_mask"].sum(axis=1)


@examples(max_examples=30)
@given(
    st.lists(st.tuples(lengths_lists, st.floats(0.05, 1)), min_size=2, max_size=4),
    st.sampled_from(PACKS),
)
def test_counts_of_rows_are_within_two_and_tokens_within_that_and_idle_slots(
    sources: Sequence[tuple[list[int], float]], pack: dict[str, Any]
) -> None:
    rows = {}
    for name, (lengths, _) in zip("abcd", sources, strict=False):
        docs = jaxdata.ArrayDocuments(distinct_documents(lengths), name=name)
        rows[name] = jaxdata.pack(docs, seq_len=16, block_bytes=800, **pack)
    weights = dict(zip("abcd", (weight for _, weight in sources), strict=False))
    mixed = jaxdata.mix(rows, weights=weights, epochs=dict.fromkeys(rows, 3))
    count = min(len(mixed), 300)
    _, source, _ = mixed.table.select(np.arange(count))
    mine = source[:, None] == np.arange(len(rows))
    prefix = np.arange(1, count + 1)[:, None]

    share = np.array([*weights.values()]) / sum(weights.values())
    average = np.array([each.plan.trained_tokens / len(each) for each in rows.values()])
    of_rows = share / average / (share / average).sum()
    assert np.abs(mine.cumsum(axis=0) - prefix * of_rows).max() < 2

    tokens = (mine * trained(mixed, count)[:, None]).cumsum(axis=0)
    off = np.abs(tokens - share * tokens.sum(axis=1, keepdims=True))
    idle = np.array([each.plan.slots - each.plan.trained_tokens for each in rows.values()])
    each = 2 * average + idle
    bound = (1 - share) * each + share * (each.sum() - each)
    assert (off <= bound + 1e-6).all()
