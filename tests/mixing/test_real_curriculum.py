"""The two phases that GPT-Simple documents, on real text: shares as asked, counts as foretold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import jaxdata
from jaxdata.converter import convert
from jaxdata.look.validation import describe_mixture

pytestmark = pytest.mark.slow

FILES = {
    "web": ["web.parquet"],
    "code": ["code-0.jsonl.gz", "code-1.jsonl.gz"],
    "math": ["books.jsonl.gz"],  # there is no mathematics here
    "wiki": ["wiki.jsonl.zst"],
}
PHASES = [
    {"tokens": 25e6, "mix": {"web": 0.6, "code": 0.2, "math": 0.1, "wiki": 0.1}},
    {"tokens": 25e6, "mix": {"web": 0.3, "code": 0.3, "math": 0.2, "wiki": 0.2}},
]


@pytest.fixture(scope="module")
def config(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    folder = tmp_path_factory.mktemp("gpt-simple")
    for source, names in FILES.items():
        inputs = [str(shared_data / name) for name in names]
        convert(inputs, output=str(folder / "d"), source=source, tokenizer="bytes", workers=2)
    return {
        "dataset": str(folder / "d"),
        "pack": {"seq_len": 2048},
        "curriculum": PHASES,
        "loader": {"batch_size": 256, "extras": ["source"]},
    }


def counted(loader: jaxdata.Loader) -> np.ndarray:
    """(rows, sources) trained tokens of every row, as it was delivered."""
    sources = len(loader.source_names)
    found = []
    for batch in loader:
        rows = np.arange(len(batch["source"]))[:, None]
        at = (rows * sources + batch["source"])[batch["loss_mask"]]
        found.append(np.bincount(at, minlength=rows.size * sources).reshape(-1, sources))
    return np.concatenate(found)[: len(loader.rows)]


@pytest.mark.exhaustive
def test_shares_within_a_thousandth_and_counts_to_the_token(config: dict[str, object]) -> None:
    loader = jaxdata.load(config)
    tokens = counted(loader)
    told = describe_mixture(loader.rows)["phases"]
    assert [phase["rows"] for phase in told] == [12_208, 12_208]
    first = 0
    for asked, phase in zip(PHASES, told, strict=True):
        mine = tokens[first : first + phase["rows"]].sum(axis=0)
        for number, name in enumerate(loader.source_names):
            assert phase["sources"][name]["tokens"] == mine[number]
            assert abs(mine[number] / mine.sum() - asked["mix"][name]) < 0.001
        first += phase["rows"]
    assert first == len(tokens)
