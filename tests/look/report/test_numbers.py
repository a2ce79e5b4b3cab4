"""The numbers of a report are those of the data, and of the batches that a run delivers."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.config import load, load_config, open_data
from jaxdata.look.report import Report, Subject, gather
from jaxdata.look.report.batch import draw_batch
from jaxdata.look.report.gathering import length_histogram


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
