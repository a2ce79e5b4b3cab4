"""Tensors are the memory of arrays; types, layouts and devices."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint

from jaxdata.base.errors import InputError
from jaxdata.feed.attention import varlen
from tests.torch.conftest import (
    check,
    loader,
)


def test_tensors_are_the_memory_of_arrays_and_never_change(rows: Any, reference: Any) -> None:
    one = loader(rows)
    (placement,), arrays = one._placements.values(), list[int]()
    inner = placement.place
    placement.place = lambda batch: arrays.append(batch["inputs"].ctypes.data) or inner(batch)
    held = list(one)
    assert [batch["inputs"].data_ptr() for batch in held] == arrays, "no copy"
    parts = [batch["targets"][3:5] for batch in loader(rows, num_workers=1)]
    gc.collect()
    check(held, reference)
    for part, batch in zip(parts, reference, strict=True):
        assert np.array_equal(part.numpy(), batch["targets"][3:5])
    places = {batch["inputs"].data_ptr() for batch in loader(rows, prefetch=0)}
    assert len(places) < 8 < len(reference), "memory is used again when no tensor refers to it"


def test_int64_and_layouts_and_numbers(rows: Any, reference: Any) -> None:
    batch = next(loader(rows, long=True))
    assert batch["targets"].dtype == torch.int64
    assert batch["loss_mask"].dtype == torch.bool
    assert np.array_equal(batch["targets"].numpy(), reference[0]["targets"])
    torch.nn.functional.cross_entropy(torch.zeros(32, 65_536), batch["targets"][0])
    first = next(loader(rows, layout=lambda b: {**b, **varlen(b["segment_ids"])}))
    assert type(first["max_seqlen"]) is int
    assert first["cu_seqlens"].dtype == torch.int32


def test_a_device_of_ones_own(rows: Any, reference: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that is not awaited reads the next batch, on a Mac's GPU for one: pytorch#189690."""
    check(loader(rows, device="cpu"), reference)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="device='cuda:0': torch finds no CUDA device here"):
            loader(rows, device="cuda:0")
    inner, awaited = torch.Tensor.to, []

    def spy(value: torch.Tensor, *args: Any, non_blocking: bool = False) -> torch.Tensor:
        awaited.append(not non_blocking)
        return inner(value, *args, non_blocking=non_blocking)

    monkeypatch.setattr(torch.Tensor, "to", spy)
    batch = next(loader(rows, device="meta", prefetch=0))
    assert {value.device.type for value in batch.values()} == {"meta"}
    assert awaited == [True] * 5


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_batches_on_a_gpu(rows: Any, reference: Any) -> None:
    held = list(loader(rows, device="cuda", num_workers=2, long=True))
    assert all(value.is_cuda for batch in held for value in batch.values())
    back = [{name: value.cpu() for name, value in batch.items()} for batch in held]
    for batch, expected in zip(back, reference, strict=True):
        assert all(np.array_equal(batch[name].numpy(), expected[name]) for name in expected)
