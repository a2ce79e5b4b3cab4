"""Documents in which every token is another, and runs of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.rows.map_datasets import MixedDataset
from jaxdata.testing import distinct_documents


def sources(lengths: dict[str, list[int]], masked: bool = False) -> dict[str, Any]:
    """Documents in which every token is another, over all sources."""
    found, first = {}, 1
    for name, each in lengths.items():
        documents = distinct_documents(each, first)
        first += sum(each)
        masks = [np.arange(len(d)) % 3 > 0 for d in documents] if masked else None
        found[name] = jaxdata.ArrayDocuments(documents, masks, name=f"train/{name}")
    return found


def packed(docs: dict[str, Any], **settings: Any) -> dict[str, Any]:
    small: Any = {} if settings.get("order") == 2 else {"block_bytes": 800}
    return {name: jaxdata.pack(each, **{**small, **settings}) for name, each in docs.items()}


def deliver(mixed: Any, batch_size: int, hosts: int) -> Iterator[Any]:
    """The parts of all batches of a run, of all hosts, whose states are the same."""
    group = [
        jaxdata.Loader(mixed, batch_size=batch_size, shard=(host, hosts), prefetch=0)
        for host in range(hosts)
    ]
    for parts in zip(*group, strict=True):
        assert len({json.dumps(one.get_state()) for one in group}) == 1
        yield from parts


POOLS = {"chunk_bytes": 40, "block_bytes": 120}
PACKS = [
    {"seq_len": 16},
    {"seq_len": 32, "strategy": "concat"},
    {"seq_len": 24, "overlap": 6},
    {"seq_len": 16, "strategy": "pad", "block_bytes": 500},
    {"seq_len": 48, "max_segments": 2},
    {"seq_len": 16, "lanes": 8, **POOLS},
]


def run_of_two_phases(docs: dict[str, Any]) -> MixedDataset:
    """Two phases of which the second asks for more than there is."""
    named = {name: docs[name] for name in ("web", "code")}
    phases = [
        jaxdata.Phase(rows=60, weights={"web": 0.7, "code": 0.3}),
        jaxdata.Phase(rows=400, weights={"web": 0.5, "code": 0.5}),
    ]
    return jaxdata.mix(packed(named, seq_len=32), phases=phases, on_exhaustion="halt")


@pytest.fixture(scope="module")
def docs() -> dict[str, Any]:
    random = np.random.default_rng(7)
    counts = {"web": 260, "code": 120, "books": 40}
    return sources({name: random.integers(2, 110, n).tolist() for name, n in counts.items()})
