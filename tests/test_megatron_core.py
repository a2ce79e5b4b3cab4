"""Files written by Megatron-Core itself, and its own datasets, beside ours; skips without it.

To run it: pip install megatron-core torch
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from tests.test_foreign import assert_holds, only_source

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

pytestmark = pytest.mark.slow
SEQ_LEN = 24


class Tokenizer:
    """What Megatron asks of one here."""

    eod, pad, vocab_size = 0, -7, 60_000
    unique_identifiers = {"name": "none"}  # noqa: RUF012


@pytest.fixture(scope="module", autouse=True)
def _alone() -> Any:
    import torch.distributed

    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def build(prefix: Path, seed: int, dtype: Any) -> list[np.ndarray]:
    """Documents of 0 to 3 sequences, by Megatron's builder; the sequences."""
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    random = np.random.default_rng(seed)
    builder, sequences = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype), []
    for _ in range(120):
        lengths = random.integers(0, 70, random.integers(0, 4))
        own = [np.append(random.integers(1, 50_000, n), 0) for n in lengths]
        builder.add_document(torch.tensor(np.concatenate([*own, []])), [len(one) for one in own])
        sequences += own
    builder.finalize(f"{prefix}.idx")
    return sequences


def theirs(folder: Path, blend: Any, size: int | None, **given: Any) -> Any:
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    config = GPTDatasetConfig(
        random_seed=77,
        sequence_length=SEQ_LEN,
        blend=blend,
        split="9,1",
        path_to_cache=str(folder / "cache"),
        tokenizer=Tokenizer(),
        **given,
    )
    other = None if blend[1] is None else 1
    sizes = (size, other, other)
    return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()[0]


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(
    ("count", "size", "weights"),
    [(1, 40, None), (1, 900, None), (3, 500, (0.7, 0.2, 0.1)), (3, 500, None), (3, None, None)],
)
def test_rows_are_its_samples(
    tmp_path: Path, count: int, size: int | None, weights: tuple[float, ...] | None, reset: bool
) -> None:
    prefixes = [tmp_path / f"part{k}" for k in range(count)]
    sources = []
    for number, prefix in enumerate(prefixes):
        sequences = build(prefix, number, np.uint16 if number % 2 else np.int32)
        sources.append(only_source(f"megatron:{prefix}"))
        assert_holds(sources[-1].sequences, sequences)
    flags = dict.fromkeys(("reset_position_ids", "reset_attention_mask", "eod_mask_loss"), reset)
    blend = ([str(prefix) for prefix in prefixes], list(weights) if weights else None)
    samples = theirs(tmp_path, blend, size, **flags)
    given: dict[str, Any] = {"seq_len": SEQ_LEN, "seed": 77, "split": "9,1", "reset": reset}
    given["eod_mask_loss"] = reset
    if count == 1:
        rows = jaxdata.megatron.gpt(sources[0], num_samples=size, **given)
    else:
        pairs = list(zip(weights or [None] * count, sources, strict=True))
        rows = jaxdata.megatron.blend(pairs, size=size, **given)
    assert_same(samples, rows)


def assert_same(samples: Any, rows: Any) -> None:
    assert len(samples) == len(rows)
    batches = jaxdata.Loader(rows, batch_size=1)
    names = {
        "tokens": "inputs",
        "labels": "targets",
        "loss_mask": "loss_mask",
        "position_ids": "positions",
    }
    for number, batch in enumerate(batches):
        sample = samples[number]
        for name, ours in names.items():
            assert (sample[name].numpy() == batch[ours][0]).all(), (number, name)
        segment = batch["segment_ids"][0]
        seen = (segment[:, None] == segment) & np.tri(SEQ_LEN, dtype=bool)
        assert (~sample["attention_mask"][0].numpy() == seen).all(), number
