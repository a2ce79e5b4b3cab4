"""The numbers of a report are those of the data, and of the batches that a run delivers."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.config import load, load_config, open_data
from jaxdata.look import strategies as strategy_costs
from jaxdata.look.report import Report, Subject, gather
from jaxdata.look.report.batch import draw_batch
from jaxdata.look.report.charts import NARROW, WIDE, run_chart
from jaxdata.look.report.curves import Event, ShareCurves, share_curves
from jaxdata.look.report.gathering import length_histogram
from jaxdata.look.report.samples import spread
from jaxdata.look.strategies import compare_strategies, sampled
from tests.look.report.conftest import HOSTILE


@pytest.fixture(scope="module")
def found(run: Path, page: Path) -> Report:
    """The report that the page shows."""
    assert page.exists()
    loader = load(run / "run.yaml")
    loader.set_state(json.loads((run / "state.json").read_text()))
    config = load_config(run / "run.yaml")
    dataset = open_data(config)
    return gather(Subject(dataset=dataset, split="train", seq_len=64, loader=loader, resumed=True))


@given(st.lists(st.integers(0, 2**40), max_size=40))
def test_every_document_is_in_the_bin_of_its_length(lengths: list[int]) -> None:
    class Documents:
        def __init__(self) -> None:
            self.lengths = np.array(lengths, np.uint64)

    made = length_histogram(Documents())  # type: ignore[arg-type]
    edges = made.edges
    for bin_, (low, high) in enumerate(pairwise(edges)):
        inside = [length for length in lengths if low <= length < high]
        assert (made.documents[bin_], made.tokens[bin_]) == (len(inside), sum(inside))
    assert (sum(made.documents), sum(made.tokens)) == (len(lengths), sum(lengths))


@given(st.integers(0, 500), st.integers(1, 20))
def test_samples_are_spread(total: int, count: int) -> None:
    chosen = spread(total, count)
    assert len(chosen) == len(set(chosen)) == min(total, count)
    edges = [-1, *chosen, total]
    assert all(0 < b - a <= total / count + 1 for a, b in pairwise(edges))


def test_actual_shares_are_those_of_the_batches(run: Path, found: Report) -> None:
    loader = load(run / "run.yaml", **{"loader.extras": ["source"]})
    trained: Counter[str] = Counter()
    while loader.next_row < 300:
        batch = next(loader)
        numbers = batch["source"][batch["loss_mask"]]
        trained.update(loader.source_names[number] for number in numbers.tolist())
    assert found.curves is not None
    assert found.curves.now == {name: trained[name] for name in found.curves.names}
    for batch in loader:
        numbers = batch["source"][batch["loss_mask"]]
        trained.update(loader.source_names[number] for number in numbers.tolist())
    assert found.curves.tokens[-1] == trained.total()
    whole = np.diff(found.curves.tokens)
    for name in found.curves.names:
        assert round(float(np.dot(whole, found.curves.shares[name]))) == trained[name]


def test_what_happens_to_a_run_is_marked(found: Report) -> None:
    assert found.curves is not None
    told = {(event.kind, event.row) for event in found.curves.events}
    assert {("phase", 0), ("phase", 400), ("amended", 500), ("phase", 500), ("now", 300)} <= told
    assert "thin runs dry" in [each.says for each in found.curves.events if each.kind == "dry"]
    assert found.curves.skipped_rows == 20
    asked = sum(found.curves.asked[name][0] for name in found.curves.names)
    assert asked == pytest.approx(1)
    assert found.curves.asked[HOSTILE][0] == pytest.approx(0.5)


def test_strategies_cut_documents_as_their_lengths_say() -> None:
    lengths = np.random.default_rng(3).integers(2, 200, 300)
    documents = jaxdata.ArrayDocuments([np.arange(length) for length in lengths])
    made = {cost.strategy: cost for cost in compare_strategies([documents], seq_len=32, cuts=True)}
    windows = -(-(lengths - 1) // 32)
    for name in ("pad", "best_fit"):
        assert made[name].cuts == pytest.approx(1000 * (windows - 1).sum() / len(lengths))
    assert made["crop"].cuts == 0
    assert made["concat"].cuts == pytest.approx(1000 * (made["concat"].rows - 1) / 300, rel=0.02)


def test_of_many_documents_a_sample_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy_costs, "MOST_PLANNED", 60)
    sources = [jaxdata.ArrayDocuments([[1, 2, 3, 0]] * n, name=f"train/{n}") for n in (200, 100)]
    some = sampled(sources)
    assert [len(each) for each in some] == [40, 20]
    assert {c.strategy: c.rows for c in compare_strategies(some, seq_len=8)}["pad"] == 60


def test_a_batch_is_drawn_slot_by_slot(run: Path) -> None:
    loader = load(run / "run.yaml")
    batch = next(loader)
    drawn = draw_batch(loader, None, 0)
    assert len(drawn.rows) == drawn.batch_size == 4
    for number, row in enumerate(drawn.rows):
        ids, loss = np.zeros(64, int), np.zeros(64, bool)
        for segment, one in enumerate(row.segments, 1):
            ids[round(one.left * 0.64) : round((one.left + one.width) * 0.64)] = segment
        for left, width in row.loss:
            loss[round(left * 0.64) : round((left + width) * 0.64)] = True
        assert ids.tolist() == batch["segment_ids"][number].tolist()
        assert loss.tolist() == batch["loss_mask"][number].tolist()


def test_curves_of_a_run_that_was_amended_and_repacked_end_where_it_does(tmp_path: Path) -> None:
    documents = jaxdata.ArrayDocuments([[1, 2, 3, 4, 5, 6, 0]] * 200, name="train/web")
    rows = {"web": jaxdata.pack(documents, seq_len=16)}
    mixed = jaxdata.mix(rows, weights={"web": 1})
    longer = mixed.amend(20, rows={"web": jaxdata.pack(documents, seq_len=32)})
    curves = share_curves(jaxdata.Loader(longer, batch_size=2), resumed=False)
    assert (curves.rows[-1], curves.tokens[-1]) == (len(longer), 1200)
    assert curves.epochs == {"web": 1}


def test_what_was_left_out_is_listed_with_its_reason(found: Report) -> None:
    counted = {(each.source, each.kind): each.records for each in found.left_out}
    assert counted["train/code", "quarantined"] >= 1
    listed = sum(each.records for each in found.left_out if each.source == "train/code")
    assert listed == 4
    assert {each.source for each in found.bad_records} >= {"train/code", "train/thin"}


def test_a_token_of_bytes_is_a_byte(found: Report) -> None:
    assert found.tokens is not None
    thin = next(each for each in found.tokens.sources if each.name == "train/thin")
    text = sum(len(f"thin {number}") for number in range(60))
    assert thin.exact
    assert thin.bytes_a_token == pytest.approx(text / (text + 60))
    assert thin.used == len(set("thin 0123456789")) + 1


@pytest.mark.parametrize("wide", [WIDE, NARROW])
def test_every_source_is_named_below_its_shares_however_many_there_are(wide: float) -> None:
    names = [f"a-source-of-many-{number}" for number in range(24)]
    equal = {name: [1 / 24, 1 / 24] for name in names}
    epochs = dict.fromkeys(names, 1.0)
    events = [Event(0, 0, "phase", "phase 0")]
    curves = ShareCurves(
        names=names,
        rows=[0, 5, 9],
        tokens=[0, 50, 90],
        shares=equal,
        asked=equal,
        epochs=epochs,
        now=None,
        events=events,
    )
    root = ElementTree.fromstring(run_chart(curves, None, events, wide).inline())
    texts = list(root.iter("{http://www.w3.org/2000/svg}text"))
    assert {*names, "asked for", "trained tokens"} <= {text.text for text in texts}
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    for text in texts:
        assert 0 < float(text.attrib["y"]) < height
        assert 0 <= float(text.attrib["x"]) < width
