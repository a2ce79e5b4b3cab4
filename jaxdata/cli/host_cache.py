"""`jaxdata cache [ls | warm | clear]`: what this host keeps of datasets in buckets."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

import click

from jaxdata.base.errors import InputError
from jaxdata.base.progress import progress_bar
from jaxdata.base.settings import setting
from jaxdata.cli.config import Given, RunCommand
from jaxdata.cli.options import command, refuse

_EPILOG = """\b
The folder is $JAXDATA_CACHE, or ~/.cache/jaxdata; $JAXDATA_CACHE_BYTES limits
its pages, by default to a tenth of the free disk; or storage.cache of CONFIG
says both.
  jaxdata cache
  jaxdata cache warm --config pretrain.yaml --hosts 64 --host 3 --steps 100
  jaxdata cache clear
"""
_OPTIONS = {"ls": {"as_json"}, "warm": {"hosts", "host", "steps"}, "clear": {"kept"}}
"""what is done -> its options"""


@command(cls=RunCommand, takes="[CONFIG]", epilog=_EPILOG)
def cache(
    given: Given,
    action: Literal["ls", "warm", "clear"] = "ls",
    hosts: int = setting(1, "warm: hosts that share a batch.", ge=1),
    host: int = setting(0, "warm: the number of this one.", ge=0),
    steps: int | None = setting(None, "warm: batches; as many as it holds.", ge=1),
    kept: bool = setting(False, "clear: also plans, which runs make again.", flag="--all"),
    as_json: bool = setting(False, "ls: print one JSON object, with every file.", flag="--json"),
) -> int:
    """Show, fill or clear what this host keeps of datasets in buckets.

    Runs fill the cache by themselves, and remove what was needed longest ago.

    \b
    ls     show the folder, its limit and what is in it
    warm   fetch what a host of the run of CONFIG reads first
    clear  remove pages and columns; runs under way fetch again what they need
    """  # noqa: D301 - \b is a mark of click's
    from jaxdata.look.cache_tables import cache_lines, cleared_line, warmed_lines
    from jaxdata.look.terminal import show
    from jaxdata.storage.pages.inventory import clear, inventory

    others = {name for some in _OPTIONS.values() for name in some} - {*_OPTIONS[action]}
    refuse(others, f"{{}} is not for jaxdata cache {action}")
    if given.config is None and action == "warm":
        raise click.UsageError("give the CONFIG of the run whose data is fetched")
    settings = given.settings() if given.config else None
    if settings is not None:
        from jaxdata.config.storage_section import use_storage

        use_storage(settings.storage)
    if action == "warm":
        click.echo("\n".join(warmed_lines(_warm(settings, hosts, host, steps), host, hosts)))
    elif action == "clear":
        click.echo(cleared_line(*clear(kept=kept)))
    else:
        held = inventory()
        plain = asdict(held) | {"folder": str(held.folder)}
        show(cache_lines(held), plain, as_json=as_json)
    return 0


def _warm(settings: Any, hosts: int, host: int, steps: int | None) -> Any:
    from jaxdata.config import build_rows, loader_arguments
    from jaxdata.feed.warming import warm

    if host >= hosts:
        raise InputError(f"--host {host} of --hosts {hosts}: expected 0 to {hosts - 1}")
    arguments = loader_arguments(settings)
    same = {name: arguments[name] for name in ("batch_size", "skip_rows", "drop_remainder")}
    try:
        with progress_bar("fetching pages", in_bytes=True) as progress:
            return warm(
                lambda: build_rows(settings),
                shard=(host, hosts),
                steps=steps,
                progress=progress,
                **same,
            )
    except KeyboardInterrupt:
        raise click.Abort("What was fetched is kept: the same command goes on") from None
