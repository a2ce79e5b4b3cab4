"""Whole batches by their number: a map-style dataset for torch's own `DataLoader`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from jaxdata.scalars import takes_numpy
from jaxdata.torch.loader import Loader
from jaxdata.torch.tensors import Tensors


class Batches(Dataset[Tensors]):
    """Batch *k* from `start_row` on, for `DataLoader(batch_size=None, num_workers=n)`.

    Args:
        rows: the result of `jaxdata.pack` or `mix`, or any `MapDataset` of rows.
        batch_size: rows of the global batch, over all ranks; or a ramp.
        rank: number of this process among those that share a batch; see `jaxdata.torch.Loader`.
        world_size: number of those processes.
        start_row: first row of batch 0: `next_row` of a state. Or call `set_state`.
        long: int64 instead of int32.
        settings: `drop_remainder`, `skip_rows` and `layout`, as for `jaxdata.Loader`.

    >>> import jaxdata.torch
    >>> rows = jaxdata.pack(jaxdata.ArrayDocuments([[1, 2, 0], [3, 0], [4, 0]]), seq_len=2)
    >>> batches = jaxdata.torch.Batches(rows, batch_size=1)
    >>> len(batches), batches[1]["inputs"].shape
    (2, torch.Size([1, 2]))
    """

    @takes_numpy
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

    def __repr__(self) -> str:
        return f"Batches({len(self):,} of {self._loader!r})"

    def __len__(self) -> int:
        return len(self._loader) - self._first

    def __getitem__(self, number: int) -> Tensors:
        with self._loader.lock:  # of several threads each gets what it asks for
            self._go_to(range(len(self))[number])
            return next(self._loader)

    def _go_to(self, number: int) -> None:
        if self._loader.step != self._first + number:
            self._loader.seek(step=self._first + number)

    @takes_numpy
    def get_state(self, batches: int) -> dict[str, Any]:
        """The state after training on the first `batches` of these.

        A loader, of JAX or torch, has the same state there and can resume from it.
        """
        with self._loader.lock:
            self._go_to(batches)
            return self._loader.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Start where a state was taken: a loader's, or that of a `StatefulDataLoader` of one."""
        self._loader.load_state_dict(state)
        self._first = self._loader.step
