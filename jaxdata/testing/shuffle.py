"""How well the rows of a run are shuffled, from lengths alone, beside random deals of the same."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.lazy import cached_property
from jaxdata.base.ragged import AnyInts, Floats, Ints, stable_order
from jaxdata.rows.map_datasets import row_table
from jaxdata.rows.packing.settings import PackSettings
from jaxdata.rows.table import RowTable, in_batch_order

LENGTH, NUMBER = "length", "number"
IN_ROW, EQUAL, KEPT = "place in the row", "equal neighbours", "kept neighbours"
NEXT, VARIANCE, OF_HOSTS = "next batch", "variance of batches", "variance of batches, a host"
_LEAST = {IN_ROW: 0.05, NEXT: 0.3, EQUAL: 0.002, KEPT: 0.01}
"""what is good in any case; of correlations 0.3 explains a tenth of the variance"""
_VARIANCE = {LENGTH: 1.5, NUMBER: 3.0}
"""times that of a random deal"""
_DEALS, _SIGMAS = 8, 5
"""random deals; that far from their mean they are once in a million times"""
_FEWEST = 16
"""batches whose variance says something"""
_STRETCHES, _LANES_MET = 8, 512
"""stretches of batches that are looked at, and lanes that they may meet: each plans blocks"""


@dataclass(frozen=True)
class Placement:
    """Rows of one source in the order in which batches hold them.

    They are stretches of consecutive batches, all of the same length. Rows may have no segment
    here: those of other sources.

    Args:
        batch: rows of a batch.
        stretches: their number.
        counts: (rows,) segments of each row.
        document: (segments,) number of the document in the source.
        length: (segments,) tokens of the document.
        slots: (segments,) slots that the segment fills.
    """

    batch: int
    stretches: int
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
    batch = min(batch, len(table))
    firsts, each = _sample(table, batch, most)
    batches = (firsts[:, None] + np.arange(each)).ravel().tolist()
    rows = [in_batch_order(table, np.arange(n * batch, (n + 1) * batch)) for n in batches]
    found = table.segments(np.concatenate(rows))
    for number, documents in enumerate(table.documents):
        mine = found.take(np.flatnonzero((found.source == number) & (found.slots > 0)))
        counts = np.bincount(mine.row, minlength=len(batches) * batch)
        lengths = np.asarray(documents.lengths[mine.document])
        placed = Placement(batch, len(firsts), counts, mine.document, lengths, mine.slots)
        yield documents.name, placed


def _sample(table: RowTable, batch: int, most: int) -> tuple[Ints, int]:
    """The first batches of the stretches to look at, and the batches of each."""
    few = min(len(table), 64)
    segments_a_row = max(len(table.segments(np.arange(few)).row) / few, 1.0)
    batches = len(table) // batch
    looked_at = min(batches, max(int(most / segments_a_row) // batch, 1))
    stretches = 1 if looked_at == batches else max(min(_STRETCHES, _LANES_MET // table.lanes), 2)
    each = max(looked_at // stretches, 1)
    firsts = np.linspace(0, batches - each, min(stretches, looked_at)).astype(np.int64)
    return firsts, each


def values_of(placed: Placement, hosts: int = 1) -> dict[tuple[str, str], float]:
    """What is measured of a placement, by name and quantity; nan where it cannot be told.

    Quantities are the log of a document's tokens, and its place in the corpus; means of batches are
    weighted by slots. Measured are the correlation of each with the place inside rows, that of the
    means of successive batches, the variance of these means (and of those of a host's part of
    batches), and which neighbours inside rows fill equally many slots, or were neighbours in the
    corpus.
    """
    found = {}
    together = placed.row[1:] == placed.row[:-1]
    for name, of, alike in (
        (EQUAL, LENGTH, placed.slots[1:] == placed.slots[:-1]),
        (KEPT, NUMBER, np.abs(np.diff(placed.document.astype(np.int64))) == 1),
    ):
        found[name, of] = float(alike[together].mean()) if together.any() else np.nan
    of_batches = (placed.stretches, -1, 1, placed.batch)
    of_hosts = (placed.stretches, -1, hosts, placed.batch // hosts)
    for of, values in ((LENGTH, np.log(placed.length)), (NUMBER, placed.document.astype(float))):
        values = values - values.mean()  # nothing is lost in adding up
        found[IN_ROW, of] = _correlation(*_within(placed.row, values, np.arange(len(values))))
        means = _means(placed, values, of_batches)[..., 0]
        found[NEXT, of] = _correlation(means[:, :-1].ravel(), means[:, 1:].ravel())
        found[VARIANCE, of] = float(np.nanvar(means))
        if hosts > 1:
            found[OF_HOSTS, of] = float(np.nanvar(_means(placed, values, of_hosts)))
    return found


def _means(placed: Placement, values: Floats, shape: tuple[int, ...]) -> Floats:
    """The means of rows that the last axis of a shape joins; nan where there are no slots."""
    sums, slots = (
        np.bincount(placed.row, weights, placed.rows).reshape(shape).sum(axis=-1)
        for weights in (placed.slots * values, placed.slots)
    )
    return np.asarray(np.divide(sums, slots, out=np.full(sums.shape, np.nan), where=slots > 0))


def _within(group: Ints, *columns: AnyInts | Floats) -> Iterator[Floats]:
    """The deviations from the means of groups."""
    counts = np.maximum(np.bincount(group), 1)
    return (each - (np.bincount(group, each) / counts)[group] for each in columns)


def _correlation(a: Floats, b: Floats) -> float:
    known = ~(np.isnan(a) | np.isnan(b))
    if not known.any():
        return np.nan
    a, b = (each[known] - each[known].mean() for each in (a, b))
    spread = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / spread if spread > 1e-9 * len(a) else np.nan


@dataclass(frozen=True)
class Figure:
    """One figure of a shuffle, beside that of random deals of the same documents.

    >>> Figure("equal neighbours", "length", 0.85, 0.007, 0.014).good
    False
    """

    name: str
    of: str
    """the quantity: "length" of documents, or their "number" in the corpus"""
    found: float
    random: float
    """the mean of random deals"""
    limit: float
    """good up to here"""

    @property
    def good(self) -> bool:
        """Whether it is within its limit."""
        return abs(self.found) <= self.limit

    def __str__(self) -> str:
        verdict = "good" if self.good else "POOR"
        if self.name in (EQUAL, KEPT):
            return f"{100 * self.found:.2f} % {verdict} ({100 * self.limit:.2f} %)"
        return f"{self.found:.2f} {verdict} ({self.limit:.2f})"


def measured(placed: Placement, hosts: int, deals: Sequence[Placement]) -> Iterator[Figure]:
    """The figures of a placement, as far as there is something to measure.

    Args:
        placed: where documents lie.
        hosts: hosts that share a batch; 1 leaves their figures out.
        deals: the same documents dealt at random (`Placement.dealt`): they tell what is noise.
    """
    values, random = values_of(placed, hosts), [values_of(deal, hosts) for deal in deals]
    for (name, of), found in values.items():
        dealt = np.array([each[name, of] for each in random])
        few = placed.rows < _FEWEST * placed.batch and name in (NEXT, VARIANCE, OF_HOSTS)
        if few or np.isnan(found) or np.isnan(dealt).all():
            continue
        usual, noise = float(np.nanmean(dealt)), _SIGMAS * float(np.nanstd(dealt))
        if name in (EQUAL, KEPT):
            limit = max(_LEAST[name], 2 * usual, usual + noise)
        elif name in (IN_ROW, NEXT):
            limit = max(_LEAST[name], _SIGMAS * float(np.sqrt(np.nanmean(dealt**2))))
        elif usual > 0:
            parts = hosts if name == OF_HOSTS else 1
            limit = _VARIANCE[of] * _by_chance(placed.rows // placed.batch * parts)
            found, usual = found / usual, 1.0
        else:
            continue
        yield Figure(name, of, found, usual, limit)


def _by_chance(count: int) -> float:
    """How far a variance of so many means exceeds the true one once in a thousand times.

    By Wilson and Hilferty's approximation of the chi-squared distribution.

    >>> round(_by_chance(16), 2), round(_by_chance(1_000), 2)
    (2.46, 1.14)
    """
    ninth = 2 / (9 * (count - 1))
    return float((1 - ninth + 3 * ninth**0.5) ** 3)


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
    """those that could be measured"""

    @property
    def poor(self) -> list[Figure]:
        """The figures that are beyond their limits."""
        return [figure for figure in self.figures if not figure.good]

    def figure(self, name: str, of: str) -> Figure | None:
        """That of a name ("equal neighbours", …) and quantity ("length", "number"), if measured."""
        return next((each for each in self.figures if (each.name, each.of) == (name, of)), None)


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

    For each source: correlation of the length and number of documents with their place in rows;
    that of the token-weighted means of successive batches, and the variance of these means over
    that of the same documents dealt to rows at random; and neighbours inside rows that are of equal
    length, or were neighbours in the corpus. Only lengths are used.

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
    random, found = np.random.default_rng(seed), []
    for each, batch in _tables(table, batch_size, hosts, sources):
        for name, placed in placements(each, batch, documents):
            parts = hosts if placed.batch % hosts == 0 else 1
            deals = [placed.dealt(random) for _ in range(_DEALS)] if len(placed.slots) else []
            figures = tuple(measured(placed, parts, deals)) if deals else ()
            sizes = placed.rows, len(each), placed.batch, parts
            found.append(ShuffleQuality(name, _packing(each), *sizes, figures))
    return found


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


def _packing(table: RowTable) -> str:
    settings: Any = getattr(table, "settings", None)
    if isinstance(settings, PackSettings):
        return f"{settings.strategy}, {'shuffled' if settings.shuffle else 'not shuffled'}"
    return f"{table.identity().get('order', 'its own')} order"


def shuffle_lines(quality: ShuffleQuality) -> Iterator[str]:
    r"""What was measured of a source: a line that sums up, and a table.

    >>> figures = (Figure("equal neighbours", "length", 0.85, 0.007, 0.014),)
    >>> web = ShuffleQuality("web", "best_fit, shuffled", 640, 640, 64, 1, figures)
    >>> print("\n".join(line.rstrip() for line in shuffle_lines(web)))
    web (best_fit, shuffled): 1 of 1 figures is not good; 640 of 640 rows, 64 in a batch
                                      length of documents     number of documents
      equal neighbours                85.00 % POOR (1.40 %)
    """
    known, poor = quality.figures, len(quality.poor)
    verdict = f"{poor} of {len(known)} figures {'is' if poor == 1 else 'are'} not good"
    if not known:
        verdict = "nothing could be measured"
    elif not poor:
        verdict = f"all {len(known)} figures are good"
    hosts = f" over {quality.hosts} hosts" if quality.hosts > 1 else ""
    looked_at = f"{quality.rows:,} of {quality.of_rows:,} rows, {quality.batch:,} in a batch{hosts}"
    yield f"{quality.source} ({quality.packing}): {verdict}; {looked_at}"
    if known:
        yield f"  {'':<32}{'length of documents':<24}number of documents"
    cells = {(each.name, each.of): str(each) for each in known}
    for name in dict.fromkeys(each.name for each in known):
        one, other = (cells.get((name, of), "") for of in (LENGTH, NUMBER))
        yield f"  {name:<32}{one:<24}{other}".rstrip()
