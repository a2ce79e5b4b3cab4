"""`batch_rows(step)` is what a step delivers, past or future, where batches are cut short too."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.cli import main
from jaxdata.feed.saved_state import sealed
from jaxdata.feed.schedule import Schedule
from jaxdata.testing import distinct_documents, write_dataset
from tests.feed.test_schedule import RAMPS, RANGES


@given(
    st.integers(1, 120),
    RAMPS,
    RANGES,
    st.sets(st.integers(1, 119), max_size=3),
    st.booleans(),
    st.lists(st.tuples(st.booleans(), st.integers(0, 120)), max_size=4),
)
def test_batches_are_named_as_they_are_delivered(
    total: int,
    ramp: list[tuple[int, int]],
    skipped: list[tuple[int, int]],
    edges: set[int],
    drop_remainder: bool,
    moves: list[tuple[bool, int]],
) -> None:
    """Seeking to the middle of a batch on the way, too: there a batch begins."""
    ranges = [(a, min(b, total)) for a, b in skipped if a < total]
    sections = [0, *sorted(edge for edge in edges if edge < total)]
    schedule = Schedule(total, ramp, ranges, drop_remainder, sections)
    told: dict[int, list[int]] = {}
    for seeks, number in [*moves, (False, 200)]:
        if seeks:
            row = min(number, total)
            schedule.seek(row)
            told = {step: rows for step, rows in told.items() if max(rows) < row}
            continue
        for span, _ in zip(schedule.spans(), range(number), strict=False):
            step, end = schedule.step, min(span.first + span.size, schedule.ends[span.section])
            told[step] = schedule.skips.rows(np.arange(span.first, end)).tolist()
            assert schedule.batch_rows(step).tolist() == told[step], "the next one"
            schedule.advance(span)
    for step, rows in told.items():
        assert schedule.batch_rows(step).tolist() == rows
        assert [schedule.find(row) for row in rows] == [(step, k) for k in range(len(rows))]


SHORT, LONG = {"seq_len": 16, "block_bytes": 4000}, {"seq_len": 64}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Batches of 8; those before rows 12 and 31, where the shape changes, have 4 and 3 rows."""
    folder = tmp_path_factory.mktemp("cut")
    lengths = np.random.default_rng(2).integers(2, 90, 300)
    write_dataset(folder / "d", {"train/web": distinct_documents(lengths)})
    path = folder / "run.yaml"
    fields = {
        "dataset": str(folder / "d"),
        "pack": SHORT,
        "curriculum": [{"rows": 44, "mix": {"web": 1.0}}],
        "amendments": [{"at_row": 12, "pack": LONG}, {"at_row": 31, "pack": {"seq_len": 32}}],
        "loader": {"batch_size": 8},
    }
    path.write_text(yaml.safe_dump(fields))
    return path


def emitted(config: Path, **more: Any) -> list[list[int]]:
    """For each step the tokens of each row that was really delivered, padding rows left out."""
    return [
        [
            row[ids > 0].tolist()
            for row, ids in zip(batch["inputs"], batch["segment_ids"], strict=True)
            if ids.any()
        ]
        for batch in jaxdata.load(config, **more)
    ]


def test_the_unfilled_batch_before_a_new_shape(config: Path) -> None:
    steps = emitted(config)
    loader = jaxdata.load(config)
    assert [len(rows) for rows in steps] == [8, 4, 8, 8, 3, 8, 5]
    named = [loader.batch_rows(step).tolist() for step in range(len(loader))]
    assert [len(rows) for rows in named] == [8, 4, 8, 8, 3, 8, 5]
    assert [row for rows in named for row in rows] == list(range(44))
    for rows, tokens in zip(named, steps, strict=True):
        for row, held in zip(rows, tokens, strict=True):
            found = loader.rows[row]
            assert found["inputs"][found["segment_ids"] > 0].tolist() == held
    ended = json.loads(json.dumps([loader.get_state() for _ in loader][-1]))
    for state in (ended, sealed(ended | {"next_row": 12})):
        other = jaxdata.load(config, loader={"batch_size": 6})
        other.set_state(state)
        assert other.batch_rows(1).tolist() == [8, 9, 10, 11], "as it was with batches of 8"


def test_a_run_that_continues_without_the_new_shape(config: Path) -> None:
    """The past keeps its unfilled batch where the amendment after it is withdrawn."""
    loader = jaxdata.load(config)
    state = [(next(loader), loader.get_state())[1] for _ in range(2)][-1]
    assert state["next_row"] == 12
    other = jaxdata.load(config, amendments=[])
    other.set_state(state)
    rows = [other.batch_rows(step).tolist() for step in range(4)]
    assert rows == [[*range(8)], [*range(8, 12)], [*range(12, 20)], [*range(20, 28)]]


def test_trace_says_what_the_step_has(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: Any) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["trace", "--config", str(config), *map(str, arguments)])
        printed = capsys.readouterr()
        return printed.err if ended.value.code else printed.out

    steps = [(8, 16), (4, 16), (8, 64), (8, 64), (3, 64), (8, 32), (5, 32)]
    for step, (count, seq_len) in enumerate(steps):
        told = json.loads(said("--step", step, "--json"))
        rows: list[list[Any]] = [[] for _ in range(count)]
        for piece in told["pieces"]:
            rows[piece["row_in_batch"]].append(piece["slots"])
            assert piece["step"] == step
        assert told["seq_len"] == seq_len
        assert all(slots[-1][1] <= seq_len for slots in rows)
        filled = [sum(stop - first for first, stop in slots) for slots in rows]
        paddings = re.findall(r"(-?[\d,]+) slots padding", said("--step", step))
        assert [int(padding) for padding in paddings] == [seq_len - each for each in filled]
    assert "the batch of step 1 has rows 0 to 3" in said("--step", 1, "--row", 4)
    assert "step 2, row 0 of the batch (row 12 of the run)" in said("--step", 2, "--row", 0)
