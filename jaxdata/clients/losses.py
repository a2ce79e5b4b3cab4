"""The loss of each source of a batch, in JAX, torch or numpy: what a policy of weights looks at."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxdata.base.errors import InputError
from jaxdata.base.numbers import validated
from jaxdata.feed.layouts import IGNORED


class SourceLosses(NamedTuple):
    """Sums over the targets of each source, of which the mean loss is `sums / counts`."""

    sums: Any
    """(sources,) of the losses of targets with loss"""
    counts: Any
    """(sources,) whole numbers of these targets; 0 where a source is not in the batch"""


@validated
def losses_by_source(
    batch: Mapping[str, Any], token_losses: Any, *, sources: int | None = None
) -> SourceLosses:
    """Sum the losses of a batch by source, over all devices and ranks.

    Args:
        batch: of a loader with `extras=["source"]`, in any layout.
        token_losses: (batch, seq_len) the loss of each slot, of JAX, torch or numpy; those without
            loss do not count.
        sources: number of sources, `len(loader.source_names)`; None for as many as this batch
            needs, which a function under `jax.jit`, and ranks of torch, cannot know.

    Returns:
        Sums and counts by the number that `source` has, in the order of `loader.source_names`.

    Raises:
        InputError: the batch lacks `source`, shapes differ, or the number has to be given.

    >>> import jaxdata
    >>> docs = {name: jaxdata.ArrayDocuments([[1, 2, 3, 0]] * 9) for name in ("web", "code")}
    >>> rows = {name: jaxdata.pack(each, seq_len=6) for name, each in docs.items()}
    >>> loader = jaxdata.Loader(jaxdata.mix(rows), batch_size=4, extras=["source"])
    >>> batch = next(loader)
    >>> sums, counts = losses_by_source(batch, batch["loss_mask"] * 0.5)
    >>> bool((sums == 0.5 * counts).all()), int(counts.sum()) == int(batch["loss_mask"].sum())
    (True, True)
    """
    if "source" not in batch:
        raise InputError(
            f'the batch has {", ".join(batch)}: make its loader with extras=["source"]'
        )
    source, mask = batch["source"], _mask_of(batch)
    if tuple(token_losses.shape) != tuple(source.shape):
        raise InputError(
            f"token_losses has the shape {tuple(token_losses.shape)}: expected a loss for each "
            f"slot of the batch, {tuple(source.shape)}"
        )
    library = type(token_losses).__module__.partition(".")[0]
    if library == "torch":
        return _of_tensors(source, mask, token_losses, sources)
    try:
        sources = int(source.max()) + 1 if sources is None else sources
    except TypeError:  # of JAX, about a value that is traced
        raise InputError("under jax.jit give sources=len(loader.source_names)") from None
    if library == "numpy":
        sums = np.bincount(source[mask], token_losses[mask], sources)
        return SourceLosses(sums, np.bincount(source[mask], minlength=sources))
    from jaxdata.feed.device import sums_by_source

    return SourceLosses(*sums_by_source(source, mask, token_losses, sources))


def _mask_of(batch: Mapping[str, Any]) -> Any:
    """Which slots have loss, in the words of any layout."""
    without = {"loss_mask": 0, "targets_segmentation": 0, "shift_labels": IGNORED}
    for name, value in without.items():
        if name in batch:
            return batch[name] != value
    raise InputError(
        f"the batch has {', '.join(batch)}, none of which says where there is loss: give one with "
        "loss_mask"
    )


def _of_tensors(source: Any, mask: Any, losses: Any, sources: int | None) -> SourceLosses:
    import torch

    from jaxdata.torch.loader import is_grouped

    if sources is None:
        if is_grouped():
            raise InputError("with several ranks give sources=len(loader.source_names)")
        sources = int(source.max()) + 1
    chosen, kept = source[mask].long(), losses.detach()[mask].double()
    found = torch.zeros(2, sources, dtype=torch.float64, device=losses.device)
    found[0].index_add_(0, chosen, kept)
    found[1].index_add_(0, chosen, torch.ones_like(kept))
    if is_grouped():
        torch.distributed.all_reduce(found)
    return SourceLosses(found[0], found[1].long())


__all__ = ["SourceLosses", "losses_by_source"]
