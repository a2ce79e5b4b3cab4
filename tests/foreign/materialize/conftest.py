"""A run whose rows are written down, and what tests ask of what was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordReader

import jaxdata
from jaxdata.testing import assert_same_batches, distinct_documents
from tests import builders, commands

Row = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two sources, one of them masked, mixed and shuffled, with documents longer than a row."""
    folder = tmp_path_factory.mktemp("materialize")
    rng = np.random.default_rng(0)
    documents = distinct_documents([*rng.integers(1, 60, 400), 900])
    masks = [rng.integers(0, 2, len(document)) for document in documents[300:]]
    sources = {"web": documents[:300], "code": documents[300:], "val/web": documents[:20]}
    made = builders.run(
        folder,
        dataset=str(builders.dataset(folder / "d", sources, masks={"code": masks})),
        pack={"seq_len": 64, "overlap": 8},
        curriculum={"mix": {"web": 0.75, "code": 0.25}},
        loader={"batch_size": 1},
    )
    return str(made)


def loaded(config: str, split: str | None = None, **overrides: Any) -> list[Row]:
    """What the Loader delivers, row by row, without constants, and masks that are not stored."""
    loader = jaxdata.load(config, split, **overrides)
    return [
        {name: array[0] for name, array in batch.items() if array.ndim and name != "attention_mask"}
        for batch in loader
    ]


def records(folder: Path) -> list[bytes]:
    """Every record of every file, in order."""
    found = []
    for path in sorted(folder.glob("*.array_record")):
        reader = ArrayRecordReader(str(path))
        found += reader.read(0, reader.num_records())
    return found


def run(*arguments: str) -> None:
    commands.run("export", *arguments)


def assert_same_rows(one: list[Row], other: list[Row]) -> None:
    assert len(one) == len(other) > 0
    assert_same_batches(one, other)
