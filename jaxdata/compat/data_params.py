"""The statistics of Cerebras' `data_params.json`, by their names, of a source of ours."""

from __future__ import annotations

from math import ceil
from typing import Any

from jaxdata.errors import InputError
from jaxdata.format.manifest import read_manifest
from jaxdata.format.storage import open_store


def post_process(output: str, source: str, strategy: str = "best_fit") -> dict[str, Any]:
    """What `data_params.json` has under "post-process".

    Counts of documents and texts are of the whole conversion, those that were left out included,
    as there; counts of tokens are of rows, of the length that `--stats-seq-len` named. Padding is
    counted as such, never by comparing ids.

    Args:
        output: the dataset.
        source: "<split>/<source>".
        strategy: how rows are packed.

    Raises:
        InputError: there is no such source, it was converted without `--stats-seq-len`, or the
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
            "convert command again, with --stats-seq-len"
        )
    if packing[strategy]["dropped"] and manifest.sources[source].masked:
        raise InputError(f"{strategy!r} drops tokens, and which of them have loss is not counted")
    ids = manifest.tokenizer
    return (
        _documents(counted)
        | _rows(counted, packing[strategy])
        | {"eos_id": ids.eod_id, "pad_id": ids.eod_id if ids.pad_id is None else ids.pad_id}
        | {"vocab_size": ids.vocab_size}
    )


def _documents(counted: dict[str, Any]) -> dict[str, int]:
    left_out, without = counted["dropped"].values(), counted["quarantined"].values()
    read = counted["records"] + counted["added"] - counted["blank"] - sum(without)
    sizes = {
        "raw_chars_count": "raw_characters",
        "raw_bytes_count": "raw_bytes",
        "normalized_chars_count": "characters",
        "normalized_bytes_count": "text_bytes",
    }
    return {
        "processed_files": read,  # there, too, each document is one
        "discarded_files": sum(left_out),
        "successful_files": read - sum(left_out),
        **{name: counted[ours] + counted.get(f"dropped_{ours}", 0) for name, ours in sizes.items()},
    }


def _rows(counted: dict[str, Any], cost: dict[str, int]) -> dict[str, int]:
    loss = counted["loss_tokens"] - cost["dropped"]
    per_row = {
        f"average_{unit}_per_sequence": ceil(
            (counted[ours] + counted.get(f"dropped_{ours}", 0)) / max(1, cost["rows"])
        )
        for unit, ours in (("chars", "raw_characters"), ("bytes", "raw_bytes"))
    }
    return per_row | {
        "n_examples": cost["rows"],
        "num_tokens": cost["slots"],
        "num_pad_tokens": cost["padding"],
        "non_pad_tokens": cost["slots"] - cost["padding"],
        "loss_valid_tokens": loss,
        "num_masked_tokens": cost["slots"] - loss,
    }
