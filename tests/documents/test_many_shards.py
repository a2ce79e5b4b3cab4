"""Datasets of more files than a process may have open, and of more than it may map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import jaxdata
from jaxdata.testing import distinct_documents
from tests.documents.few_descriptors import with_few_descriptors
from tools.bench.many_shards import write_many_shards

DOCUMENTS = distinct_documents(np.random.default_rng(0).integers(10, 40, 250))

READ = """
import json, sys
from pathlib import Path
import numpy as np
import jaxdata
source = jaxdata.open_dataset(sys.argv[1]).source("train", "web")
chosen = np.random.default_rng(1).permutation(len(source))[:3_000]
documents = {int(k): source[k]["tokens"].tolist() for k in chosen}
rows = jaxdata.pack(source, seq_len=256)
targets = sum(int(batch["loss_mask"].sum()) for batch in jaxdata.Loader(rows, batch_size=64))
maps = len(Path("/proc/self/maps").read_text().splitlines())
print(json.dumps([documents, targets, maps]))
"""


@pytest.fixture(scope="module", params=[1_000, pytest.param(100_000, marks=pytest.mark.exhaustive)])
def many(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("many")
    write_many_shards(path, DOCUMENTS, request.param)
    return path


@pytest.mark.exhaustive
def test_every_document_is_read(many: Path) -> None:
    lengths = jaxdata.open_dataset(many).source("train", "web").lengths
    found, targets, maps = with_few_descriptors(READ, many)
    assert len(found) == min(3_000, len(lengths))
    assert all(found[k] == DOCUMENTS[int(k) % len(DOCUMENTS)].tolist() for k in found)
    assert targets == int(lengths.sum()) - len(lengths)
    assert maps < 30_000  # the kernel allows 65,530


FORK = """
import json, os, sys
import jaxdata
from jaxdata.format.storage import maps
source = jaxdata.open_dataset(sys.argv[1]).source("train", "web")
maps.MOST_MAPS = 300
def read(first, last):
    return [source[k]["tokens"].tolist() for k in range(first, last)]
before = read(0, 400)
reading, writing = os.pipe()
if not os.fork():
    os.write(writing, b"same" if read(0, 400) == before and read(500, 900) else b"not the same")
    os._exit(0)
os.close(writing)
print(json.dumps([os.read(reading, 100).decode(), read(0, 400) == before]))
"""


def test_a_forked_process_reads_on(many: Path) -> None:
    assert with_few_descriptors(FORK, many) == ["same", True]


FOREIGN = """
import json, sys
import jaxdata
source = jaxdata.open_dataset(f"megatron:{sys.argv[1]}", eod_id=0).source("train", "many")
print(json.dumps([source[k]["tokens"].tolist() for k in range(len(source))]))
"""


def test_many_files_of_another_tool(tmp_path: Path) -> None:
    documents = distinct_documents([30, 20, 5], first=1)
    jaxdata.export(jaxdata.ArrayDocuments(documents), tmp_path / "one", format="megatron")
    (tmp_path / "many").mkdir()
    for number in range(300):
        for suffix in (".bin", ".idx"):
            link = tmp_path / "many" / f"{number:03}{suffix}"
            link.hardlink_to(tmp_path / f"one{suffix}")
    found = with_few_descriptors(FOREIGN, tmp_path / "many")
    assert found == [document.tolist() for document in documents] * 300
