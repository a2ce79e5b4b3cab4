"""`mix`: rows of several sources by exact shares of tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxdata.errors import InputError
from jaxdata.map_datasets.packed_dataset import PackedDataset
from jaxdata.map_datasets.row_dataset import RowDataset
from jaxdata.mixing.mixture import Mixture, everything, mixture
from jaxdata.mixing.phases import OnExhaustion, Phase
from jaxdata.mixing.weights import WeighBy, Weights
from jaxdata.packing.packed_rows import PackedRows
from jaxdata.rows.epochs import whole_index
from jaxdata.rows.intervals import Exhaustion, Interval
from jaxdata.scalars import takes_numpy


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
        row = whole_index(index)
        return row + len(self) if row < 0 else row

    @takes_numpy
    def counts(self, rows: int | None = None) -> dict[str, int]:
        """Rows of each source among the first `rows` (default: all) of the mixture."""
        return self.table.counts(len(self) if rows is None else rows)

    @property
    def intervals(self) -> Sequence[Interval]:
        """The planned run: consecutive rows in which the shares do not change.

        Each has `start`, `rows`, `phase` and `shares`, of what `weigh_by` counts, by source.
        """
        return self.table.intervals

    @property
    def stretches(self) -> Sequence[Interval]:
        """The older name of `intervals`."""
        return self.table.intervals

    @property
    def exhaustions(self) -> Sequence[Exhaustion]:
        """Where sources run dry (`source`, `phase`, `row`); empty with "refuse"."""
        return self.table.exhaustions

    @property
    def amendments(self) -> list[dict[str, Any]]:
        """The changes made by `amend`, with the `row` of each; plain JSON, as in the state."""
        return self.table.amendments

    @takes_numpy
    def epochs(self, rows: int | None = None) -> dict[str, float]:
        """How often each source is read in the first `rows` (default: all) of the mixture."""
        read = self.table.epochs(len(self) if rows is None else rows)
        return {name: float(epochs) for name, epochs in read.items()}

    @takes_numpy
    def amend(
        self,
        row: int,
        *,
        rows: Mapping[str, PackedDataset] | None = None,
        phases: Sequence[Phase] | None = None,
        epochs: Mapping[str, float] | None = None,
        on_exhaustion: OnExhaustion | None = None,
    ) -> MixedDataset:
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
        from jaxdata.mixing.amend.amended_rows import amended
        from jaxdata.mixing.amend.revision import Amendment

        tables = _tables(rows or {}, "amend")
        table = amended(self.table, row, Amendment(tables, phases, epochs, on_exhaustion))
        return MixedDataset(table)

    def repeat(self, *_: Any, **__: Any) -> Any:
        """Rejected: a mixture has no second epoch."""
        raise InputError(
            "a mixture cannot be repeated: its sources would repeat beyond `epochs`. Enlarge the "
            "phases, and let sources repeat with mix(..., epochs={name: times})"
        )


@takes_numpy
def mix(
    rows: Mapping[str, PackedDataset],
    *,
    phases: Sequence[Phase] | None = None,
    weights: Weights | None = None,
    epochs: Mapping[str, float] | None = None,
    on_exhaustion: OnExhaustion = "refuse",
    weigh_by: WeighBy = "tokens",
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
        weigh_by: what weights are shares of: `"tokens"`, all trained tokens, or `"loss_tokens"`,
            those that have loss after the sources' stored masks. Amendments keep it.

    Returns:
        A `grain.MapDataset` of rows. `.intervals` and `.exhaustions` describe the run beforehand,
        `.amend(row, …)` changes the recipe from a row on.

    Raises:
        SourceExhausted: the phases need more rows than there are, and `on_exhaustion="refuse"`.
    """
    tables, often = _tables(rows, "mix"), dict(epochs or {})
    if phases is not None and weights is not None:
        raise InputError("mix takes phases=[…] or weights={…}, not both")
    if phases is None and weights is None:
        phases, on_exhaustion = everything(tables, often, weigh_by), "renormalize"
    elif weights is not None:
        phases = [Phase(weights=weights)]
    return MixedDataset(mixture(tables, phases or [], often, on_exhaustion, weigh_by))


def _tables(rows: Any, what: str) -> dict[str, PackedRows]:
    if not isinstance(rows, Mapping):
        expected = 'names and packed sources: {"web": jaxdata.pack(...), …}'
        raise InputError(f"{what}: given a {type(rows).__name__}, expected {expected}")
    for name, dataset in rows.items():
        if not isinstance(getattr(dataset, "table", None), PackedRows):
            raise InputError(
                f"{what}: source {name!r} is a {type(dataset).__name__}, expected the "
                "result of jaxdata.pack(...); transform rows after mixing: mix(...).map(f)"
            )
    return {name: dataset.table for name, dataset in rows.items()}
