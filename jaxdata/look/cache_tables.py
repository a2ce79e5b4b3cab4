"""What this host's cache holds, and what was done to it, as lines and a table for a terminal."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from rich.table import Table

from jaxdata.base.wording import counted
from jaxdata.look.terminal import printable, table
from jaxdata.storage.pages.inventory import CachedFile, Inventory, Verified
from jaxdata.storage.pages.own_folder import Removed


def cache_lines(found: Inventory) -> Iterator[str | Table]:
    """The totals of the cache, and a table of the sources, or other folders, of each dataset."""
    shards, columns = _split(found.files)
    yield f"folder   {printable(str(found.folder))} (JAXDATA_CACHE)"
    yield (
        f"limit    {_mb(found.limit)} MB, of which {_size(found.files)} MB are used "
        "(JAXDATA_CACHE_BYTES)"
    )
    yield (
        f"pages    {counted(sum(each.pages for each in shards), 'page')} of "
        f"{counted(len(shards), 'shard')}, {_size(shards)} MB"
    )
    yield f"index    {counted(len(columns), 'column')}, {_size(columns)} MB"
    yield f"kept     {counted(found.kept_files, 'file')} of plans, {_mb(found.kept_bytes)} MB"
    if found.others:
        folders = counted(found.others, "folder")
        yield f"others   {folders} of pages, of other hosts or from before a restart"
    if found.files:
        headings = ["shards", "pages", "MB", "index MB"]
        yield table("what they are of", ["dataset", "source"], headings, _rows(found.files))


def _rows(files: Sequence[CachedFile]) -> Iterator[Sequence[object]]:
    groups: dict[tuple[str, str], list[CachedFile]] = defaultdict(list)
    for each in files:  # train/web/00000-00000.array_record or train/web/index/length
        source = each.name.rpartition("/")[0].removesuffix("/index")
        groups[each.dataset or "unknown", source].append(each)
    for (dataset, source), some in sorted(groups.items()):
        shards, columns = _split(some)
        pages = sum(each.pages for each in shards)
        yield dataset, source, len(shards), pages, _size(shards), _size(columns)


def cleared_line(pages: Removed, kept: Removed) -> str:
    """The pages and files that were removed."""
    more = f" and {counted(kept.pages, 'kept file')} ({_mb(kept.bytes)} MB)" if kept.pages else ""
    return f"{counted(pages.pages, 'page')} ({_mb(pages.bytes)} MB){more} removed"


def verified_lines(found: Verified) -> Iterator[str]:
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


def _split(files: Sequence[CachedFile]) -> tuple[list[CachedFile], list[CachedFile]]:
    """Shards, and columns of an index."""
    return [each for each in files if not each.column], [each for each in files if each.column]


def _size(files: Sequence[CachedFile]) -> str:
    return _mb(sum(each.bytes for each in files))


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f}"
