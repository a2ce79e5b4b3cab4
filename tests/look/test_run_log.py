"""A run as its log tells it: restarts, other trainers' columns, lines that are no records."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from jaxdata.look.report.curves import LoggedRun, RunCurves, ShareCurves


def told(*records: dict[str, Any]) -> LoggedRun:
    run = LoggedRun("log")
    for record in records:
        run.add(record)
    return run


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), max_size=5), st.booleans())
def test_a_killed_run_counts_each_step_once_with_its_last_loss(lives: Any, starts: bool) -> None:
    """Each life goes on where a checkpoint was, does some steps, and is killed."""
    last: dict[int, float] = {}
    records: list[dict[str, Any]] = []
    begun, done = [], 0
    for number, (steps, lost) in enumerate(lives):
        first = max(done - lost, 0)
        last = {step: loss for step, loss in last.items() if step < first}
        begun = [each for each in begun if each < first] + [first] * bool(first)
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
    assert run.resumed == (begun if starts else [])


def test_speed_and_waiting_are_counted_from_a_clock_or_as_they_are_said() -> None:
    records = [
        {"step": k, "tokens": 100 * k, "time": 10.0 * (k - 1), "wait_seconds": wait}
        for k, wait in enumerate((5.0, 6.0, 1.0), 1)  # a new process waits anew
    ]
    run = told(*records)
    assert [each.rate for each in run.points] == [None, 10.0, 10.0]
    assert [each.wait_share for each in run.points] == [None, 0.1, 0.1]
    assert run.waited == pytest.approx(7.0)
    own = told({"step": 0, "tokens_per_second": 5.0, "wait_share": 0.5, "wait_seconds": 2.0})
    assert (own.points[0].rate, own.points[0].wait_share, own.waited) == (5.0, 0.5, 2.0)


def test_validations_and_restarts_lie_after_their_steps() -> None:
    run = told(
        {"bits_per_byte": 4.0, "val_loss": 9.0, "step": 0},
        {"step": 0, "loss": 2.0},
        {"step": 1, "loss": 1.5, "val_loss": 1.25, "sets": {"a": {"val_loss": 3}, "b": 4}},
        {"step": 2, "val_loss": 1.0},
        {"event": "start", "step": 2, "steps": 9},
        {"event": "end", "status": "halted"},
    )
    assert [(each.steps, each.loss) for each in run.scores] == [(0, 9.0), (2, 1.0)]
    lines = RunCurves.of(run, None, None)
    assert (lines.unit, lines.scores) == ("steps", [(0.0, 9.0), (2.0, 1.0)])
    assert [event[3] for event in lines.events] == ["resumed at step 2", "halted"]


HOSTILE = [
    {"step": -1, "loss": float("nan")},
    {"step": True, "loss": "2", "tokens": 10**400},
    {"step": [], "shares": {"a": 1, "b": {"share": None}}},
    {"event": ["start"], "step": {}},
    {"event": "start", "step": "x", "steps": None},
    {"event": "end", "status": {"a": 1}, "reason": 7},
    {"tokens/": 3, "share/a/b": 1e308, "tokens_per_second": float("inf"), "time": {}},
    {},
]


@given(st.permutations(HOSTILE))
def test_whatever_stands_in_a_log_is_passed_over(records: list[dict[str, Any]]) -> None:
    run = told(*records)
    assert RunCurves.of(run, ShareCurves.of_log(run), None).end >= 0
    assert (run.not_finite, run.done) == (2, len(run.points))


def test_a_line_that_is_being_written_is_read_when_it_is_whole(tmp_path: Path) -> None:
    line = json.dumps({"step": 3, "loss": 1.0}) + "\n"
    (tmp_path / "log.jsonl").write_text(line + line[:15])
    run = LoggedRun.of(tmp_path)
    assert not run.update()
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write(line[15:].replace("1.0", "0.5"))
    assert run.update()
    assert [each.loss for each in run.points] == [0.5]
