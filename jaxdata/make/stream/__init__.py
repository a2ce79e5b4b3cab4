"""Training batches straight from text, without a dataset: for quick experiments."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxdata import tokenizers
from jaxdata.convert.inputs import Inputs, find_inputs
from jaxdata.errors import InputError
from jaxdata.feed.batches import HostPlacement, Placement
from jaxdata.feed.layouts import Layout
from jaxdata.feed.layouts import layout as find_layout
from jaxdata.make.stream.blocks import Buffer
from jaxdata.make.stream.iterator import TextStream
from jaxdata.make.stream.recipe import TextRecipe
from jaxdata.processes import available_cores
from jaxdata.rows.settings import PackSettings
from jaxdata.tokenizers import Tokenizer

if TYPE_CHECKING:
    import jax

__all__ = ["stream_text"]

_CHARACTERS = 16 * 2**20


def stream_text(
    files: Inputs,
    *,
    tokenizer: str | Tokenizer,
    seq_len: int,
    batch_size: int = 32,
    strategy: str = "best_fit",
    overlap: int = 0,
    positions: str = "segment",
    max_segments: int | None = None,
    seed: int = 0,
    buffer: int = 10_000,
    shuffle: bool = True,
    epochs: int | None = 1,
    sharding: jax.sharding.Sharding | None = None,
    shard: tuple[int, int] | None = None,
    num_workers: int | None = None,
    prefetch: int = 2,
    layout: str | Layout = "jaxdata",
    **options: Any,
) -> TextStream:
    """Stream training batches from text files that were not converted.

    For quick experiments. Documents are read in the order of the files, tokenised by worker
    processes, and shuffled and packed a buffer at a time. Every token is trained on once a pass.

    Args:
        files: files, folders or globs, all that `jaxdata convert` reads.
        tokenizer: a spec as `tokenizers.load` takes it, or a loaded tokenizer.
        seq_len: slots of a row.
        batch_size: rows of the global batch; the last one is completed with padding.
        strategy: as for `jaxdata.pack`; likewise `overlap`, `positions` and `max_segments`.
        overlap: tokens a window repeats of the one before, without loss.
        positions: "segment" restarts at each segment, "row" runs along the row.
        max_segments: most segments in a row; None for no limit.
        seed: root of every order, and of what a task draws.
        buffer: documents that are shuffled and packed together; fewer where they hold more than
            16 million characters, and in the first four, so that batches come soon.
        shuffle: False for the order of the files.
        epochs: passes over the files; None without end.
        sharding: a `jax.sharding.Sharding` of (batch, seq), for `jax.Array`s; or:
        shard: `(i, n)`: every n-th document, and batches of `batch_size / n` rows, in numpy.
        num_workers: processes that tokenise; 0 for none, None for one a core but one.
        prefetch: batches made ahead by a background thread; 0 for none.
        layout: whose names and masks a batch has, as for a Loader.
        **options: what becomes of the text, as for `jaxdata.convert`: `text_key`, `bos`, `task`
            and its settings, `transform`, cleaning, limits of length.

    Returns:
        An iterator of batches as a Loader's, with `get_state`, `set_state`, `reset` and `report`.
        Parts of several hosts end after a different number of steps: let them read without end
        (`epochs=None`), or convert the text.

    >>> for batch in stream_text("notes.jsonl", tokenizer="bytes", seq_len=64):  # doctest: +SKIP
    ...     print(batch["inputs"].shape)
    """
    loaded = tokenizers.load(tokenizer) if isinstance(tokenizer, str) else tokenizer
    for name, count, least in (("buffer", buffer, 1), ("prefetch", prefetch, 0)):
        if count < least:
            raise InputError(f"{name}={count}: expected {least} or more")
    placement, part = _placed(sharding, shard, batch_size, seq_len)
    recipe = TextRecipe(
        find_inputs(files),
        loaded,
        _with_seed(options, seed),
        Buffer(buffer, _CHARACTERS, part, epochs),
        PackSettings(seq_len, strategy, overlap, seed, positions, max_segments, shuffle=shuffle),
    )
    workers = max(1, available_cores() - 1) if num_workers is None else num_workers
    _advise(recipe, tokenizer)
    return TextStream(recipe, placement, find_layout(layout), workers, prefetch)


def _with_seed(options: dict[str, Any], seed: int) -> Any:
    """The options of the task, with the seed where it draws anything."""
    task = options.get("task", "lm")
    draws = isinstance(task, str) and task in ("lm", "fim")
    return options | {"seed": seed} if draws else options


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
        raise InputError("give sharding= (jax arrays) or shard=(i, n) (numpy), not both")
    from jaxdata.feed.device import DevicePlacement

    placement = DevicePlacement(sharding, batch_size, seq_len)
    rows = placement.rows
    part = int(rows[0]) // len(rows), batch_size // len(rows)
    if not np.array_equal(rows, HostPlacement(batch_size, part).rows):
        raise InputError(
            f"the rows of a batch that this process holds are no n-th part of it in {sharding}: "
            "text can be streamed to a mesh whose first axis is data, or convert it"
        )
    return placement, part


def _advise(recipe: TextRecipe, tokenizer: str | Tokenizer) -> None:
    """Say once when converting pays."""
    megabytes = sum(file.size for file in recipe.files) / 1e6
    spec = tokenizer if isinstance(tokenizer, str) else recipe.tokenizer.name
    first = Path(recipe.files[0].path).name
    warnings.warn(
        f"stream_text reads and tokenizes {megabytes:,.1f} MB anew in every pass and every run. "
        "To read it twice, or on several hosts, convert it once: jaxdata convert "
        f"{first}{' …' * (len(recipe.files) > 1)} --output data/mine --source text "
        f"--tokenizer {spec}",
        stacklevel=3,
    )
