"""Documents on disk: where their bytes lie, of objects of users' own, and in many files."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import DatasetError
from jaxdata.dataset import converted
from jaxdata.dataset.records import file_offset
from tests import builders

LENGTHS = [1, 7, 900, 2, 9, 90, 1_200, 3, 300, 2_500]


@pytest.mark.parametrize("masked", [False, True])
def test_ranges_hold_tokens_and_masks_and_come_with_pages_that_documents_begin_or_fill(
    tmp_path: Path, masked: bool
) -> None:
    tokens = builders.documents(LENGTHS)
    masks = [np.arange(len(each)) % 3 > 0 for each in tokens]
    options = {"masks": {"a": masks}} if masked else {}
    sizes: Any = {"shard_documents": 3, "record_tokens": 999}
    folder = builders.dataset(tmp_path / "d", {"a": tokens}, **options, **sizes)
    docs: Any = jaxdata.open_dataset(folder)["a"]
    files = [(folder / shard.name).read_bytes() for shard in docs.entry.shards]
    assert (docs.file_sizes <= list(map(len, files))).all()
    for number, (own, mask) in enumerate(zip(tokens, masks, strict=True)):
        for start, stop in ((0, len(own)), (len(own) // 3, len(own) - 1)):
            page = 512
            asked = (np.array([each]) for each in (number, start, stop - start))
            with mock.patch.object(converted, "PAGE_BYTES", page):
                found = docs.page_ranges(*asked)
            ranges = [*zip(*(column.tolist() for column in found), strict=True)]
            held = b"".join(files[file][a:b] for file, a, b, *_ in ranges)
            wanted = np.asarray(own[start:stop], docs.dtype).tobytes()
            assert held == wanted + (mask[start:stop].tobytes() if docs.masked else b"")
            for _, a, _, with_page, document in ranges:
                first, end = extent(docs, number, len(own))
                home = a // page == first // page or (a // page + 1) * page <= end
                assert (with_page, document) == (a // page - (not home), number)


def test_the_ends_of_documents_across_any_byte_are_found_from_any_that_begins_before_it(
    tmp_path: Path,
) -> None:
    given = {"a": builders.documents(LENGTHS * 3)}
    docs: Any = jaxdata.open_dataset(builders.dataset(tmp_path, given, shard_documents=12))["a"]
    extents = [extent(docs, number, LENGTHS[number % 10]) for number in range(len(docs))]
    for shard in range(3):
        mine = range(12 * shard, min(12 * shard + 12, len(docs)))
        for edge in range(200, extents[mine[-1]][1] + 300, 97):
            asked = [number for number in mine if extents[number][0] < edge]
            found = docs._ends_across(*np.array([[n, shard, edge] for n in asked]).T)
            expected = max(edge, max(extents[number][1] for number in asked))
            assert found.tolist() == [expected] * len(asked)


def extent(docs: Any, number: int, length: int) -> tuple[int, int]:
    """Where a document begins and ends in a file."""
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
    docs = jaxdata.open_dataset(one)["a"]
    [shard] = docs.entry.shards  # type: ignore[union-attr]
    (one / shard.name).write_bytes((other / shard.name).read_bytes())
    said = f"{one}/{shard.name}: its records are not those in the index of train/a; jaxdata verify"
    for _ in range(2):  # a second read is not trusted either
        with pytest.raises(DatasetError, match=said):
            docs.tokens(*np.array([[0], [0], [2]]))
