"""`jaxdata cache [ls | verify | clear]`: what this host keeps of datasets in buckets."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Literal

import click
from rich.table import Table

from jaxdata.base.errors import counted
from jaxdata.base.progress import progress_bar
from jaxdata.base.settings import setting
from jaxdata.cli.config import Given, RunCommand
from jaxdata.cli.options import JSON, command, refuse
from jaxdata.look.terminal import printable, show, table
from jaxdata.storage import cached_files

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
        from jaxdata.config.config_fields import use_storage

        use_storage(given.settings().storage)
    if action == "verify":
        with progress_bar("comparing pages", in_bytes=True) as progress:
            found = cached_files.verify(progress)
        click.echo("\n".join(_verified_lines(found)))
        return 1 if found.damaged else 0
    if action == "clear":
        pages, plans = cached_files.clear(kept=kept)
        size = _mb(plans.bytes)
        more = f" and {counted(plans.files, 'kept file')} ({size} MB)" if plans.files else ""
        click.echo(f"{counted(pages.files, 'page')} ({_mb(pages.bytes)} MB){more} removed")
    else:
        held = cached_files.inventory()
        plain = asdict(held) | {"folder": str(held.folder)}
        show(_cache_lines(held), plain, as_json=as_json)
    return 0


def _cache_lines(found: cached_files.Inventory) -> Iterator[str | Table]:
    """The totals of the cache, and a table of the sources, or other folders, of each dataset."""
    shards, columns = _split(found.files)
    yield f"folder   {printable(str(found.folder))} (JAXDATA_CACHE)"
    used = f"of which {_size(found.files)} MB are used"
    yield f"limit    {_mb(found.limit)} MB, {used} (JAXDATA_CACHE_BYTES)"
    pages = counted(sum(each.pages for each in shards), "page")
    yield f"pages    {pages} of {counted(len(shards), 'shard')}, {_size(shards)} MB"
    yield f"index    {counted(len(columns), 'column')}, {_size(columns)} MB"
    yield f"kept     {counted(found.kept_files, 'file')} of plans, {_mb(found.kept_bytes)} MB"
    if found.others:
        folders = counted(found.others, "folder")
        yield f"others   {folders} of pages, of other hosts or from before a restart"
    if found.files:
        headings = ["shards", "pages", "MB", "index MB"]
        yield table("what they are of", ["dataset", "source"], headings, _rows(found.files))


def _rows(files: Sequence[cached_files.CachedFile]) -> Iterator[Sequence[object]]:
    groups: dict[tuple[str, str], list[cached_files.CachedFile]] = defaultdict(list)
    for each in files:  # train/web/00000-00000.array_record or train/web/index/length
        source = each.name.rpartition("/")[0].removesuffix("/index")
        groups[each.dataset or "unknown", source].append(each)
    for (dataset, source), some in sorted(groups.items()):
        shards, columns = _split(some)
        pages = sum(each.pages for each in shards)
        yield dataset, source, len(shards), pages, _size(shards), _size(columns)


def _verified_lines(found: cached_files.Verified) -> Iterator[str]:
    """How many pages were compared, and a line for each damaged one."""
    yield from (f"damaged: {printable(each)}" for each in found.damaged)
    compared = f"{counted(found.pages, 'page')} ({_mb(found.bytes)} MB) compared"
    if found.damaged:
        yield (
            f"{compared}: {len(found.damaged):,} damaged and removed; runs fetch them again where "
            "they need them. Look after the disk"
        )
    else:
        yield f"{compared}: all are what was written"


def _split(
    files: Sequence[cached_files.CachedFile],
) -> tuple[list[cached_files.CachedFile], list[cached_files.CachedFile]]:
    """Shards, and columns of an index."""
    return [each for each in files if not each.column], [each for each in files if each.column]


def _size(files: Sequence[cached_files.CachedFile]) -> str:
    return _mb(sum(each.bytes for each in files))


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f}"
