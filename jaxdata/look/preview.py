"""What a run will get, to the token, before its first step: as plain JSON and as tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from jaxdata.base.errors import InputError, StateMismatch
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.views.kept_documents import KeptDocuments
from jaxdata.feed.loader import Loader
from jaxdata.look.integrity import Check
from jaxdata.look.terminal import plain_table, printable
from jaxdata.rows.mixing.mixture import (
    Mixture,
    PlannedInterval,
    planned_intervals,
    weighed_tokens,
)
from jaxdata.rows.table import TokenCounts
from jaxdata.testing.work import host_work

_LISTED = 4
"""epochs whose rows a table has"""


def preview_tables(found: dict[str, Any]) -> Iterator[Table]:
    """One table per phase, the intervals of equal shares if a source runs dry, and an epoch."""
    for phase in found["phases"]:
        yield _phase_table(phase)
    if found["exhaustions"]:
        yield _interval_table(found)
    yield _source_table(found["sources"])


def _phase_table(phase: dict[str, Any]) -> Table:
    first, rows, asked = phase["first_row"], phase["rows"], phase["rows_asked"]
    if first is None:
        where = f"none of its {asked or 0:,} rows is reached"
    else:
        where = f"rows {first:,} to {first + rows - 1:,}"
        where += f", {rows:,} of the {asked:,} asked for" if rows < (asked or 0) else ""
    title = f"phase {phase['phase']}: {where}, {phase['tokens']:,} tokens"
    dry = any(source["dry_at_row"] is not None for source in phase["sources"].values())
    loss = any("loss_tokens" in source for source in phase["sources"].values())
    counted = "with loss" if loss else "tokens"
    columns = ["asked %", "planned %", counted, "rows", "epochs", *(["dry at row"] * dry)]
    table = plain_table(title, ["source"], columns)
    for name, source in phase["sources"].items():
        cells = [
            f"{100 * source['share_asked']:.2f}",
            f"{100 * source['share_planned']:.3f}",
            f"{source['loss_tokens' if loss else 'tokens']:,}",
            f"{source['rows']:,}",
            f"{source['epochs']:.3f}",
        ]
        if dry:
            cells.append("" if source["dry_at_row"] is None else f"{source['dry_at_row']:,}")
        table.add_row(Text(printable(name)), *cells)
    return table


def _interval_table(found: dict[str, Any]) -> Table:
    names = list(found["sources"])
    title = f"intervals of equal shares (on_exhaustion: {found['on_exhaustion']}), in % of tokens"
    table = plain_table(title, ["rows", "phase"], [printable(name) for name in names])
    for interval in found["stretches"]:
        shares = (100 * interval["shares_planned"].get(name, 0) for name in names)
        rows = f"{interval['first_row']:,} to {interval['stop_row'] - 1:,}"
        table.add_row(rows, str(interval["phase"]), *(f"{share:.2f}" for share in shares))
    return table


def _source_table(sources: dict[str, Any]) -> Table:
    loss = any(each["masked"] and each["loss_tokens"] is not None for each in sources.values())
    anew = any("rows_of_epochs" in each for each in sources.values())
    columns = ["documents", "tokens", *(["with loss"] * loss), "rows", "filled %", "cropped"]
    columns += ["by epoch"] * anew
    table = plain_table("an epoch of each source", ["source"], columns)
    for name, source in sources.items():
        epoch, dropped = source["epoch"], source["dropped"]
        filled = 1 - epoch["padding"] / max(epoch["slots"], 1)
        table.add_row(
            Text(printable(name)),
            f"{source['documents']:,}",
            f"{epoch['tokens']:,}",
            *(["" if source["loss_tokens"] is None else f"{source['loss_tokens']:,}"] * loss),
            f"{epoch['rows']:,}",
            f"{100 * filled:.2f}",
            f"{dropped['tokens_cropped']:,}",
            *([_listed(source.get("rows_of_epochs", []))] * anew),
        )
    return table


def _listed(rows: Sequence[int]) -> str:
    """The first of some numbers."""
    more = f" and {len(rows) - _LISTED} more" if len(rows) > _LISTED else ""
    return ", ".join(f"{each:,}" for each in rows[:_LISTED]) + more


def budget_check(loader: Loader, config: Any) -> Check:
    """Check that the trainer of a config ends where its curriculum does."""
    asked, there, phases = config.train.steps, len(loader), config.curriculum or []
    if asked is None or asked == there:
        return Check("budget", True, f"{there:,} steps, all of them trained")
    if asked > there and loader.halt() is not None:
        return Check("budget", True, f"the run halts after {there:,} of {asked:,} steps", "halts")
    if asked > there:
        says = (
            f"train.steps is {asked:,}, but there are rows for only {there:,} steps: set fewer "
            "steps, or more tokens or epochs"
        )
        return Check("budget", False, says)
    says = f"train.steps is {asked:,}, and there are rows for {there:,} steps"
    budgeted = bool(phases) and all(each.tokens or each.rows or each.steps for each in phases)
    if not budgeted or config.allow_budget_mismatch:
        return Check("budget", True, says)
    remedy = "change budgets or steps, or set allow_budget_mismatch: true"
    return Check("budget", False, f"{says}, so the curriculum would not be finished: {remedy}")


def state_check(loader: Loader, state: Mapping[str, Any]) -> Check:
    """Move a loader to where a run is, and say what it did so far."""
    try:
        loader.set_state(state)
    except StateMismatch as error:
        return Check("state", False, f"this config cannot go on with that run: {error}")
    row, step, left = loader.next_row, loader.step, len(loader) - loader.step
    says = [f"the run is at row {row:,}, after {step:,} steps; {left:,} steps are left"]
    for first, size in state.get("batch_sizes", []):
        says.append(f"from row {first:,} on it had batches of {size:,} rows")
    if left:
        says.append(f"the next batch has {len(loader.batch_rows(step)):,} rows")
    for each in getattr(loader.rows, "amendments", []):
        when = "in force" if each["row"] <= row else "still to come"
        weights = f", by weights {each['weights']}" if "weights" in each else ""
        says.append(f"amended from row {each['row']:,} on{weights}: {when}")
    return Check("state", True, "\n".join(says))


def work_check(loader: Loader) -> Check:
    """Say how evenly hosts share the work of a step; it warns of nothing."""
    sizes = [size for _, size in loader.batch_sizes]
    try:
        return Check("balance", True, str(host_work(loader.rows, batch_size=sizes[0])))
    except InputError as error:
        return Check("balance", True, str(error))


def sources_check(table: Mixture) -> Check:
    """Say which sources run dry; the mixture exists, so its rule on exhaustion allows that."""
    if table.exhaustions:
        dry = [f"{each} ({table.recipe_at(each.row).on_exhaustion})" for each in table.exhaustions]
        return Check("sources", True, "\n".join(["runs dry, as allowed:", *dry]), "dry")
    until_dry = table.timeline.budgets[-1] is None and table.recipe.on_exhaustion != "renormalize"
    if until_dry and len(table):
        row = table.timeline.start + len(table)
        return Check("sources", True, f"the last phase ends at row {row:,}, where one runs dry")
    return Check("sources", True, "none of them runs dry")


def describe_counts(counts: TokenCounts) -> dict[str, Any]:
    """Totals of some rows: tokens (targets with loss), slots and padding."""
    return {
        "rows": counts.rows,
        "documents_begun": counts.begun,
        "documents_finished": counts.finished,
        "tokens": counts.trained_tokens,
        "slots": counts.slots,
        "overlap": counts.overlap_tokens,
        "padding": counts.padding,
        "efficiency": counts.trained_tokens / counts.slots if counts.slots else 1.0,
    }


def describe_mixture(mixed: Any) -> dict[str, Any]:
    """The plan of a mixture: totals, phases, intervals of constant shares, sources."""
    table, intervals = mixed.table, planned_intervals(mixed.table)
    by_source = _joined(intervals)
    phases = [
        _phase(mixed, number, [each for each in intervals if each.phase == number])
        for number in range(len(table.timeline.phases))
    ]
    return {
        "seq_len": table.seq_len,
        "weigh_by": table.recipe.weigh_by,
        "sections": [
            {"first_row": first, "seq_len": part.seq_len} for first, part in table.sections()
        ],
        **describe_counts(sum(by_source.values(), TokenCounts())),
        "phases": phases,
        "stretches": [_interval(each) for each in intervals],
        "on_exhaustion": table.recipe.on_exhaustion,
        "exhaustions": [asdict(each) for each in table.exhaustions],
        "sources": {
            name: _source(mixed, name, by_source.get(name, TokenCounts())) for name in table.names
        },
    }


def _joined(intervals: Sequence[PlannedInterval]) -> dict[str, TokenCounts]:
    found: dict[str, TokenCounts] = {}
    for interval in intervals:
        for name, token_counts in interval.token_counts.items():
            found[name] = found.get(name, TokenCounts()) + token_counts
    return found


def _phase(mixed: Any, number: int, intervals: Sequence[PlannedInterval]) -> dict[str, Any]:
    table, found = mixed.table, _joined(intervals)
    weights = table.timeline.phases[number].numbers
    taken = {name: found.get(name, TokenCounts()) for name in weights}
    whole, weighed = sum(found.values(), TokenCounts()), weighed_tokens(found, table.loss_shares)
    dry = {each.source: each.row for each in table.exhaustions if each.phase == number}
    first, stop = (intervals[0].start, intervals[-1].stop) if intervals else (0, 0)
    before, after = table.epochs(first), table.epochs(stop)
    return {
        "phase": number,
        "first_row": first if intervals else None,
        "rows_asked": table.timeline.budgets[number],
        **describe_counts(whole),
        "sources": {
            name: {
                "share_asked": weight / sum(weights.values()),
                "share_planned": weighed.get(name, 0) / (sum(weighed.values()) or 1),
                **describe_counts(taken[name]),
                **({"loss_tokens": round(weighed.get(name, 0))} if table.loss_shares else {}),
                "epochs": float(after[name] - before[name]),
                "dry_at_row": dry.get(name),
            }
            for name, weight in weights.items()
        },
    }


def _interval(interval: PlannedInterval) -> dict[str, Any]:
    tokens = {name: each.trained_tokens for name, each in interval.token_counts.items()}
    weighed = weighed_tokens(interval.token_counts, interval.loss_shares)
    return {
        "phase": interval.phase,
        "first_row": interval.start,
        "stop_row": interval.stop,
        "shares_asked": interval.asked,
        "shares_planned": {n: count / (sum(weighed.values()) or 1) for n, count in weighed.items()},
        "tokens": tokens,
    }


def _source(mixed: Any, name: str, run: TokenCounts) -> dict[str, Any]:
    """One source: what the run takes of it, the totals of an epoch, and what is omitted."""
    plan, table = mixed.sources[name].plan, mixed.sources[name].table
    documents, epoch = table.documents[0], table.total(plan.rows)
    entry = documents.base.entry
    counted = mixed.table.recipe.weigh_by == "loss_tokens"
    return {
        "run": describe_counts(run) | {"epochs": mixed.epochs()[name]},
        "epoch": describe_counts(epoch),
        **_epochs_dealt_anew(mixed, name),
        "documents": plan.documents,
        **({"view": documents.view.name} if isinstance(documents, KeptDocuments) else {}),
        "masked": documents.masked,
        "loss_tokens": table.loss_tokens if counted else table.known_loss_tokens,
        "dropped": {
            "documents_without_target": plan.documents - epoch.begun,
            "tokens_cropped": plan.dropped_tokens,
            **_left_out_before(entry.statistics if entry else {}),
            **_dropped_by_view(documents),
        },
    }


def _epochs_dealt_anew(mixed: Any, name: str) -> dict[str, list[int]]:
    """The rows of each epoch that the run begins, where they differ."""
    table = mixed.sources[name].table
    if table.settings.reshuffle == "rows":
        return {}
    epochs = math.ceil(mixed.epochs()[name])
    return {"rows_of_epochs": [table.deal(epoch).rows for epoch in range(epochs)]}


def _dropped_by_view(documents: Documents) -> dict[str, int]:
    """Documents that a view of them does not list, by reason."""
    if not isinstance(documents, KeptDocuments):
        return {}
    dropped = documents.view.entry.account.dropped
    named = f"dropped by view {documents.view.name}"
    return {f"{named}: {reason}": each.documents for reason, each in dropped.items()}


def _left_out_before(statistics: dict[str, Any]) -> dict[str, int]:
    """Records that the conversion quarantined or dropped, by reason."""
    return {
        f"{kind}: {reason}": count
        for kind in ("quarantined", "dropped")
        for reason, count in statistics.get(kind, {}).items()
    }
