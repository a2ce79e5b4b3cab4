"""The statistics of Cerebras' `data_params.json`, and its rows of random shorter length."""

from __future__ import annotations

from math import ceil
from typing import Any

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.dataset.manifest import read_manifest
from jaxdata.storage import open_store


def post_process(output: str, source: str, strategy: str = "best_fit") -> dict[str, Any]:
    """The entry "post-process" of `data_params.json`.

    Counts of documents and texts are of the whole conversion, those that were left out included,
    as there; counts of tokens are of rows, of the length that `stats_seq_len` named. Padding is
    counted as such, never by comparing ids.

    Args:
        output: the dataset.
        source: "<split>/<source>".
        strategy: how rows are packed.

    Raises:
        InputError: there is no such source, it was converted without `stats_seq_len`, or the
            strategy drops tokens of a source with loss masks.

    >>> post_process("data/mine", "train/web")["n_examples"]  # doctest: +SKIP
    1204
    """
    manifest = read_manifest(open_store(output))
    if source not in manifest.sources:
        raise InputError(f"{output} has no {source!r}; it has {', '.join(manifest.sources)}")
    counted = manifest.sources[source].statistics
    packing = counted.get("packing", {})
    if strategy not in packing:
        raise InputError(
            f"{source} of {output} has no statistics of rows packed by {strategy!r}: give the same "
            "convert command again, with stats_seq_len"
        )
    if packing[strategy]["dropped"] and manifest.sources[source].masked:
        raise InputError(f"{strategy!r} drops tokens, and which of them have loss is not counted")
    ids = manifest.tokenizer
    return _counts(counted, packing[strategy]) | {
        "eos_id": ids.eod_id,
        "pad_id": ids.eod_id if ids.pad_id is None else ids.pad_id,
        "vocab_size": ids.vocab_size,
    }


def _counts(counted: dict[str, Any], cost: dict[str, int]) -> dict[str, int]:
    def every(name: str) -> int:
        """A count of texts, those that were left out included."""
        return int(counted[name] + counted.get(f"dropped_{name}", 0))

    left_out, rows = sum(counted["dropped"].values()), cost["rows"]
    without = counted["blank"] + sum(counted["quarantined"].values())
    read = counted["records"] + counted["added"] - without
    loss = counted["loss_tokens"] - cost["dropped"]
    return {
        "processed_files": read,  # there, too, each document is one
        "discarded_files": left_out,
        "successful_files": read - left_out,
        "raw_chars_count": every("raw_characters"),
        "raw_bytes_count": every("raw_bytes"),
        "normalized_chars_count": every("characters"),
        "normalized_bytes_count": every("text_bytes"),
        "average_chars_per_sequence": ceil(every("raw_characters") / max(1, rows)),
        "average_bytes_per_sequence": ceil(every("raw_bytes") / max(1, rows)),
        "n_examples": rows,
        "num_tokens": cost["slots"],
        "num_pad_tokens": cost["padding"],
        "non_pad_tokens": cost["slots"] - cost["padding"],
        "loss_valid_tokens": loss,
        "num_masked_tokens": cost["slots"] - loss,
    }


def short_rows(rows: Any, rate: float, seed: int = 0) -> Any:
    """Shorten some rows: what comes after a random slot becomes padding, and is not trained.

    Args:
        rows: rows of `jaxdata.pack`, or any `grain.MapDataset` of dicts of arrays of one length.
        rate: the share of rows that are shortened, to 1 slot up to two less than they have.
        seed: root of the choices; what becomes of row *i* depends on it and *i* alone.

    Returns:
        A `grain.MapDataset` of the same rows, some of them shorter; a Loader takes it.

    >>> import jaxdata
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([np.arange(1, 10)]), seq_len=8)
    >>> short_rows(rows, 1.0)[0]["inputs"].tolist()
    [1, 2, 3, 4, 5, 6, 0, 0]
    """
    if not 0 <= rate <= 1:
        raise InputError(f"rate={rate}: expected a number from 0 to 1")

    def shorten(row: dict[str, Any], chance: np.random.Generator) -> dict[str, Any]:
        if chance.random() >= rate:
            return row
        length = len(next(iter(row.values())))
        kept = np.arange(length) < chance.integers(1, max(2, length - 1))
        return {name: np.where(kept, array, 0).astype(array.dtype) for name, array in row.items()}

    return rows.random_map(shorten, seed=seed)
