"""Curricula: what they ask for, what they will be, row by row, however far out."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.errors import InputError, SourceExhausted
from jaxdata.mixing.mixture import MixedRows, mixture
from tests.mixing.test_mixture import packed, weights_lists


@dataclass(frozen=True)
class Declared:
    """A packed source that is only said to have so many rows: the arithmetic needs no more."""

    rows: int
    fill: int = 8
    seq_len: int = 8
    positions: str = "segment"
    documents: Any = (None,)

    def __len__(self) -> int:
        return self.rows

    @property
    def summary(self) -> Any:
        return SimpleNamespace(trained_tokens=self.rows * self.fill)


def declared(rows: list[int], phases: list[jaxdata.Phase], **more: Any) -> MixedRows:
    tables: Any = {f"s{number}": Declared(count) for number, count in enumerate(rows)}
    return mixture(tables, phases, more.pop("epochs", {}), more.pop("on_exhaustion", "refuse"))


def named(weights: list[float]) -> dict[str, float]:
    return {f"s{number}": weight for number, weight in enumerate(weights)}


@st.composite
def far_curricula(draw: st.DrawFn) -> list[jaxdata.Phase]:
    """Three phases of 10^12 rows, of up to 64 sources, weights down to 1e-6."""
    each = [draw(weights_lists) for _ in range(3)]
    return [jaxdata.Phase(rows=10**12, weights=named(weights)) for weights in each]


@given(far_curricula(), st.lists(st.integers(0, 3 * 10**12 - 200), min_size=1, max_size=4))
def test_phases_of_a_million_million_rows(phases: list[jaxdata.Phase], starts: list[int]) -> None:
    mixed = declared([3 * 10**12] * 64, phases)
    assert len(mixed) == 3 * 10**12
    for start in [*starts, 10**12 - 100, 2 * 10**12 - 100, 3 * 10**12 - 200]:
        rows = np.arange(start, start + 200)
        phase, source, rank = mixed.select(rows)
        assert np.array_equal(phase, rows // 10**12)
        before, after = mixed.counts(start), mixed.counts(start + 200)
        for number, name in enumerate(mixed.names):
            # No row of a source is left out or comes twice, across the edges of phases as well.
            expected = np.arange(before[name], after[name])
            assert np.array_equal(rank[source == number], expected)
    for number, phase in enumerate(phases):
        weights = {name: Fraction(str(weight)) for name, weight in phase.numbers.items()}
        begin = mixed.counts(number * 10**12)
        for offset in [1, 2, 999, *(start % 10**12 for start in starts), 10**12]:
            counts = mixed.counts(number * 10**12 + offset)
            for name in mixed.names:
                share = weights.get(name, Fraction(0)) / sum(weights.values())
                assert abs(counts[name] - begin[name] - offset * share) < 2


@st.composite
def short_supplies(draw: st.DrawFn) -> tuple[list[int], list[float], list[jaxdata.Phase]]:
    sources = draw(st.integers(1, 6))
    supply = st.lists(st.integers(1, 40), min_size=sources, max_size=sources)
    epochs = st.lists(st.sampled_from([0.3, 0.5, 1, 1.7, 3]), min_size=sources, max_size=sources)
    weight = st.sampled_from([0, 1e-6, 0.1, 1, 3])
    weights = st.lists(weight, min_size=sources, max_size=sources).filter(any)
    phases = draw(st.lists(st.tuples(st.integers(1, 60), weights), min_size=1, max_size=4))
    return (
        draw(supply),
        draw(epochs),
        [jaxdata.Phase(rows=rows, weights=named(each)) for rows, each in phases],
    )


@given(short_supplies())
def test_the_forecast_row_is_the_row_at_which_it_happens(
    given_: tuple[list[int], list[float], list[jaxdata.Phase]],
) -> None:
    supply, epochs, phases = given_
    often = named(epochs)
    endless = declared([10**6] * len(supply), phases)
    available = [-(-Fraction(str(x)) * n // 1) for x, n in zip(epochs, supply, strict=True)]
    _, source, rank = endless.select(np.arange(len(endless)))
    beyond = np.flatnonzero(rank >= np.array([int(a) for a in available])[source])
    if not len(beyond):
        assert declared(supply, phases, epochs=often).counts(len(endless)) == endless.counts(
            len(endless)
        )
        return
    with pytest.raises(SourceExhausted):
        declared(supply, phases, epochs=often)
    for mode in ("halt", "renormalize"):
        mixed = declared(supply, phases, epochs=often, on_exhaustion=mode)
        first = mixed.exhaustions[0]
        assert first.row == beyond[0]
        assert first.source == f"s{source[beyond[0]]}"
    halting = declared(supply, phases, epochs=often, on_exhaustion="halt")
    assert len(halting) == beyond[0]
    assert halting.halted == halting.exhaustions[0]
    going_on = declared(supply, phases, epochs=often, on_exhaustion="renormalize")
    _, source, rank = going_on.select(np.arange(len(going_on)))
    for number, most in enumerate(available):
        mine = rank[source == number]
        assert np.array_equal(mine, np.arange(len(mine)))
        assert len(mine) <= most


def test_stretches_tell_the_plan_beforehand() -> None:
    rows = {"web": packed("web", 50), "code": packed("code", 10, 10_000), "a": packed("a", 9, 99)}
    phases = [
        jaxdata.Phase(rows=40, weights={"web": 1, "code": 1, "a": 2}),
        jaxdata.Phase(rows=20, weights={"web": 4}),
    ]
    mixed = jaxdata.mix(rows, phases=phases, on_exhaustion="renormalize")
    told = [(s.start, s.rows, s.phase, dict(s.shares)) for s in mixed.intervals]
    assert told == [
        (0, 19, 0, {"web": 0.25, "code": 0.25, "a": 0.5}),
        (19, 10, 0, {"web": 0.5, "code": 0.5}),
        (29, 11, 0, {"web": 1.0}),
        (40, 20, 1, {"web": 1.0}),
    ]
    assert [str(dry) for dry in mixed.exhaustions] == [
        "source 'a' runs dry in phase 0 at row 19",
        "source 'code' runs dry in phase 0 at row 29",
    ]
    assert mixed.epochs() == {"web": 41 / 50, "code": 1.0, "a": 1.0}
    assert mixed.epochs(19) == {"web": 0.1, "code": 0.5, "a": 1.0}


def test_weights_by_a_rule() -> None:
    rows = {"web": packed("web", 90), "code": packed("code", 10, 10_000)}
    even = jaxdata.mix(
        rows, phases=[jaxdata.Phase(rows=40, weights="size**0.5")], epochs={"code": 2}
    )
    assert even.counts() == {"web": 30, "code": 10}
    alike = jaxdata.mix(rows, phases=[jaxdata.Phase(rows=20, weights="proportional")])
    assert alike.counts() == {"web": 18, "code": 2}
    flat = jaxdata.mix(rows, phases=[jaxdata.Phase(steps=5, batch_size=4, weights="size ** 0")])
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
    last = [jaxdata.Phase(rows=4, weights={"web": 1}), jaxdata.Phase(weights={"code": 1})]
    assert jaxdata.mix(rows, phases=last).counts() == {"web": 4, "code": 10}
    with pytest.raises(InputError, match="phase 0 needs a budget: tokens, rows or steps; only the"):
        jaxdata.mix(rows, phases=last[::-1])
    with pytest.raises(InputError, match=r"mix takes phases=\[…\] or weights=\{…\}, not both"):
        jaxdata.mix(rows, phases=last, weights="proportional")
