from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.errors import InputError, SourceExhausted
from jaxdata.mixing.apportion import Apportionment, whole_numbers
from jaxdata.testing import distinct_documents

weights_lists = st.lists(
    st.one_of(st.just(1e-6), st.floats(1e-6, 1.0), st.integers(1, 1000)), min_size=1, max_size=64
)


def packed(name: str, rows: int, first: int = 1, seq_len: int = 8) -> jaxdata.rows.PackedDataset:
    """A source of exactly `rows` rows, each of one document."""
    documents = distinct_documents([seq_len + 1] * rows, first)
    return jaxdata.pack(jaxdata.ArrayDocuments(documents, name=name), seq_len=seq_len)


def shares(weights: list[float]) -> list[Fraction]:
    exact = [Fraction(str(weight)) for weight in weights]
    return [weight / sum(exact) for weight in exact]


@given(weights_lists)
def test_every_prefix_is_within_two_rows_of_its_share(weights: list[float]) -> None:
    expected = shares(weights)
    source, rank = Apportionment(expected).select(np.arange(2_000))
    taken = np.zeros((2_000, len(weights)))
    taken[np.arange(2_000), source] = 1
    counts = taken.cumsum(axis=0)
    wanted = np.arange(1, 2_001)[:, None] * np.array([float(share) for share in expected])
    assert np.abs(counts - wanted).max() < 2
    for number in range(len(weights)):
        mine = rank[source == number]
        assert np.array_equal(mine, np.arange(len(mine)))


@given(weights_lists, st.integers(0, 10**15))
def test_the_row_of_a_rank_is_the_inverse(weights: list[float], first: int) -> None:
    tree = Apportionment(shares(weights))
    rows = np.arange(first, first + 300)
    source, rank = tree.select(rows)
    for number in np.unique(source).tolist():
        mine = source == number
        assert np.array_equal(tree.rows_of(number, rank[mine]), rows[mine])


@given(weights_lists, st.data())
def test_the_first_row_beyond_the_limits(weights: list[float], data: st.DataObject) -> None:
    tree = Apportionment(shares(weights))
    used = st.integers(0, 10**13).map(tree.counts)
    limits = data.draw(used | st.lists(st.integers(0, 10**13), min_size=len(weights)))
    row, source = tree.first_beyond(limits)
    before, after = tree.counts(row), tree.counts(row + 1)
    pairs = zip(before, limits[: len(weights)], strict=True)
    assert all(count <= limit for count, limit in pairs)
    assert after[source] == limits[source] + 1


@given(weights_lists)
def test_only_proportions_count(weights: list[float]) -> None:
    rows = np.arange(500)
    exact = Apportionment(shares(weights)).select(rows)
    in_whole_numbers = Apportionment(whole_numbers([7 * share for share in shares(weights)]))
    assert np.array_equal(in_whole_numbers.select(rows), exact)


def test_the_row_that_takes_a_row_of_a_source() -> None:
    rows = {name: packed(name, count) for name, count in (("a", 50), ("b", 30), ("c", 9))}
    phases = [
        jaxdata.Phase(rows=20, weights={"a": 1, "b": 1}),
        jaxdata.Phase(rows=40, weights={"a": 2, "c": 1}),
    ]
    table = jaxdata.mix(rows, phases=phases, epochs={"c": 2}).table
    _, source, rank = table.select(np.arange(60))
    for number, used in enumerate(table.counts(60).values()):
        found = table.rows_of(number, np.arange(used + 3))
        assert found[:used].tolist() == np.flatnonzero(source == number).tolist()
        assert (rank[found[:used]] == np.arange(used)).all()
        assert found[used:].tolist() == [-1] * 3


@given(weights_lists, st.integers(0, 3 * 10**12))
def test_the_arithmetic_holds_far_out(weights: list[float], row: int) -> None:
    expected = shares(weights)
    tree = Apportionment(expected)
    before, after = tree.counts(row), tree.counts(row + 1)
    source, rank = (int(value[0]) for value in tree.select(np.array([row])))
    grown = [b - a for a, b in zip(before, after, strict=True)]
    assert grown == [int(k == source) for k in range(len(weights))]
    assert rank == before[source]
    assert sum(before) == row
    assert all(abs(c - row * share) < 2 for c, share in zip(before, expected, strict=True))


def test_shares_of_tokens_not_of_rows() -> None:
    # Rows of `half` are half full: to get half of the tokens it needs two thirds of the rows.
    half = jaxdata.pack(
        jaxdata.ArrayDocuments(distinct_documents([5] * 4_000), name="half"),
        seq_len=8,
        max_segments=1,
    )
    rows = {"half": half, "full": packed("full", 4_000)}
    mixed = jaxdata.mix(rows, phases=[jaxdata.Phase(rows=3_000, weights={"half": 1, "full": 1})])
    assert mixed.counts() == {"half": 2_000, "full": 1_000}


def test_token_shares_over_ten_thousand_rows() -> None:
    rng = np.random.default_rng(0)
    weights = {"a": 0.6, "b": 0.2, "c": 0.1, "d": 0.1}
    sources, first = {}, 1
    for number, name in enumerate(weights):
        lengths = rng.lognormal(3.0 + 0.3 * number, 1, 60_000).astype(int).clip(1, 500)
        documents = distinct_documents(lengths, first)
        first = int(documents[-1][-1]) + 1
        sources[name] = jaxdata.pack(jaxdata.ArrayDocuments(documents, name=name), seq_len=128)
    mixed = jaxdata.mix(
        sources, phases=[jaxdata.Phase(rows=10_000, weights=weights)], epochs={"a": 4}
    )
    bounds = {name: sources[name].table.documents[0] for name in weights}
    ends = np.cumsum([int(docs.lengths.sum()) for docs in bounds.values()]) + 1
    tokens = np.zeros(4)
    for batch in jaxdata.Loader(mixed, batch_size=500):
        targets = batch["targets"][batch["loss_mask"]]
        tokens += np.bincount(np.searchsorted(ends, targets, side="right"), minlength=4)
    assert np.abs(tokens / tokens.sum() - np.array(list(weights.values()))).max() < 0.001


def test_phases_continue_their_sources() -> None:
    rows = {"a": packed("a", 100), "b": packed("b", 100, first=10_000)}
    phases = [
        jaxdata.Phase(rows=60, weights={"a": 0.9, "b": 0.1}),
        jaxdata.Phase(tokens=8 * 40, weights={"a": 0.1, "b": 0.9}),
    ]
    mixed = jaxdata.mix(rows, phases=phases)
    assert len(mixed) == 100
    phase, source, rank = mixed.table.select(np.arange(100))
    assert phase.tolist() == [0] * 60 + [1] * 40
    for number, name in enumerate(rows):
        mine = rank[source == number]
        assert np.array_equal(mine, np.arange(len(mine)))
        assert len(mine) == mixed.counts()[name]
    seen = [mixed[k]["inputs"].tobytes() for k in range(100)]
    assert len(set(seen)) == 100


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 9), st.integers(2, 100))
def test_exhaustion_is_known_beforehand(a: int, b: int, weight: int, budget: int) -> None:
    rows = {"a": packed("a", a), "b": packed("b", b, first=10_000)}
    phases = [jaxdata.Phase(rows=budget, weights={"a": weight, "b": 10 - weight})]
    demanded = Apportionment([Fraction(weight), Fraction(10 - weight)]).counts(budget)
    short = demanded[0] > a or demanded[1] > b
    if not short:
        assert jaxdata.mix(rows, phases=phases).counts() == dict(zip("ab", demanded, strict=True))
        return
    with pytest.raises(SourceExhausted):
        jaxdata.mix(rows, phases=phases)
    halting = jaxdata.mix(rows, phases=phases, on_exhaustion="halt")
    counts = halting.counts()
    assert counts["a"] <= a
    assert counts["b"] <= b
    dry = halting.table.halted
    assert dry is not None
    assert dry.row == len(halting)
    assert counts[dry.source] == {"a": a, "b": b}[dry.source]
    going_on = jaxdata.mix(rows, phases=phases, on_exhaustion="renormalize")
    assert len(going_on) == min(budget, a + b)
    _, source, rank = going_on.table.select(np.arange(len(going_on)))
    for number in (0, 1):
        mine = rank[source == number]
        assert np.array_equal(mine, np.arange(len(mine)))


def test_a_refusal_gives_the_whole_account() -> None:
    rows = {"web": packed("web", 50), "code": packed("code", 10, first=10_000)}
    phases = [
        jaxdata.Phase(rows=16, weights={"web": 0.5, "code": 0.5}),
        jaxdata.Phase(rows=10, weights={"code": 1}),
    ]
    with pytest.raises(SourceExhausted) as caught:
        jaxdata.mix(rows, phases=phases)
    assert str(caught.value).splitlines() == [
        "the mixture needs more rows than its sources have:",
        "  phase 1, source 'code': demanded 10 rows, available 2, short by 8",
        "reduce the budget or weight, allow more epochs (epochs={name: 2}), or set "
        "on_exhaustion='renormalize' (the others share the rest) or 'halt'",
    ]
    assert len(jaxdata.mix(rows, phases=phases, epochs={"code": 1.8})) == 26


@pytest.mark.parametrize(("epochs", "rows"), [(1.1, 11), (0.25, 3), (2, 20)])
def test_fractions_of_epochs_are_exact(epochs: float, rows: int) -> None:
    phase = jaxdata.Phase(rows=rows, weights={"a": 1})
    assert len(jaxdata.mix({"a": packed("a", 10)}, phases=[phase], epochs={"a": epochs})) == rows
    more = jaxdata.Phase(rows=rows + 1, weights={"a": 1})
    with pytest.raises(SourceExhausted):
        jaxdata.mix({"a": packed("a", 10)}, phases=[more], epochs={"a": epochs})


def test_a_halt_delivers_the_last_batch_and_then_says_so() -> None:
    mixed = jaxdata.mix(
        {"a": packed("a", 10)},
        phases=[jaxdata.Phase(rows=20, weights={"a": 1})],
        on_exhaustion="halt",
    )
    loader = jaxdata.Loader(mixed, batch_size=4)
    batches = [next(loader) for _ in range(3)]
    assert batches[2]["loss_mask"].any(axis=1).tolist() == [True, True, False, False]
    with pytest.raises(SourceExhausted, match="source 'a' runs dry in phase 0 at row 10"):
        next(loader)


def test_it_ends_with_its_phases() -> None:
    mixed = jaxdata.mix({"a": packed("a", 10)}, phases=[jaxdata.Phase(rows=6, weights={"a": 1})])
    for index in (6, slice(6, None), 100):
        with pytest.raises(IndexError):
            mixed[index]
    assert len(mixed[2:]) == 4
    with pytest.raises(InputError, match=r"cannot be repeated.* epochs=\{name: times\}"):
        mixed.repeat(2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"phases": []}, "at least one Phase"),
        ({"weights": {"b": 1}}, "phase 0 weighs 'b', not one of the sources 'a'"),
        ({"weights": {"a": -1}}, "expected finite numbers, none below 0"),
        ({"weights": {"a": math.nan}}, "expected finite numbers, none below 0"),
        ({"weights": {"a": 0}}, "at least one source must be above 0"),
        ({"epochs": {"b": 1}}, "epochs names 'b', not one of the sources 'a'"),
        ({"epochs": {"a": math.nan}}, "epochs of 'a': nan; expected a number of at least 0"),
        ({"weights": "by feel"}, "weights 'by feel': expected a number for each source, like"),
        ({"weights": "size**-1"}, "or a power of the sizes, like 'size**0.5'"),
        ({"on_exhaustion": "cry"}, "expected 'refuse', 'halt' or 'renormalize'"),
    ],
)
def test_recipes_that_make_no_sense_are_refused(arguments: dict[str, object], message: str) -> None:
    rows, weights = {"a": packed("a", 10)}, arguments.pop("weights", {"a": 1})

    def recipe() -> None:
        phases = [jaxdata.Phase(rows=4, weights=weights)]
        jaxdata.mix(rows, **{"phases": phases, **arguments})

    with pytest.raises(InputError) as caught:
        recipe()
    assert message in str(caught.value)


def test_budgets_are_tokens_rows_or_steps() -> None:
    assert jaxdata.Phase(tokens=5e9, weights={"a": 1}).budget(2048) == 2_441_407
    assert jaxdata.Phase(steps=10, batch_size=6, weights={"a": 1}).budget(2048) == 60
    assert jaxdata.Phase(weights={"a": 1}).budget(2048) is None


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        ({"tokens": 1, "rows": 1}, "give exactly one of tokens, rows and steps"),
        ({"rows": 1, "steps": 1, "batch_size": 1}, "exactly one of tokens, rows and steps"),
        ({"steps": 5}, "steps=5, batch_size=None: give both, as batch_size turns steps into rows"),
        ({"rows": 5, "batch_size": 5}, "steps=None, batch_size=5: give both"),
        ({"tokens": 0}, "tokens=0: expected a number above 0"),
        ({"tokens": math.nan}, "tokens=nan: expected a number above 0"),
        ({"rows": 2.5}, "rows=2.5: expected a whole number of at least 1"),
        ({"steps": "3", "batch_size": 4}, "steps='3': expected a whole number of at least 1"),
    ],
)
def test_budgets_that_make_no_sense_are_refused(budget: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        jaxdata.Phase(**budget, weights={"a": 1})
    assert message in str(caught.value)


def test_sources_must_agree_on_seq_len() -> None:
    rows = {"a": packed("a", 10), "b": packed("b", 10, seq_len=9)}
    with pytest.raises(InputError, match=r"must share one seq_len, these have \{'a': 8, 'b': 9\}"):
        jaxdata.mix(rows, phases=[jaxdata.Phase(rows=4, weights={"a": 1})])


def test_only_packed_rows_are_mixed() -> None:
    with pytest.raises(InputError, match=r"transform rows after mixing: mix\(\.\.\.\)\.map\(f\)"):
        jaxdata.mix({"a": packed("a", 10).map(dict)}, phases=[])


def test_a_source_without_rows_is_named() -> None:
    empty = jaxdata.pack(jaxdata.ArrayDocuments([]), seq_len=8)
    phase = jaxdata.Phase(rows=1, weights={"empty": 1})
    with pytest.raises(InputError, match="source 'empty' has no rows to train on"):
        jaxdata.mix({"empty": empty, "a": packed("a", 3)}, phases=[phase])
