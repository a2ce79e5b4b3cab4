"""Files written by Megatron-Core itself, and its own datasets, beside ours."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.rows import megatron
from tests.clients.installed.promises import needs
from tests.dataset.documents.test_foreign import assert_holds, only_source

needs("megatron.core", "megatron")

SEQ_LEN = 24
RESETS = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")


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
    from megatron.core.datasets.indexed_dataset import _IndexReader

    _IndexReader.__getitem__.cache_clear()  # it holds files


def build(prefix: str, seed: int, dtype: Any, strewn: bool) -> list[np.ndarray]:
    """Documents of 0 to 3 sequences, by Megatron's builder; the sequences.

    Each ends with an EOD and holds no other; or they are strewn, and half of them lack the last.
    """
    import torch
    from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

    random = np.random.default_rng(seed)
    builder, sequences = IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype), []
    for _ in range(120):
        lengths = random.integers(0, 70, random.integers(0, 4))
        own = [np.append(random.integers(1, 50_000, n), 0) for n in lengths]
        if strewn:
            own = [np.where(random.random(len(one)) < 0.1, 0, one) for one in own]
            own = [one[:-1] if len(one) > 1 and random.random() < 0.5 else one for one in own]
        builder.add_document(torch.tensor(np.concatenate([*own, []])), [len(one) for one in own])
        sequences += own
    builder.finalize(f"{prefix}.idx")
    return sequences


def theirs(folder: Path, blend: Any, size: int | None, **given: Any) -> Any:
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder,
    )
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

    own = {"blend": blend, "split": "9,1", "tokenizer": Tokenizer()}
    config = GPTDatasetConfig(
        random_seed=77,
        sequence_length=SEQ_LEN,
        path_to_cache=str(folder / "cache"),
        **{**dict.fromkeys(RESETS, False), **own, **given},
    )
    other = None if blend and blend[1] is None else 1
    sizes = (size, other, other)
    return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()[0]


@pytest.mark.parametrize("flags", product([False, True], repeat=3))
@pytest.mark.parametrize("strewn", [False, True])
@pytest.mark.parametrize(
    ("count", "size", "weights"),
    [(1, 40, None), (1, 900, None), (3, 500, (0.7, 0.2, 0.1)), (3, 500, None), (3, None, None)],
)
def test_rows_are_its_samples(
    tmp_path: Path,
    count: int,
    size: int | None,
    weights: tuple[float, ...] | None,
    strewn: bool,
    flags: tuple[bool, ...],
) -> None:
    """Each of its three options alone, and with the others."""
    positions, attention, loss = flags
    given: dict[str, Any] = {"reset": positions or attention, "eod_mask_loss": loss}
    given |= {"positions": "segment" if positions else "row"}
    given |= {"by": "eod", "eod_id": 0} if strewn else {}
    prefixes, sources = [str(tmp_path / f"part{k}") for k in range(count)], []
    for number, prefix in enumerate(prefixes):
        sequences = build(prefix, number, np.uint16 if number % 2 else np.int32, strewn)
        sources.append(only_source(f"megatron:{prefix}"))
        assert_holds(sources[-1].sequences, sequences)
    blend = (prefixes, list(weights) if weights else None)
    samples = theirs(tmp_path, blend, size, **dict(zip(RESETS, flags, strict=True)))
    given |= {"seq_len": SEQ_LEN, "seed": 77, "split": "9,1"}
    if count == 1:
        rows = megatron.gpt(sources[0], num_samples=size, **given)
    else:
        pairs = list(zip(weights or [None] * count, sources, strict=True))
        rows = megatron.blend(pairs, size=size, **given)
    assert_same(samples, rows, attention or not positions)


def assert_same(samples: Any, rows: Any, attention: bool) -> None:
    """All of every sample; of its padding all but positions and attention, which change no loss."""
    assert len(samples) == len(rows)
    batch = next(jaxdata.Loader(rows, batch_size=len(rows), prefetch=0))
    names = {"tokens": "inputs", "labels": "targets", "loss_mask": "loss_mask"}
    for number, sample in enumerate(samples[k] for k in range(len(rows))):
        ours = {name: array[number] for name, array in batch.items()}
        for name, own in names.items():
            assert (sample[name].numpy() == ours[own]).all(), (number, name)
        filled = ours["segment_ids"] > 0
        same = sample["position_ids"].numpy() == ours["positions"]
        assert same[filled].all(), number
        segment = ours["segment_ids"] if attention else filled
        seen = (segment[:, None] == segment) & np.tri(SEQ_LEN, dtype=bool)
        same = ~sample["attention_mask"][0].numpy() == seen
        assert same[filled].all(), number
