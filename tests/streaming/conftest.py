"""Texts, files of them in five formats, streams of them, and what they hold."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.converter import texts
from tests.converter.inputs.made import FORMATS, lines, tar

CHANCE = np.random.default_rng(0)
TEXTS = ["".join(CHANCE.choice(list("abcdefgh \n"), n)) for n in CHANCE.integers(0, 90, 300)]
TEXTS[7], TEXTS[150] = "", "long " * 400  # longer than many rows


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("texts")
    (folder / "a.jsonl").write_bytes(lines(*TEXTS[:100]) + b"\nnot JSON\n")
    FORMATS["a.jsonl.gz"](folder / "b.jsonl.gz", TEXTS[100:160])
    FORMATS["groups.parquet"](folder / "c.parquet", TEXTS[160:239])
    (folder / "d.txt").write_text(TEXTS[239])
    parts = {"0.jsonl": TEXTS[240:270], "1.jsonl": TEXTS[270:]}
    (folder / "g.tar").write_bytes(tar(*[(name, lines(*some), "") for name, some in parts.items()]))
    return sorted(folder.iterdir())


def stream(files: Any, **options: Any) -> Any:
    chosen = {"tokenizer": "bytes", "seq_len": 64, "batch_size": 4, "buffer": 50, "num_workers": 0}
    return jaxdata.stream_text(files, **chosen | options)


def documents(given: Any) -> jaxdata.ArrayDocuments:
    """What files hold, or texts, tokenised by hand."""
    if not isinstance(given[0], str):
        given = texts(given)
    return jaxdata.ArrayDocuments([[*text.encode(), 256] for text in given])
