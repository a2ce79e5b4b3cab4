"""What a run will get, to the token, before its first step: as plain JSON and as tables.

Its dataset is checked first, in seconds at any size: the index and the end of each shard are read
and must agree. `jaxdata verify` reads everything, and `not_compared` says what that is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.table import Table

from jaxdata.base.errors import DatasetError, InputError, SourceExhausted, StateMismatch, counted
from jaxdata.config import Config, loading
from jaxdata.dataset.index import SourceIndex
from jaxdata.dataset.manifest import read_manifest
from jaxdata.dataset.opening import ConvertedDocuments, Dataset
from jaxdata.dataset.verify import damage_of_columns, file_check, run_checks
from jaxdata.dataset.views.kept_documents import KeptDocuments
from jaxdata.dedup.leaks import leak_notes
from jaxdata.feed.loader import Loader
from jaxdata.look.read_costs import cost_lines, describe_costs
from jaxdata.look.terminal import printable, table
from jaxdata.look.trace import read_state
from jaxdata.rows.mixing.mixture import Mixture, PlannedInterval, planned_intervals
from jaxdata.rows.objectives import ROW, Objective
from jaxdata.rows.reading import assemble
from jaxdata.rows.table import TokenCounts
from jaxdata.testing.proofs import Proof, host_work

_COUNTED_ROWS, _COUNTED_SLOTS = 512, 2**21
"""how many of a run are read, at most, to count what has loss under an objective"""
_AT_ONCE = 16
"""of these rows"""


def foretell(
    config: Config, state: str | None = None, *, hosts: int | None = None
) -> dict[str, Any]:
    """Plan a run, keep the plan, and say what the run will get, as plain values.

    Args:
        config: of the run.
        state: of a run under way (see `read_state`): the rest of it is judged.
        hosts: that are to read the run from a bucket, if it is asked what that costs.
    """
    found: dict[str, Any] = {"dataset": config.dataset, "not_compared": [], "notes": []}
    checks: list[Proof] = []
    try:
        dataset = loading.open_data(config)
    except DatasetError as error:
        checks.append(Proof("manifest", False, str(error)))
    else:
        names = loading.sources_of(dataset, config)
        trained = [name for name in names if name.startswith(f"{config.split}/")]
        held_out = [name for name in names if name not in trained]
        checks += _check_dataset(dataset, names)
        found["dataset"], found["not_compared"] = dataset.url, not_compared(dataset, names)
        found["notes"] = leak_notes(dataset, trained, held_out) if held_out else []
        try:
            loader, more = open_run(config)
            checks += [Proof("sources", False, more)] if more else _checks(loader, config, state)
            found |= {"steps": len(loader), **describe_mixture(loader.rows)}
            sets = loading.scored_sets(config, dataset)
            scored = {name: loading.build_rows(config, config.scored[name]) for name in sets}
            found["evaluation"] = {
                name: _counts(rows.table.total(len(rows))) for name, rows in scored.items()
            }
            if objective := loading.loader_arguments(config)["objective"]:
                found["objective"] = _objective(loader.rows.table, objective)
            if hosts is not None:
                found["read_costs"] = costs = describe_costs(loader, config, hosts)
                said = "\n".join(costs["warnings"])
                checks += [Proof("reading", costs["ok"], said, "dear")] if said else []
        except DatasetError as error:
            checks.append(Proof("rows", False, str(error)))
        try:
            why = loading.unscored(config, dataset)
            checks += [Proof("scoring", True, why, "none")] if why else []
        except InputError as error:
            checks.append(Proof("scoring", False, str(error)))
    ok = all(check.holds for check in checks)
    return {**found, "ok": ok, "checks": [check.described() for check in checks]}


def open_run(config: Config) -> tuple[Loader, str]:
    """The loader of a config; one that cannot start is shown as far as it would get, with why."""
    try:
        return loading.load(config), ""
    except SourceExhausted as error:
        return loading.load(config, on_exhaustion="halt"), str(error)


def _check_dataset(dataset: Dataset, names: Sequence[str]) -> Iterator[Proof]:
    """Check the tokenizers, and the index, shards and views of the sources `names`.

    Opening the dataset checked the manifests. Sources of other tools have no checksums: nothing is
    compared for them.
    """
    opened = [dataset[name] for name in names]
    ours = [each.base for each in opened if isinstance(each.base, ConvertedDocuments)]
    views = [each.view for each in opened if isinstance(each, KeptDocuments)]
    stores = {each.store.url: each.store for each in ours}
    tokenizer = [
        file_check(store, *each)
        for store in stores.values()
        for each in read_manifest(store).tokenizer.checksums.items()
    ]
    index = [damage for each in ours for damage in damage_of_columns(each.index)]
    lists = [damage for view in views for damage in damage_of_columns(view)]
    parts = [part for each in ours for part in (each.index, *each.index.sides.values())]
    shards = [] if index else [wrong for part in parts for wrong in _wrong_shards(part)]
    files, documents = sum(len(each.entry.all_shards) for each in ours), sum(map(len, ours))
    yield Proof("manifest", True, counted(len(stores), "dataset"))
    for name, damage, fine in (
        ("tokenizer", run_checks(tokenizer), "its files are unchanged"),
        ("index", index, f"{documents:,} documents of {counted(len(ours), 'source')}"),
        ("shards", shards, f"{counted(files, 'file')}: each is whole"),
        ("views", lists, f"{counted(len(views), 'list')} of kept documents, as written"),
    ):
        if name != "views" or views:
            yield Proof(name, not damage, "\n".join(map(str, damage)) or fine)
    if others := len(opened) - len(ours):
        says = f"{counted(others, 'source')} of other tools, which have no checksums"
        yield Proof("others", True, says)


def _wrong_shards(index: SourceIndex) -> Iterator[str]:
    """What reading the last byte of each shard says of those that are not whole."""
    for shard in index.entry.shards:
        last = np.array([shard.bytes])
        try:
            index.store.gather([shard.name], np.zeros(1, np.int64), last - 1, last)
        except (DatasetError, OSError) as error:
            yield str(error)


def not_compared(dataset: Dataset, names: Sequence[str]) -> list[str]:
    """What is taken on trust when the sources `names` are opened, a line each; reads nothing."""
    sources = {name: dataset[name].base for name in names}
    ours = [each for each in sources.values() if isinstance(each, ConvertedDocuments)]
    shards = [shard for source in ours for shard in source.entry.all_shards]
    size = sum(shard.bytes for shard in shards) / 1e6
    columns = sum(len(source.entry.checksums) for source in ours)
    commands = dict.fromkeys(f"jaxdata verify {source.store.url}" for source in ours)
    lines = []
    if ours:
        lines.append(
            f"not compared with their checksums: {counted(len(shards), 'shard')} ({size:,.1f} MB) "
            f"and {counted(columns, 'column')} of the index; to compare them: {', '.join(commands)}"
        )
    if without := [name for name, source in sources.items() if source not in ours]:
        lines.append(f"without checksums, so damage may go unnoticed: {', '.join(without)}")
    return lines


def _checks(loader: Loader, config: Config, state: str | None) -> Iterator[Proof]:
    if state is not None:
        yield state_check(loader, read_state(state))
    yield _sources_check(loader.rows.table)
    yield _budget_check(loader, config)
    try:
        work = host_work(loader.rows, batch_size=loader.batch_sizes[0][1])
    except InputError as error:
        work = str(error)
    yield Proof("balance", True, work)


def state_check(loader: Loader, state: Mapping[str, Any]) -> Proof:
    """Move a loader to where a run is, and say what it did so far."""
    try:
        loader.set_state(state)
    except StateMismatch as error:
        return Proof("state", False, f"this config cannot go on with that run: {error}")
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
    return Proof("state", True, "\n".join(says))


def _sources_check(rows: Mixture) -> Proof:
    """Say which sources run dry; the mixture exists, so its rule on exhaustion allows that."""
    if rows.exhaustions:
        dry = [f"{each} ({rows.recipe_at(each.row).on_exhaustion})" for each in rows.exhaustions]
        return Proof("sources", True, "\n".join(["runs dry, as allowed:", *dry]), "dry")
    until_dry = rows.timeline.budgets[-1] is None and rows.recipe.on_exhaustion != "renormalize"
    if until_dry and len(rows):
        row = rows.timeline.start + len(rows)
        return Proof("sources", True, f"the last phase ends at row {row:,}, where one runs dry")
    return Proof("sources", True, "none of them runs dry")


def _budget_check(loader: Loader, config: Config) -> Proof:
    """Check that the trainer of a config ends where its curriculum does."""
    asked, there, phases = config.train.steps, len(loader), config.curriculum or []
    if asked is None or asked == there:
        return Proof("budget", True, f"{there:,} steps, all of them trained")
    if asked > there and loader.halt() is not None:
        return Proof("budget", True, f"the run halts after {there:,} of {asked:,} steps", "halts")
    says = f"train.steps is {asked:,}, and there are rows for {there:,} steps"
    if asked > there:
        remedy = "set fewer steps, or more tokens or epochs"
        return Proof("budget", False, f"{says}: {remedy}")
    budgeted = bool(phases) and all(each.tokens or each.rows or each.steps for each in phases)
    if not budgeted or config.allow_budget_mismatch:
        return Proof("budget", True, says)
    remedy = "change budgets or steps, or set allow_budget_mismatch: true"
    return Proof("budget", False, f"{says}, so the curriculum would not be finished: {remedy}")


def _objective(rows: Mixture, objective: Objective) -> dict[str, Any]:
    """The slots with loss under an objective, in rows drawn at random: these are read."""
    most = min(_COUNTED_ROWS, max(_COUNTED_SLOTS // rows.seq_len, 1), len(rows))
    chosen = np.sort(np.random.default_rng(0).choice(len(rows), most, replace=False))
    slots = with_loss = 0
    sections = rows.sections()
    edges = np.searchsorted(chosen, [first for first, _ in sections[1:]])
    for (_, part), numbers in zip(sections, np.split(chosen, edges), strict=True):
        batches = np.array_split(numbers, len(numbers) // _AT_ONCE + 1)
        for some, batch in zip(batches, assemble(part, batches, _AT_ONCE), strict=True):
            made = objective({**batch, ROW: np.resize(some, _AT_ONCE)})
            loss = made.get("mtp_mask", made["loss_mask"][..., None]).any(axis=-1)
            slots, with_loss = slots + len(some) * part.seq_len, with_loss + int(loss.sum())
    return {"name": objective.name, "rows": most, "slots": slots, "slots_with_loss": with_loss}


def describe_mixture(mixed: Any) -> dict[str, Any]:
    """The plan of a mixture: totals, phases, sources."""
    rows, intervals = mixed.table, planned_intervals(mixed.table)
    whole = _by_source(intervals, rows.names)
    return {
        "seq_len": rows.seq_len,
        "sections": [
            {"first_row": first, "seq_len": part.seq_len} for first, part in rows.sections()
        ],
        **_counts(sum(whole.values(), TokenCounts())),
        "phases": [
            _phase(rows, number, [each for each in intervals if each.phase == number])
            for number in range(len(rows.timeline.phases))
        ],
        "on_exhaustion": rows.recipe.on_exhaustion,
        "exhaustions": [asdict(each) for each in rows.exhaustions],
        "sources": {name: _source(mixed, name, counts) for name, counts in whole.items()},
    }


def _counts(counts: TokenCounts) -> dict[str, Any]:
    """Totals of some rows: tokens (targets with loss), slots and padding."""
    efficiency = counts.trained_tokens / counts.slots if counts.slots else 1.0
    return {**counts.described(), "slots": counts.slots, "efficiency": efficiency}


def _by_source(intervals: Sequence[PlannedInterval], names: list[str]) -> dict[str, TokenCounts]:
    return {n: sum((each.token_counts[n] for each in intervals), TokenCounts()) for n in names}


def _shares(tokens: Mapping[str, float]) -> dict[str, float]:
    return {name: count / (sum(tokens.values()) or 1) for name, count in tokens.items()}


def _phase(rows: Mixture, number: int, intervals: Sequence[PlannedInterval]) -> dict[str, Any]:
    found, weights = _by_source(intervals, rows.names), rows.timeline.phases[number].numbers
    planned = _shares({name: each.trained_tokens for name, each in found.items()})
    asked = _shares(weights)
    dry = {each.source: each.row for each in rows.exhaustions if each.phase == number}
    first = intervals[0].start if intervals else 0
    stop = first + sum(interval.rows for interval in intervals)
    before, after = rows.epochs(first), rows.epochs(stop)
    return {
        "phase": number,
        "first_row": first if intervals else None,
        "rows_asked": rows.timeline.budgets[number],
        **_counts(sum(found.values(), TokenCounts())),
        "sources": {
            name: {
                "share_asked": asked[name],
                "share_planned": planned[name],
                **_counts(found[name]),
                "epochs": float(after[name] - before[name]),
                "dry_at_row": dry.get(name),
            }
            for name in weights
        },
    }


def _source(mixed: Any, name: str, run: TokenCounts) -> dict[str, Any]:
    """One source: what the run takes of it, the totals of an epoch, and what is omitted."""
    plan, packed = mixed.sources[name].plan, mixed.sources[name].table
    documents, epoch = packed.documents[0], packed.total(plan.rows)
    found = {
        "run": _counts(run) | {"epochs": mixed.epochs()[name]},
        "epoch": _counts(epoch),
        "documents": plan.documents,
        "masked": documents.masked,
        "dropped": {
            "documents_without_target": plan.documents - epoch.begun,
            "tokens_cropped": plan.dropped_tokens,
        },
    }
    if isinstance(documents, KeptDocuments):
        found["view"] = documents.view.name
    return found


def preview_lines(found: dict[str, Any]) -> Iterator[Table | str]:
    """What is printed: tables, what they add up to, checks, and what was not looked at."""
    if "phases" in found:
        yield from map(_phase_table, found["phases"])
        yield _source_table(found["sources"])
        yield from _summary(found)
    if "read_costs" in found:
        yield from cost_lines(found["read_costs"])
    for check in found["checks"]:
        first, *rest = map(printable, check["says"].split("\n"))
        yield f"{check['mark']:<7} {check['name']:<9} {first}"
        yield from (f"{'':<17} {line}" for line in rest)
    yield from map(printable, found["not_compared"] + found["notes"])
    if "sources" in found:
        documents = sum(source["documents"] for source in found["sources"].values())
        yield f"{counted(documents, 'document')} planned; hosts started later reuse the plan"


def _phase_table(phase: Mapping[str, Any]) -> Table:
    first, rows, asked = phase["first_row"], phase["rows"], phase["rows_asked"]
    if first is None:
        where = f"none of its {asked or 0:,} rows is reached"
    else:
        where = f"rows {first:,} to {first + rows - 1:,}"
        where += f", {rows:,} of the {asked:,} asked for" if rows < (asked or 0) else ""
    sources = phase["sources"]
    dry = any(source["dry_at_row"] is not None for source in sources.values())
    columns = ["asked %", "planned %", "tokens", "rows", "epochs", *["dry at row"] * dry]
    lines = (
        [
            name,
            f"{100 * source['share_asked']:.2f}",
            f"{100 * source['share_planned']:.3f}",
            source["tokens"],
            source["rows"],
            f"{source['epochs']:.3f}",
            *[source["dry_at_row"]] * dry,
        ]
        for name, source in sources.items()
    )
    title = f"phase {phase['phase']}: {where}, {phase['tokens']:,} tokens"
    return table(title, ["source"], columns, lines)


def _source_table(sources: Mapping[str, Any]) -> Table:
    columns, lines = ["documents", "tokens", "rows", "filled %", "cropped"], []
    for name, source in sources.items():
        epoch, cropped = source["epoch"], source["dropped"]["tokens_cropped"]
        filled = f"{100 * (1 - epoch['padding'] / max(epoch['slots'], 1)):.2f}"
        lines.append([name, source["documents"], epoch["tokens"], epoch["rows"], filled, cropped])
    return table("an epoch of each source", ["source"], columns, lines)


def _summary(found: Mapping[str, Any]) -> Iterator[str]:
    lengths = [
        f"{part['seq_len']:,}" + (f" from row {part['first_row']:,} on" if number else "")
        for number, part in enumerate(found["sections"])
    ]
    run = f"{found['rows']:,} rows of {', '.join(lengths)} in {found['steps']:,} steps"
    yield f"{run}: {found['tokens']:,} tokens trained,"
    yield f"{100 * found['efficiency']:.2f} % of all slots; {found['padding']:,} slots are padding"
    if counts := found.get("objective"):
        slots, loss, rows = counts["slots"], counts["slots_with_loss"], counts["rows"]
        which = "all rows" if rows == found["rows"] else f"{rows:,} rows, drawn at random"
        said = f"objective {counts['name']}: {loss:,} of {slots:,} slots"
        yield f"{said} ({100 * loss / max(slots, 1):.2f} %) have loss, in {which}"
    for name, source in found["sources"].items():
        if "view" in source:
            said = f"{printable(name)} is read through view {printable(source['view'])}"
            yield f"{said}, which lists {source['documents']:,} documents"
        if lost := source["dropped"]["documents_without_target"]:
            yield f"left out of {printable(name)}: {lost:,} documents of a single token"
    masked = [printable(name) for name, each in found["sources"].items() if each["masked"]]
    if masked:
        yield f"tokens of {', '.join(masked)} include those masked by stored loss masks"
    for name, scored in found["evaluation"].items():
        of = "" if name == "val" else f" of {printable(name)}"
        yield f"evaluation{of}: {scored['tokens']:,} tokens in {scored['rows']:,} rows"
