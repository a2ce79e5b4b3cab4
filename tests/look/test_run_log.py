"""A run as its log tells it: restarts, other trainers' columns, lines that are no records."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.look.report.run_curves import logged_shares, run_curves
from jaxdata.look.run_log import LoggedRun, read_run
from tests import builders


def told(*records: dict[str, Any]) -> LoggedRun:
    run = LoggedRun("log")
    for record in records:
        run.add(record)
    return run


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), max_size=5), st.booleans())
def test_a_killed_run_counts_each_step_once_with_its_last_loss(
    lives: list[tuple[int, int]], starts: bool
) -> None:
    """Each life goes on where a checkpoint was, does some steps, and is killed."""
    last: dict[int, float] = {}
    records: list[dict[str, Any]] = []
    done = 0
    for number, (steps, lost) in enumerate(lives):
        first = max(done - lost, 0)
        last = {step: loss for step, loss in last.items() if step < first}
        if starts:
            records.append({"event": "start", "step": first, "steps": 99})
        for step in range(first, first + steps):
            last[step] = number + step / 100
            records.append({"step": step, "loss": last[step], "targets": 10 + step})
        done = first + steps
    run = told(*records)
    assert {each.step: each.loss for each in run.points} == last
    assert run.done == len(last)
    totals = [sum(10 + step for step in range(step + 1)) for step in sorted(last)]
    assert [each.tokens for each in run.points] == totals


def test_the_shares_of_a_log_are_those_of_the_batches() -> None:
    """`loader.scalars()` as another trainer logs it, against the sources of its batches."""
    documents = builders.documents(90)
    rows = {
        name: jaxdata.pack(jaxdata.ArrayDocuments(some, name=f"train/{name}"), seq_len=32)
        for name, some in (("web", documents), ("code", documents[:50]))
    }
    mixed = jaxdata.mix(rows, weights={"web": 0.7, "code": 0.3}, on_exhaustion="renormalize")
    loader = jaxdata.Loader(mixed, batch_size=4, extras=["source"])
    run, trained, seen = LoggedRun("log"), [0, 0], []
    for step, batch in enumerate(loader):
        run.add(json.loads(json.dumps({"step": step, "loss": 1.0, **loader.scalars()})))
        for number in (0, 1):
            trained[number] += int((batch["source"][batch["loss_mask"]] == number).sum())
        seen.append((loader.next_row, *trained))
    shares = logged_shares(run)
    assert shares is not None
    assert shares.now == dict(zip(loader.source_names, trained, strict=True))
    assert run.row == len(mixed)
    at = {row: (web, code) for row, web, code in seen} | {0: (0, 0)}
    places = zip(pairwise(shares.rows), shares.shares["web"], strict=True)
    for (first, stop), share in places:
        web, code = (b - a for a, b in zip(at[first], at[stop], strict=True))
        assert share == pytest.approx(web / (web + code))
    lines = run_curves(run, shares, None)
    assert lines.unit == "trained tokens"
    assert lines.end == sum(trained)
    assert shares.epochs == {"web": 1, "code": 1}


@pytest.mark.parametrize("steps", [1, 2, 160, 161, 700])
def test_a_line_of_losses_keeps_the_mean_the_least_and_the_most(steps: int) -> None:
    losses = np.random.default_rng(steps).uniform(0, 10, steps).tolist()
    run = told(*({"step": k, "loss": loss, "targets": 3} for k, loss in enumerate(losses)))
    line = run_curves(run, None, None).losses
    assert len(line) <= 160
    stops = [round(at / 3) for at, *_ in line]
    assert stops[-1] == len(losses)
    for first, stop, (_, mean, least, most) in zip([0, *stops], stops, line, strict=False):
        some = losses[first:stop]
        assert (least, most) == (min(some), max(some))
        assert mean == pytest.approx(math.fsum(some) / len(some))


def test_speed_and_waiting_are_counted_from_a_clock() -> None:
    waited = (5.0, 6.0, 1.0)  # a new process waits anew
    lines = [
        {"step": k, "tokens": 100 * k, "time": 10.0 * k, "wait_seconds": wait}
        for k, wait in enumerate(waited, 1)
    ]
    run = told(*lines)
    assert [each.rate for each in run.points] == [None, 10.0, 10.0]
    assert [each.wait_share for each in run.points] == [None, 0.1, None]
    assert run.waited == pytest.approx(7.0)
    own = told({"step": 0, "tokens_per_second": 5.0, "wait_share": 0.5, "wait_seconds": 2.0})
    assert (own.points[0].rate, own.points[0].wait_share, own.waited) == (5.0, 0.5, 2.0)


def test_validations_lie_after_their_steps_in_both_forms() -> None:
    run = told(
        {"bits_per_byte": 4.0, "val_loss": 9.0, "step": 0},
        {"step": 0, "loss": 2.0},
        {"step": 1, "loss": 1.5, "val_loss": 1.25},
        {"step": 2, "val_loss": 1.0},
    )
    assert [(each.steps, each.loss) for each in run.scores] == [(0, 9.0), (2, 1.0)]
    assert run.scores[0].bits_per_byte == 4.0
    run.add({"event": "start", "step": 2, "steps": 9})
    assert [each.steps for each in run.scores] == [0, 2], "a run resumed there does not repeat it"
    lines = run_curves(run, None, None)
    assert (lines.unit, lines.scores) == ("steps", [(0.0, 9.0), (2.0, 1.0)])


HOSTILE = [
    {"step": -1, "loss": float("nan")},
    {"step": True, "loss": "2", "tokens": 10**400},
    {"step": [], "shares": {"a": 1, "b": {"share": None}}},
    {"event": ["start"], "step": {}},
    {"event": "start", "step": "x", "steps": None},
    {"event": "end", "status": {"a": 1}, "reason": 7},
    {"tokens/": 3, "share/a/b": 1e308, "tokens_per_second": float("inf")},
    {},
]


@given(st.permutations(HOSTILE))
def test_whatever_stands_in_a_log_is_passed_over(records: list[dict[str, Any]]) -> None:
    run = told(*records)
    assert run_curves(run, logged_shares(run), None).end >= 0
    assert run.not_finite == 2
    assert run.done == len(run.points)


@pytest.mark.parametrize("line", ["{", "[1]", "7", "[" * 100_000, '"a"'])
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "log.jsonl").write_text(f'{{"step": 0}}\n{line}\n')
    with pytest.raises(InputError, match=r"line 2 of .*log.jsonl is no JSON object: expected one"):
        read_run(tmp_path)
