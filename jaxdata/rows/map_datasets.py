"""`pack`, `mix` and `evaluation_rows`: tables of rows as real `grain.MapDataset`s."""

import math
import operator
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex, overload

import grain
import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.numbers import is_number, validated
from jaxdata.base.ragged import by_value
from jaxdata.dataset.array_documents import as_documents
from jaxdata.dataset.opening import Dataset, named_sources
from jaxdata.rows.mixing.mixture import Mixture, everything, mixture
from jaxdata.rows.mixing.phases import Amendment, OnExhaustion, Phase, Weights
from jaxdata.rows.packing.packed_rows import ConcatenatedRows, PackedRows, PackSummary
from jaxdata.rows.packing.settings import AnyPositions, AnyStrategy, PackSettings, ReshuffleName
from jaxdata.rows.packing.strategies import BEST_FIT, STRATEGIES
from jaxdata.rows.reading import assemble
from jaxdata.rows.table import Batch, Exhaustion, Interval, KeyedRows, Row, RowTable, row_number


class KnownRows(grain.MapDataset[Batch]):
    """Rows that say what they are: the base of all datasets of rows that are not transformed."""

    table: RowTable | None = None
    """what `Loader` reads at once; None: rows are read one by one"""
    ends = False
    """whether there are no rows beyond the last; else they are those of further epochs"""

    def sections(self) -> Sequence[tuple[int, KeyedRows | None]]:
        """Where rows change shape: first row, and the rows there if they know their place."""
        return [(0, None)]

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """The named facts that determine every row, for the state of a loader."""


class RowDataset(KnownRows):
    """A row table as a `MapDataset` of `Row`s: `len`, `[]`, `.map`, `.batch` … work on it."""

    table: RowTable

    def __init__(self, table: RowTable) -> None:
        super().__init__()
        self.table, self.ends = table, table.ends

    def sections(self) -> Sequence[tuple[int, RowTable]]:
        return self.table.sections()

    def identity(self) -> dict[str, Any]:
        return self.table.identity()

    def __len__(self) -> int:
        return len(self.table)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> grain.MapDataset[Row]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        return self._getitems([index])[0]

    def _getitems(self, indices: Sequence[int]) -> list[Batch]:
        rows = np.asarray([self._row(index) for index in indices], np.int64)
        sections = self.table.sections()
        section = np.searchsorted([start for start, _ in sections[1:]], rows, side="right")
        found: list[Batch] = [{}] * len(rows)
        for number, mine in by_value(section):
            batch = next(assemble(sections[number][1], [rows[mine]], len(mine)))
            for k, at in enumerate(mine.tolist()):
                found[at] = {name: array[k] for name, array in batch.items()}
        return found

    def _row(self, index: int) -> int:
        """The number of a row; negative indices count from the end, as grain's sources count."""
        return row_number(index, len(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.table.in_words})"


def row_table(rows: Any) -> RowTable | None:
    """The table of a dataset of rows, or None if its rows were transformed."""
    return rows.table if isinstance(rows, KnownRows) else None


def known_rows(rows: Any) -> KnownRows | None:
    """What is known of rows: they themselves, or the rows that they were made of one by one."""
    if isinstance(rows, KnownRows):
        return rows
    parents: Any = getattr(rows, "parents", ())
    one = len(parents) == 1 and len(parents[0]) == len(rows)
    return known_rows(parents[0]) if one else None


def have_epochs(rows: Any) -> bool:
    """Whether rows beyond the last are those of further epochs, as grain has it; of a mix not."""
    if isinstance(rows, KnownRows):
        return not rows.ends
    return all(map(have_epochs, getattr(rows, "parents", ())))


def identity_of(rows: Any) -> dict[str, Any]:
    """The identity of rows; of transformed ones that of the rows below, and their number."""
    if isinstance(rows, KnownRows):
        return rows.identity()
    known = known_rows(rows)
    if known is not None and known.table is not None:
        return known.identity()
    facts: dict[str, Any] = {"length": len(rows)}
    for number, parent in enumerate(getattr(rows, "parents", ())):
        inner = identity_of(parent)
        facts.update(inner if not number else {f"{number}.{k}": v for k, v in inner.items()})
    return facts


class PackedDataset(RowDataset):
    """Rows of one source. `rows[i]` beyond the end is row `i % n` of epoch `i // n`.

    With `reshuffle="documents"` it is a row of the epochs that follow, one after another.
    """

    table: PackedRows

    @property
    def plan(self) -> PackSummary:
        """Totals of one epoch (rows, trained tokens, padding …), computed without reading data."""
        return self.table.summary

    @validated
    def repeat(self, num_epochs: int | None = None, *, reseed_each_epoch: bool = True) -> Any:
        """Several epochs (`num_epochs=None`: endless), each reordered if `reseed_each_epoch`."""
        if not reseed_each_epoch:
            return super().repeat(num_epochs, reseed_each_epoch=False)
        return RowDataset(self.table.repeated(num_epochs))


@validated
def pack(
    docs: Any,
    *,
    seq_len: int,
    strategy: AnyStrategy = "best_fit",
    overlap: int = 0,
    seed: int = 0,
    positions: AnyPositions = "segment",
    max_segments: int | None = None,
    reshuffle: ReshuffleName = "rows",
    multiple: int = 1,
    chunk_bytes: int | None = None,
    block_bytes: int | None = None,
    lanes: int | None = None,
) -> PackedDataset:
    """Pack the documents of a source into shuffled rows of `seq_len` slots.

    Args:
        docs: a source from `dataset.source(split, name)`, or `ArrayDocuments`, or any object with
            `lengths` whose items are arrays of tokens or dicts of `tokens` and `loss_mask`, such
            as a grain `RandomAccessDataSource` (picklable, for workers).
        seq_len: slots of a row.
        strategy: `"best_fit"` (almost no padding, documents cut only where they are longer
            than a row), `"concat"` (one stream cut every `seq_len`), `"crop"` (every row starts
            with a document; the rest that does not fit is dropped), `"pad"` (one window a row).
        overlap: tokens of masked context: tokens at a window's start whose targets were trained in
            the previous window; at most half a row.
        seed: root of every order.
        positions: `"segment"` restarts at each segment, `"row"` runs along the row.
        max_segments: most segments in a row; None for no limit.
        reshuffle: what each epoch shuffles: `"rows"`, the same in another order, or
            `"documents"`, which are dealt and packed anew: a document has other company in every
            epoch and is cut elsewhere. Each epoch that a run declares is planned beforehand. The
            length is that of the first epoch; the others differ by a few rows.
        multiple: each segment takes a multiple of so many slots, the rest of them padding, as
            context parallelism by document needs it: twice the number of its parts.
        chunk_bytes: bytes of neighbouring documents that stay together; 0 for single documents,
            None for 0 in sources below 2 GiB, else 1 MiB.
        block_bytes: bytes of documents that are packed together; None for 8 MiB of chunks, or
            65,536 single documents.
        lanes: parts of an epoch that are read side by side, a power of two; None by size.

    Returns:
        A `grain.MapDataset` of rows; `.plan` has the totals of an epoch.

    >>> import jaxdata
    >>> docs = jaxdata.ArrayDocuments([[5, 6, 7, 0], [8, 9, 0]])
    >>> rows = jaxdata.pack(docs, seq_len=5)
    >>> len(rows), rows[0]["inputs"].tolist(), rows[0]["targets"].tolist()
    (1, [8, 9, 5, 6, 7], [9, 0, 6, 7, 0])
    """
    settings = PackSettings.among(locals())
    return PackedDataset(PackedRows(as_documents(docs), settings))


@validated
def evaluation_rows(
    dataset: Dataset,
    split: str,
    *,
    seq_len: int,
    eval_tokens: float | None = None,
    strategy: AnyStrategy = "best_fit",
    overlap: int = 0,
    positions: AnyPositions = "segment",
    max_segments: int | None = None,
    multiple: int = 1,
) -> RowDataset:
    """Every source of a split once, in the order of the dataset: the same rows every time.

    So every epoch is the same: `rows[i]` beyond the end is row `i % n` of the *n* rows, and
    `rows.repeat(2)` gives them twice. A strategy that would leave tokens out of the measure
    (`crop`) is replaced by `best_fit`.

    Args:
        dataset: where the split is.
        split: which; or one source of it, `"val/web"`.
        seq_len: slots of a row.
        eval_tokens: most slots; None for all.
        strategy: as for `pack`, like what follows; `"crop"` is replaced.
        overlap: tokens of masked context at the start of a window.
        positions: where positions restart: `"segment"` or `"row"`.
        max_segments: most segments in a row; None for no limit.
        multiple: slots of which each segment takes a multiple.

    >>> import tempfile
    >>> from jaxdata import testing
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dataset = testing.write_dataset(folder, {"val/web": [[1, 2, 0], [3, 0], [4, 0]]})
    ...     len(evaluation_rows(dataset, "val", seq_len=4))
    1
    """
    if strategy in STRATEGIES and not STRATEGIES[strategy].keeps_all:
        strategy = BEST_FIT.name
    settings = PackSettings.among({**locals(), "shuffle": False})
    sources = named_sources(dataset, split)
    if eval_tokens is not None and not (is_number(eval_tokens) and 0 < eval_tokens < math.inf):
        raise InputError(f"eval_tokens={eval_tokens!r}: expected a number above 0, or None for all")
    limit = None if eval_tokens is None else math.ceil(eval_tokens / seq_len)
    return RowDataset(ConcatenatedRows([PackedRows(docs, settings) for docs in sources], limit))


class MixedDataset(RowDataset):
    """Rows of a mixture. It ends with its phases: an index beyond the end raises IndexError."""

    table: Mixture

    @property
    def sources(self) -> dict[str, PackedDataset]:
        """The packed sources by name, as the last recipe has them."""
        return {name: PackedDataset(packed) for name, packed in self.table.sources.items()}

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) and (index.start or 0) >= len(self):
            raise IndexError(f"slice from row {index.start} of a mixture of {len(self)} rows")
        return super().__getitem__(index)

    def _row(self, index: int) -> int:
        row = operator.index(index)
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} is out of range for a mixture of {len(self)} rows")
        return row % len(self)

    @validated
    def counts(self, rows: int | None = None) -> dict[str, int]:
        """Rows of each source among the first `rows` (default: all) of the mixture."""
        return self.table.counts(len(self) if rows is None else rows)

    @property
    def intervals(self) -> Sequence[Interval]:
        """The planned run: consecutive rows in which the shares do not change.

        Each has `start`, `rows`, `phase` and `shares`, of the trained tokens, by source.
        """
        return self.table.intervals

    @property
    def exhaustions(self) -> Sequence[Exhaustion]:
        """Where sources run dry (`source`, `phase`, `row`); empty with "refuse"."""
        return self.table.exhaustions

    @property
    def amendments(self) -> list[dict[str, Any]]:
        """The changes made by `amend`, with the `row` of each; plain JSON, as in the state."""
        return self.table.amendments

    @validated
    def epochs(self, rows: int | None = None) -> dict[str, float]:
        """How often each source is read in the first `rows` (default: all) of the mixture."""
        read = self.table.epochs(len(self) if rows is None else rows)
        return {name: float(epochs) for name, epochs in read.items()}

    @validated
    def amend(
        self,
        row: int,
        *,
        rows: Mapping[str, PackedDataset] | None = None,
        phases: Sequence[Phase] | None = None,
        weights: Weights | None = None,
        epochs: Mapping[str, float] | None = None,
        on_exhaustion: OnExhaustion | None = None,
    ) -> "MixedDataset":
        """The same mixture up to `row`, and another recipe from there on.

        Rows before `row` do not change, and none of their tokens is repeated. A loader of the
        result accepts any state of this mixture up to `row`, and records the amendment.

        Amendments add up, in whatever order they are made: those at one row are one (the later
        call wins where both set the same), and those at later rows are kept.

        Args:
            row: the first row that may change: `loader.next_row`, or later.
            rows: new sources; or known sources packed in another way (pass the same documents
                to `jaxdata.pack` again), of which the unread part is repacked. With another
                `seq_len`, batches have another shape from `row` on.
            phases: the phases that follow; by default the remaining ones.
            weights: weights for the rest of the phase that is under way at `row`, whose budget
                stays, as those of later phases do. A running loader changes them by `reweigh`.
            epochs: most epochs of a source over the whole run, where that changes.
            on_exhaustion: as in `mix`, where that changes.

        Raises:
            InputError: there is no such row, the sources do not fit, or an amendment at a later row
                no longer does.
            SourceExhausted: the phases need more rows than remain, and `on_exhaustion="refuse"`.

        >>> import jaxdata
        >>> docs = jaxdata.ArrayDocuments([[1, 2, 3, 4, 0]] * 8, name="web")
        >>> short = {"web": jaxdata.pack(docs, seq_len=2)}
        >>> mixed = jaxdata.mix(short, phases=[jaxdata.Phase(rows=6, weights={"web": 1})])
        >>> long = {"web": jaxdata.pack(docs, seq_len=4)}
        >>> longer = mixed.amend(6, rows=long, phases=[jaxdata.Phase(weights={"web": 1})])
        >>> [len(longer[row]["inputs"]) for row in (0, 5, 6, len(longer) - 1)]
        [2, 2, 4, 4]
        """
        from jaxdata.rows.mixing.amended_rows import amended

        tables = _tables(rows or {}, "amend")
        changes = Amendment(tables, phases, epochs, on_exhaustion, weights)
        return MixedDataset(amended(self.table, row, changes))

    def repeat(self, *_: Any, **__: Any) -> Any:
        """Rejected: a mixture has no second epoch."""
        raise InputError(
            "a mixture cannot be repeated: its sources would repeat beyond `epochs`. Enlarge the "
            "phases, and let sources repeat with mix(..., epochs={name: times})"
        )


@validated
def mix(
    rows: Mapping[str, PackedDataset],
    *,
    phases: Sequence[Phase] | None = None,
    weights: Weights | None = None,
    epochs: Mapping[str, float] | None = None,
    on_exhaustion: OnExhaustion = "refuse",
) -> MixedDataset:
    """Mix packed sources by exact shares of trained tokens.

    After any number of rows in a phase, each source's count of rows is within two of its share,
    which is fixed by its average row of an epoch. In the next phase a source continues where it
    stopped.

    Args:
        rows: packed sources by name, all of one `seq_len`.
        phases: consecutive phases with budgets and weights. Or:
        weights: the weights of one phase that runs until a source is exhausted (the last one,
            with `"renormalize"`). With neither, all sources are read to their ends.
        epochs: most epochs of a source; 1 by default, fractions allowed.
        on_exhaustion: if a source has too few rows, `"refuse"` to start, `"halt"` at that row, or
            `"renormalize"` the weights of the others from that row on.

    Returns:
        A `grain.MapDataset` of rows. `.intervals` and `.exhaustions` describe the run beforehand,
        `.amend(row, …)` changes the recipe from a row on.

    Raises:
        SourceExhausted: the phases need more rows than there are, and `on_exhaustion="refuse"`.

    >>> import jaxdata
    >>> documents = [[1, 2, 3, 0]] * 40
    >>> web = jaxdata.pack(jaxdata.ArrayDocuments(documents, name="web"), seq_len=6)
    >>> code = jaxdata.pack(jaxdata.ArrayDocuments(documents, name="code"), seq_len=6)
    >>> phase = jaxdata.Phase(rows=10, weights={"web": 0.7, "code": 0.3})
    >>> jaxdata.mix({"web": web, "code": code}, phases=[phase]).counts()
    {'web': 7, 'code': 3}
    """
    tables, often = _tables(rows, "mix"), dict(epochs or {})
    if phases is not None and weights is not None:
        raise InputError("mix takes phases=[…] or weights={…}, not both")
    if phases is None and weights is None:
        phases, on_exhaustion = everything(tables, often), "renormalize"
    elif weights is not None:
        phases = [Phase(weights=weights)]
    return MixedDataset(mixture(tables, phases or [], often, on_exhaustion))


def _tables(rows: Any, what: str) -> dict[str, PackedRows]:
    if not isinstance(rows, Mapping):
        expected = 'names and packed sources: {"web": jaxdata.pack(...), …}'
        raise InputError(f"{what}: given a {type(rows).__name__}, expected {expected}")
    for name, dataset in rows.items():
        if not isinstance(dataset, PackedDataset):
            raise InputError(
                f"{what}: source {name!r} is a {type(dataset).__name__}, expected the "
                "result of jaxdata.pack(...); transform rows after mixing: mix(...).map(f)"
            )
    return {name: dataset.table for name, dataset in rows.items()}


__all__ = [
    "KnownRows",
    "MixedDataset",
    "PackedDataset",
    "RowDataset",
    "evaluation_rows",
    "mix",
    "pack",
]
