"""What reading a run from a bucket costs N hosts, from its plan (`jaxdata preview --hosts N`).

The figure that decides is how many times the dataset is downloaded. A source is dealt to *pools*:
its blocks where pages are whole parts of its chunks, else all of it at once. A page of a pool has
parts in some of the pool's rows, chosen at random; each host reads a share of these rows, and a
host downloads the page once if one of its rows has a part of it. Which host reads which row of a
pool follows from the order of batches, and is counted for some pools of each source, chosen at
random; all else is arithmetic with means. No token is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.table import Table
from rich.text import Text

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import Ints
from jaxdata.look.integrity import Check
from jaxdata.look.terminal import counted, plain_table, printable
from jaxdata.rows.lanes import DEAR
from jaxdata.rows.mixing.mixture import Mixture
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.table import RowTable

LEGEND = (
    "x data: bytes of all hosts over those of the dataset; held, cache: of a host at a time; a "
    "host: its bytes in an epoch; by arithmetic, of pages to a few per cent"
)
Floats = NDArray[np.float64]
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_RANGES = "exact ranges of each row, no cache"
_KEYS = 2**25
"""rows whose place in their batch is looked up, about, for all sources together"""
_KEYS_AT_ONCE = 2**22
_FEWEST, _MOST = 4, 32
"""pools of a source that are looked at"""


@dataclass(frozen=True)
class Cluster:
    """Hosts that read one run from far away.

    Raises:
        InputError: hosts do not divide the batch.
    """

    hosts: int
    batch_size: int
    """rows of the global batch"""
    page_bytes: int = 2**20
    """what a request of the page cache fetches"""
    cache_bytes: int | None = None
    """what a host's cache holds; None: as much as it needs"""

    def __post_init__(self) -> None:
        if self.batch_size % self.hosts:
            raise InputError(
                f"a batch of {self.batch_size:,} rows cannot be divided among {self.hosts:,} "
                "hosts: choose a multiple of the hosts"
            )


class Way(NamedTuple):
    """What one way of fetching costs all hosts over the run."""

    gets: float
    """requests"""
    bytes: float
    first_batch_bytes: float
    """what a host fetches before its first batch"""


@dataclass(frozen=True)
class Costs:
    """The costs of one source, and what explains them; or of all sources."""

    rows: int
    """rows of the run"""
    epochs: float
    file_bytes: float
    """bytes of its files"""
    pages: Way
    """pages cached: each fetched once by a host and epoch, what spills over chunks as it is"""
    ranges: Way
    """nothing cached: exact ranges"""
    held_pages: float
    """pages that a host holds at a time"""
    held_bytes: float
    rows_a_batch: float
    lanes: int
    """the fewest of a source"""
    chunk_bytes: int
    """0: dealt by single documents"""

    def over(self, way: Way) -> float:
        """Bytes downloaded, over those of the dataset in as many epochs."""
        return way.bytes / max(self.file_bytes * self.epochs, 1)

    def host_bytes(self, way: Way, hosts: int) -> float:
        """Bytes that a host downloads in an epoch, on average."""
        return way.bytes / hosts / max(self.epochs, 1e-9)

    def figures(self, hosts: int) -> dict[str, Any]:
        """All of it, as plain values."""
        ways = {"pages": self.pages, "ranges": self.ranges}
        return asdict(self) | {
            name: way._asdict()
            | {"over_dataset": self.over(way), "host_epoch_bytes": self.host_bytes(way, hosts)}
            for name, way in ways.items()
        }


@dataclass(frozen=True)
class ReadCosts:
    """The costs of a run for a cluster."""

    cluster: Cluster
    steps: int
    sources: dict[str, Costs]
    total: Costs

    def described(self) -> dict[str, Any]:
        """All figures, as plain values."""
        refused, hosts = too_small(self), self.cluster.hosts
        return {
            **asdict(self.cluster),
            "steps": self.steps,
            "ok": refused is None,
            "warnings": dear(self) + ([refused] if refused else []),
            "total": self.total.figures(hosts),
            "sources": {name: source.figures(hosts) for name, source in self.sources.items()},
        }

    def checks(self) -> list[Check]:
        """What is too dear to read, and whether the cache is large enough."""
        refused, warnings = too_small(self), dear(self)
        found = [Check("reading", True, "\n".join(warnings), "dear")] if warnings else []
        return found + ([Check("cache", False, refused)] if refused else [])


def read_costs(table: RowTable, cluster: Cluster) -> ReadCosts:
    """What a run costs to read for some hosts, by pages that are cached and by exact ranges.

    Args:
        table: the rows of the run, as `rows.table` of `jaxdata.pack` and `mix`.
        cluster: hosts, batch size, and how they fetch.
    """
    if not len(table):
        raise InputError("the run has no rows: there is nothing to read")
    sources: dict[str, RowTable] = dict(table.sources) or dict.fromkeys(table.names, table)
    rows = [len(table)] * len(sources)
    if isinstance(table, Mixture):
        rows = list(table.counts(len(table)).values())
    elif len(sources) > 1:  # one after the other
        rows = [counts.rows for counts in table.token_counts(len(table)).values()]
    steps = -(-len(table) // cluster.batch_size)
    found = {
        name: _Source(table, cluster, number, source, rows[number]).costs()
        for number, (name, source) in enumerate(sources.items())
    }
    return ReadCosts(cluster, steps, found, _total(list(found.values())))


class _Pool(NamedTuple):
    """What is read together: pages, the rows that have parts of them, and who reads these."""

    pages: float
    rows: float
    parts: float
    """of pages, in a row; they are chosen at random"""
    of_host: Floats
    """(hosts,) rows that each reads"""
    steps: Floats
    """(hosts,) from its first of these rows to its last"""

    @property
    def touches(self) -> float:
        """Rows that have a part of a page."""
        return float(self.rows * (1 - (1 - 1 / max(self.pages, 1)) ** self.parts))

    @property
    def missed(self) -> Floats:
        """(hosts,) the chance that a page is in no row of a host: drawn without replacement."""
        few, many = np.minimum(self.touches, self.of_host), np.maximum(self.touches, self.of_host)
        return (1 - np.minimum(many / self.rows, 1)) ** few

    @property
    def held(self) -> Floats:
        """(hosts,) pages that each holds from their first row to their last, times steps.

        *k* rows at random times are *(k - 1) / (k + 1)* of all steps apart.
        """
        share = np.maximum(self.of_host, 1e-9) / self.rows
        inverse = (1 - self.missed * (1 - share)) / (share * (self.touches + 1))  # of k + 1
        return self.pages * np.maximum(1 - 2 * inverse + self.missed, 0) * self.steps


class _Source:
    """The costs of one source of a run."""

    def __init__(self, table: RowTable, cluster: Cluster, number: int, source: RowTable, rows: int):
        self.table, self.cluster, self.number = table, cluster, number
        self.source, self.rows = source, rows
        self.documents = source.documents[0] if table.sources else table.documents[number]
        self.sizes = np.asarray(self.documents.base.file_sizes)
        self.bytes = int(self.sizes.sum())
        self.pages = max(int((-(-self.sizes // cluster.page_bytes)).sum()), 1)
        self.steps = -(-len(table) // cluster.batch_size)
        settings = source.settings if isinstance(source, PackedRows) else None
        self.chunk = (settings and settings.chunk_bytes) or 0
        self.astride = bool(self.chunk % cluster.page_bytes)  # pages that two chunks share
        self.blocks = source.blocks if self.chunk and isinstance(source, PackedRows) else 1
        some = np.unique(np.linspace(0, len(source) - 1, 16).astype(np.int64))
        self.parts = len(source.segments(some).row) / len(some)

    def costs(self) -> Costs:
        """Its figures."""
        epochs, hosts = self.rows / max(len(self.source), 1), self.cluster.hosts
        pools, times = self._pools(epochs)
        fetched = times * sum(float((1 - each.missed).sum()) for each in pools) / self.blocks
        if self.astride:  # as many chunks have parts of a page
            fetched *= 1 + self.cluster.page_bytes / self.chunk
        fetched = min(fetched, hosts * -(-epochs // 1))
        open_ = times * sum(float(each.held.sum()) for each in pools) / self.steps / hosts
        open_ *= self.blocks / self.pages  # blocks, on average; at most about a deviation more
        held = min((open_ + open_**0.5) / self.blocks, 1) * self.pages
        spills, spilled = self._spilled() if self.chunk and not self.astride else (0.0, 0.0)
        a_batch = self.rows / self.steps
        first = max(a_batch / hosts, min(a_batch, 1.0))  # rows of a host that has some
        return Costs(
            rows=self.rows,
            epochs=epochs,
            file_bytes=self.bytes,
            pages=Way(
                gets=self.pages * fetched + spills * epochs,
                bytes=self.bytes * fetched + spilled * epochs,
                first_batch_bytes=self.bytes / self.pages * self._first_pages(first),
            ),
            ranges=Way(
                gets=self.parts * self.rows,
                bytes=self.bytes * epochs,
                first_batch_bytes=self.bytes / len(self.source) * first,
            ),
            held_pages=held,
            held_bytes=held * self.bytes / self.pages,
            lanes=self.source.lanes,
            chunk_bytes=self.chunk,
            rows_a_batch=a_batch,
        )

    def _pools(self, epochs: float) -> tuple[list[_Pool], float]:
        """Some of the run's pools, and how many there are for each of them."""
        source, hosts, size = self.source, self.cluster.hosts, self.cluster.batch_size
        if not self.rows:
            return [], 1.0
        if not self.chunk:
            whole = _Pool(
                pages=self.pages,
                rows=len(source),
                parts=self.parts + self.pages / len(source),  # some lie in two pages
                of_host=np.full(hosts, len(source) / hosts),
                steps=np.full(hosts, self.steps / epochs),
            )
            rest = epochs % 1
            part = whole._replace(of_host=whole.of_host * rest, steps=whole.steps * rest)
            return [whole] * int(epochs) + [part] * (rest > 0), 1.0
        assert isinstance(source, PackedRows)
        visits = source.visits(self.rows)
        affordable = _KEYS * len(visits) / (len(self.table) * size)
        number = int(np.clip(affordable, _FEWEST, _MOST))
        chosen = np.random.default_rng(0).permutation(len(visits))[:number]
        pools = [self._pool(source, *visit) for visit in visits[chosen].tolist()]
        return pools, len(visits) / max(len(pools), 1)

    def _pool(self, source: PackedRows, epoch: int, visit: int) -> _Pool:
        """A block."""
        ranks, hosts = source.block_rows(epoch, visit), self.cluster.hosts
        rows = ranks[ranks < self.rows]
        if isinstance(self.table, Mixture):
            rows = self.table.rows_of(self.number, rows)
        step, host = hosts_of(self.table, np.sort(rows[rows >= 0]), self.cluster)
        first, last = np.full(hosts, self.steps), np.zeros(hosts)
        np.minimum.at(first, host, step)
        np.maximum.at(last, host, step + 1)
        of_host = np.bincount(host, minlength=hosts).astype(np.float64)
        pages = self.pages / source.blocks
        return _Pool(pages, len(ranks), self.parts, of_host, np.maximum(last - first, 0))

    def _spilled(self) -> tuple[float, float]:
        """Requests and bytes of an epoch for what documents have beyond the end of their chunk."""
        count = len(self.documents)
        some = np.unique(np.linspace(0, count - 1, min(count, 2**16)).astype(np.int64))
        lengths = np.asarray(self.documents.lengths[some], np.float64)
        beyond = float((lengths**2).mean() / lengths.mean() / 2)  # tokens of one cut anywhere
        ends = int((-(-self.sizes // self.chunk) - 1).clip(0).sum())  # but those of files
        token = self.bytes / count / float(lengths.mean())
        return ends * (1 + beyond / self.source.seq_len), ends * beyond * token

    def _first_pages(self, rows: float) -> float:
        """Pages of which so many rows have parts: of a block each, as long as there are lanes."""
        blocks = min(rows, max(min(self.source.lanes, self.blocks) / self.cluster.hosts, 1))
        pages = max(self.pages / self.blocks, 1)
        a_block = self.parts * rows / max(blocks, 1)
        return float(blocks * pages * (1 - (1 - 1 / pages) ** a_block))


def hosts_of(table: RowTable, rows: Ints, cluster: Cluster) -> tuple[Ints, Ints]:
    """The step and the host of each row, of increasing numbers; int64 (rows,) each.

    Host *h* of *H* has rows `[h B / H, (h + 1) B / H)` of a batch, in the order that batches have.
    """
    size = cluster.batch_size
    step, place = np.divmod(rows, size)
    if table.lanes > 1:
        for mine in np.array_split(np.arange(len(rows)), len(rows) * size // _KEYS_AT_ONCE + 1):
            batch = step[mine, None] * size + np.arange(size)
            last = len(table) - 1
            key = table.batch_key(np.minimum(batch, last).ravel()).reshape(batch.shape)
            own = np.take_along_axis(key, place[mine, None], axis=1)
            before = (key < own) | ((key == own) & (batch < rows[mine, None]))
            place[mine] = (before & (batch <= last)).sum(axis=1)
    return step, place * cluster.hosts // size


def _total(sources: list[Costs]) -> Costs:
    added = ("rows", "file_bytes", "held_pages", "held_bytes", "rows_a_batch")
    sums: dict[str, Any] = {name: sum(getattr(each, name) for each in sources) for name in added}
    read = sum(each.file_bytes * each.epochs for each in sources)
    return Costs(
        **sums,
        epochs=read / max(sums["file_bytes"], 1),
        pages=Way(*np.sum([each.pages for each in sources], axis=0).tolist()),
        ranges=Way(*np.sum([each.ranges for each in sources], axis=0).tolist()),
        lanes=min(each.lanes for each in sources),
        chunk_bytes=min(each.chunk_bytes for each in sources),
    )


def dear(costs: ReadCosts) -> list[str]:
    """A sentence for each source that hosts download too often through pages."""
    return [
        f"{printable(name)}: hosts download {over:.1f} times its bytes through pages: "
        f"{'; '.join(_causes(source, costs.cluster))}. Exact ranges would be "
        f"{source.over(source.ranges):.2f} times in {count_text(source.ranges.gets)} GETs, pages "
        f"are {count_text(source.pages.gets)}"
        for name, source in costs.sources.items()
        if (over := source.over(source.pages)) > DEAR
    ]


def _causes(source: Costs, cluster: Cluster) -> Iterator[str]:
    hosts, page, rows = cluster.hosts, cluster.page_bytes, source.rows_a_batch
    if not source.chunk_bytes:
        yield (
            "it is dealt by single documents, as sources below 2 GiB are, so every host needs "
            f"every page: a copy of {size_text(source.file_bytes)} a host; chunk_bytes deals whole "
            "pages"
        )
    elif source.chunk_bytes % page:
        yield (
            f"pages of {size_text(page)} are no whole part of its chunks of "
            f"{size_text(source.chunk_bytes)}; set pack.chunk_bytes to a multiple of {page}"
        )
    else:
        few = f"fewer than the {hosts:,} hosts"
        if rows < hosts:
            yield f"a batch has {rows:,.3g} rows of it, {few}"
        if source.lanes < hosts:
            yield f"it has {counted(source.lanes, 'lane')}, {few}"
        if rows >= hosts and source.lanes >= hosts:
            yield (
                f"its {source.lanes:,} lanes and {rows:,.3g} rows a batch do not fall to the "
                f"{hosts:,} hosts alike in every step"
            )


def too_small(costs: ReadCosts) -> str | None:
    """The sentence that refuses a cache that cannot hold what is open; None if it can."""
    cache, total = costs.cluster.cache_bytes, costs.total
    if cache is None or cache >= total.held_bytes:
        return None
    needed = size_text(total.held_bytes)
    return (
        f"a cache of {size_text(cache)} cannot hold the {total.held_pages:,.0f} pages ({needed}) "
        "that a host has open at a time: pages would be fetched again and again. Give it at least "
        f"{needed}, or use more hosts or a smaller pack.block_bytes"
    )


def cost_tables(costs: ReadCosts) -> Iterator[Table]:
    """One table for each way of fetching, of at most 80 columns: cached pages, exact ranges."""
    cluster = costs.cluster
    pages = (
        f"{counted(cluster.hosts, 'host')}, batches of {cluster.batch_size:,}; pages of "
        f"{size_text(cluster.page_bytes)}, each fetched once a host"
    )
    held = ["held", "cache"]
    for title, way, more in ((pages, "pages", held), (_RANGES, "ranges", [])):
        columns = ["GETs", "bytes", "x data", *more, "first batch", "a host"]
        table = plain_table(title, ["source"], columns)
        for name, source in {**costs.sources, "total": costs.total}.items():
            figures: Way = getattr(source, way)
            open_ = [f"{source.held_pages:,.0f}", size_text(source.held_bytes)] if more else []
            table.add_row(
                Text(printable(name)),
                count_text(figures.gets),
                size_text(figures.bytes),
                f"{source.over(figures):.2f}",
                *open_,
                size_text(figures.first_batch_bytes),
                size_text(source.host_bytes(figures, cluster.hosts)),
            )
        yield table


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
    if number < 10**7:
        return f"{number:,.0f}"
    return f"{number:.2e}".replace("e+0", "e").replace("e+", "e")
