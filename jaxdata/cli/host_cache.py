"""`jaxdata cache [ls | verify | clear]`: what this host keeps of datasets in buckets."""

from dataclasses import asdict
from typing import Literal

import click

from jaxdata.base.progress import progress_bar
from jaxdata.base.settings import setting
from jaxdata.cli.config import Given, RunCommand
from jaxdata.cli.options import JSON, command, refuse
from jaxdata.look.cache_tables import cache_lines, cleared_line, verified_lines
from jaxdata.look.terminal import show
from jaxdata.storage.pages.inventory import clear, inventory, verify

_EPILOG = """\b
The folder is $JAXDATA_CACHE, or ~/.cache/jaxdata; $JAXDATA_CACHE_BYTES limits
its pages, by default to a tenth of the free disk; or storage.cache of CONFIG
says both. Exit code of verify: 0 if all pages are as written, 1 if not.
  jaxdata cache
  jaxdata cache verify
  jaxdata cache clear
"""
_OPTIONS = {"ls": {"as_json"}, "verify": (), "clear": {"kept"}}
"""what is done -> its options"""


@command(cls=RunCommand, takes="[CONFIG]", epilog=_EPILOG)
def cache(
    given: Given,
    action: Literal["ls", "verify", "clear"] = "ls",
    kept: bool = setting(False, "clear: also plans, which runs make again.", flag="--all"),
    as_json: bool = JSON,
) -> int:
    """Show, check or clear what this host keeps of datasets in buckets.

    Runs fill the cache by themselves, and remove what was needed longest ago.

    \b
    ls      show the folder, its limit and what is in it
    verify  compare all pages with their checksums, remove those that differ
    clear   remove pages and columns; runs under way fetch again what they need
    """  # noqa: D301 - \b is a mark of click's
    others = {name for some in _OPTIONS.values() for name in some} - {*_OPTIONS[action]}
    refuse(others, f"{{}} is not for jaxdata cache {action}")
    if given.config:
        from jaxdata.config.storage_section import use_storage

        use_storage(given.settings().storage)
    if action == "verify":
        with progress_bar("comparing pages", in_bytes=True) as progress:
            found = verify(progress)
        click.echo("\n".join(verified_lines(found)))
        return 1 if found.damaged else 0
    if action == "clear":
        click.echo(cleared_line(*clear(kept=kept)))
    else:
        held = inventory()
        plain = asdict(held) | {"folder": str(held.folder)}
        show(cache_lines(held), plain, as_json=as_json)
    return 0
