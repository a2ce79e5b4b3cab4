"""How well the rows of a run are shuffled, from lengths alone: figures, limits, and a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from jaxdata.base.errors import InputError
from jaxdata.base.ragged import AnyInts, Ints, stable_order
from jaxdata.rows.map_datasets import row_table
from jaxdata.rows.packing.settings import PackSettings
from jaxdata.rows.table import RowTable, Segments, in_batch_order

_STRETCHES = 8
_LANES_MET = 512
"""lanes that all stretches together may meet: each plans blocks of its own"""


@dataclass(frozen=True)
class Placement:
    """Rows of one source in the order in which batches hold them.

    They are `stretches` stretches of consecutive batches, all of the same length. Rows may have no
    segment here: those of other sources.

    Args:
        batch: rows of a batch.
        stretches: stretches of consecutive batches.
        at: (rows,) place of each row in the epoch, 0 to 1.
        counts: (rows,) segments of each row.
        document: (segments,) number of the document in the source.
        length: (segments,) tokens of the document.
        slots: (segments,) slots that the segment fills.
    """

    batch: int
    stretches: int
    at: NDArray[np.float64]
    counts: AnyInts
    document: AnyInts
    length: AnyInts
    slots: AnyInts

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.counts)

    @cached_property
    def row(self) -> Ints:
        """(segments,) the row of each segment, 0, 1, … in the order of delivery."""
        return np.repeat(np.arange(self.rows), self.counts)

    def dealt(self, random: np.random.Generator) -> Self:
        """The same segments dealt to rows as full as before at random, and the rows shuffled.

        A segment that is alone in its row stays alone; the others are laid end to end in random
        order, and each belongs to the row in which its middle comes to lie. Rows are shuffled, as
        what they hold is no mere chance: a long segment leaves little room for others.
        """
        alone = (self.counts == 1)[self.row]
        shared = random.permutation(np.flatnonzero(~alone))
        slots = self.slots[shared]
        middle = 2 * np.cumsum(slots, dtype=np.int64) - slots
        filled = np.bincount(self.row[shared], slots, self.rows).astype(np.int64)
        row = np.searchsorted(2 * np.cumsum(filled), middle, side="right")
        numbers, used = np.arange(self.rows), np.flatnonzero(self.counts)  # others keep their place
        numbers[used] = random.permutation(used)
        row = numbers[np.append(self.row[alone], row)]
        segments = np.append(np.flatnonzero(alone), shared)[stable_order(row, self.rows)]
        return replace(
            self,
            counts=np.bincount(row, minlength=self.rows),
            document=self.document[segments],
            length=self.length[segments],
            slots=self.slots[segments],
        )


def placements(table: RowTable, batch: int, most: int) -> Iterator[tuple[str, Placement]]:
    """Where the documents of each source of a table lie in its first epoch.

    Args:
        table: whose rows to look at; no data is read.
        batch: rows of a batch.
        most: segments to look at, about; more rows are sampled, as stretches of whole batches
            spread over the epoch.
    """
    rows, stretches = _sample(table, min(batch, len(table)), most)
    delivered = np.concatenate([in_batch_order(table, each) for each in rows])
    found = table.segments(delivered)
    for number, documents in enumerate(table.documents):
        mine = found.take(np.flatnonzero((found.source == number) & (found.slots > 0)))
        lengths = np.asarray(documents.lengths[mine.document])
        yield documents.name, _placement(mine, lengths, delivered / len(table), batch, stretches)


def _placement(
    found: Segments, lengths: AnyInts, at: NDArray[np.float64], batch: int, stretches: int
) -> Placement:
    counts = np.bincount(found.row, minlength=len(at))
    size = min(batch, len(at))
    return Placement(size, stretches, at, counts, found.document, lengths, found.slots)


def _sample(table: RowTable, batch: int, most: int) -> tuple[list[Ints], int]:
    """The rows of each batch to look at, in order, and how many stretches they form."""
    batches = len(table) // batch
    looked_at = min(batches, max(int(most / _segments_a_row(table)) // batch, 1))
    stretches = 1 if looked_at == batches else max(min(_STRETCHES, _LANES_MET // table.lanes), 2)
    each = max(looked_at // stretches, 1)
    firsts = np.linspace(0, batches - each, min(stretches, looked_at)).astype(np.int64)
    numbers = (firsts[:, None] + np.arange(each)).ravel()
    return [np.arange(n * batch, (n + 1) * batch) for n in numbers.tolist()], len(firsts)


def _segments_a_row(table: RowTable) -> float:
    """By the first rows, which may lie in lanes."""
    few = min(len(table), 64)
    return max(len(table.segments(np.arange(few)).row) / few, 1.0)


Floats = NDArray[np.float64]
LENGTH, NUMBER = "length", "number"
EQUAL, KEPT = ("equal neighbours", LENGTH), ("kept neighbours", NUMBER)
TOGETHER = (1, 10, 100, 1000)
"""consecutive batches whose means are compared"""
_VARIANCE = {LENGTH: 1.5, NUMBER: 3.0}
"""times that of a random deal"""
_CORRELATION = {"place in the row": 0.05, "place in the batch": 0.1, "place in the epoch": 0.1}
"""0.1 explains a hundredth of the variance; pages that are dealt whole may reach half of it"""
_SHARE = {EQUAL: 0.002, KEPT: 0.01}
_SIGMAS = 5
"""that far random deals are from their mean once in a million times"""
_FEWEST = 16
"""means of which a variance says something"""
_NOTHING = "nothing to compare"


def values_of(placed: Placement, hosts: int = 1) -> dict[tuple[str, str], float]:
    """What is measured of a placement, by name and quantity; nan where it cannot be told.

    * Correlation of a quantity with the place inside rows, and of the means of rows with the place
      of rows in batches and in the epoch. Quantities are the log of a document's tokens, and its
      place in the corpus; means are weighted by tokens.
    * Share of neighbours inside rows that fill equally many slots, or are neighbours in the corpus.
    * Variance of the means of some consecutive batches, and of equal parts of them, a host's each.
    """
    log_length = np.log(placed.length.astype(np.float64))
    quantities = {LENGTH: log_length, NUMBER: placed.document.astype(np.float64)}
    slots = np.bincount(placed.row, placed.slots, placed.rows)
    sums = {
        of: np.bincount(placed.row, placed.slots * (each - each.mean()), placed.rows)
        for of, each in quantities.items()  # less their mean: nothing is lost in adding up
    }
    batch, in_batch = np.divmod(np.arange(placed.rows), placed.batch)
    there, found = np.flatnonzero(slots), {}
    for of, each in quantities.items():
        means, in_row = sums[of][there] / slots[there], np.arange(len(each))
        found["place in the row", of] = _correlation(each, in_row, placed.row)
        found["place in the batch", of] = _correlation(means, in_batch[there], batch[there])
        found["place in the epoch", of] = _correlation(means, placed.at[there], there * 0)
    found[EQUAL] = _share(placed, placed.slots[1:] == placed.slots[:-1])
    found[KEPT] = _share(placed, np.abs(np.diff(placed.document.astype(np.int64))) == 1)
    for parts in dict.fromkeys((1, hosts)):
        for together in TOGETHER:
            held = _grouped(placed, slots, together, parts)
            for of in quantities:
                means = _grouped(placed, sums[of], together, parts)[held > 0] / held[held > 0]
                variance = float(np.var(means)) if len(means) else float("nan")
                found[variance_name(together, parts), of] = variance
    return found


def variance_name(together: int, parts: int) -> str:
    """What the variance of the means of some batches is called.

    >>> variance_name(1, 1), variance_name(10, 8)
    ('means of 1 batch', 'means of 10 batches, a host')
    """
    return f"means of {together:,} batch{'es' * (together > 1)}{', a host' * (parts > 1)}"


def groups(placed: Placement, together: int) -> int:
    """Number of the means of so many consecutive batches."""
    return placed.stretches * (placed.rows // placed.stretches // placed.batch // together)


def _grouped(placed: Placement, of_rows: NDArray[Any], together: int, parts: int) -> Floats:
    """Sums over the rows of each group; (stretches, groups, parts)."""
    by_batch = of_rows.reshape(placed.stretches, -1, parts, placed.batch // parts).sum(axis=3)
    whole = by_batch.shape[1] // together
    cut = by_batch[:, : whole * together].reshape(placed.stretches, whole, together, parts)
    return np.asarray(cut.sum(axis=2))


def _correlation(a: AnyInts | Floats, b: AnyInts | Floats, group: AnyInts) -> float:
    """Of the deviations from the means of groups."""
    counts = np.maximum(np.bincount(group), 1)
    a, b = (each - (np.bincount(group, each) / counts)[group] for each in (a, b))
    spread = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / spread if spread > 1e-9 * len(a) else float("nan")


def _share(placed: Placement, pairs: NDArray[Any]) -> float:
    inside = placed.row[1:] == placed.row[:-1]
    count = int(np.count_nonzero(inside))
    return float(np.count_nonzero(pairs & inside)) / count if count else float("nan")


@dataclass(frozen=True)
class Figure:
    """One figure of a shuffle, beside that of random deals of the same documents.

    >>> Figure("equal neighbours", "length", 0.85, 0.007, 0.014).good
    False
    """

    name: str
    of: str
    """the quantity: "length" of documents, or their "number" in the corpus"""
    found: float | None
    """None: not measured"""
    random: float | None
    """the mean of random deals"""
    limit: float | None
    """good up to here"""
    why: str = ""
    """why it was not measured"""

    @property
    def good(self) -> bool | None:
        """Whether it is within its limit; None if it was not measured."""
        return None if self.found is None or self.limit is None else abs(self.found) <= self.limit


def measured(placed: Placement, hosts: int, deals: Sequence[Placement]) -> Iterator[Figure]:
    """All figures of a placement.

    Args:
        placed: where documents lie.
        hosts: hosts that share a batch; 1 leaves their figures out.
        deals: the same documents dealt at random (`Placement.dealt`): they tell what is noise.
    """
    values, random = values_of(placed, hosts), [values_of(deal, hosts) for deal in deals]
    for name, of in [*product(_CORRELATION, (LENGTH, NUMBER)), EQUAL, KEPT]:
        found = values[name, of]
        dealt = np.array([each[name, of] for each in random])
        if np.isnan(found) or np.isnan(dealt).all():
            yield Figure(name, of, None, None, None, _NOTHING)
            continue
        usual, noise = float(np.nanmean(dealt)), _SIGMAS * float(np.nanstd(dealt))
        if least := _CORRELATION.get(name):
            limit = max(least, _SIGMAS * float(np.sqrt(np.nanmean(dealt**2))))
        else:
            limit = max(_SHARE[name, of], 2 * usual, usual + noise)
        yield Figure(name, of, found, usual, limit)
    for parts, together, of in product(dict.fromkeys((1, hosts)), TOGETHER, (LENGTH, NUMBER)):
        name, means = variance_name(together, parts), groups(placed, together)
        usual = float(np.mean([each[name, of] for each in random]))
        if means < _FEWEST or not usual > 0:
            needed = _FEWEST * together * placed.batch
            why = f"needs {needed:,} rows" if means < _FEWEST else _NOTHING
            yield Figure(name, of, None, None, None, why)
            continue
        # Means of lengths over all hosts vary as those of random deals. Elsewhere neighbouring
        # batches may be related (lanes and pools do that), as long as their mean varies as that of
        # one batch.
        single = float(np.mean([each[variance_name(1, parts), of] for each in random])) / usual
        related = 1 if (of, parts) == (LENGTH, 1) else max(single, 1)
        limit = _VARIANCE[of] * related * _by_chance(means * parts)
        yield Figure(name, of, values[name, of] / usual, 1.0, limit)


def _by_chance(count: int) -> float:
    """How far a variance of so many means exceeds the true one once in a thousand times.

    By Wilson and Hilferty's approximation of the chi-squared distribution.

    >>> round(_by_chance(16), 2), round(_by_chance(1_000), 2)
    (2.46, 1.14)
    """
    ninth = 2 / (9 * (count - 1))
    return float((1 - ninth + 3 * ninth**0.5) ** 3)


_DEALS = 8


@dataclass(frozen=True)
class ShuffleQuality:
    """How well the rows of one source are shuffled.

    >>> import jaxdata
    >>> docs = jaxdata.ArrayDocuments([[7] * (n % 61) + [0] for n in range(4_000)], name="web")
    >>> (web,) = shuffle_quality(jaxdata.pack(docs, seq_len=256), batch_size=8)
    >>> web.figure("equal neighbours", "length").good
    True
    """

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


_NAME, _CELL = 32, 24


def shuffle_lines(quality: ShuffleQuality) -> Iterator[str]:
    r"""What was measured of a source: a line that sums up, and a table.

    >>> from jaxdata.testing.shuffle import ShuffleQuality
    >>> figures = (Figure("equal neighbours", "length", 0.85, 0.007, 0.014),)
    >>> web = ShuffleQuality("web", "best_fit, shuffled", 640, 640, 64, 1, figures)
    >>> print("\n".join(line.rstrip() for line in shuffle_lines(web)))
    web (best_fit, shuffled): 1 of 1 figures is not good; 640 of 640 rows, 64 in a batch
                                      length of documents     number of documents
      equal neighbours                85.00 % POOR (1.40 %)
    """
    yield _summary(quality)
    if any(each.good is not None for each in quality.figures):
        yield f"  {'':<{_NAME}}{'length of documents':<{_CELL}}number of documents"
    for name in dict.fromkeys(each.name for each in quality.figures if each.good is not None):
        cells = [_cell(quality, name, of) for of in (LENGTH, NUMBER)]
        yield f"  {name:<{_NAME}}{cells[0]:<{_CELL}}{cells[1]}".rstrip()
    missing = {each.name: each.why for each in quality.figures if each.good is None}
    for why in dict.fromkeys(missing.values()):
        names = "; ".join(name for name, its in missing.items() if its == why)
        yield f"  not measured ({why}): {names}"


def _summary(quality: ShuffleQuality) -> str:
    known = [each for each in quality.figures if each.good is not None]
    poor = len(quality.poor)
    verdict = f"{poor} of {len(known)} figures {'is' if poor == 1 else 'are'} not good"
    if not known:
        verdict = "nothing could be measured"
    elif not poor:
        verdict = f"all {len(known)} figures are good"
    hosts = f" over {quality.hosts} hosts" if quality.hosts > 1 else ""
    looked_at = f"{quality.rows:,} of {quality.of_rows:,} rows, {quality.batch:,} in a batch{hosts}"
    return f"{quality.source} ({quality.packing}): {verdict}; {looked_at}"


def _cell(quality: ShuffleQuality, name: str, of: str) -> str:
    found = [each for each in quality.figures if (each.name, each.of) == (name, of)]
    return "".join(_said(each) for each in found)


def _said(figure: Figure) -> str:
    if figure.found is None or figure.limit is None:
        return "not measured"
    verdict = "good" if figure.good else "POOR"
    if "neighbours" in figure.name:
        return f"{figure.found:.2%} {verdict} ({figure.limit:.2%})".replace("%", " %")
    return f"{figure.found:.2f} {verdict} ({figure.limit:.2f})"
