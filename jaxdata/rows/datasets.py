"""The public face of rows: `pack` and `mix` as real `grain.MapDataset`s."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import grain
import numpy as np

from jaxdata.errors import InputError
from jaxdata.progress import progress_bar
from jaxdata.rows.assembly import assemble
from jaxdata.rows.documents import as_documents
from jaxdata.rows.mixture import MixedRows
from jaxdata.rows.packed import PackedRows
from jaxdata.rows.phases import Phase
from jaxdata.rows.recipes import amended, everything, mixture
from jaxdata.rows.serial import RepeatedRows, SerialRows
from jaxdata.rows.settings import PackSettings, PackSummary
from jaxdata.rows.sources import Sources, source_names
from jaxdata.rows.stretches import Exhaustion, Stretch
from jaxdata.rows.table import Batch, RowTable, sections
from jaxdata.rows.weights import Weights

__all__ = ["MixedDataset", "PackedDataset", "RowDataset", "evaluation_rows", "mix", "pack"]


class RowDataset(grain.MapDataset[Batch]):
    """A row table as a `MapDataset`: `len`, `[]`, `.map`, `.batch` … work on it.

    A row is a dict of `inputs`, `targets`, `segment_ids`, `positions` (int32) and
    `loss_mask` (bool), each of shape (seq_len,).
    """

    def __init__(self, table: RowTable) -> None:
        super().__init__()
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        return self._getitems([index])[0]

    def _getitems(self, indices: Sequence[int]) -> list[Batch]:
        rows = np.asarray([self._row(index) for index in indices], np.int64)
        parts = sections(self.table)
        part = np.searchsorted([start for start, _ in parts[1:]], rows, side="right")
        found: list[Batch] = [{}] * len(rows)
        for number in set(part.tolist()):
            mine = np.flatnonzero(part == number)
            batch = next(assemble(parts[number][1], [rows[mine]], len(mine)))
            for k, at in enumerate(mine.tolist()):
                found[at] = {name: array[k] for name, array in batch.items()}
        return found

    def _row(self, index: int) -> int:
        return index + len(self) if index < 0 else index

    def __str__(self) -> str:
        return f"{type(self).__name__}({len(self)} rows of {self.table.seq_len})"


class PackedDataset(RowDataset):
    """Rows of one source. `rows[i]` beyond the end is row `i % n` of epoch `i // n`."""

    table: PackedRows

    @property
    def plan(self) -> PackSummary:
        """What one epoch amounts to: rows, trained tokens, padding …; nothing is read for it."""
        return self.table.summary

    def repeat(self, num_epochs: int | None = None, *, reseed_each_epoch: bool = True) -> Any:
        """Several epochs (None: without end), each in its own order unless told otherwise."""
        if not reseed_each_epoch:
            return super().repeat(num_epochs, reseed_each_epoch=False)
        rows = sys.maxsize if num_epochs is None else len(self) * num_epochs
        return RowDataset(RepeatedRows(self.table, rows))


class MixedDataset(RowDataset):
    """Rows of a mixture. It ends with its phases: an index beyond the end raises IndexError."""

    table: MixedRows

    def __init__(self, table: MixedRows, sources: Mapping[str, PackedDataset]) -> None:
        super().__init__(table)
        self.sources = dict(sources)
        """the packed sources by name"""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice) and (index.start or 0) >= len(self):
            raise IndexError(f"slice from row {index.start} of a mixture of {len(self)} rows")
        return super().__getitem__(index)

    def counts(self, rows: int | None = None) -> dict[str, int]:
        """Rows of each source among the first `rows` (default: all) of the mixture."""
        return self.table.counts(len(self) if rows is None else rows)

    @property
    def stretches(self) -> list[Stretch]:
        """The run as it is planned: consecutive rows in which the shares do not change.

        Each has `start`, `rows`, `phase` and `shares`, of the trained tokens, by source.
        """
        return self.table.stretches

    @property
    def exhaustions(self) -> list[Exhaustion]:
        """Where sources run dry: each has `source`, `phase` and `row`. With "refuse" nowhere."""
        return self.table.exhaustions

    @property
    def amendments(self) -> list[dict[str, Any]]:
        """What `amend` changed, from which `row` on; plain JSON, as the state records it."""
        return self.table.amendments

    def epochs(self, rows: int | None = None) -> dict[str, float]:
        """How often each source is read in the first `rows` (default: all) of the mixture."""
        read = self.table.epochs(len(self) if rows is None else rows)
        return {name: float(epochs) for name, epochs in read.items()}

    def amend(
        self,
        row: int,
        *,
        rows: Mapping[str, PackedDataset] | None = None,
        phases: Sequence[Phase] | None = None,
        epochs: Mapping[str, float] | None = None,
        on_exhaustion: str | None = None,
    ) -> MixedDataset:
        """The same mixture up to `row`, and another recipe from there on.

        What is before `row` stays as it is, and none of it comes again. A loader of the result
        takes any state of this mixture that is not beyond `row`, and remembers the amendment.

        Args:
            row: the first row that may change: `loader.next_row`, or later.
            rows: sources that are new; or that go on packed in another way, the same documents
                given to `jaxdata.pack` again: what of them was not read yet is packed anew.
                With another `seq_len`, batches have another shape from `row` on.
            phases: what follows; where not given, what is left of the phases there were.
            epochs: how often a source may be seen in the whole run, where that changes.
            on_exhaustion: likewise.

        Raises:
            SourceExhausted: the phases ask for more than is left, and `on_exhaustion="refuse"`.

        >>> import jaxdata
        >>> docs = jaxdata.ArrayDocuments([[1, 2, 3, 4, 0]] * 8, name="web")
        >>> short = {"web": jaxdata.pack(docs, seq_len=2)}
        >>> mixed = jaxdata.mix(short, phases=[jaxdata.Phase(rows=6, weights={"web": 1})])
        >>> long = {"web": jaxdata.pack(docs, seq_len=4)}
        >>> longer = mixed.amend(6, rows=long, phases=[jaxdata.Phase(weights={"web": 1})])
        >>> [len(longer[row]["inputs"]) for row in (0, 5, 6, len(longer) - 1)]
        [2, 2, 4, 4]
        """
        table = amended(
            self.table,
            row,
            _tables(rows or {}, "amend"),
            phases=phases,
            epochs=epochs,
            on_exhaustion=on_exhaustion,
        )
        return MixedDataset(table, {**self.sources, **(rows or {})})

    def repeat(self, *_: Any, **__: Any) -> Any:
        """Refused: a mixture has no second epoch."""
        raise InputError(
            "a mixture cannot be repeated: its sources would come again unasked. Enlarge the "
            "phases, and let sources repeat with mix(..., epochs={name: times})"
        )


def pack(
    docs: Any,
    *,
    seq_len: int,
    strategy: str = "best_fit",
    overlap: int = 0,
    seed: int = 0,
    positions: str = "segment",
    max_segments: int | None = None,
    block: int = 65_536,
    shuffle_run: int = 1,
) -> PackedDataset:
    """Pack the documents of a source into shuffled rows of `seq_len` slots.

    Args:
        docs: a source, as `dataset.source(split, name)` gives it, or `ArrayDocuments`; or any
            object with `lengths` whose items are arrays of tokens, or dicts of `tokens` and
            `loss_mask`, such as a grain `RandomAccessDataSource` (picklable, for workers).
        seq_len: slots of a row.
        strategy: `"best_fit"` (almost no padding, documents cut only where they are longer
            than a row), `"concat"` (one stream cut every `seq_len`), `"crop"` (every row
            starts with a document; what does not fit is dropped), `"pad"` (one window a row).
        overlap: tokens a window repeats of the one before, without loss; at most half a row.
        seed: root of every order.
        positions: `"segment"` restarts at each segment, `"row"` runs along the row.
        max_segments: most segments in a row; None for no limit.
        block: documents that are packed together.
        shuffle_run: neighbouring documents that stay together when documents are dealt to blocks.
            More than 1 lets a disk or network that punishes random reads read a block in long
            runs; a single batch still takes its rows from anywhere in the block. It costs
            randomness: neighbours in the corpus are then trained close to each other, so let no
            file be sorted by topic or length.

    Returns:
        A `grain.MapDataset` of rows; `.plan` says what an epoch amounts to.

    >>> import jaxdata
    >>> docs = jaxdata.ArrayDocuments([[5, 6, 7, 0], [8, 9, 0]])
    >>> rows = jaxdata.pack(docs, seq_len=5)
    >>> len(rows), rows[0]["inputs"].tolist(), rows[0]["targets"].tolist()
    (1, [5, 6, 7, 8, 9], [6, 7, 0, 9, 0])
    """
    settings = PackSettings(
        seq_len, strategy, overlap, seed, positions, max_segments, block, shuffle_run
    )
    with progress_bar("planning blocks") as progress:
        return PackedDataset(PackedRows(as_documents(docs), settings, progress))


def mix(
    rows: Mapping[str, PackedDataset],
    *,
    phases: Sequence[Phase] | None = None,
    weights: Weights | None = None,
    epochs: Mapping[str, float] | None = None,
    on_exhaustion: str = "refuse",
) -> MixedDataset:
    """Mix packed sources by exact shares of trained tokens.

    After any number of rows in a phase each source's count is within two rows of its share. A
    source goes on in the next phase where the last one left it.

    Args:
        rows: packed sources by name, all of one `seq_len`.
        phases: budgets and weights, one after the other. Or:
        weights: those of one phase that goes on until a source runs dry (the last one, with
            `"renormalize"`). With neither, all sources are read to their ends.
        epochs: how often a source may be seen; 1 where not said, fractions allowed.
        on_exhaustion: where a source has too few rows: `"refuse"` to start, `"halt"` there,
            or `"renormalize"` the weights of the others from there on.

    Returns:
        A `grain.MapDataset` of rows. `.stretches` and `.exhaustions` say beforehand what it will
        be, `.amend(row, …)` changes the recipe from a row on.

    Raises:
        SourceExhausted: the phases ask for more than there is, and `on_exhaustion="refuse"`.
    """
    tables, often = _tables(rows, "mix"), dict(epochs or {})
    if phases is not None and weights is not None:
        raise InputError("mix takes phases=[…] or weights={…}, not both")
    if phases is None and weights is None:
        phases, on_exhaustion = everything(tables, often), "renormalize"
    elif weights is not None:
        phases = [Phase(weights=weights)]
    return MixedDataset(mixture(tables, phases or [], often, on_exhaustion), rows)


def _tables(rows: Mapping[str, PackedDataset], what: str) -> dict[str, PackedRows]:
    for name, dataset in rows.items():
        if not isinstance(getattr(dataset, "table", None), PackedRows):
            raise InputError(
                f"{what}: source {name!r} is a {type(dataset).__name__}, expected what "
                "jaxdata.pack(...) returns; transform rows after mixing: mix(...).map(f)"
            )
    return {name: dataset.table for name, dataset in rows.items()}


def evaluation_rows(
    dataset: Sources,
    split: str,
    *,
    seq_len: int,
    strategy: str = "best_fit",
    overlap: int = 0,
    positions: str = "segment",
    max_segments: int | None = None,
    eval_tokens: float | None = None,
) -> RowDataset:
    """Every source of a split once, in the order of the dataset: the same rows every time.

    `crop` would leave tokens out of the measure: it is evaluated as `best_fit`.
    `eval_tokens` caps the slots.
    """
    whole = "best_fit" if strategy == "crop" else strategy
    settings = PackSettings(seq_len, whole, overlap, 0, positions, max_segments, shuffle=False)
    sources = [dataset.source(split, name) for name in source_names(dataset, split)]
    limit = None if eval_tokens is None else max(1, math.ceil(eval_tokens / seq_len))
    return RowDataset(SerialRows([PackedRows(docs, settings) for docs in sources], limit))


def row_table(rows: Any) -> RowTable | None:
    """The table behind a dataset of rows, or None where its rows were transformed."""
    return rows.table if isinstance(rows, RowDataset) else None


def section_starts(rows: Any) -> list[int]:
    """First rows of the parts in which rows have one shape, the first of them 0."""
    table = underlying_table(rows)
    return [0] if table is None else [0, *(start for start, _ in sections(table)[1:])]


def underlying_table(rows: Any) -> RowTable | None:
    """The table behind rows, or behind what they were made of row by row."""
    parents: Any = getattr(rows, "parents", ())
    if isinstance(rows, RowDataset):
        return rows.table
    one = len(parents) == 1 and len(parents[0]) == len(rows)
    return underlying_table(parents[0]) if one else None


def underlying_identity(rows: Any) -> dict[str, Any]:
    """The identity of the table that a transformed dataset of rows stands on."""
    if isinstance(rows, RowDataset):
        return rows.table.identity()
    if hasattr(rows, "identity"):
        return dict(rows.identity())
    parents: Any = getattr(rows, "parents", ())
    if underlying_table(rows) is not None:
        return underlying_identity(parents[0])
    facts: dict[str, Any] = {"length": len(rows)}
    for number, parent in enumerate(parents):
        inner = underlying_identity(parent)
        facts.update(inner if not number else {f"{number}.{k}": v for k, v in inner.items()})
    return facts
