"""`jaxdata preview --config CONFIG`: what a run will get, and whether it is feasible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from jaxdata.base.wording import counted
from jaxdata.cli.config import OVERRIDABLE, read_config, takes_config

_REASONS = {"documents_without_target": "documents of a single token"}


@click.command(
    **OVERRIDABLE,
    epilog="Exit code 0 if the run is feasible as configured, 1 if it is not; with --hosts also 1 "
    "if storage.cache.bytes cannot hold what a host has open.",
)
@takes_config
@click.option(
    "--state",
    metavar="PATH",
    help="Judge the rest of a run under way, with the batch sizes that it had so far: a loader's "
    "state, a checkpoint, or the run's output folder (its newest checkpoint).",
)
@click.option(
    "--leaks",
    is_flag=True,
    help="Also read documents: are held-out ones trained, too, token for token? It warns only.",
)
@click.option(
    "--hosts",
    type=click.IntRange(1),
    help="Also say what reading the run from a bucket costs so many hosts: requests, bytes, cache.",
)
@click.option("--page-bytes", type=click.IntRange(1), default=2**20, hidden=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def preview(config: str, overrides: tuple[str, ...], as_json: bool, **asked: Any) -> int:
    """Plan a run, keep the plan, and show what the run will get, to the token.

    For each phase and source: the share asked for and the share planned, tokens (targets with
    loss), rows, epochs, and the row at which the source runs dry; what packing pads and drops;
    whether the trainer's steps match the curriculum; and whether the dataset is intact. Only
    document lengths are read, but for --leaks. The plan is stored beside the data: hosts that start
    later reuse it.

    \b
        jaxdata preview --config pretrain.yaml --epochs '{wiki: 4}'
        jaxdata preview --config pretrain.yaml --hosts 64 --loader.batch_size 512
    """  # noqa: D301 - \b is a mark of click's
    from jaxdata.look.terminal import show

    found, costs = _look(read_config(config, overrides), **asked)
    show(_lines(found, costs), {"config": config, **found}, as_json=as_json)
    return 0 if found["ok"] else 1


def _look(
    config: Any, state: str | None, *, leaks: bool, hosts: int | None, page_bytes: int
) -> tuple[dict[str, Any], Any]:
    """What the run gets, as plain values; and what it costs so many hosts to read."""
    from jaxdata.base.errors import DatasetError
    from jaxdata.base.progress import progress_bar
    from jaxdata.config import open_data
    from jaxdata.look.integrity import Check, check_dataset, not_compared
    from jaxdata.look.preview import describe_mixture

    try:
        dataset = open_data(config)
    except DatasetError as error:
        failed = Check("manifest", False, str(error)).described()
        found = {"dataset": config.dataset, "ok": False, "checks": [failed]}
        return {**found, "not_compared": [], "notes": []}, None
    names = sources_of(dataset, config)
    with progress_bar("checking the index") as progress:
        checks = list(check_dataset(dataset, names, progress))
    found, costs = {}, None
    try:
        loader, more = _open(config, state)
        checks += more
        found = {"steps": len(loader), **describe_mixture(loader.rows)}
        found["evaluation"] = _evaluation(dataset, config)
        if hosts is not None:
            costs = _costs(loader, config, hosts, page_bytes)
            found["read_costs"] = costs.described()
            checks += costs.checks()
    except DatasetError as error:
        checks.append(Check("rows", False, str(error)))
    checks += _scoring(dataset, config)
    if leaks:
        checks.append(_exact_leaks(dataset, config, names))
    return {
        "dataset": dataset.url,
        "ok": all(check.holds for check in checks),
        "checks": [check.described() for check in checks],
        "not_compared": not_compared(dataset, names),
        "notes": _leaks(dataset, config, names),
        **found,
    }, costs


def _costs(loader: Any, config: Any, hosts: int, page_bytes: int) -> Any:
    """What reading costs, by the largest batches of the run."""
    from jaxdata.look.read_costs import Cluster, read_costs

    largest = max(size for _, size in loader.batch_sizes)
    cluster = Cluster(hosts, largest, page_bytes, config.storage.cache.bytes)
    return read_costs(loader.rows.table, cluster)


def _leaks(dataset: Any, config: Any, names: list[str]) -> list[str]:
    """Whether copies of what is held out may be trained."""
    from jaxdata.dedup.leaks import leak_notes

    trained, held_out = _both_sides(config, names)
    return leak_notes(dataset, trained, held_out) if held_out else []


def _scoring(dataset: Any, config: Any) -> list[Any]:
    """The check of the split to score on, where there is none."""
    from jaxdata.base.errors import ConfigError
    from jaxdata.config import unscored
    from jaxdata.look.integrity import Check

    try:
        why = unscored(config, dataset)
    except ConfigError as error:
        return [Check("scoring", False, str(error))]
    return [Check("scoring", True, why, "none")] if why else []


def _exact_leaks(dataset: Any, config: Any, names: list[str]) -> Any:
    """The check that reads documents; it warns, and does not fail."""
    from jaxdata.base.errors import DatasetError
    from jaxdata.dedup.leaks import exact_leaks
    from jaxdata.look.integrity import Check

    trained, held_out = _both_sides(config, names)
    if not (trained and held_out):
        return Check("leaks", True, f"nothing is held out: no {', '.join(config.scored.values())}")
    try:
        word, lines = exact_leaks(dataset, trained, held_out)
    except DatasetError as error:  # damaged shards
        return Check("leaks", False, str(error))
    return Check("leaks", True, "\n".join(lines), word)


def _both_sides(config: Any, names: list[str]) -> tuple[list[str], list[str]]:
    """The sources that are trained, and those that are held out."""
    trained = [name for name in names if name.startswith(f"{config.split}/")]
    return trained, [name for name in names if name not in trained]


def sources_of(dataset: Any, config: Any) -> list[str]:
    """The sources that training or evaluation reads, as the manifest names them."""
    from jaxdata.config.loading import scored_sets, sources_read

    trained = sources_read(dataset.splits.get(config.split, []), config)
    scored = [name for names in scored_sets(config, dataset).values() for name in names]
    return list(dict.fromkeys([*(f"{config.split}/{name}" for name in trained), *scored]))


def _open(config: Any, state: str | None) -> tuple[Any, list[Any]]:
    """The loader of a config, and the checks of its sources and its budget."""
    from jaxdata.base.errors import SourceExhausted
    from jaxdata.config import load
    from jaxdata.look.integrity import Check
    from jaxdata.look.preview import budget_check, sources_check, state_check, work_check
    from jaxdata.look.states import read_state

    saved = None if state is None else read_state(state)
    try:
        loader = load(config)
    except SourceExhausted as error:
        # The tables show how far it would get.
        return load(config, on_exhaustion="halt"), [Check("sources", False, str(error))]
    under_way = [] if saved is None else [state_check(loader, saved)]
    found = [sources_check(loader.rows.table), budget_check(loader, config), work_check(loader)]
    return loader, [*under_way, *found]


def _evaluation(dataset: Any, config: Any) -> dict[str, Any]:
    """What each set that is scored has, by its name."""
    from jaxdata.config import build_rows
    from jaxdata.config.loading import scored_sets
    from jaxdata.look.preview import describe_counts

    rows = {name: build_rows(config, config.scored[name]) for name in scored_sets(config, dataset)}
    return {name: describe_counts(each.table.total(len(each))) for name, each in rows.items()}


def _lines(found: dict[str, Any], costs: Any) -> Iterator[Any]:
    """What is printed: tables, what they add up to, checks, and what was not looked at."""
    from jaxdata.look.preview import preview_tables
    from jaxdata.look.read_costs import LEGEND, cost_tables
    from jaxdata.look.terminal import printable

    if "phases" in found:
        yield from preview_tables(found)
        yield from _summary(found)
    if costs is not None:
        yield from cost_tables(costs)
        yield LEGEND
    for check in found["checks"]:
        first, *rest = map(printable, check["says"].split("\n"))
        yield f"{check['mark']:<7} {check['name']:<9} {first}"
        yield from (f"{'':<17} {line}" for line in rest)
    yield from map(printable, found["not_compared"] + found["notes"])
    if "sources" in found:
        documents = sum(source["documents"] for source in found["sources"].values())
        yield f"{counted(documents, 'document')} planned; hosts started later reuse the plan"


def _summary(found: dict[str, Any]) -> list[str]:
    from jaxdata.look.terminal import printable

    lengths = [
        f"{part['seq_len']:,}" + (f" from row {part['first_row']:,} on" if number else "")
        for number, part in enumerate(found["sections"])
    ]
    lines = [
        f"{found['rows']:,} rows of {', '.join(lengths)} in {found['steps']:,} steps: "
        f"{found['tokens']:,} tokens trained,",
        f"{100 * found['efficiency']:.2f} % of all slots; {found['padding']:,} slots are padding",
    ]
    for name, source in found["sources"].items():
        if "view" in source:
            said = f"{printable(name)} is read through view {printable(source['view'])}"
            lines.append(f"{said}, which lists {source['documents']:,} documents")
        for key, count in source["dropped"].items():
            if count and key != "tokens_cropped":
                what = _REASONS.get(key, key)
                lines.append(f"left out of {printable(name)}: {count:,} {printable(what)}")
    masked = [printable(name) for name, each in found["sources"].items() if each["masked"]]
    if masked:
        lines.append(f"tokens of {', '.join(masked)} include those masked by stored loss masks")
    if found["weigh_by"] == "loss_tokens":
        lines.append("weights are shares of tokens with loss, counted by each source's average")
    for name, scored in found["evaluation"].items():
        of = "" if name == "val" else f" of {printable(name)}"
        lines.append(f"evaluation{of}: {scored['tokens']:,} tokens in {scored['rows']:,} rows")
    return lines
