"""Files of text in five formats, streams of them, and what they hold."""

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import jaxdata
from jaxdata.converter import texts


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Five formats, 300 documents, the empty one and one longer than many rows among them."""
    folder = tmp_path_factory.mktemp("texts")
    chance = np.random.default_rng(0)
    documents = [
        "".join(chance.choice(list("abcdefgh \n"), size)) for size in chance.integers(0, 90, 300)
    ]
    documents[7], documents[150] = "", "long " * 400
    lines = [json.dumps({"text": text}).encode() + b"\n" for text in documents]
    (folder / "a.jsonl").write_bytes(b"".join(lines[:100]) + b"\nnot JSON\n")
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(b"".join(lines[100:160])))
    table = pyarrow.table({"text": documents[160:239]})
    pyarrow.parquet.write_table(table, folder / "c.parquet", row_group_size=20)
    (folder / "d.txt").write_text(documents[239])
    with tarfile.open(folder / "g.tar", "w") as archive:
        for number, some in enumerate((lines[240:270], lines[270:])):
            member = tarfile.TarInfo(f"{number}.jsonl")
            member.size = len(b"".join(some))
            archive.addfile(member, io.BytesIO(b"".join(some)))
    return sorted(folder.iterdir())


def stream(files: Any, **options: Any) -> Any:
    chosen = {"tokenizer": "bytes", "seq_len": 64, "batch_size": 4, "buffer": 50, "num_workers": 0}
    return jaxdata.stream_text(files, **chosen | options)


def documents(given: Any) -> jaxdata.ArrayDocuments:
    """What files hold, or texts, tokenised by hand."""
    if not isinstance(given[0], str):
        given = texts(given)
    return jaxdata.ArrayDocuments([[*text.encode(), 256] for text in given])
