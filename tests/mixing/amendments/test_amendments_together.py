"""Several amendments: those at one row add up; the order in which they are given is no matter."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxdata
from jaxdata.errors import ConfigError, InputError, SourceExhausted
from jaxdata.testing import (
    assert_exactly_once,
    assert_same_batches,
    distinct_documents,
    write_dataset,
)
from tests.mixing.amendments.conftest import packed, sources

LENGTHS = [np.random.default_rng(seed).integers(2, 60, 120).tolist() for seed in (0, 1)]
DOCS = sources({"web": LENGTHS[0], "code": LENGTHS[1]})
FEW = sources({"web": LENGTHS[0][:40], "code": LENGTHS[1][:20]})
NARROW, WIDE = {"seq_len": 256}, {"seq_len": 512}
ALL_WEB = [{"rows": 7, "mix": {"web": 1.0}}]
BOTH = [{"rows": 9, "mix": {"web": 1.0, "code": 2.0}}]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lengths = np.random.default_rng(5).integers(40, 900, 200).tolist()
    documents = [np.arange(1, length + 1) for length in lengths]
    folder = tmp_path_factory.mktemp("together")
    write_dataset(folder, {"train/web": documents, "train/code": documents[:90]})
    return folder


def opened(dataset: Path, *amendments: dict[str, Any], **more: Any) -> jaxdata.Loader:
    config = {
        "dataset": str(dataset),
        "pack": NARROW,
        "curriculum": [{"rows": 80, "mix": {"web": 0.6, "code": 0.4}}],
        "loader": {"batch_size": 8, "prefetch": 0},
        "amendments": list(amendments),
    }
    return jaxdata.load({**config, **more})


def shapes(loader: jaxdata.Loader) -> list[int]:
    return [batch["inputs"].shape[1] for batch in loader]


def state_at_end(loader: jaxdata.Loader) -> dict[str, Any]:
    loader.seek(row=len(loader.rows))
    return loader.get_state()


def assert_same_run(one: jaxdata.Loader, other: jaxdata.Loader) -> None:
    assert_same_batches(list(one), list(other))
    assert one.get_state() == other.get_state()
    other.reset()


def test_two_amendments_at_one_row_are_one(dataset: Path) -> None:
    both = opened(dataset, {"at_row": 16, "pack": WIDE, "curriculum": BOTH})
    parts = {"at_row": 16, "pack": WIDE}, {"at_row": 16, "curriculum": BOTH}
    for order in permutations(parts):
        assert shapes(opened(dataset, *order)) == [256] * 2 + [512] * 2
        assert_same_run(opened(dataset, *order), both)
    (noted,) = state_at_end(opened(dataset, *parts))["amendments"]
    assert noted.keys() == {"row", "phases", "seq_len", "sources"}


def test_a_step_that_is_the_row_of_another_amendment(dataset: Path) -> None:
    both = opened(dataset, {"at_row": 16, "pack": WIDE, "curriculum": BOTH})
    step, row = {"at_step": 2, "curriculum": BOTH}, {"at_row": 16, "pack": WIDE}
    assert_same_run(opened(dataset, step, row), both)
    assert_same_run(opened(dataset, row, step), both)
    assert_same_run(opened(dataset, step, {"at_step": 2, "pack": WIDE}), both)


def test_the_later_of_two_wins_where_both_say_something(dataset: Path) -> None:
    web, both = {"at_row": 16, "curriculum": ALL_WEB}, {"at_row": 16, "curriculum": BOTH}
    assert len(opened(dataset, web, both).rows) == 16 + 9
    assert len(opened(dataset, both, web).rows) == 16 + 7
    wide = {"at_row": 16, "pack": {**WIDE, "overlap": 8}}
    assert shapes(opened(dataset, web, wide, {"at_row": 16, "pack": NARROW}))[-1] == 256


def test_a_part_need_not_be_possible_alone(dataset: Path) -> None:
    """What they ask for together counts: the phases of one, and the epochs that they need."""
    more = {"at_row": 16, "curriculum": [{"rows": 600, "mix": {"web": 1.0, "code": 1.0}}]}
    with pytest.raises(SourceExhausted, match="source 'code': demanded 300 rows"):
        opened(dataset, more)
    epochs = {"at_row": 16, "epochs": {"web": 9, "code": 9}}
    assert len(opened(dataset, more, epochs).rows) == len(opened(dataset, epochs, more).rows) == 616


def test_the_order_of_the_list_is_no_matter(dataset: Path) -> None:
    later = {"at_row": 32, "pack": WIDE, "curriculum": BOTH}
    sooner = {"at_row": 16, "curriculum": [{"rows": 40, "mix": {"web": 0.1, "code": 0.9}}]}
    steps = {"at_step": 5, "curriculum": ALL_WEB}
    in_order = opened(dataset, sooner, later, steps)
    assert [each["row"] for each in in_order.rows.amendments] == [16, 32, 40]
    for order in permutations([sooner, later, steps]):
        assert_same_run(opened(dataset, *order), in_order)


def test_a_step_counts_the_batches_that_other_amendments_cut(dataset: Path) -> None:
    """At row 20 a batch is cut short, so step 4 begins at row 28; listed first or last."""
    cut, step = {"at_row": 20, "pack": WIDE}, {"at_step": 4, "curriculum": ALL_WEB}
    for order in permutations([cut, step]):
        rows = opened(dataset, *order).rows
        assert [each["row"] for each in rows.amendments] == [20, 28]
    beyond = {"at_row": 80, "curriculum": BOTH}, {"at_step": 11, "curriculum": ALL_WEB}
    for order in permutations(beyond):  # there is a step 11 only after the first of them
        assert [each["row"] for each in opened(dataset, *order).rows.amendments] == [80, 88]


def test_a_packing_holds_for_sources_that_are_weighed_again_later(dataset: Path) -> None:
    """`code` had no weight where the packing changed, and gets some afterwards."""
    wide = {"at_row": 16, "pack": WIDE, "curriculum": ALL_WEB}
    for later in (BOTH, [{"rows": 9, "mix": {"code": 1.0}}]):
        run = opened(dataset, wide, {"at_row": 23, "curriculum": later})
        assert [len(run.rows[row]["inputs"]) for row in (15, 16, 23, 31)] == [256, 512, 512, 512]
        assert run.rows.counts(32)["code"] > run.rows.counts(23)["code"]


def test_an_amendment_beyond_the_end_is_refused_by_its_name(dataset: Path) -> None:
    short = {"at_row": 16, "curriculum": ALL_WEB}
    with pytest.raises(ConfigError, match=r"^amendments\.0: cannot amend a mixture of 23 rows"):
        opened(dataset, {"at_row": 32, "pack": WIDE}, short)
    with pytest.raises(ConfigError, match=r"^amendments\.1: cannot seek to step 9: the steps are"):
        opened(dataset, short, {"at_step": 9, "pack": WIDE})
    weighs = {"at_row": 16, "curriculum": [{"rows": 4, "mix": {"web": 1.0}}, ALL_WEB[0]]}
    strategy = {"at_row": 16, "pack": {"strategy": "concat", "overlap": 8}}
    with pytest.raises(ConfigError, match=r"^amendments\.0, amendments\.1: overlap=8 with strat"):
        opened(dataset, weighs, strategy)


def phase(rows: int, **weights: float) -> jaxdata.Phase:
    return jaxdata.Phase(rows=rows, weights=weights)


def mixed() -> Any:
    return jaxdata.mix(packed(DOCS, seq_len=16), phases=[phase(90, web=0.6, code=0.4)])


def test_a_chain_at_one_row_adds_up() -> None:
    wide = packed(DOCS, seq_len=64)
    phases = [phase(12, web=1, code=3)]
    whole = mixed().amend(10, rows=wide, phases=phases, epochs={"code": 2})
    chains = [
        mixed().amend(10, rows=wide).amend(10, phases=phases).amend(10, epochs={"code": 2}),
        mixed().amend(10, epochs={"code": 2}).amend(10, phases=phases).amend(10, rows=wide),
        mixed().amend(10, phases=phases, epochs={"code": 2, "web": 1}).amend(10, rows=wide),
    ]
    for chain in chains:
        assert [len(row["inputs"]) for row in (chain[9], chain[10])] == [16, 64]
        assert_same_batches((chain[row] for row in range(22)), (whole[row] for row in range(22)))
        assert [each["row"] for each in chain.amendments] == [10]
        assert chain.sources["web"].table.settings.seq_len == 64
    assert chains[0].amendments == chains[1].amendments == whole.amendments
    again = mixed().amend(10, epochs={"code": 3}).amend(10, epochs={"web": 2})
    assert again.amendments == [{"row": 10, "epochs": {"code": 3, "web": 2}}]


def test_a_chain_in_any_order_is_the_same_run() -> None:
    wide, wider = packed(DOCS, seq_len=64), packed(DOCS, seq_len=128)
    changes: list[tuple[int, dict[str, Any]]] = [
        (10, {"rows": wide}),
        (24, {"phases": [phase(20, web=1, code=1)]}),
        (30, {"rows": wider, "phases": [phase(6, web=1, code=1)]}),
    ]
    runs = []
    for order in permutations(changes):
        run = mixed()
        for row, change in order:
            run = run.amend(row, **change)
        runs.append(run)
    assert [each["row"] for each in runs[0].amendments] == [10, 24, 30]
    for run in runs:
        assert run.amendments == runs[0].amendments
        assert_same_batches((run[row] for row in range(36)), (runs[0][row] for row in range(36)))
        assert run.sources["web"].table.settings.seq_len == 128, "the last packing"


def test_the_future_may_be_changed_again() -> None:
    first = mixed()
    one = first.amend(20, phases=[phase(30, web=1)])
    two = one.amend(40, phases=[phase(12, code=1)])
    assert [each["row"] for each in two.amendments] == [20, 40]
    assert len(two) == 52
    again = one.amend(20, phases=[phase(6, code=1)])
    assert again.amendments == [{"row": 20, "phases": [[6, {"code": 1}]]}]
    assert len(again) == 26
    between = two.amend(20, phases=[phase(60, code=1)])
    assert [each["row"] for each in between.amendments] == [20, 40]
    assert between.counts(52)["code"] == first.counts(20)["code"] + 20 + 12
    from_the_start = first.amend(0, phases=[phase(6, code=1)])
    assert from_the_start.counts() == {"web": 0, "code": 6}


def test_a_later_amendment_that_no_longer_fits_is_named() -> None:
    run = mixed().amend(40, phases=[phase(20, web=1)])
    with pytest.raises(InputError) as refused:
        run.amend(10, phases=[phase(6, code=1)])
    assert str(refused.value) == (
        "the amendment at row 40 no longer fits: cannot amend a mixture of 16 rows from row 40 on: "
        "expected 0 to 16. To leave it out, amend the mixture as it was before it"
    )
    # Asking for the future anew begins with the mixture as it was.
    assert len(mixed().amend(10, phases=[phase(6, code=1)])) == 16


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from([0, 5, 12, 30]), st.sampled_from([16, 24, 64])), max_size=4)
)
def test_every_token_comes_once_however_they_are_given(changes: Sequence[tuple[int, int]]) -> None:
    rows = packed(FEW, seq_len=20)
    run = jaxdata.mix(rows, weights="proportional", on_exhaustion="renormalize")
    for row, seq_len in changes:
        run = run.amend(row, rows=packed(FEW, seq_len=seq_len))
    batches = jaxdata.Loader(run, batch_size=32, prefetch=0)
    assert_exactly_once(batches, list(FEW.values()))
    asked = dict(sorted(changes, key=lambda change: change[0]))  # the last at each row
    assert [each["row"] for each in run.amendments] == list(asked)
    for row, seq_len in asked.items():
        assert len(run[row]["inputs"]) == seq_len


@pytest.mark.parametrize("mode", ["refuse", "halt", "renormalize"])
def test_fewer_epochs_than_were_read_of_a_source_that_is_weighed_no_more(mode: str) -> None:
    """It is dry already, which ends nothing: no later phase asks for it."""
    docs = distinct_documents([9] * 200)
    rows = {name: jaxdata.pack(jaxdata.ArrayDocuments(docs, name=name), seq_len=8) for name in "ab"}
    phases = [
        jaxdata.Phase(rows=60, weights={"a": 1, "b": 1}),
        jaxdata.Phase(rows=40, weights={"b": 1}),
    ]
    run = jaxdata.mix(rows, phases=phases, on_exhaustion=mode)
    amended = run.amend(60, epochs={"a": 0.1})
    assert amended.counts(len(amended)) == run.counts(len(run)) == {"a": 30, "b": 70}
    assert not amended.exhaustions
