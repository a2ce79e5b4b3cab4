"""Rows in Megatron's order, of one dataset and of a blend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxdata.errors import InputError
from jaxdata.rows.documents import Documents
from jaxdata.rows.megatron.blending import blend_order, normalized, places_in_datasets
from jaxdata.rows.megatron.kept import KeptArrays, keep
from jaxdata.rows.megatron.masking import FirstTokensMasked
from jaxdata.rows.megatron.order import document_order, plan_epochs, sample_order
from jaxdata.rows.table import Segments, brief
from jaxdata.rows.windows import expand

__all__ = ["BlendedRows", "GptRows", "GptSettings"]

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class GptSettings:
    """What a row in Megatron's order depends on besides the documents."""

    seq_len: int
    seed: int
    reset: bool = False
    """segments and positions end with documents; else a row is one segment"""
    eod_mask_loss: bool = False
    """no loss for what is predicted from the last token of a document"""

    def __post_init__(self) -> None:
        if self.seq_len < 1:
            raise InputError(f"seq_len={self.seq_len}: expected at least 1")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"seed={self.seed}: expected 0 to 2**32 - 1, as numpy's RandomState")


class GptRows:
    """The row table of one dataset (see `RowTable`); row `i + n` of *n* is row *i* again.

    Args:
        documents: Megatron's documents: the sequences of an `.idx` file.
        settings: how they become rows.
        num_samples: samples wanted, which decide the number of epochs; None for one epoch.
        chosen: the documents that take part: those of a split.
    """

    def __init__(
        self,
        documents: Documents,
        settings: GptSettings,
        num_samples: int | None = None,
        chosen: range | None = None,
    ) -> None:
        read = FirstTokensMasked(documents) if settings.eod_mask_loss else documents
        self.documents, self.settings = (read,), settings
        self.seq_len = settings.seq_len
        self.positions = "segment" if settings.reset else "row"
        self.edges = "crossed" if settings.reset else "open"
        self._chosen = range(len(documents)) if chosen is None else chosen
        tokens = int(documents.lengths[self._part].sum(dtype=np.int64))
        if tokens <= self.seq_len:
            raise InputError(
                f"{documents.name}: its {len(self._chosen):,} documents have {tokens:,} tokens; "
                f"a row of seq_len={self.seq_len} takes {self.seq_len + 1}"
            )
        self.epochs = plan_epochs(tokens, self.seq_len, num_samples)
        self._kept = self._keep()

    @property
    def _part(self) -> slice:
        return slice(self._chosen.start, self._chosen.stop)

    def _keep(self) -> KeptArrays:
        """Where documents end in the stream, the sample of each row, the document of each place."""
        length, samples = len(self._chosen) * self.epochs.count, self.epochs.samples
        small = "<u4" if samples < 2**32 - 2 else "<i8"
        shapes = [("<i8", length), (small, samples), ("<i4", length)]
        key = {"data": self.documents[0].fingerprint, **self._facts(), "seq_len": self.seq_len}
        return keep(
            {**key, "seed": self.settings.seed}, shapes, self._build, self.documents[0].store
        )

    def _build(self) -> list[NDArray[Any]]:
        random = np.random.RandomState(self.settings.seed)
        chosen = np.arange(self._chosen.start, self._chosen.stop, dtype=np.int32)
        order = document_order(chosen, self.epochs, random)
        samples = sample_order(self.epochs, random)
        return [np.cumsum(self.documents[0].lengths[order], dtype=np.int64), samples, order]

    def _facts(self) -> dict[str, Any]:
        """What of the order does not follow from the settings."""
        chosen, epochs = self._chosen, self.epochs
        return {
            "documents": [chosen.start, chosen.stop],
            "epochs": epochs.count,
            "separate_last_epoch": epochs.separate,
        }

    def __len__(self) -> int:
        return self.epochs.samples

    def segments(self, rows: Ints) -> Segments:
        """See `RowTable`.

        Where a row's last target lies beyond the documents of its inputs, the document of it comes
        last, with no slots.
        """
        ends, samples, order = self._kept.arrays
        begin = samples[rows % len(self)].astype(np.int64) * self.seq_len
        first = np.searchsorted(ends, begin, side="right")
        last = np.searchsorted(ends, begin + self.seq_len, side="right")
        row, number = expand(last - first + 1)
        place = first[row] + number
        document = order[place].astype(np.int64)
        length = self.documents[0].lengths[document].astype(np.int64)
        before = ends[place] - length
        start = np.maximum(begin[row] - before, 0)
        stop = np.minimum(begin[row] + self.seq_len - before, length)
        nothing = np.zeros(len(row), np.int64)
        found = Segments(row, nothing, document, start, stop - start, nothing)
        return found.take(np.flatnonzero((found.slots > 0) | (place == last[row])))

    def identity(self) -> dict[str, Any]:
        """See `RowTable`."""
        data = {self.documents[0].name: self.documents[0].fingerprint[:8]}
        return {"order": "megatron", "data": data, **asdict(self.settings), **self._facts()}


class BlendedRows:
    """The row table of a blend (see `RowTable`).

    Args:
        tables: the datasets, of the same settings.
        weights: their shares; None to take each sample of each once.
        size: samples; where there are no weights, at most this many, or all (None).
    """

    def __init__(
        self, tables: Sequence[GptRows], weights: Sequence[float] | None, size: int | None
    ) -> None:
        self._tables, first = list(tables), tables[0]
        self.seq_len, self.positions, self.edges = first.seq_len, first.positions, first.edges
        self.documents = [table.documents[0] for table in tables]
        lengths = [len(table) for table in tables]
        total = sum(lengths)
        # Without weights and size, datasets are passed over once they are spent.
        self._limits = lengths if weights is None and size is None else None
        if weights is None:
            self._size = total if size is None else min(size, total)
            self._weights = normalized(lengths)
        else:
            assert size is not None
            self._size = size
            # Once more: Megatron divides by the sum again, which may be off 1 by a bit.
            self._weights = normalized(weights)
        self._kept = self._keep()
        self._check(lengths)

    def _keep(self) -> KeptArrays:
        shapes = [("<i8", self._size), ("<i2", self._size)]
        key = {"weights": self._weights, "size": self._size, "limits": self._limits}
        return keep(key, shapes, self._build, self.documents[0].store)

    def _build(self) -> list[NDArray[Any]]:
        order = blend_order(self._weights, self._size, self._limits)
        return [places_in_datasets(order, len(self._tables)), order]

    def _check(self, lengths: Sequence[int]) -> None:
        place, order = self._kept.arrays
        for number, length in enumerate(lengths):
            wanted = int(np.max(place, where=order == number, initial=-1)) + 1
            if wanted > length:
                raise InputError(
                    f"the blend takes {wanted:,} samples of {self.documents[number].name}, which "
                    f"has {length:,}; Megatron stops there as well: lower its weight or the size"
                )

    def __len__(self) -> int:
        return self._size

    def segments(self, rows: Ints) -> Segments:
        """See `RowTable`."""
        places, order = self._kept.arrays
        source, place = order[rows % len(self)], places[rows % len(self)]
        parts = []
        for number in np.unique(source).tolist():
            mine = np.flatnonzero(source == number)
            found = self._tables[number].segments(place[mine])
            origin = np.full(len(found.row), number, np.int64)
            parts.append(replace(found, row=mine[found.row], source=origin))
        return Segments.join(parts)

    def identity(self) -> dict[str, Any]:
        """See `RowTable`."""
        each = [table.identity() for table in self._tables]
        own = ("data", "documents", "epochs", "separate_last_epoch")
        shared = {name: value for name, value in each[0].items() if name not in own}
        return {
            **shared,
            "data": {f"{k}:{d.name}": d.fingerprint[:8] for k, d in enumerate(self.documents)},
            "datasets": brief([[facts[name] for name in own[1:]] for facts in each]),
            "weights": brief(self._weights),
            "size": self._size,
        }
