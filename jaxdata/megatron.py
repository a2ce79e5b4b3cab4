"""Megatron-Core's order of samples: a run can move from Megatron to JAX and see the same batches.

    rows = jaxdata.megatron.gpt(source, seq_len=4096, seed=1234, num_samples=1_000_000)
    loader = jaxdata.Loader(rows, batch_size=512)

Row *i* is what Megatron's dataset gives for *i*, `inputs` its `tokens` and `targets` its `labels`;
batch *s* of a loader is what its sequential sampler makes of step *s*.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxdata.errors import InputError
from jaxdata.rows.datasets import RowDataset
from jaxdata.rows.documents import as_documents
from jaxdata.rows.megatron.blending import normalized, target_sizes
from jaxdata.rows.megatron.order import split_range
from jaxdata.rows.megatron.table import BlendedRows, GptRows, GptSettings

__all__ = ["blend", "gpt"]


def gpt(
    source: Any,
    *,
    seq_len: int,
    seed: int = 1234,
    num_samples: int | None = None,
    split: str | None = None,
    part: str = "train",
    reset: bool = False,
    eod_mask_loss: bool = False,
) -> RowDataset:
    """The rows of Megatron's `GPTDataset`.

    Args:
        source: documents; of `megatron:PREFIX`, its sequences are taken, as Megatron does.
        seq_len: Megatron's `sequence_length`.
        seed: its `random_seed`.
        num_samples: samples that it is built for (`train_iters * global_batch_size`), which decide
            the number of epochs and with it the order; None for one epoch.
        split: its `split`, such as `"969,30,1"`: the rows of one part; None for all documents.
        part: `"train"`, `"valid"` or `"test"`.
        reset: `segment_ids` and `positions` begin again with each document, as with
            `reset_attention_mask` and `reset_position_ids`. Else a row is one segment.
        eod_mask_loss: no loss for what is predicted from the last token of a document, its EOD.

    Returns:
        A `grain.MapDataset` of rows. Its `len` is that of Megatron's dataset: all samples of whole
        epochs, not `num_samples`. Targets lie beyond the edges of documents; what follows an EOD
        is trained, as Megatron does, unless `eod_mask_loss`. (Where documents hold the id that its
        tokenizer pads with, Megatron makes it 0 and masks it; here it stays.)

    >>> import jaxdata
    >>> documents = jaxdata.ArrayDocuments([[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11, 12, 13, 14]])
    >>> rows = gpt(documents, seq_len=4, seed=1234)
    >>> [(row["inputs"].tolist(), int(row["targets"][-1])) for row in rows]
    [([5, 6, 7, 8], 9), ([9, 10, 11, 12], 13), ([1, 2, 3, 4], 5)]
    """
    settings = GptSettings(seq_len, seed, reset, eod_mask_loss)
    return RowDataset(_table(source, settings, num_samples, split, part))


def blend(
    datasets: Sequence[tuple[float | None, Any]],
    *,
    size: int | None,
    seq_len: int,
    seed: int = 1234,
    split: str | None = None,
    part: str = "train",
    reset: bool = False,
    eod_mask_loss: bool = False,
) -> RowDataset:
    """The rows of Megatron's `BlendedDataset`.

    Args:
        datasets: (weight, source) of each. All weights None: in proportion to their samples.
        size: samples wanted. With weights each dataset is built for its share of them and 0.5 %
            more, and `len` is the sum of the shares, each rounded up. Without weights, `size` cuts
            the blend, and None takes each sample of each dataset once.
        seq_len: as in :func:`gpt`, as are the others.
        seed: that of each dataset; the blend itself draws nothing.
        split: a part of each dataset.
        part: which.
        reset: segments end with documents.
        eod_mask_loss: no loss after an EOD.

    Raises:
        InputError: the blend takes more samples of a dataset than it has.

    >>> import jaxdata
    >>> ones, twos = (jaxdata.ArrayDocuments([[k] * 64]) for k in (1, 2))
    >>> rows = blend([(3, ones), (1, twos)], size=8, seq_len=4)
    >>> [int(row["inputs"][0]) for row in rows]
    [1, 2, 1, 1, 1, 2, 1, 1]
    """
    weights = _weights(datasets)
    settings = GptSettings(seq_len, seed, reset, eod_mask_loss)
    samples: list[int | None] = [None] * len(datasets)
    if weights is not None:
        if size is None:
            raise InputError("size=None: expected a number of samples, as there are weights")
        targets, built = target_sizes(weights, size)
        size, samples = sum(targets), list(built)
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
    if any(not weight > 0 for weight in given):
        raise InputError(f"weights {given}: expected numbers above 0; leave a dataset out instead")
    return normalized(given) if given else None


def _table(
    source: Any, settings: GptSettings, num_samples: int | None, split: str | None, part: str
) -> GptRows:
    documents = as_documents(getattr(source, "sequences", source))
    chosen = None if split is None else split_range(split, part, len(documents))
    return GptRows(documents, settings, num_samples, chosen)
