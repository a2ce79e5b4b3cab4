"""Numpy batches as tensors, here or on a device."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from jaxdata.errors import InputError
from jaxdata.feed.trees import is_array, map_leaves

Tensors = dict[str, Any]
"""tensors by name; a single number is a Python number, as kernels take it"""


class Delivery:
    """Moves batches to the device of the trainer.

    On the host a tensor shares the numpy array's memory, which is reused only when neither array
    nor tensor refers to it. To a CUDA device batches go from pinned memory in a stream of their
    own, while the device computes.

    Args:
        device: the device; None for the host.
        long: int32 becomes int64, on the device.
    """

    def __init__(self, device: str | torch.device | None = None, long: bool = False) -> None:
        self.device = None if device is None else torch.device(device)
        self._long = long
        self._stream: torch.cuda.Stream | None = None
        if self.device is not None and self.device.type == "cuda":
            if not torch.cuda.is_available():
                raise InputError(
                    f"device={str(device)!r}: torch finds no CUDA device here; give another, or "
                    "none for tensors on the host"
                )
            self._stream = torch.cuda.Stream(self.device)
            self.device = self._stream.device  # with its number

    @property
    def works(self) -> bool:
        """Whether anything is copied."""
        return self._long or self.device is not None

    def send(self, batch: Any) -> Any:
        """Start to move a batch of any structure; may be called by a thread that works ahead."""
        found = map_leaves(lambda _, leaf: _tensor(leaf), batch)
        if self._stream is None:
            return map_leaves(lambda _, leaf: self._moved(leaf), found)
        with torch.cuda.stream(self._stream):  # the current device of a thread may be another
            pinned = map_leaves(lambda _, leaf: _pinned(leaf), found)
            moved = map_leaves(lambda _, leaf: self._moved(leaf), pinned)
            return _Sent(moved, self._stream.record_event())

    def receive(self, batch: Any) -> Any:
        """The batch for the caller's stream, which waits on the device until it has arrived."""
        if not isinstance(batch, _Sent):
            return batch
        stream = torch.cuda.current_stream(self.device)
        stream.wait_event(batch.arrival)

        def recorded(_: str, value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                value.record_stream(stream)  # else the next copy could overwrite it
            return value

        return map_leaves(recorded, batch.batch)

    def _moved(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        # Only from pinned memory: other devices may read the memory of the host later, when it has
        # the next batch.
        pinned = self._stream is not None
        moved = value if self.device is None else value.to(self.device, non_blocking=pinned)
        return moved.long() if self._long and moved.dtype == torch.int32 else moved


class _Sent(NamedTuple):
    batch: Any
    arrival: torch.cuda.Event


def _tensor(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) or not is_array(leaf):
        return leaf
    array = np.asarray(leaf)
    return torch.from_numpy(array) if array.ndim else array.item()


def _pinned(value: Any) -> Any:
    return value.pin_memory() if isinstance(value, torch.Tensor) else value
