"""The rows of Megatron's `GPTDataset`, and of a blend of several, as a `grain.MapDataset`.

They have Megatron's order, and what it finds in tokens: EODs without loss, segments that end there.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from jaxdata.base.errors import DatasetError, InputError, brief
from jaxdata.base.numbers import is_number, validated
from jaxdata.base.ragged import AnyArray, Bools, Ints, expand
from jaxdata.dataset.array_documents import as_documents
from jaxdata.dataset.documents import DerivedDocuments, Documents, Gathered
from jaxdata.dataset.plan_cache import CachedArrays, cached_arrays
from jaxdata.dataset.views.kept_documents import identified
from jaxdata.rows.map_datasets import RowDataset
from jaxdata.rows.megatron import order as orders
from jaxdata.rows.packing.settings import AnyPositions
from jaxdata.rows.reading import read_tokens
from jaxdata.rows.table import JoinedRows, ReadRanges, RowTable, Segments


class MaskedDocuments(DerivedDocuments):
    """Documents with masks beyond those that they store: of `eod_mask_loss` and `pad_id`.

    By document, its first token has no loss as a target, since its input is the last token of the
    document before. By EOD, what follows an EOD has none, wherever documents end; what a token
    follows is the token before it in the ranges asked for, end to end: ranges of a segment are
    asked for in order, and its first token is no target. Pads have no loss, and are 0.
    """

    def __init__(self, source: Documents, settings: orders.GptSettings) -> None:
        super().__init__(source)
        self._settings, self.masked = settings, True

    def __reduce__(self) -> tuple[Any, ...]:
        return MaskedDocuments, (self.source, self._settings)

    def tokens(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        pad_id = self._settings.pad_id
        if pad_id is None:
            return self.source.tokens(documents, starts, counts)
        tokens = self._joined(documents, starts, counts)
        return Gathered.cut(np.where(tokens == pad_id, 0, tokens).astype(tokens.dtype), counts)

    def masks(self, documents: Ints, starts: Ints, counts: Ints) -> Gathered:
        mask, settings = np.ones(counts.sum(), np.uint8), self._settings
        if self.source.masked:
            mask &= self.source.masks(documents, starts, counts).views.array(np.uint8)
        if settings.eod_mask_loss and settings.eod_id is None:
            mask[(np.cumsum(counts) - counts)[(starts == 0) & (counts > 0)]] = 0
        elif settings.eod_mask_loss:
            tokens = self._joined(documents, starts, counts)
            mask[1:][tokens[:-1] == settings.eod_id] = 0
        if settings.pad_id is not None:
            mask[self._joined(documents, starts, counts) == settings.pad_id] = 0
        return Gathered.cut(mask, counts)

    def _joined(self, documents: Ints, starts: Ints, counts: Ints) -> AnyArray:
        return self.source.tokens(documents, starts, counts).views.array(self.dtype)


class MegatronRows(RowTable):
    """Rows in Megatron's order.

    With `reset`, segments end with documents, and the target of a document's last token is the
    first token of the next one; without, a row is one segment, whatever documents are in it.
    By EOD, segments end with each EOD in the tokens instead, wherever documents end.
    `segments` gives the documents of a row in all cases; where the last target is the first
    token of another document, that document comes last, with no slots.
    """

    ends = True

    def __init__(self, documents: Sequence[Documents], settings: orders.GptSettings) -> None:
        self.documents, self.settings = documents, settings
        self.seq_len = settings.seq_len
        self.positions = settings.positions if settings.reset else "row"

    def read_ranges(self, found: Segments, ended: Bools) -> ReadRanges:
        last = np.append(found.row[1:] != found.row[:-1], True)[: len(ended)]
        if not self.settings.add_extra_token_to_sequence:
            ended = ended | last
        whole, eod_id = _merged(found, ended, last), self.settings.eod_id
        if not self.settings.reset:
            return whole
        if eod_id is None:
            return cut_after((np.cumsum(whole.tokens) - 1)[ended & ~last], whole)
        # Pads are 0 in rows, and so may EODs be.
        as_stored = [d.source if isinstance(d, MaskedDocuments) else d for d in self.documents]
        return cut_after(places_of(eod_id, as_stored, whole), whole)


def _merged(found: Segments, ended: Bools, last: Bools) -> ReadRanges:
    """Each row is one segment."""
    first = np.flatnonzero(np.append(True, last[:-1])[: len(last)])
    slots = np.add.reduceat(found.slots, first) if len(first) else found.slots
    whole = replace(found.take(first), slots=slots)
    owner = np.repeat(np.arange(len(first)), np.diff(first, append=len(last)))
    return ReadRanges(whole, ended[last], found, found.slots + ~ended, owner)


_AT_ONCE = 2**12  # ranges, of a row at most, whose tokens are in memory together


def places_of(eod_id: int, sources: Sequence[Documents], reads: ReadRanges) -> Ints:
    """Where this id is among the tokens of `reads`, numbered end to end; increasing."""
    gathered, dtype = read_tokens(sources, reads)
    found, before = [np.empty(0, np.int64)], 0
    for first in range(0, len(gathered.range), _AT_ONCE):
        views = gathered.views.take(slice(first, first + _AT_ONCE))
        tokens = np.frombuffer(views.join(), dtype)
        found.append(before + np.flatnonzero(tokens == eod_id))
        before += len(tokens)
    return np.concatenate(found)


def cut_after(places: Ints, reads: ReadRanges) -> ReadRanges:
    """Cut segments after some of their inputs; the next input is the target of such a one.

    Args:
        places: of these inputs, among the tokens of all ranges end to end.
        reads: segments, each of consecutive tokens and with at least a slot.
    """
    length = reads.segments.slots + ~reads.ended
    first = np.cumsum(length) - length
    stop = first + reads.segments.slots
    after = places + 1
    cut = np.searchsorted(first, after, side="right") - 1
    begin = np.sort(np.append(first, after[(first[cut] < after) & (after < stop[cut])]))
    owner = np.searchsorted(first, begin, side="right") - 1
    end = np.minimum(np.append(begin[1:], stop[-1:]), stop[owner])
    ended = reads.ended[owner] & (end == stop[owner])
    segments = replace(reads.segments.take(owner), slots=end - begin)
    return _ranges_of(begin, end + ~ended, reads)._replace(segments=segments, ended=ended)


def _ranges_of(begin: Ints, end: Ints, reads: ReadRanges) -> ReadRanges:
    """Read the tokens `[begin, end)`, numbered through all ranges of `reads`, for segment *k*."""
    edge = np.cumsum(reads.tokens)
    first = np.searchsorted(edge, begin, side="right")
    last = np.searchsorted(edge, end - 1, side="right")
    owner, number = expand(last - first + 1)
    chosen = first[owner] + number
    before = (edge - reads.tokens)[chosen]
    start = np.maximum(begin[owner], before)
    stop = np.minimum(end[owner], edge[chosen])
    found = reads.ranges.take(chosen)
    ranges = replace(found, start=found.start + start - before)
    return reads._replace(ranges=ranges, tokens=stop - start, owner=owner)


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
        settings: orders.GptSettings,
        num_samples: int | None = None,
        chosen: range | None = None,
    ) -> None:
        if settings.eod_mask_loss or settings.pad_id is not None:
            documents = MaskedDocuments(documents, settings)
        super().__init__((documents,), settings)
        self._chosen = range(len(documents)) if chosen is None else chosen
        lengths = documents.lengths[self._chosen.start : self._chosen.stop]
        tokens = int(lengths.sum(dtype=np.int64))
        self.passes = self._plan(tokens, num_samples)
        self._stream = tokens * self.passes.count
        self._order = self._cached()

    def _plan(self, tokens: int, num_samples: int | None) -> orders.Epochs:
        extra = self.settings.add_extra_token_to_sequence
        drop_last = self.settings.drop_last_partial_validation_sequence
        least = self.seq_len if drop_last else 1
        if tokens < least + extra:
            raise InputError(
                f"{self.documents[0].name}: its {len(self._chosen):,} documents have {tokens:,} "
                f"tokens; a row of seq_len={self.seq_len} needs {least + extra}"
            )
        return orders.plan_epochs(tokens, self.seq_len, num_samples, extra, drop_last)

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
        order = orders.document_order(chosen, self.passes, random)
        samples = orders.sample_order(self.passes, random)
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
        self.held = list(tables)
        lengths = [len(table) for table in tables]
        # Without weights and size, exhausted datasets are skipped.
        self._limits = lengths if weights is None and size is None else None
        self._size = sum(lengths) if size is None else size
        if weights is None:
            self._size = min(self._size, sum(lengths))
        # Normalized again, as Megatron does: the sum may differ from 1 in the last bit.
        self._weights = orders.normalized(weights or lengths)
        self._order = self._cached()
        self._check(lengths)

    def _cached(self) -> CachedArrays:
        shapes = [("<i8", self._size), ("<i2", self._size)]
        key = {"weights": self._weights, "size": self._size, "limits": self._limits}
        return cached_arrays(self.documents[0], key, self._build, shapes, _PREFIX)

    def _build(self) -> list[AnyArray]:
        order = orders.blend_order(self._weights, self._size, self._limits)
        return [orders.places_in_datasets(order, len(self.held)), order]

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


SURPLUS = 0.005  # of Megatron's mid_level_dataset_surplus


@validated
def gpt(
    source: Any,
    *,
    seq_len: int,
    num_samples: int | None = None,
    split: str | None = None,
    part: str = "train",
    seed: int = 1234,
    reset: bool = False,
    eod_mask_loss: bool = False,
    by: Literal["document", "eod"] = "document",
    eod_id: int | None = None,
    positions: AnyPositions = "segment",
    add_extra_token_to_sequence: int = 1,
    drop_last_partial_validation_sequence: bool = True,
    pad_id: int | None = None,
) -> RowDataset:
    """The rows of Megatron's `GPTDataset`.

    Args:
        source: documents; for `megatron:PREFIX` its sequences are used, as Megatron does.
        seq_len: Megatron's `sequence_length`.
        num_samples: samples that it is built for (`train_iters * global_batch_size`); they
            determine the number of epochs, and so the order. None for one epoch.
        split: its `split`, such as `"969,30,1"`; None for the rows of all documents.
        part: `"train"`, `"valid"` or `"test"`.
        seed: its `random_seed`, 1234 by default.
        reset: restart `segment_ids` and `positions` at each document, as `reset_attention_mask`
            and `reset_position_ids` do. Otherwise a row is one segment.
        eod_mask_loss: no loss where the input is the last token of a document, its EOD.
        by: what ends a document for these two: `"document"`, its length; or `"eod"`, each
            `eod_id` among the inputs and nothing else, as in Megatron. They differ where documents
            hold EODs, or lack the last one. `"eod"` reads the tokens of a row twice.
        eod_id: the id, Megatron's `tokenizer.eod`; only and always with `by="eod"`.
        positions: `"row"` lets them run along the row: `reset_attention_mask` alone.
        add_extra_token_to_sequence: 0 for samples of `seq_len` tokens, which share none: the last
            slot has no target, hence no loss.
        drop_last_partial_validation_sequence: False for a row, completed with padding, of the
            tokens that do not fill one; with `part="valid"` only, as in Megatron.
        pad_id: its `tokenizer.pad`, where that is no other special token: it has no loss, and is 0
            in rows, wherever documents contain it. Reads the tokens of a row twice.

    Returns:
        A `grain.MapDataset` of rows. Its `len` is that of Megatron's dataset: all samples of whole
        epochs, not `num_samples`. Targets cross the ends of documents: as in Megatron, the token
        after an EOD is trained unless `eod_mask_loss`.

    Raises:
        InputError: a setting is wrong, or the documents do not fill a row.

    >>> import jaxdata
    >>> documents = jaxdata.ArrayDocuments([[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11, 12, 13, 14]])
    >>> rows = gpt(documents, seq_len=4, seed=1234)
    >>> [(row["inputs"].tolist(), int(row["targets"][-1])) for row in rows]
    [([5, 6, 7, 8], 9), ([9, 10, 11, 12], 13), ([1, 2, 3, 4], 5)]
    >>> gpt(documents, seq_len=4, reset=True, by="eod", eod_id=9)[1]["segment_ids"].tolist()
    [1, 2, 2, 2]
    """
    return RowDataset(_table(source, orders.GptSettings.among(locals()), num_samples, split, part))


@validated
def blend(
    datasets: Sequence[tuple[float | None, Any]],
    *,
    size: int | None,
    seq_len: int,
    split: str | None = None,
    part: str = "train",
    mid_level_dataset_surplus: float = SURPLUS,
    seed: int = 1234,
    reset: bool = False,
    eod_mask_loss: bool = False,
    by: Literal["document", "eod"] = "document",
    eod_id: int | None = None,
    positions: AnyPositions = "segment",
    add_extra_token_to_sequence: int = 1,
    drop_last_partial_validation_sequence: bool = True,
    pad_id: int | None = None,
) -> RowDataset:
    """The rows of Megatron's `BlendedDataset`.

    Args:
        datasets: (weight, source) of each; all weights None for proportions of their samples.
        size: samples wanted. With weights, each dataset is built for its share of them and the
            surplus, and `len` is the sum of the shares, each rounded up. Without weights, `size`
            truncates the blend, and None takes each sample of each dataset once.
        seq_len: as in :func:`gpt`, like what follows.
        split: a split of each dataset.
        part: the part of the split.
        mid_level_dataset_surplus: by what share more samples each dataset is built for.
        seed: that of each dataset; the blend itself is not random.
        reset: restart `segment_ids` and `positions` at each document.
        eod_mask_loss: no loss where the input is the last token of a document.
        by: what ends a document for these two, `"document"` or `"eod"`.
        eod_id: the id, with `by="eod"`.
        pad_id: the id of padding in documents.
        positions: `"row"` lets them run along the row.
        add_extra_token_to_sequence: 0 for samples of `seq_len` tokens, which share none.
        drop_last_partial_validation_sequence: False for a row of the tokens that do not fill one.

    Raises:
        InputError: the blend needs more samples of a dataset than it has.

    >>> import jaxdata
    >>> ones, twos = (jaxdata.ArrayDocuments([[k] * 64]) for k in (1, 2))
    >>> rows = blend([(3, ones), (1, twos)], size=8, seq_len=4)
    >>> [int(row["inputs"][0]) for row in rows]
    [1, 2, 1, 1, 1, 2, 1, 1]
    """
    settings = orders.GptSettings.among(locals())
    weights = _weights(datasets)
    samples: list[int | None] = [None] * len(datasets)
    if weights is not None:
        if size is None:
            raise InputError("size=None: expected a number of samples, required with weights")
        if not (is_number(mid_level_dataset_surplus) and 0 <= mid_level_dataset_surplus < math.inf):
            raise InputError(
                f"mid_level_dataset_surplus={mid_level_dataset_surplus!r}: expected a number of at "
                f"least 0, Megatron's --mid-level-dataset-surplus (by default {SURPLUS})"
            )
        targets = [math.ceil(size * weight) for weight in weights]
        samples = [math.ceil(target * (1 + mid_level_dataset_surplus)) for target in targets]
        size = sum(targets)
    tables = [
        _table(source, settings, wanted, split, part)
        for (_, source), wanted in zip(datasets, samples, strict=True)
    ]
    return RowDataset(BlendedRows(tables, weights, size))


def _weights(datasets: Sequence[tuple[float | None, Any]]) -> list[float] | None:
    given = [weight for weight, _ in datasets if weight is not None]
    if len(given) not in (0, len(datasets)) or not datasets:
        raise InputError(
            f"{len(given)} of {len(datasets)} datasets have weights: expected all or none"
        )
    if not all(is_number(weight) and weight > 0 for weight in given):
        raise InputError(f"weights {given}: expected positive numbers; remove datasets of weight 0")
    return orders.normalized(given) if given else None


def _table(
    source: Any, settings: orders.GptSettings, num_samples: int | None, split: str | None, part: str
) -> GptRows:
    documents = as_documents(source).sequences
    if part not in orders.PARTS:
        raise InputError(f"part={part!r}: expected {' | '.join(orders.PARTS)}")
    if part != "valid":
        settings = settings.model_copy(update={"drop_last_partial_validation_sequence": True})
    chosen = None if split is None else orders.split_range(split, part, len(documents))
    return GptRows(documents, settings, num_samples, chosen)
