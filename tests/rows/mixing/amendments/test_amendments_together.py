"""Several amendments: those at one row add up, in any order; of the rest every token comes once."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxdata
from jaxdata.base.errors import ConfigError, SourceExhausted
from jaxdata.testing import (
    assert_exactly_once,
    assert_same_batches,
    distinct_documents,
    write_dataset,
)
from tests.rows.mixing.amendments.conftest import PACKS, POOLS, deliver, packed, sources

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


def test_two_amendments_at_one_row_are_one(dataset: Path) -> None:
    both = opened(dataset, {"at_row": 16, "pack": WIDE, "curriculum": BOTH})
    expected = list(both)
    assert [batch["inputs"].shape[1] for batch in expected] == [256] * 2 + [512] * 2
    (noted,) = both.get_state()["amendments"]
    assert noted.keys() == {"row", "phases", "seq_len", "sources"}
    pack = {"at_row": 16, "pack": WIDE}
    for curriculum in ({"at_row": 16, "curriculum": BOTH}, {"at_step": 2, "curriculum": BOTH}):
        for order in permutations([pack, curriculum]):
            one = opened(dataset, *order)
            assert_same_batches(list(one), expected)
            assert one.get_state() == both.get_state()


def test_a_part_need_not_be_possible_alone(dataset: Path) -> None:
    """What they ask for together counts: the phases of one, and the epochs that they need."""
    more = {"at_row": 16, "curriculum": [{"rows": 600, "mix": {"web": 1.0, "code": 1.0}}]}
    with pytest.raises(SourceExhausted, match="source 'code': demanded 300 rows"):
        opened(dataset, more)
    epochs = {"at_row": 16, "epochs": {"web": 9, "code": 9}}
    assert len(opened(dataset, more, epochs).rows) == len(opened(dataset, epochs, more).rows) == 616


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


@st.composite
def plans(draw: st.DrawFn) -> tuple[dict[str, list[int]], list[tuple[dict[str, Any], float]]]:
    length = st.one_of(st.integers(1, 12), st.integers(1, 120))
    lengths = {
        name: draw(st.lists(length, min_size=3, max_size=40)) for name in ("web", "code", "wiki")
    }
    change = st.tuples(st.sampled_from(PACKS), st.floats(0, 1))
    return lengths, draw(st.lists(change, min_size=1, max_size=3))


BEGUN: list[dict[str, Any]] = [{}, {"lanes": 4, **POOLS}]


@settings(max_examples=25)
@given(plans(), st.booleans(), st.integers(1, 3), st.sampled_from(BEGUN))
def test_packed_anew_on_the_way_every_token_comes_once(
    plan: tuple[dict[str, list[int]], list[tuple[dict[str, Any], float]]],
    masked: bool,
    hosts: int,
    begun: dict[str, Any],
) -> None:
    lengths, changes = plan
    docs = sources(lengths, masked)
    rows = packed(docs, seq_len=20, **begun)
    if not all(len(each) for each in rows.values()):
        return
    mixed = jaxdata.mix(rows, weights="proportional", on_exhaustion="renormalize")
    row = 0
    for pack, where in changes:
        row += round((len(mixed) - row) * where)
        if row < len(mixed):
            mixed = mixed.amend(row, rows=packed(docs, **pack))
    assert_exactly_once(deliver(mixed, 3 * hosts, hosts), list(docs.values()))
