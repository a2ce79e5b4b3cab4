"""The rows of Megatron's `GPTDataset`, and of a blend of several, as a `grain.MapDataset`."""

import math
from collections.abc import Sequence
from typing import Any, Literal

from jaxdata.base.errors import InputError
from jaxdata.base.numbers import is_number, validated
from jaxdata.dataset.array_documents import as_documents
from jaxdata.rows.map_datasets import RowDataset
from jaxdata.rows.megatron.gpt_rows import BlendedRows, GptRows
from jaxdata.rows.megatron.order import PARTS, GptSettings, normalized, split_range
from jaxdata.rows.packing.settings import AnyPositions

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
    return RowDataset(_table(source, GptSettings.among(locals()), num_samples, split, part))


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
    settings = GptSettings.among(locals())
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
    return normalized(given) if given else None


def _table(
    source: Any, settings: GptSettings, num_samples: int | None, split: str | None, part: str
) -> GptRows:
    documents = as_documents(source).sequences
    if part not in PARTS:
        raise InputError(f"part={part!r}: expected {' | '.join(PARTS)}")
    if part != "valid":
        settings = settings.model_copy(update={"drop_last_partial_validation_sequence": True})
    chosen = None if split is None else split_range(split, part, len(documents))
    return GptRows(documents, settings, num_samples, chosen)
