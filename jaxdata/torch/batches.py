"""Whole batches by their number: a map-style dataset for torch's own `DataLoader`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from jaxdata.torch.loader import Loader
from jaxdata.torch.tensors import Tensors

__all__ = ["Batches"]


class Batches(Dataset[Tensors]):
    """Batch *k* from `start_row` on, for `DataLoader(batch_size=None, num_workers=n)`.

    Args:
        rows: what `jaxdata.pack` or `mix` returns, or any `MapDataset` of rows.
        batch_size: rows of the global batch, over all ranks; or a ramp.
        rank: which part of each batch this process gets; see `jaxdata.torch.Loader`.
        world_size: of how many.
        start_row: the row that batch 0 begins with: `next_row` of a state. Or see `set_state`.
        long: int64 instead of int32.
        settings: `drop_remainder`, `skip_rows`, `layout` as of `jaxdata.Loader`.

    >>> import jaxdata.torch
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> batches = jaxdata.torch.Batches(rows, batch_size=1)
    >>> len(batches), batches[1]["inputs"].shape
    (2, torch.Size([1, 2]))
    """

    def __init__(
        self,
        rows: Any,
        *,
        batch_size: int | Sequence[tuple[int, int]],
        rank: int | None = None,
        world_size: int | None = None,
        start_row: int = 0,
        long: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__()
        self._loader = Loader(
            rows,
            batch_size=batch_size,
            rank=rank,
            world_size=world_size,
            long=long,
            **settings,
            num_workers=0,
            prefetch=0,
        )
        self._loader.seek(row=start_row)
        self._first = self._loader.step

    def __len__(self) -> int:
        return len(self._loader) - self._first

    def __getitem__(self, number: int) -> Tensors:
        self._go_to(range(len(self))[number])
        return next(self._loader)

    def _go_to(self, number: int) -> None:
        if self._loader.step != self._first + number:
            self._loader.seek(step=self._first + number)

    def get_state(self, batches: int) -> dict[str, Any]:
        """The state when the first `batches` of these have been trained on.

        The same as a loader has there, of JAX or torch, which can go on from it.
        """
        self._go_to(batches)
        return self._loader.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Begin where a state was taken: a loader's, or a `StatefulDataLoader`'s of one."""
        self._loader.load_state_dict(state)
        self._first = self._loader.step
