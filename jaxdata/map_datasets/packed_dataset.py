"""`pack`: the documents of a source as rows."""

from __future__ import annotations

from typing import Any, Unpack

from jaxdata.documents.custom import as_documents
from jaxdata.map_datasets.row_dataset import RowDataset
from jaxdata.mixing.concatenated import RepeatedRows
from jaxdata.packing.packed_rows import PackedRows
from jaxdata.packing.settings import PackArguments, PackSettings, PackSummary, with_settings
from jaxdata.progress import progress_bar
from jaxdata.rows.epochs import rows_of_epochs
from jaxdata.scalars import takes_numpy


class PackedDataset(RowDataset):
    """Rows of one source. `rows[i]` beyond the end is row `i % n` of epoch `i // n`."""

    table: PackedRows

    @property
    def plan(self) -> PackSummary:
        """Totals of one epoch (rows, trained tokens, padding …), computed without reading data."""
        return self.table.summary

    @takes_numpy
    def repeat(self, num_epochs: int | None = None, *, reseed_each_epoch: bool = True) -> Any:
        """Several epochs (`num_epochs=None`: endless), each reordered if `reseed_each_epoch`."""
        if not reseed_each_epoch:
            return super().repeat(num_epochs, reseed_each_epoch=False)
        return RowDataset(RepeatedRows(self.table, rows_of_epochs(len(self), num_epochs)))


@takes_numpy
@with_settings(PackSettings, without=("shuffle",))
def pack(docs: Any, *, seq_len: int, **packing: Unpack[PackArguments]) -> PackedDataset:
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
    settings = PackSettings(seq_len, **packing)
    with progress_bar("planning blocks") as progress:
        return PackedDataset(PackedRows(as_documents(docs), settings, progress))
