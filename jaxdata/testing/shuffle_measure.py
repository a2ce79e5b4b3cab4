"""How well the rows of a run are shuffled, from lengths alone, in a bounded time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxdata.errors import InputError
from jaxdata.map_datasets.underlying import row_table
from jaxdata.packing.settings import PackSettings
from jaxdata.rows.table import RowTable
from jaxdata.testing.document_places import Placement, placements
from jaxdata.testing.shuffle_limits import Figure, measured

_DEALS = 8


@dataclass(frozen=True)
class ShuffleQuality:
    """How well the rows of one source are shuffled."""

    source: str
    packing: str
    """how its rows are made, in words"""
    rows: int
    """rows looked at"""
    of_rows: int
    """rows of an epoch"""
    batch: int
    """rows of the source in a batch"""
    hosts: int
    """hosts that share a batch; 1 where their parts were not measured"""
    figures: tuple[Figure, ...]

    @property
    def poor(self) -> list[Figure]:
        """The figures that are beyond their limits."""
        return [figure for figure in self.figures if figure.good is False]

    def figure(self, name: str, of: str) -> Figure:
        """The figure of a name ("equal neighbours", …) and quantity ("length" or "number")."""
        return next(each for each in self.figures if (each.name, each.of) == (name, of))


def shuffle_quality(
    rows: Any,
    *,
    batch_size: int,
    hosts: int = 8,
    documents: int = 2**20,
    sources: int = 8,
    seed: int = 0,
) -> list[ShuffleQuality]:
    """Measure how well rows are shuffled, source by source, against random deals.

    For each source: correlation of the length and number of documents with their place in rows,
    batches and the epoch; neighbours inside rows that are of equal length, or were neighbours in
    the corpus; and the variance of the token-weighted means of batches over that of the same
    documents dealt to rows at random. Only lengths are used.

    Args:
        rows: the result of `pack` or `mix`.
        batch_size: rows of a global batch; a source is measured with its share of them.
        hosts: hosts whose parts of batches are measured, too, where they divide a batch.
        documents: about how many documents of a source to look at; of more, batches are sampled.
        sources: most sources to measure, the largest first.
        seed: of the random deals.

    Raises:
        InputError: the rows say nothing of documents: they were transformed, or written to files.

    >>> import jaxdata
    >>> docs = jaxdata.ArrayDocuments([[7] * (n % 61) + [0] for n in range(4_000)], name="web")
    >>> (web,) = shuffle_quality(jaxdata.pack(docs, seq_len=256), batch_size=8)
    >>> [figure.name for figure in web.poor]
    []
    """
    table = row_table(rows)
    if table is None:
        raise InputError(
            f"which documents lie in {rows!r} is not known: expected rows as pack or mix return "
            "them"
        )
    random = np.random.default_rng(seed)
    return [
        _quality(each, name, placed, hosts, random)
        for each, batch in _tables(table, batch_size, hosts, sources)
        for name, placed in placements(each, batch, documents)
    ]


def _tables(table: RowTable, batch: int, hosts: int, most: int) -> Iterator[tuple[RowTable, int]]:
    """The largest sources, and the rows that each has in a batch."""
    if not table.sources:
        yield table, batch
        return
    shares = {name: counts.rows for name, counts in table.token_counts(len(table)).items()}
    whole = max(sum(shares.values()), 1)
    largest = sorted(table.sources, key=lambda name: -shares.get(name, 0))[:most]
    for name in largest:
        own = batch * shares.get(name, 0) / whole
        if own and len(table.sources[name]):
            shared = batch % hosts == 0 and own >= hosts
            rows = round(own / hosts) * hosts if shared else max(round(own), 1)
            yield table.sources[name], rows


def _quality(
    table: RowTable, name: str, placed: Placement, hosts: int, random: np.random.Generator
) -> ShuffleQuality:
    parts = hosts if placed.batch % hosts == 0 else 1
    deals = [placed.dealt(random) for _ in range(_DEALS)] if len(placed.slots) else []
    found = tuple(measured(placed, parts, deals)) if deals else ()
    packing = _packing(table)
    return ShuffleQuality(name, packing, placed.rows, len(table), placed.batch, parts, found)


def _packing(table: RowTable) -> str:
    settings: Any = getattr(table, "settings", None)
    if isinstance(settings, PackSettings):
        return f"{settings.strategy}, {'shuffled' if settings.shuffle else 'not shuffled'}"
    return f"{table.identity().get('order', 'its own')} order"
