"""Documents on disk: where their bytes lie, of objects of users' own, and in many files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import DatasetError
from jaxdata.dataset import places
from jaxdata.dataset.records import file_offset
from jaxdata.testing import assert_same_batches, distinct_documents
from tests import builders
from tests.dataset.documents.test_foreign import only_source, write_datatrove
from tools.bench.many_shards import write_many_shards

LENGTHS = [1, 7, 900, 2, 9, 90, 1_200, 3, 300, 2_500]


@pytest.mark.parametrize("kind", ["plain", "masked", "datatrove"])
@pytest.mark.parametrize("page", [512, 1_000])
def test_ranges_hold_tokens_and_masks_and_come_with_pages_that_documents_begin_or_fill(
    tmp_path: Path, kind: str, page: int
) -> None:
    tokens = builders.documents(LENGTHS)
    masks = [np.arange(len(each)) % 3 > 0 for each in tokens]
    if kind == "datatrove":
        docs: Any = only_source(write_datatrove(tmp_path / "a.ds", tokens, masks=masks))
        files = [(tmp_path / name).read_bytes() for name in ("a.ds", "a.ds.loss")]
    else:
        options = {"masks": {"a": masks}} if kind == "masked" else {}
        sizes: Any = {"shard_documents": 3, "record_tokens": 999}
        folder = builders.dataset(tmp_path / "d", {"a": tokens}, **options, **sizes)
        docs = jaxdata.open_dataset(folder)["a"]
        files = [(folder / shard.name).read_bytes() for shard in docs.entry.shards]
    assert (docs.file_sizes <= list(map(len, files))).all()
    for number, (own, mask) in enumerate(zip(tokens, masks, strict=True)):
        for start, stop in ((0, len(own)), (len(own) // 3, len(own) - 1)):
            asked = (np.array([each]) for each in (number, start, stop - start))
            with mock.patch.object(places, "PAGE_BYTES", page):
                found = docs.page_ranges(*asked)
            ranges = [*zip(*(column.tolist() for column in found), strict=True)]
            held = b"".join(files[file][a:b] for file, a, b, *_ in ranges)
            wanted = np.asarray(own[start:stop], docs.dtype).tobytes()
            assert held == wanted + (mask[start:stop].tobytes() if docs.masked else b"")
            for file, a, _, with_page, document in ranges:
                first, end = extent(docs, kind, number, file, len(own))
                home = a // page == first // page or (a // page + 1) * page <= end
                assert (with_page, document) == (a // page - (not home), number)


def extent(docs: Any, kind: str, number: int, file: int, length: int) -> tuple[int, int]:
    """Where a document begins and ends in a file."""
    if kind == "datatrove":
        first = sum(LENGTHS[:number])
        item = 1 if file else docs.dtype.itemsize
        return first * item, (first + length) * item
    _, stream = docs.index.locate(np.array([number]))
    last = stream + docs.spec.stream_bytes([length]) - 1
    return int(file_offset(stream)[0]), int(file_offset(last)[0]) + 1


def test_records_that_are_not_those_of_the_index_are_refused_when_they_are_read(
    tmp_path: Path,
) -> None:
    one, other = (
        builders.dataset(tmp_path / name, {"a": builders.documents(lengths)})
        for name, lengths in (("one", [5, 9]), ("other", [9, 5]))
    )
    docs = jaxdata.open_dataset(one).source("train", "a", generation=0)
    [shard] = docs.entry.shards
    (one / shard.name).write_bytes((other / shard.name).read_bytes())
    for _ in range(2):  # a second read is not trusted either
        with pytest.raises(DatasetError) as caught:
            docs.tokens(*np.array([[0], [0], [2]]))
        assert str(caught.value) == (
            f"{one}/{shard.name}: its records are not those in the index of train/a; "
            f"jaxdata verify {one} names what is damaged"
        )


TOKENS = [[5, 6, 7, 0], [8, 9, 0]]


PATCHES = [[-1, 4, 5, -1], [0, 2**53 + 1, 2]]  # the large one is no float64


class Images:
    """A user's object: image patches beside tokens."""

    lengths = np.array([4, 3])
    side: ClassVar[dict[str, Any]] = {"patch": "int64"}

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "tokens": TOKENS[index],
            "patch": np.array(PATCHES[index], (np.int64, np.uint64)[index]),
        }


def test_an_object_of_ones_own_is_packed_as_documents_in_memory() -> None:
    def loader(docs: Any, **more: Any) -> jaxdata.Loader:
        rows = jaxdata.pack(docs, seq_len=5)
        return jaxdata.Loader(rows, batch_size=2, extras=("patch", "target_patch"), **more)

    values = [np.array(each, np.int64) for each in PATCHES]
    batches = list(loader(jaxdata.ArrayDocuments(TOKENS, side={"patch": values})))
    assert_same_batches(loader(Images()), batches)
    assert_same_batches(loader(Images(), num_workers=1), batches)


READ = """
import json, os, resource, sys
from pathlib import Path
import numpy as np
import jaxdata
from jaxdata.storage import maps
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
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


def test_a_forked_process_reads_many_shards_with_few_descriptors_and_maps(tmp_path: Path) -> None:
    write_many_shards(tmp_path, distinct_documents([10 + n % 30 for n in range(250)]), 1_000)
    command = [sys.executable, "-c", READ, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == ["same", True]
