"""What reading a run from a bucket costs N hosts, from its plan (`jaxdata preview --hosts N`).

A page of a source has parts in some rows of a *pool*: of one of its blocks where pages are whole
parts of its chunks, else of all its rows. A host downloads the page once an epoch if one of the
rows that it reads has a part of it. Which host reads which row of a pool follows from the order of
batches, and is counted for some pools of each source, chosen at random; all else is arithmetic with
means. No token is read.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import Floats, Ints
from jaxdata.base.wording import counted, sized
from jaxdata.look.terminal import printable, table
from jaxdata.rows.lanes import DEAR
from jaxdata.rows.mixing.mixture import Mixture
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.table import RowTable

PAGE = 2**20
"""bytes that a request of the page cache fetches"""
_KEYS = 2**25
"""rows whose place in their batch is looked up, about, for all sources together"""
_KEYS_AT_ONCE = 2**22
_FEWEST, _MOST = 4, 32
"""pools of a source that are looked at"""


class Cost(NamedTuple):
    """What one source, or all of them, cost all hosts together over a run."""

    lanes: int
    """the fewest of a source; 0: dealt by single documents"""
    epochs: float
    file_bytes: float
    gets: float
    """requests"""
    bytes: float
    held_bytes: float
    """what a host holds at a time"""

    @property
    def over(self) -> float:
        """Bytes downloaded, over those of the dataset in as many epochs."""
        return self.bytes / max(self.file_bytes * self.epochs, 1)

    def described(self, hosts: int) -> dict[str, float]:
        """All of it, as plain values."""
        epoch = self.bytes / hosts / max(self.epochs, 1e-9)
        return self._asdict() | {"over_dataset": self.over, "host_epoch_bytes": epoch}


def read_costs(rows: RowTable, hosts: int, batch_size: int) -> dict[str, Cost]:
    """What a run costs to read for some hosts, each with a page cache of its own: by source.

    Args:
        rows: of the run, as `rows.table` of `jaxdata.pack` and `mix`.
        hosts: that share a batch.
        batch_size: rows of the global batch.
    """
    if batch_size % hosts:
        raise InputError(
            f"a batch of {batch_size:,} rows cannot be divided among {hosts:,} hosts: choose a "
            "multiple of the hosts"
        )
    if not len(rows):
        raise InputError("the run has no rows: there is nothing to read")
    sources: dict[str, Any] = dict(rows.sources) or dict.fromkeys(rows.names, rows)
    counts = rows.counts(len(rows)) if isinstance(rows, Mixture) else {rows.names[0]: len(rows)}
    return {
        name: _Source(rows, number, source, counts[name]).cost(hosts, batch_size)
        for number, (name, source) in enumerate(sources.items())
    }


def total(costs: dict[str, Cost]) -> Cost:
    """The costs of all sources together."""
    every = list(costs.values())
    read = sum(each.file_bytes * each.epochs for each in every)
    files, gets, size, held = np.sum([each[2:] for each in every], axis=0).tolist()
    return Cost(min(each.lanes for each in every), read / max(files, 1), files, gets, size, held)


class _Source:
    """A source of a run, and how much of it is read."""

    def __init__(self, run: RowTable, number: int, source: PackedRows, rows: int) -> None:
        self.run, self.number, self.source, self.rows = run, number, source, rows
        self.documents, self.chunk = source.documents[0], source.settings.chunk_bytes or 0
        self.sizes = np.asarray(self.documents.base.file_sizes)
        self.pages = max(int((-(-self.sizes // PAGE)).sum()), 1)
        some = np.unique(np.linspace(0, len(source) - 1, 16).astype(np.int64))
        self.parts = len(source.segments(some).row) / len(some)

    def cost(self, hosts: int, batch_size: int) -> Cost:
        """Its figures."""
        epochs, size = self.rows / max(len(self.source), 1), int(self.sizes.sum())
        fetched = self._by_block(hosts, batch_size) if self.chunk else self._by_host(hosts, epochs)
        fetched, opened = min(fetched, hosts * -(-epochs // 1)), self.source.open_bytes
        share = 1 / hosts if self.run.lanes > 1 else 1.0  # of the lanes, that a host meets
        return Cost(
            lanes=self.source.lanes if self.chunk else 0,
            epochs=epochs,
            file_bytes=size,
            gets=self.pages * fetched,
            bytes=(size + self._spilled() * bool(self.chunk)) * fetched,
            held_bytes=min(size, size if opened is None else opened * share) * bool(self.rows),
        )

    def _by_host(self, hosts: int, epochs: float) -> float:
        """How often a page is fetched where any row of an epoch may have a part of it."""
        rows, read = len(self.source), np.full(hosts, len(self.source) / hosts)
        once, rest = (readers(self.pages, self.parts, rows, read * x) for x in (1, epochs % 1))
        return int(epochs) * once + rest

    def _by_block(self, hosts: int, batch_size: int) -> float:
        """The same where only the rows of a block may."""
        visits = self.source.visits(self.rows)
        affordable = _KEYS * len(visits) / (len(self.run) * batch_size)
        chosen = np.random.default_rng(0).permutation(len(visits))
        chosen = chosen[: int(np.clip(affordable, _FEWEST, _MOST))]
        found = 0.0
        for epoch, visit in visits[chosen].tolist():
            ranks = self.source.block_rows(epoch, visit)
            rows = ranks[ranks < self.rows]
            if isinstance(self.run, Mixture):
                rows = self.run.rows_of(self.number, rows)
            host = hosts_of(self.run, np.sort(rows[rows >= 0]), hosts, batch_size)
            of_host = np.bincount(host, minlength=hosts).astype(np.float64)
            found += readers(self.pages / self.source.blocks, self.parts, len(ranks), of_host)
        return found * len(visits) / max(len(chosen), 1) / self.source.blocks

    def _spilled(self) -> float:
        """Bytes that documents have beyond the end of their page, with which they are fetched."""
        count = len(self.documents)
        some = np.unique(np.linspace(0, count - 1, min(count, 2**16)).astype(np.int64))
        lengths = np.asarray(self.documents.lengths[some], np.float64)
        beyond = float((lengths**2).mean() / lengths.mean() / 2)  # tokens of one cut anywhere
        ends = int((-(-self.sizes // PAGE) - 1).clip(0).sum())  # but those of files
        token = int(self.sizes.sum()) / count / float(lengths.mean())
        return ends * beyond * token


def readers(pages: float, parts: float, rows: int, of_host: Floats) -> float:
    """How many hosts have a row with a part of a page, on average.

    Args:
        pages: that rows have parts of, chosen at random.
        parts: of pages, in a row.
        rows: of which some have a part of the page.
        of_host: (hosts,) how many of these each reads: drawn without replacement.
    """
    touches = float(rows * (1 - (1 - 1 / max(pages, 1)) ** parts))
    few, many = np.minimum(touches, of_host), np.maximum(touches, of_host)
    return float((1 - (1 - np.minimum(many / rows, 1)) ** few).sum())


def hosts_of(run: RowTable, rows: Ints, hosts: int, batch_size: int) -> Ints:
    """The host of each row, of increasing numbers; int64 (rows,).

    Host *h* of *H* has rows `[h B / H, (h + 1) B / H)` of a batch, in the order that batches have.
    """
    step, place = np.divmod(rows, batch_size)
    if run.lanes > 1:
        parts = len(rows) * batch_size // _KEYS_AT_ONCE + 1
        for mine in np.array_split(np.arange(len(rows)), parts):
            batch, last = step[mine, None] * batch_size + np.arange(batch_size), len(run) - 1
            key = run.batch_key(np.minimum(batch, last).ravel()).reshape(batch.shape)
            own = np.take_along_axis(key, place[mine, None], axis=1)
            before = (key < own) | ((key == own) & (batch < rows[mine, None]))
            place[mine] = (before & (batch <= last)).sum(axis=1)
    return place * hosts // batch_size


def better_packing(hosts: int) -> dict[str, int]:
    """Fields of `pack` with which hosts download the dataset about once."""
    return {"lanes": 2 ** (hosts - 1).bit_length(), "chunk_bytes": PAGE}


def described_costs(
    now: dict[str, Cost], better: dict[str, Cost] | None, hosts: int, cache: int | None
) -> dict[str, Any]:
    """The costs of a run as it is, and with `better_packing`, as plain values.

    Args:
        now: as it is.
        better: what it would cost; None where that is not dear.
        hosts: that share a batch.
        cache: bytes that a host's cache holds; None: as much as it needs.
    """
    held = total(now).held_bytes
    warnings = [
        f"{printable(name)}: hosts download {cost.over:.1f} times its bytes: "
        + (f"it has {counted(cost.lanes, 'lane')}" if cost.lanes else "single documents are dealt")
        for name, cost in now.items()
        if cost.over > DEAR
    ]
    if refused := cache is not None and cache < held:
        warnings.append(
            f"a cache of {sized(cache or 0)} cannot hold the {sized(held)} of pages that a host "
            "has open at a time: they would be fetched again and again. Give it at least that, or "
            "use more hosts or a smaller pack.block_bytes"
        )
    return {
        "hosts": hosts,
        "ok": not refused,
        "warnings": warnings,
        "sources": {name: cost.described(hosts) for name, cost in now.items()},
        "total": total(now).described(hosts),
        "better": better and {"pack": better_packing(hosts), **total(better).described(hosts)},
    }


def cost_lines(found: dict[str, Any]) -> Iterator[Table | str]:
    """A table of the costs, with those that there would be as its last line."""
    better, rows = found["better"], {**found["sources"], "total": found["total"]}
    if better:
        rows["with these"] = better
    lines = []
    for name, one in rows.items():
        sizes = [sized(one[key]) for key in ("bytes", "host_epoch_bytes", "held_bytes")]
        cells = [name, one["lanes"] or None, round(one["gets"])]
        lines.append([*cells, sizes[0], f"{one['over_dataset']:.2f}", *sizes[1:]])
    hosts = counted(found["hosts"], "host")
    title = f"{hosts} that read a bucket, each through a page cache of its own"
    headings = ["lanes", "GETs", "bytes", "x data", "a host", "cache"]
    yield table(title, ["source"], headings, lines)
    if better:
        said = ", ".join(f"{name}: {value}" for name, value in better["pack"].items())
        yield f"with these: the cost of all with pack: {{{said}}}"
    yield (
        "x data: bytes of all hosts over those of the dataset; a host: its bytes in an epoch; "
        "cache: what it holds of them at a time"
    )
