"""What this host's cache holds, as lines and a table for a terminal, and as JSON."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from typing import Any

from rich.table import Table

from jaxdata.look.terminal import counted, plain_table, printable
from jaxdata.storage.pages.inventory import CachedFile, Inventory, Verified
from jaxdata.storage.pages.own_folder import Removed


def cache_lines(found: Inventory) -> list[str]:
    """The totals of the cache, a line each."""
    shards, columns = _split(found.files)
    used = sum(each.bytes for each in found.files)
    lines = [
        f"folder   {printable(str(found.folder))} (JAXDATA_CACHE)",
        f"limit    {_mb(found.limit)}, of which {_mb(used)} are used (JAXDATA_CACHE_BYTES)",
        f"pages    {counted(sum(each.pages for each in shards), 'page')} of "
        f"{counted(len(shards), 'shard')}, {_mb(sum(each.bytes for each in shards))}",
        f"index    {counted(len(columns), 'column')}, {_mb(sum(each.bytes for each in columns))}",
        f"kept     {counted(found.kept_files, 'file')} of plans, {_mb(found.kept_bytes)}",
    ]
    if found.others:
        folders = counted(found.others, "folder")
        lines.append(f"others   {folders} of pages, of other hosts or from before a restart")
    return lines


def cache_table(found: Inventory) -> Table:
    """A line for each source, or other folder, of each dataset."""
    groups: dict[tuple[str, str], list[CachedFile]] = defaultdict(list)
    for each in found.files:
        groups[each.dataset, _source(each)].append(each)
    table = plain_table(
        "what they are of",
        ["dataset", "source"],
        ["shards", "pages", "MB", "index MB"],
    )
    for (dataset, source), files in sorted(groups.items()):
        shards, columns = _split(files)
        table.add_row(
            printable(dataset) or "unknown",
            printable(source),
            f"{len(shards):,}",
            f"{sum(each.pages for each in shards):,}",
            _figure(sum(each.bytes for each in shards)),
            _figure(sum(each.bytes for each in columns)),
        )
    return table


def cache_json(found: Inventory) -> dict[str, Any]:
    """The inventory as plain values, file by file."""
    return asdict(found) | {"folder": str(found.folder)}


def cleared_line(pages: Removed, kept: Removed) -> str:
    """The pages and files that were removed."""
    more = f" and {counted(kept.pages, 'kept file')} ({_mb(kept.bytes)})" if kept.pages else ""
    return f"{counted(pages.pages, 'page')} ({_mb(pages.bytes)}){more} removed"


def verified_lines(found: Verified) -> list[str]:
    """How many pages were compared, and a line for each damaged one."""
    lines = [f"damaged: {printable(each)}" for each in found.damaged]
    compared = f"{counted(found.pages, 'page')} ({_mb(found.bytes)}) compared: "
    if not lines:
        return [compared + "all are what was written"]
    return [
        *lines,
        f"{compared}{len(lines):,} damaged and removed; runs fetch them again where they need "
        "them. Look after the disk",
    ]


def _split(files: list[CachedFile]) -> tuple[list[CachedFile], list[CachedFile]]:
    """Shards, and columns of an index."""
    return [each for each in files if not each.column], [each for each in files if each.column]


def _source(file: CachedFile) -> str:
    """`train/web` of `train/web/00000-00000.array_record` or of `train/web/index/length`."""
    return file.name.rpartition("/")[0].removesuffix("/index")


def _mb(size: int) -> str:
    return f"{_figure(size)} MB"


def _figure(size: int) -> str:
    return f"{size / 1e6:,.1f}"
