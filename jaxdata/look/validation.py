"""What a run will get, to the token, before its first step: as plain JSON values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jaxdata.look.wholeness import Check
from jaxdata.rows.amounts import Amounts
from jaxdata.rows.forecast import PlannedStretch, planned_stretches
from jaxdata.rows.table import sections

__all__ = ["Budget", "budget_check", "describe_amounts", "describe_mixture"]


@dataclass(frozen=True)
class Budget:
    """Steps that there are rows for, and those that the trainer will take."""

    steps: int
    trainer_steps: int | None
    """None: until the data ends"""
    budgeted: bool
    """whether the curriculum says how long it is"""
    mismatch_allowed: bool
    halts: bool
    """whether the data ends early by `on_exhaustion="halt"`"""


def budget_check(budget: Budget) -> Check:
    """Whether the trainer ends where the curriculum does."""
    asked, there = budget.trainer_steps, budget.steps
    if asked is None or asked == there:
        return Check("budget", True, f"{there:,} steps, all of them trained")
    if asked > there and budget.halts:
        return Check("budget", True, f"{there:,} of {asked:,} steps, and there the run halts")
    if asked > there:
        says = (
            f"train.steps is {asked:,}, but there are rows for {there:,} steps only: give fewer "
            "steps, or more tokens or epochs"
        )
        return Check("budget", False, says)
    says = f"train.steps is {asked:,} of the {there:,} steps there are rows for"
    if not budget.budgeted or budget.mismatch_allowed:
        return Check("budget", True, says)
    remedy = "give other budgets or steps, or set allow_budget_mismatch: true"
    return Check("budget", False, f"{says}, the curriculum would not be finished: {remedy}")


def describe_amounts(amounts: Amounts) -> dict[str, Any]:
    """Tokens (targets with loss), slots and padding of some rows."""
    return {
        "rows": amounts.rows,
        "documents": amounts.documents,
        "tokens": amounts.trained_tokens,
        "slots": amounts.slots,
        "overlap": amounts.overlap_tokens,
        "padding": amounts.padding,
        "efficiency": amounts.trained_tokens / amounts.slots if amounts.slots else 1.0,
    }


def describe_mixture(mixed: Any) -> dict[str, Any]:
    """The plan of a mixture: phases, stretches of equal shares, sources, and all together."""
    table, stretches = mixed.table, planned_stretches(mixed.table)
    by_source = _joined(stretches)
    phases = [
        _phase(mixed, number, [each for each in stretches if each.phase == number])
        for number in range(len(table.phases))
    ]
    return {
        "seq_len": table.seq_len,
        "sections": [
            {"first_row": first, "seq_len": part.seq_len} for first, part in sections(table)
        ],
        **describe_amounts(sum(by_source.values(), Amounts())),
        "phases": phases,
        "stretches": [_stretch(each) for each in stretches],
        "on_exhaustion": table.on_exhaustion,
        "exhaustions": [asdict(each) for each in table.exhaustions],
        "sources": {
            name: _source(mixed, name, by_source.get(name, Amounts())) for name in table.names
        },
    }


def _joined(stretches: Sequence[PlannedStretch]) -> dict[str, Amounts]:
    found: dict[str, Amounts] = {}
    for stretch in stretches:
        for name, amounts in stretch.amounts.items():
            found[name] = found.get(name, Amounts()) + amounts
    return found


def _phase(mixed: Any, number: int, stretches: Sequence[PlannedStretch]) -> dict[str, Any]:
    table, found = mixed.table, _joined(stretches)
    weights = table.phases[number].numbers
    taken = {name: found.get(name, Amounts()) for name in weights}
    whole = sum(found.values(), Amounts())
    dry = {each.source: each.row for each in table.exhaustions if each.phase == number}
    first, stop = (stretches[0].start, stretches[-1].stop) if stretches else (0, 0)
    before, after = table.epochs(first), table.epochs(stop)
    return {
        "phase": number,
        "first_row": first if stretches else None,
        "rows_asked": table.budgets[number],
        **describe_amounts(whole),
        "sources": {
            name: {
                "share_asked": weight / sum(weights.values()),
                "share_planned": taken[name].trained_tokens / max(whole.trained_tokens, 1),
                **describe_amounts(taken[name]),
                "epochs": float(after[name] - before[name]),
                "dry_at_row": dry.get(name),
            }
            for name, weight in weights.items()
        },
    }


def _stretch(stretch: PlannedStretch) -> dict[str, Any]:
    whole = sum(each.trained_tokens for each in stretch.amounts.values())
    return {
        "phase": stretch.phase,
        "first_row": stretch.start,
        "stop_row": stretch.stop,
        "shares_asked": stretch.asked,
        "shares_planned": {
            name: each.trained_tokens / max(whole, 1) for name, each in stretch.amounts.items()
        },
        "tokens": {name: each.trained_tokens for name, each in stretch.amounts.items()},
    }


def _source(mixed: Any, name: str, run: Amounts) -> dict[str, Any]:
    """One source: what the run takes of it, what an epoch holds, and what is left out of both."""
    plan, documents = mixed.sources[name].plan, mixed.sources[name].table.documents[0]
    entry = getattr(documents, "entry", None)
    epoch = mixed.sources[name].table.amounts(plan.rows)
    return {
        "run": describe_amounts(run) | {"epochs": mixed.epochs()[name]},
        "epoch": describe_amounts(next(iter(epoch.values()))),
        "documents": plan.documents,
        "masked": documents.masked,
        "dropped": {
            "documents_without_target": plan.documents - next(iter(epoch.values())).documents,
            "tokens_cropped": plan.dropped_tokens,
            **_left_out_before(entry.statistics if entry else {}),
        },
    }


def _left_out_before(statistics: dict[str, Any]) -> dict[str, int]:
    """Records that the conversion set aside or dropped, by reason."""
    reasons: dict[str, int] = {}
    for kind in ("quarantined", "dropped"):
        found = statistics.get(kind) or {}
        if isinstance(found, dict):
            reasons.update({f"{kind}: {reason}": count for reason, count in found.items()})
    return reasons
