"""Warnings: what makes reading a run expensive, and a cache that is too small."""

from __future__ import annotations

from collections.abc import Iterator

from jaxdata.look.read_costs.costs import Costs, ReadCosts, SourceCosts
from jaxdata.look.terminal import counted, printable

DEAR = 1.5
"""downloads above that many times the dataset are warned of"""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(size: float) -> str:
    """A number of bytes for people.

    >>> size_text(1_000), size_text(3 * 2**29), size_text(2**20)
    ('1,000 B', '1.5 GiB', '1 MiB')
    """
    unit = 0
    while size >= 1024 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{size:,.0f} {_UNITS[unit]}" if unit == 0 else f"{size:,.3g} {_UNITS[unit]}"


def count_text(number: float) -> str:
    """A number of requests for people.

    >>> count_text(12_345), count_text(7.04e9)
    ('12,345', '7.04e9')
    """
    return (
        f"{number:,.0f}"
        if number < 10**7
        else f"{number:.2e}".replace("e+0", "e").replace("e+", "e")
    )


def dear(costs: ReadCosts) -> list[str]:
    """A sentence for each source that hosts download too often through pages."""
    found = []
    for name, source in costs.sources.items():
        over = source.over(source.pages)
        if over > DEAR:
            says = "; ".join(_causes(costs, name, source))
            found.append(
                f"{printable(name)}: hosts download {over:.1f} times its bytes through pages: "
                f"{says}. {_instead(source)}"
            )
    return found


def _causes(costs: ReadCosts, name: str, source: SourceCosts) -> Iterator[str]:
    hosts, page = costs.cluster.hosts, costs.cluster.page_bytes
    if source.shares_pages:
        yield _scattered(source, page)
        return
    if (rows := costs.rows_a_batch(name)) < hosts:
        yield f"a batch has {rows:,.3g} rows of it, fewer than the {hosts:,} hosts"
    if source.lanes < hosts:
        yield f"it has {counted(source.lanes, 'lane')}, fewer than the {hosts:,} hosts"
    if rows >= hosts and source.lanes >= hosts:
        yield (
            f"its {source.lanes:,} lanes and {rows:,.3g} rows a batch do not fall to the "
            f"{hosts:,} hosts alike in every step"
        )


def _scattered(source: SourceCosts, page: int) -> str:
    if source.chunk_bytes:
        return (
            f"pages of {size_text(page)} are no whole part of its chunks of "
            f"{size_text(source.chunk_bytes)}; use --page-bytes {source.chunk_bytes}"
        )
    return (
        "it is dealt by single documents, as sources below 2 GiB are, so every host needs every "
        f"page: a copy of {size_text(source.file_bytes)} a host; chunk_bytes deals whole pages"
    )


def _instead(source: SourceCosts) -> str:
    over = source.over(source.ranges)
    ranges = f"{over:.2f} times in {count_text(source.ranges.gets)} GETs"
    return f"Exact ranges would be {ranges}, pages are {count_text(source.pages.gets)}"


def too_small(costs: ReadCosts) -> str | None:
    """The sentence that refuses a cache that cannot hold what is open; None if it can."""
    cache, total = costs.cluster.cache_bytes, costs.total
    if cache is None or cache >= total.held_bytes:
        return None
    return (
        f"a cache of {size_text(cache)} cannot hold {_open(total)} that a host has open at a time: "
        "pages would be fetched again and again. Give it at least "
        f"{size_text(total.held_bytes)}, or use more hosts or a smaller pack.block_bytes"
    )


def _open(total: Costs) -> str:
    return f"the {total.held_pages:,.0f} pages ({size_text(total.held_bytes)})"
