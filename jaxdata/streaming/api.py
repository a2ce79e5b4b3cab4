"""Training batches straight from files or records of text, without a dataset."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxdata import tokenizers
from jaxdata.base.errors import InputError
from jaxdata.base.numbers import validated
from jaxdata.base.processes import available_cores
from jaxdata.converter.inputs.discovery import Inputs, find_inputs
from jaxdata.converter.inputs.given_records import files_or_records
from jaxdata.converter.tasks.registry import task_names, task_options
from jaxdata.feed.batches import HostPlacement, Placement
from jaxdata.feed.layouts import Named
from jaxdata.feed.layouts import layout as find_layout
from jaxdata.feed.settings import LoaderSection
from jaxdata.rows.packing.settings import PackSettings
from jaxdata.streaming.iterator import TextRecipe, TextStream
from jaxdata.streaming.readers import FileSource, RecordSource, TextSource
from jaxdata.tokenizers import Tokenizer

if TYPE_CHECKING:
    import jax

_PACKING = ("strategy", "overlap", "positions", "max_segments", "multiple")


@validated
def stream_text(
    files: Inputs | Iterable[Any],
    *,
    tokenizer: str | Tokenizer,
    seq_len: int,
    batch_size: int = 32,
    seed: int = 0,
    buffer: int = 10_000,
    shuffle: bool = True,
    epochs: int | None = 1,
    sharding: jax.sharding.Sharding | None = None,
    shard: tuple[int, int] | None = None,
    num_workers: int | None = None,
    prefetch: int = 2,
    layout: Named = "jaxdata",
    **options: Any,
) -> TextStream:
    """Stream training batches from text, without converting it first.

    For quick experiments. Documents are read in the order of the text, tokenized by worker
    processes, and shuffled and packed one buffer at a time. Every token is trained on once a pass.

    Args:
        files: files, folders or globs of everything that `jaxdata convert` reads. Or any iterable
            of records, which are texts or dicts as lines of JSON would give them (strings in a list
            are names of files): a Hugging Face `Dataset` or `IterableDataset`, a list of dicts, a
            generator, a pandas `DataFrame`, a `pyarrow.Table`. It must give the same records in the
            same order whenever it is read: to resume, it is read again up to the record. A
            generator can be read only once.
        tokenizer: a spec as `tokenizers.load` takes it, or a loaded tokenizer.
        seq_len: slots of a row.
        batch_size: rows of the global batch; the last batch is completed with padding.
        seed: root of every order, and of the random choices of a task.
        buffer: documents that are shuffled and packed together; fewer if they hold more than 16
            million characters, and in the first four buffers, so that batches come soon.
        shuffle: False for the order of the text.
        epochs: passes over the text; None for endless.
        sharding: a `jax.sharding.Sharding` of (batch, seq), for `jax.Array`s; or:
        shard: `(i, n)`: every n-th document, and batches of `batch_size / n` rows, in numpy.
        num_workers: processes that tokenize; 0 for none, None for all cores but one.
        prefetch: batches made ahead by a background thread; 0 for none.
        layout: names and masks of a batch, as for a Loader.
        **options: how rows are packed, as for `jaxdata.pack`: `strategy`, `overlap`, `positions`,
            `max_segments`, `multiple`; and how text is read, as for `jaxdata.convert`: `text_key`,
            `bos`, `task` and its settings, `transform`, cleaning, limits of length.

    Returns:
        An iterator of batches as a Loader's, with `get_state`, `set_state`, `reset` and `report`.
        Hosts may end after different numbers of steps: use `epochs=None`, or convert the text.

    >>> for batch in stream_text("notes.jsonl", tokenizer="bytes", seq_len=64):  # doctest: +SKIP
    ...     print(batch["inputs"].shape)
    """
    loaded = tokenizers.load(tokenizer) if isinstance(tokenizer, str) else tokenizer
    workers = max(1, available_cores() - 1) if num_workers is None else num_workers
    LoaderSection.checked(batch_size=batch_size, num_workers=workers, prefetch=prefetch)
    packing = {name: options.pop(name) for name in _PACKING if name in options}
    task = options.get("task", "lm")
    if task in task_names() and "seed" in task_options(task):
        options["seed"] = seed
    placement, part = _placed(sharding, shard, batch_size, seq_len)
    recipe = TextRecipe(
        _source(files, epochs),
        loaded,
        options,
        PackSettings.checked(seq_len=seq_len, seed=seed, shuffle=shuffle, **packing),
        buffer,
        part,
        epochs,
    )
    spec = tokenizer if isinstance(tokenizer, str) else loaded.name
    warnings.warn(
        f"stream_text reads and tokenizes {recipe.source} again in every pass and run. To read "
        "text twice, or on several hosts, convert it once: jaxdata convert "
        f"{recipe.source.inputs} --output data/mine --source text --tokenizer {spec}",
        stacklevel=3,  # `validated` is one of them
    )
    return TextStream(
        recipe, placement, find_layout(layout), workers, prefetch, on_devices=sharding is not None
    )


def _placed(
    sharding: jax.sharding.Sharding | None,
    shard: tuple[int, int] | None,
    batch_size: int,
    seq_len: int,
) -> tuple[Placement, tuple[int, int]]:
    """Where batches go, and which part of the documents they are made of."""
    if sharding is None:
        return HostPlacement(batch_size, shard or (0, 1)), shard or (0, 1)
    if shard is not None:
        raise InputError("use sharding= (jax arrays) or shard=(i, n) (numpy), not both")
    from jaxdata.feed.device import DevicePlacement

    placement = DevicePlacement(sharding, batch_size, seq_len)
    rows = placement.rows
    part = int(rows[0]) // len(rows), batch_size // len(rows)
    if not np.array_equal(rows, HostPlacement(batch_size, part).rows):
        raise InputError(
            f"{sharding} gives this process rows that are not one n-th part of a batch: use a mesh "
            "whose first axis is data, or convert the text"
        )
    return placement, part


def _source(given: Any, epochs: int | None) -> TextSource:
    """Files where names of files are given, else records."""
    if isinstance(given, str | Path):
        return FileSource(find_inputs(given))
    files, records = files_or_records(given, "stream_text")
    return FileSource(find_inputs(files)) if records is None else RecordSource(records, epochs)
