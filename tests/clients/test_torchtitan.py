"""torchtitan's data loader: its batches, its state in DCP, another data-parallel degree.

In a stand-in of the interfaces of two versions; `installed/test_torchtitan.py` trains with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import jaxdata
from jaxdata.base.errors import InputError, StateMismatch
from jaxdata.clients import torchtitan
from tests.clients.tiny import ROWS, SEQ_LEN, VOCAB

OF_ROWS = {"seq_len": SEQ_LEN, "local_batch_size": ROWS}
OF_TOKENS = {"max_context_length": SEQ_LEN, "num_tokens_per_batch": ROWS * SEQ_LEN}


class BaseDataLoader:
    """As torchtitan's: a class knows its `Config`, which builds it."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        owner: ClassVar[Any] = None

        def build(self, **told: Any) -> Any:
            return self.owner(config=self, **told)

    def __init_subclass__(cls) -> None:
        cls.Config.owner = cls


@pytest.fixture(autouse=True)
def scalars(stand_in: Callable[..., Any]) -> list[dict[str, float]]:
    """What is logged to the stand-in."""
    found: list[dict[str, float]] = []
    torchtitan._data_loader.cache_clear()
    stand_in("torchtitan.components.data.loader", BaseDataLoader=BaseDataLoader)
    stand_in("torchtitan.observability.structured_logger", log_trace_scalar=found.append)
    return found


def build(run: Any, told: Any = None, rank: int = 0, ranks: int = 1, **settings: Any) -> Any:
    config = torchtitan.dataloader(run)
    for name, value in settings.items():
        setattr(config, name, value)
    tokenizer = SimpleNamespace(get_vocab_size=lambda: VOCAB)
    told = OF_ROWS if told is None else told
    return config.build(dp_rank=rank, dp_world_size=ranks, tokenizer=tokenizer, **told)


@pytest.mark.parametrize("told", [OF_ROWS, OF_TOKENS])
def test_batches_are_the_rows_of_the_config(run: Any, told: Any) -> None:
    """Padding is one document, and labels of -100 are where there is no loss."""
    shape = (ROWS, SEQ_LEN) if told is OF_ROWS else (ROWS * SEQ_LEN,)
    for (taken, labels), native in zip(build(run, told), jaxdata.load(run), strict=True):
        found = [taken["input"], taken["positions"], labels]
        assert {(tuple(each.shape), each.dtype) for each in found} == {(shape, torch.int64)}
        tokens, positions, labels = (each.reshape(-1, SEQ_LEN).numpy() for each in found)
        padding, loss = native["segment_ids"] == 0, native["loss_mask"]
        np.testing.assert_array_equal(tokens, native["inputs"])
        np.testing.assert_array_equal(labels, np.where(loss, native["targets"], -100))
        np.testing.assert_array_equal(positions[~padding], native["positions"][~padding])
        for row, empty in zip(positions, padding, strict=True):
            assert row[empty].tolist() == list(range(empty.sum()))
    assert padding.all(1).any()


def test_a_validation_goes_on_or_ends(run: Any) -> None:
    steps = len(build(run).loader)
    assert len(list(build(run))) == steps
    for name in ("repeat", "infinite"):
        labels = [labels for _, labels in islice(build(run, **{name: True}), 2 * steps)]
        assert all(map(torch.equal, labels[:steps], labels[steps:]))


def test_the_log_has_tokens_by_source(run: Any, scalars: list[dict[str, float]]) -> None:
    loader = build(run, log_every=2)
    list(islice(loader, 5))
    assert len(scalars) == 2
    report = loader.loader.report()
    assert scalars[-1]["data/tokens/pages"] < report.sources["pages"].tokens
    assert {"data/epochs/code", "data/wait_seconds"} <= scalars[-1].keys()


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({**OF_ROWS, "seq_len": 64}, "training.seq_len is 64: set pack.seq_len to 64"),
        ({**OF_TOKENS, "max_context_length": 32}, "training.max_context_length is 32"),
        ({**OF_TOKENS, "num_tokens_per_batch": 100}, "=100 is no multiple of max_context_len"),
        ({}, "expected one that the README of jaxdata.clients names"),
    ],
)
def test_rows_that_do_not_fit_are_refused(run: Any, told: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        build(run, told)


def test_what_would_be_silently_wrong_is_refused(run: Any) -> None:
    small = SimpleNamespace(get_vocab_size=lambda: 512)
    with pytest.raises(InputError, match="ids below 1,000, but torchtitan's tokenizer is 512"):
        torchtitan.dataloader(run).build(dp_rank=0, dp_world_size=1, tokenizer=small, **OF_ROWS)
    other = build({**run, "seed": 5}).state_dict()
    theirs = {"dp_rank_0": b"", "world_size": 1}
    for state, says in (
        (theirs, r"has dp_rank_0, world_size: .* set checkpoint.exclude"),
        (other, "seed"),
    ):
        with pytest.raises(StateMismatch, match=says):
            build(run).load_state_dict(state)
    run["pack"] = {**run["pack"], "positions": "row"}
    with pytest.raises(InputError, match="torchtitan finds the documents of a row by positions"):
        list(build(run))
