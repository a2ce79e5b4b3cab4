"""A run whose tokens all differ, so that a batch tells what it holds; and `jaxdata inspect`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdata.testing import distinct_documents
from tests import builders, commands
from tests.builders import dataset

RNG = np.random.default_rng(11)
TEXTS = {
    name: distinct_documents(RNG.integers(1, 150, count), first=1 + 20_000 * number)
    for number, (name, count) in enumerate({"web": 250, "code": 150, "wiki": 40}.items())
}


def asked(*arguments: Any) -> Any:
    """What `jaxdata inspect` says, as JSON."""
    return json.loads(commands.run("inspect", *map(str, arguments), "--json").stdout)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    dataset(tmp_path / "d", TEXTS, shard_documents=64, record_tokens=50)
    return builders.run(
        tmp_path,
        dataset=str(tmp_path / "d"),
        pack={"seq_len": 32, "block_bytes": 5000, "overlap": 5},
        curriculum=[
            {"rows": 300, "mix": {"web": 0.6, "code": 0.3, "wiki": 0.1}},
            {"rows": 371, "mix": {"web": 0.3, "code": 0.3, "wiki": 0.4}},
        ],
        epochs={"web": 1.5, "code": 2, "wiki": 6},
        loader={"batch_size": 24},
    )


OWNERS = {
    int(token): (name, number, place)
    for name, documents in TEXTS.items()
    for number, document in enumerate(documents)
    for place, token in enumerate(document)
}
"""of each token id, the one place where it stands: source, document, token"""
Place = tuple[int, int, int, int]
"""(step, row of the batch, first slot, first token)"""


def emitted(batch: Any, step: int) -> Iterator[tuple[tuple[str, int], Place]]:
    """The segments of a batch, told from its tokens alone."""
    for row in range(len(batch["inputs"])):
        ids = batch["segment_ids"][row]
        for segment in range(1, int(ids.max()) + 1):
            slot = int(np.flatnonzero(ids == segment)[0])
            name, document, token = OWNERS[int(batch["inputs"][row][slot])]
            yield (name, document), (step, row, slot, token)


def told(pieces: list[Any]) -> list[Place]:
    return [(p["step"], p["row_in_batch"], p["slots"][0], p["tokens"][0]) for p in pieces]
