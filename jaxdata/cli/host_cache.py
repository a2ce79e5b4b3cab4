"""`jaxdata cache ls | warm | verify | clear`: what this host keeps of datasets in buckets."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from jaxdata.cli.config import OVERRIDABLE, read_config, takes_config

if TYPE_CHECKING:
    from jaxdata.feed.warming import Warmed


@click.group(
    epilog="The folder is $JAXDATA_CACHE, or ~/.cache/jaxdata; $JAXDATA_CACHE_BYTES limits its "
    "pages, by default to a tenth of the free disk."
)
def cache() -> None:
    """Show, fill, check or clear what this host keeps of datasets in buckets.

    Runs fill the cache by themselves, and remove what was needed longest ago.

    \b
        jaxdata cache ls
        jaxdata cache warm --config pretrain.yaml --hosts 64 --host 3
        jaxdata cache verify
        jaxdata cache clear
    """  # noqa: D301 - \b is a mark of click's


_CONFIG = click.option("--config", help="Run config whose storage.cache says where the cache is.")


@cache.command()
@_CONFIG
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with every file.")
def ls(config: str | None, as_json: bool) -> None:
    """Show the folder, its limit, what is in it, and what runs under way need of it."""
    from jaxdata.look.cache_tables import cache_json, cache_lines, cache_table
    from jaxdata.storage.pages.inventory import inventory

    _use(config)
    found = inventory()
    if as_json:
        click.echo(json.dumps(cache_json(found), indent=1))
        return
    click.echo("\n".join(cache_lines(found)))
    if found.files:
        from rich.console import Console

        Console().print(cache_table(found))


@cache.command(
    **OVERRIDABLE,
    epilog="What was fetched stays, also if this is interrupted. Pages go when others need room.",
)
@takes_config
@click.option("--hosts", type=click.IntRange(min=1), default=1, help="Hosts that share a batch.")
@click.option("--host", type=click.IntRange(min=0), default=0, help="The number of this one.")
@click.option(
    "--steps", type=click.IntRange(min=1), help="Batches.  [default: as many as the cache holds]"
)
def warm(config: str, overrides: tuple[str, ...], hosts: int, host: int, steps: int | None) -> None:
    """Fetch what a host of a run reads first: the index, and the pages of its first batches.

    The rows are those that the run's loader reads from its beginning, so that a run that begins
    later on this host finds them here.

    \b
        jaxdata cache warm --config pretrain.yaml --hosts 64 --host 3 --steps 100
    """  # noqa: D301 - \b is a mark of click's
    from jaxdata.base.errors import InputError
    from jaxdata.base.progress import progress_bar
    from jaxdata.config import build_rows, loader_arguments
    from jaxdata.feed.warming import warm as fetch

    if host >= hosts:
        raise InputError(f"--host {host} of --hosts {hosts}: expected 0 to {hosts - 1}")
    settings = read_config(config, overrides)
    arguments = loader_arguments(settings)
    same = {name: arguments[name] for name in ("batch_size", "skip_rows", "drop_remainder")}
    try:
        with progress_bar("fetching pages", in_bytes=True) as progress:
            done = fetch(
                lambda: build_rows(settings),
                shard=(host, hosts),
                steps=steps,
                progress=progress,
                **same,
            )
    except KeyboardInterrupt:
        raise click.Abort("What was fetched is kept: the same command goes on") from None
    click.echo("\n".join(_says(done, host, hosts)))


def _says(done: Warmed, host: int, hosts: int) -> list[str]:
    lines = [
        f"{name}: nothing is kept, as the cache is too small for what its rows read at a time "
        "(`jaxdata plan --hosts` says how much that is)"
        for name in done.skipped
    ]
    if done.full:
        lines.append(
            f"the cache is full after {done.steps:,} of {done.asked_steps:,} batches: "
            "JAXDATA_CACHE_BYTES sets its limit"
        )
    lines.append(
        f"{done.steps:,} batches of host {host} of {hosts}: {done.pages:,} pages "
        f"({done.bytes / 1e6:,.1f} MB) are here; {done.gets:,} GETs, "
        f"{done.fetched_bytes / 1e6:,.1f} MB fetched in {done.seconds:,.1f} s"
    )
    return lines


@cache.command(epilog="Exit code 0 if all pages are what was written, 1 if one was not.")
@_CONFIG
def verify(config: str | None) -> int:
    """Compare all pages of this host with their checksums; remove those that differ.

    Runs compare each page that they use; this finds a failing disk before they do.
    """
    from jaxdata.base.progress import progress_bar
    from jaxdata.look.cache_tables import verified_lines
    from jaxdata.storage.pages.inventory import verify as compare

    _use(config)
    with progress_bar("comparing pages", in_bytes=True) as progress:
        found = compare(progress)
    click.echo("\n".join(verified_lines(found)))
    return 1 if found.damaged else 0


@cache.command()
@_CONFIG
@click.option("--all", "kept", is_flag=True, help="Also plans, which runs make again when needed.")
def clear(config: str | None, kept: bool) -> None:
    """Remove pages and columns that no run under way needs."""
    from jaxdata.look.cache_tables import cleared_line
    from jaxdata.storage.pages.inventory import clear as remove

    _use(config)
    click.echo(cleared_line(remove(kept=kept)))


def _use(config: str | None) -> None:
    """Take the cache that a config names."""
    if config is not None:
        from jaxdata.config import load_config
        from jaxdata.config.storage_section import use_storage

        use_storage(load_config(config).storage)
