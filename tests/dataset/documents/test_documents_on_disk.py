"""Documents on disk: where their bytes lie, of objects of users' own, and in many files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import DatasetError
from jaxdata.dataset import converted
from jaxdata.dataset.array_documents import CustomDocuments
from jaxdata.dataset.foreign import documents as foreign
from jaxdata.testing import assert_same_batches, distinct_documents
from tests import builders
from tests.dataset.documents.few_descriptors import with_few_descriptors
from tests.dataset.documents.test_foreign import only_source, write_datatrove
from tools.bench.many_shards import write_many_shards

LENGTHS = [1, 7, 30_000, 2, 9, 90, 40_000, 3]


@pytest.mark.parametrize("masked", [False, True])
def test_places_in_shards_hold_the_tokens_then_the_masks(tmp_path: Path, masked: bool) -> None:
    documents = builders.documents(LENGTHS)
    masks = [np.arange(len(each)) % 3 > 0 for each in documents]
    options = {"masks": {"a": masks}} if masked else {}
    sizes = {"shard_documents": 3, "record_tokens": 999}
    folder = builders.dataset(tmp_path / "d", {"a": documents}, **options, **sizes)
    docs = jaxdata.open_dataset(folder).source("train", "a")
    files = [(folder / shard.name).read_bytes() for shard in docs.entry.shards]
    for number, tokens in enumerate(documents):
        for start, stop in ((0, len(tokens)), (len(tokens) // 3, len(tokens) - 1)):
            places = docs.places(*(np.array([each]) for each in (number, start, stop - start)))
            ranges = zip(*(column.tolist() for column in places[1:]), strict=True)
            found = b"".join(files[file][a:b] for file, a, b in ranges)
            wanted = np.asarray(tokens[start:stop], docs.dtype).tobytes()
            assert found == wanted + (masks[number][start:stop].tobytes() if masked else b"")
            assert not places.owner.any()
            assert (places.start < places.stop).all() or start == stop
    assert (docs.file_sizes <= [len(each) for each in files]).all()
    assert files[-1][: docs.file_sizes[-1]].endswith(found[-1:])


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


PATCHES = [[-1, 4, 5, -1], [0, -1, 2]]


class Images:
    """A user's object: image patches beside tokens."""

    lengths = np.array([4, 3])
    side: ClassVar[dict[str, Any]] = {"patch": "int32"}

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"tokens": TOKENS[index], "patch": PATCHES[index]}


def test_an_object_of_ones_own_is_packed_as_documents_in_memory() -> None:
    def loader(docs: Any, **more: Any) -> jaxdata.Loader:
        rows = jaxdata.pack(docs, seq_len=5)
        return jaxdata.Loader(rows, batch_size=2, extras=("patch", "target_patch"), **more)

    values = [np.array(each, np.int32) for each in PATCHES]
    batches = list(loader(jaxdata.ArrayDocuments(TOKENS, side={"patch": values})))
    found = {
        int(token): int(patch)
        for each in batches
        for token, patch in zip(each["inputs"].ravel(), each["patch"].ravel(), strict=True)
    }
    assert {token: found[token] for token in (5, 6, 7, 8, 9)} == {5: -1, 6: 4, 7: 5, 8: 0, 9: -1}
    assert_same_batches(loader(Images()), batches)
    from_worker = loader(Images(), num_workers=1)
    assert_same_batches(from_worker, batches)
    from_worker.close()


def test_whole_numbers_stay_whole_beside_those_of_another_dtype() -> None:
    large = 2**53 + 1  # no float64

    class Large:
        lengths, side = (4, 3), {"patch": "int64"}

        def __getitem__(self, index: int) -> dict[str, Any]:
            values = np.array([[large] * 4, [1, 2, 3]][index], (np.int64, np.uint64)[index])
            return {"tokens": TOKENS[index], "patch": values}

    both = CustomDocuments(Large()).side["patch"].tokens(*np.array([[0, 0, 1], [1, 0, 1]]).T)
    assert np.frombuffer(both.views.join(), np.int64).tolist() == [large, 1]


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
from jaxdata.storage import maps
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


@pytest.mark.parametrize("kind", ["ours", "datatrove"])
def test_a_page_is_home_to_documents_that_begin_in_it_or_fill_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (converted, foreign):
        monkeypatch.setattr(module, "PAGE_BYTES", 512)
    documents = builders.documents([1, 7, 900, 2, 9, 90, 1_200, 3, 300])
    masks = [np.arange(len(each)) % 3 > 0 for each in documents]
    if kind == "ours":
        builders.dataset(tmp_path / "d", {"a": documents}, masks={"a": masks}, shard_documents=4)
        docs: Any = jaxdata.open_dataset(tmp_path / "d").source("train", "a")
    else:
        docs = only_source(write_datatrove(tmp_path / "a.ds", documents, masks=masks))
    numbers, lengths = np.arange(len(documents)), docs.lengths.astype(np.int64)
    for starts in (np.zeros_like(lengths), lengths // 2):
        asked = numbers, starts, lengths - starts
        found, places = docs.page_ranges(*asked), docs.places(*asked)
        assert [column.tolist() for column in found[:3]] == [c.tolist() for c in places[1:]]
        shard, first = (column.tolist() for column in docs.first_bytes(numbers))
        for file, start, owner, home in zip(
            found.file, found.start, places.owner, found.home, strict=True
        ):
            begins, last = first[owner], owner + 1 == len(first) or shard[owner + 1] != shard[owner]
            ends = docs.file_sizes[shard[owner]] if last else first[owner + 1]
            if kind != "ours" and file:  # masks in a file of their own
                begins, ends = begins // 2, ends // 2
            page = start // 512
            assert home == (page == begins // 512 or (page + 1) * 512 <= ends)


@pytest.mark.parametrize(("beyond", "home"), [(0, True), (1, False)])
def test_a_document_that_ends_with_its_page_fills_it_and_one_byte_less_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beyond: int, home: bool
) -> None:
    documents = builders.documents([*range(20, 120, 10)])
    folder = builders.dataset(tmp_path / "d", {"a": documents}, shard_documents=1)
    docs: Any = jaxdata.open_dataset(folder).source("train", "a")
    seen = 0
    for number, tokens in enumerate(documents):
        last = np.array([number]), np.array([len(tokens) - 1]), np.array([1])
        (stop,) = docs.places(*last).stop.tolist()
        for pages in range(2, 9):
            size, rest = divmod(stop + beyond, pages)
            if rest or docs.first_bytes(last[0])[1] >= size * (pages - 1):
                continue
            monkeypatch.setattr(converted, "PAGE_BYTES", size)
            assert docs.page_ranges(*last).home.tolist() == [home]
            seen += 1
    assert seen


def test_nothing_is_read_of_a_source_without_tokens(tmp_path: Path) -> None:
    docs = jaxdata.open_dataset(builders.dataset(tmp_path / "d", {"a": []})).source("train", "a")
    nothing = np.empty(0, np.int64)
    assert docs.tokens(nothing, nothing, nothing).views.join() == b""
