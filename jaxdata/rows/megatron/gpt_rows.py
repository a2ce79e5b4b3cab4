"""Rows in Megatron's order, of one dataset and of a blend."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.facts import brief
from jaxdata.base.ragged import AnyArray, Ints, expand
from jaxdata.dataset.documents import Documents
from jaxdata.dataset.plan_cache import CachedArrays, cached_arrays
from jaxdata.dataset.views.kept_documents import identified
from jaxdata.rows.megatron.masking import MaskedDocuments, MegatronRows
from jaxdata.rows.megatron.order import (
    Epochs,
    GptSettings,
    blend_order,
    document_order,
    normalized,
    places_in_datasets,
    plan_epochs,
    sample_order,
)
from jaxdata.rows.table import JoinedRows, Segments

_PREFIX = "megatron-"  # of names in the plan cache


class GptRows(MegatronRows):
    """Rows of one dataset; row `i + n` of *n* is row *i* again.

    Args:
        documents: Megatron's documents: the sequences of an `.idx` file.
        settings: how they become rows.
        num_samples: samples wanted, which determine the number of epochs; None for one epoch.
        chosen: the documents of a split; None for all.
    """

    def __init__(
        self,
        documents: Documents,
        settings: GptSettings,
        num_samples: int | None = None,
        chosen: range | None = None,
    ) -> None:
        if settings.eod_mask_loss or settings.pad_id is not None:
            documents = MaskedDocuments(documents, settings)
        super().__init__((documents,), settings)
        self._chosen = range(len(documents)) if chosen is None else chosen
        tokens = int(documents.lengths[self._part].sum(dtype=np.int64))
        self.passes = self._plan(tokens, num_samples)
        self._stream = tokens * self.passes.count
        self._order = self._cached()

    def _plan(self, tokens: int, num_samples: int | None) -> Epochs:
        extra = self.settings.add_extra_token_to_sequence
        drop_last = self.settings.drop_last_partial_validation_sequence
        least = self.seq_len if drop_last else 1
        if tokens < least + extra:
            raise InputError(
                f"{self.documents[0].name}: its {len(self._chosen):,} documents have {tokens:,} "
                f"tokens; a row of seq_len={self.seq_len} needs {least + extra}"
            )
        return plan_epochs(tokens, self.seq_len, num_samples, extra, drop_last)

    @property
    def _part(self) -> slice:
        return slice(self._chosen.start, self._chosen.stop)

    def _cached(self) -> CachedArrays:
        """The ends of documents in the stream, the sample of each row, the order of documents."""
        length, samples = len(self._chosen) * self.passes.count, self.passes.samples
        small = "<u4" if samples < 2**32 - 2 else "<i8"
        shapes = [("<i8", length), (small, samples), ("<i4", length)]
        key = {"data": self.documents[0].fingerprint, **self._facts(), "seq_len": self.seq_len}
        key |= {"seed": self.settings.seed, **self.settings.stream_facts()}
        return cached_arrays(self.documents[0], key, self._build, shapes, _PREFIX)

    def _build(self) -> list[AnyArray]:
        random = np.random.RandomState(self.settings.seed)
        chosen = np.arange(self._chosen.start, self._chosen.stop, dtype=np.int32)
        order = document_order(chosen, self.passes, random)
        samples = sample_order(self.passes, random)
        return [np.cumsum(self.documents[0].lengths[order], dtype=np.int64), samples, order]

    def _facts(self) -> dict[str, Any]:
        """Facts of the order that do not follow from the settings."""
        chosen, passes = self._chosen, self.passes
        return {
            "documents": [chosen.start, chosen.stop],
            "epochs": passes.count,
            "separate_last_epoch": passes.separate,
        }

    def __len__(self) -> int:
        return self.passes.samples

    def segments(self, rows: Ints) -> Segments:
        try:
            return self._segments(rows)
        except IndexError:
            raise self._other_order() from None

    def _other_order(self) -> DatasetError:
        return self._order.damaged(f"Megatron's order of {self.documents[0].name}")

    def _segments(self, rows: Ints) -> Segments:
        ends, samples, order = self._order.arrays
        extra = self.settings.add_extra_token_to_sequence
        begin = samples[rows % len(self)].astype(np.int64) * self.seq_len
        begin = np.minimum(begin, self._stream - extra)
        end = np.minimum(begin + self.seq_len, self._stream)
        first = np.searchsorted(ends, begin, side="right")
        last = np.minimum(np.searchsorted(ends, end, side="right"), len(ends) - 1)
        row, number = expand(last - first + 1)
        place = first[row] + number
        document = order[place].astype(np.int64)
        length = self.documents[0].lengths[document].astype(np.int64)
        before = ends[place] - length
        start = np.maximum(begin[row] - before, 0)
        stop = np.minimum(end[row] - before, length)
        slots, nothing = stop - start, np.zeros(len(row), np.int64)
        # The order is mapped and was not read; but a damaged one does not fill its samples.
        least = min(slots.min(initial=0), document.min(initial=0))
        if least < 0 or slots.sum() != (end - begin).sum():
            raise self._other_order()
        found = Segments(row, nothing, document, start, slots, nothing)
        # Another document may have no slot, but the target of the last one.
        target = (place == last[row]) & (end[row] < self._stream) & bool(extra)
        return found.take(np.flatnonzero((found.slots > 0) | target))

    def identity(self) -> dict[str, Any]:
        data = identified({self.documents[0].name: self.documents[0]})
        return {"order": "megatron", **data, **self.settings.facts(), **self._facts()}


class BlendedRows(JoinedRows, MegatronRows):
    """Rows of a blend of datasets.

    Args:
        tables: the datasets, of the same settings.
        weights: their shares; None to take each sample of each once.
        size: samples; without weights, at most this many, or all (None).
    """

    def __init__(
        self, tables: Sequence[GptRows], weights: Sequence[float] | None, size: int | None
    ) -> None:
        documents = [table.documents[0] for table in tables]
        super().__init__(documents, tables[0].settings)
        self.held, self.firsts = list(tables), range(len(tables))
        lengths = [len(table) for table in tables]
        total = sum(lengths)
        # Without weights and size, exhausted datasets are skipped.
        self._limits = lengths if weights is None and size is None else None
        if weights is None:
            self._size = total if size is None else min(size, total)
            self._weights = normalized(lengths)
        else:
            assert size is not None
            self._size = size
            # Normalized again, as Megatron does: the sum may differ from 1 in the last bit.
            self._weights = normalized(weights)
        self._order = self._cached()
        self._check(lengths)

    def _cached(self) -> CachedArrays:
        shapes = [("<i8", self._size), ("<i2", self._size)]
        key = {"weights": self._weights, "size": self._size, "limits": self._limits}
        return cached_arrays(self.documents[0], key, self._build, shapes, _PREFIX)

    def _build(self) -> list[AnyArray]:
        order = blend_order(self._weights, self._size, self._limits)
        return [places_in_datasets(order, len(self.held)), order]

    def _check(self, lengths: Sequence[int]) -> None:
        place, order = self._order.arrays
        least = min(place.min(initial=0), order.min(initial=0))
        if least < 0 or order.max(initial=0) >= len(lengths):
            raise self._order.damaged(f"the blend of {len(lengths)} datasets")
        for number, length in enumerate(lengths):
            wanted = int(np.max(place, where=order == number, initial=-1)) + 1
            if wanted > length:
                raise InputError(
                    f"the blend needs {wanted:,} samples of {self.documents[number].name}, which "
                    f"has {length:,}; Megatron fails as well: raise mid_level_dataset_surplus, as "
                    "it had to, or lower the weight or the size"
                )

    def __len__(self) -> int:
        return self._size

    def located(self, rows: Ints) -> tuple[Ints, Ints]:
        places, order = self._order.arrays
        return order[rows % len(self)], places[rows % len(self)]

    def identity(self) -> dict[str, Any]:
        each = [table.identity() for table in self.held]
        own = ("data", "documents", "epochs", "separate_last_epoch")
        shared = {n: value for n, value in each[0].items() if n not in (*own, "views")}
        return {
            **shared,
            **identified({f"{k}:{d.name}": d for k, d in enumerate(self.documents)}),
            "datasets": brief([[facts[name] for name in own[1:]] for facts in each]),
            "weights": brief(self._weights),
            "size": self._size,
        }
