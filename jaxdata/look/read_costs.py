"""What reading a run from a bucket costs N hosts, from its plan (`jaxdata preview --hosts N`).

A host downloads a page once an epoch if one of the rows that it reads has a part of it. Of chunks
these are the hosts that meet the page's lane (see `lanes.downloads`), and in a mixture those beside
them; of single documents any. All is arithmetic with means: no token is read.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from rich.table import Table

from jaxdata.base.errors import InputError, counted, sized
from jaxdata.base.ragged import Ints
from jaxdata.config import Config, build_rows, load_config
from jaxdata.dataset.documents import Documents
from jaxdata.feed.loader import Loader
from jaxdata.look.terminal import printable, table
from jaxdata.rows.lanes import DEAR, better_packing, downloads, spread_of
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.table import RowTable
from jaxdata.storage.pages.page_cache import PAGE_BYTES


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
    sources: Mapping[str, Any] = rows.sources
    counts = {name: each.rows for name, each in rows.token_counts(len(rows)).items()}
    spread = spread_of(counts.values(), batch_size)
    return {
        name: _cost(rows, source, counts[name], hosts, spread) for name, source in sources.items()
    }


def total(costs: dict[str, Cost]) -> Cost:
    """The costs of all sources together."""
    every = list(costs.values())
    read = sum(each.file_bytes * each.epochs for each in every)
    files, gets, size, held = np.sum([each[2:] for each in every], axis=0).tolist()
    return Cost(min(each.lanes for each in every), read / max(files, 1), files, gets, size, held)


def _cost(run: RowTable, source: PackedRows, rows: int, hosts: int, spread: float) -> Cost:
    """What so many rows of a source cost; `spread`: see `spread_of`."""
    documents, chunk = source.documents[0], source.settings.chunk_bytes or 0
    sizes = np.asarray(documents.base.file_sizes)
    size, pages = int(sizes.sum()), max(int((-(-sizes // PAGE_BYTES)).sum()), 1)
    epochs, opened = rows / max(len(source), 1), source.open_bytes
    if chunk:
        spilled = _spilled(documents, sizes)
        fetched = downloads(hosts, source.lanes, source.blocks, spread) * epochs
    else:  # any row may have a part of any page
        some = np.unique(np.linspace(0, len(source) - 1, 16).astype(np.int64))
        parts = len(source.segments(some).row) / len(some) * len(source) / hosts
        once, rest = (1 - (1 - 1 / pages) ** (parts * part) for part in (1, epochs % 1))
        spilled, fetched = 0.0, hosts * (int(epochs) * once + rest)
    share = 1 / hosts if run.lanes > 1 else 1.0  # of the lanes, that a host meets
    return Cost(
        lanes=source.lanes if chunk else 0,
        epochs=epochs,
        file_bytes=size,
        gets=pages * fetched,
        bytes=(size + spilled) * fetched,
        held_bytes=min(size, size if opened is None else opened * share) * bool(rows),
    )


def _spilled(documents: Documents, sizes: Ints) -> float:
    """Bytes that documents have beyond the end of their page, with which they are fetched."""
    count = len(documents)
    some = np.unique(np.linspace(0, count - 1, min(count, 2**16)).astype(np.int64))
    lengths = np.asarray(documents.lengths[some], np.float64)
    beyond = float((lengths**2).mean() / lengths.mean() / 2)  # tokens of one cut anywhere
    ends = int((-(-sizes // PAGE_BYTES) - 1).clip(0).sum())  # but those of files
    token = int(sizes.sum()) / count / float(lengths.mean())
    return ends * beyond * token


def describe_costs(loader: Loader, config: Config, hosts: int) -> dict[str, Any]:
    """The costs of a run, by its largest batches, as plain values.

    Where it is dear, also what it would cost with `better_packing`.
    """
    batch, cache = max(size for _, size in loader.batch_sizes), config.storage.cache.bytes
    costs, better = read_costs(loader.rows.table, hosts, batch), None
    every = total(costs)
    if every.over > DEAR:
        packing = better_packing(hosts)
        packed = build_rows(load_config(config, {"pack": packing})).table
        then = total(read_costs(packed, hosts, batch))
        if then.over < every.over:
            better = {"pack": packing, **then.described(hosts)}
    warnings = [
        f"{printable(name)}: hosts download {cost.over:.1f} times its bytes: "
        + (f"it has {counted(cost.lanes, 'lane')}" if cost.lanes else "single documents are dealt")
        for name, cost in costs.items()
        if cost.over > DEAR
    ]
    if refused := cache is not None and cache < every.held_bytes:
        warnings.append(
            f"a cache of {sized(cache or 0)} cannot hold the {sized(every.held_bytes)} of pages "
            "that a host has open at a time: they would be fetched again and again. Give it at "
            "least that, or use more hosts or a smaller pack.block_bytes"
        )
    return {
        "hosts": hosts,
        "ok": not refused,
        "warnings": warnings,
        "sources": {name: cost.described(hosts) for name, cost in costs.items()},
        "total": every.described(hosts),
        "better": better,
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
