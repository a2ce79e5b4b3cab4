"""`jaxdata cache [ls | warm | verify | clear]`: what this host keeps of datasets in buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from jaxdata.cli.config import OVERRIDABLE, may_take_config, read_config

if TYPE_CHECKING:
    from jaxdata.feed.warming import Warmed

_EPILOG = """\b
The folder is $JAXDATA_CACHE, or ~/.cache/jaxdata; $JAXDATA_CACHE_BYTES limits
its pages, by default to a tenth of the free disk; or storage.cache of CONFIG
says both. Exit code of verify: 0 if all pages are as written, 1 if not.
  jaxdata cache
  jaxdata cache warm --config pretrain.yaml --hosts 64 --host 3 --steps 100
  jaxdata cache verify
  jaxdata cache clear
"""


def _ls(as_json: bool) -> int:
    from jaxdata.look.cache_tables import cache_json, cache_lines, cache_table
    from jaxdata.look.terminal import show
    from jaxdata.storage.pages.inventory import inventory

    found = inventory()
    tables = [cache_table(found)] if found.files else []
    show([*cache_lines(found), *tables], cache_json(found), as_json=as_json)
    return 0


def _verify() -> int:
    from jaxdata.base.progress import progress_bar
    from jaxdata.look.cache_tables import verified_lines
    from jaxdata.storage.pages.inventory import verify

    with progress_bar("comparing pages", in_bytes=True) as progress:
        found = verify(progress)
    click.echo("\n".join(verified_lines(found)))
    return 1 if found.damaged else 0


def _clear(kept: bool) -> int:
    from jaxdata.look.cache_tables import cleared_line
    from jaxdata.storage.pages.inventory import clear

    click.echo(cleared_line(*clear(kept=kept)))
    return 0


def _warm(settings: Any, hosts: int, host: int, steps: int | None) -> int:
    from jaxdata.base.errors import InputError
    from jaxdata.base.progress import progress_bar
    from jaxdata.config import build_rows, loader_arguments
    from jaxdata.feed.warming import warm

    if host >= hosts:
        raise InputError(f"--host {host} of --hosts {hosts}: expected 0 to {hosts - 1}")
    arguments = loader_arguments(settings)
    same = {name: arguments[name] for name in ("batch_size", "skip_rows", "drop_remainder")}
    try:
        with progress_bar("fetching pages", in_bytes=True) as progress:
            done = warm(
                lambda: build_rows(settings),
                shard=(host, hosts),
                steps=steps,
                progress=progress,
                **same,
            )
    except KeyboardInterrupt:
        raise click.Abort("What was fetched is kept: the same command goes on") from None
    click.echo("\n".join(_says(done, host, hosts)))
    return 0


def _says(done: Warmed, host: int, hosts: int) -> list[str]:
    lines = [
        f"{name}: nothing is kept, as the cache is too small for what its rows read at a time "
        "(`jaxdata preview --hosts` says how much that is)"
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


_OPTIONS = {
    "ls": ("as_json",),
    "warm": ("hosts", "host", "steps"),
    "verify": (),
    "clear": ("kept",),
}
"""what is done -> its options"""


@click.command(**OVERRIDABLE, epilog=_EPILOG)
@click.argument("action", type=click.Choice([*_OPTIONS]), default="ls")
@may_take_config
@click.option("--hosts", type=click.IntRange(1), help="warm: hosts that share a batch; 1.")
@click.option("--host", type=click.IntRange(0), help="warm: the number of this one; 0.")
@click.option("--steps", type=click.IntRange(1), help="warm: batches; as many as it holds.")
@click.option("--all", "kept", is_flag=True, help="clear: also plans, which runs make again.")
@click.option("--json", "as_json", is_flag=True, help="ls: print one JSON object, with every file.")
def cache(action: str, config: str | None, overrides: tuple[str, ...], **more: Any) -> int:
    """Show, fill, check or clear what this host keeps of datasets in buckets.

    Runs fill the cache by themselves, and remove what was needed longest ago.

    \b
    ls      show the folder, its limit and what is in it
    warm    fetch what a host of the run of CONFIG reads first
    verify  compare all pages with their checksums, remove those that differ
    clear   remove pages and columns; runs under way fetch again what they need
    """  # noqa: D301 - \b is a mark of click's
    asked = {name: value for name, value in more.items() if value not in (None, False)}
    for name in asked:
        if name not in _OPTIONS[action]:
            flag = {"as_json": "json", "kept": "all"}.get(name, name)
            raise click.UsageError(f"--{flag} is not for jaxdata cache {action}")
    if config is None and action == "warm":
        raise click.UsageError("give the CONFIG of the run whose data is fetched")
    settings = None if config is None else read_config(config, overrides)
    if action == "warm":
        return _warm(settings, more["hosts"] or 1, more["host"] or 0, more["steps"])
    if settings is not None:
        from jaxdata.config.storage_section import use_storage

        use_storage(settings.storage)
    if action == "verify":
        return _verify()
    return _clear(more["kept"]) if action == "clear" else _ls(more["as_json"])
