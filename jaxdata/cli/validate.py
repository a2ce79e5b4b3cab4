"""`jaxdata validate --config CONFIG`: what a run will get, and whether it can have it."""

from __future__ import annotations

import json
from typing import Any

import click

__all__ = ["validate"]


@click.command(
    context_settings={"ignore_unknown_options": True},
    epilog="Exits with 0 where the run can be had as it is written, with 1 where it cannot.",
)
@click.option("--config", required=True, help="A YAML file, or the name of one that is shipped.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.argument("overrides", nargs=-1, type=click.UNPROCESSED)
def validate(config: str, as_json: bool, overrides: tuple[str, ...]) -> int:
    """Say what a run will get of each source, to the token, before its first step.

    For each phase and source: the share asked for and the share it comes to, tokens (targets with
    loss), rows, epochs, and the row at which it runs dry; what packing pads and drops; whether the
    trainer's steps are those of the curriculum; and whether the dataset is whole. Reads lengths,
    and hardly any text. Fields of the config can be set as everywhere:

    \b
        jaxdata validate --config pretrain.yaml --epochs '{wiki: 4}'
    """  # noqa: D301 - \b is a mark of click's
    from jaxdata.config import load_config, parse_overrides

    found = _look(load_config(config, parse_overrides(overrides)))
    if as_json:
        click.echo(json.dumps({"config": config, **found}, indent=1))
    else:
        _print(found)
    return 0 if found["ok"] else 1


def _look(config: Any) -> dict[str, Any]:
    from jaxdata.config import open_data
    from jaxdata.errors import DatasetError
    from jaxdata.look.validation import describe_mixture
    from jaxdata.look.wholeness import Check, check_dataset
    from jaxdata.progress import progress_bar

    dataset = open_data(config)
    names = _sources_of(dataset, config)
    with progress_bar("checking the index") as progress:
        checks = list(check_dataset(dataset, names, progress))
    found: dict[str, Any] = {}
    try:
        loader, more = _open(config)
        checks += more
        found = {"steps": len(loader), **describe_mixture(loader.rows)}
        found["evaluation"] = _evaluation(dataset, config)
    except DatasetError as error:
        checks.append(Check("rows", False, str(error)))
    described = [{"name": c.name, "ok": c.holds, "says": c.says} for c in checks]
    ok = all(check.holds for check in checks)
    return {"dataset": dataset.url, "ok": ok, "checks": described, **found}


def _sources_of(dataset: Any, config: Any) -> list[str]:
    """Those that training or evaluation reads, as the manifest names them."""
    from jaxdata.config.recipes import sources_read

    trained = sources_read(dataset.splits.get(config.split, []), config)
    scored = dataset.splits.get(config.eval_split, [])
    return [
        *(f"{config.split}/{name}" for name in trained),
        *(f"{config.eval_split}/{name}" for name in scored),
    ]


def _open(config: Any) -> tuple[Any, list[Any]]:
    """The loader of a config, and what there is to say of its budgets."""
    from jaxdata.config import load
    from jaxdata.errors import SourceExhausted
    from jaxdata.look.validation import Budget, budget_check
    from jaxdata.look.wholeness import Check

    try:
        loader = load(config)
    except SourceExhausted as error:
        # How far it would go: the tables show that.
        return load(config, on_exhaustion="halt"), [Check("sources", False, str(error))]
    dry = [f"{each} ({config.on_exhaustion})" for each in loader.rows.table.exhaustions]
    budget = Budget(
        steps=len(loader),
        trainer_steps=config.train.steps,
        budgeted=_is_budgeted(config),
        mismatch_allowed=config.allow_budget_mismatch,
        halts=loader.halt() is not None,
    )
    sources = Check("sources", True, "\n".join(dry) or "none of them runs dry")
    return loader, [sources, budget_check(budget)]


def _is_budgeted(config: Any) -> bool:
    """Whether every phase says how long it is."""
    phases = config.curriculum or []
    return bool(phases) and all(each.tokens or each.rows or each.steps for each in phases)


def _evaluation(dataset: Any, config: Any) -> dict[str, Any] | None:
    from jaxdata.config import build_rows
    from jaxdata.look.validation import describe_amounts
    from jaxdata.rows.amounts import total

    if config.eval_split not in dataset.splits:
        return None
    rows = build_rows(config, config.eval_split)
    return describe_amounts(total(rows.table, len(rows)))


def _print(found: dict[str, Any]) -> None:
    from rich.console import Console

    from jaxdata.look.tables import validation_tables

    console = Console()
    if "phases" in found:
        for table in validation_tables(found):
            console.print(table)
        for line in _summary(found):
            click.echo(line)
    for check in found["checks"]:
        first, *rest = check["says"].splitlines()
        click.echo(f"{'ok     ' if check['ok'] else 'FAILED '} {check['name']:<9} {first}")
        for line in rest:
            click.echo(f"{'':<17} {line}")


def _summary(found: dict[str, Any]) -> list[str]:
    from jaxdata.look.safe import printable

    lines = [
        f"{found['rows']:,} rows of {found['seq_len']:,} in {found['steps']:,} steps: "
        f"{found['tokens']:,} tokens trained,",
        f"{100 * found['efficiency']:.2f} % of all slots; {found['padding']:,} slots are padding",
    ]
    for name, source in found["sources"].items():
        reasons = {k: v for k, v in source["dropped"].items() if v and k != "tokens_cropped"}
        lines += [
            f"left out of {printable(name)}: {v:,} {printable(_reason(k))}"
            for k, v in reasons.items()
        ]
    masked = [printable(name) for name, each in found["sources"].items() if each["masked"]]
    if masked:
        lines.append(f"tokens of {', '.join(masked)} count those that stored masks take out")
    if found["evaluation"]:
        scored = found["evaluation"]
        lines.append(f"evaluation: {scored['tokens']:,} tokens in {scored['rows']:,} rows")
    return lines


def _reason(key: str) -> str:
    return "documents of a single token" if key == "documents_without_target" else key
