"""The bytes that documents name are those of their tokens and masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata.documents.places import OneFile, placed
from jaxdata.testing import distinct_documents, write_dataset
from tests.documents.test_foreign import only_source, write_datatrove, write_nanogpt

LENGTHS = [1, 7, 30_000, 2, 9, 90, 40_000, 3]


def read(docs: Any, files: list[bytes], document: int, start: int, count: int) -> bytes:
    asked = (np.array([value]) for value in (document, start, count))
    found = placed(docs).places(*asked)
    assert not found.owner.any()
    ranges = zip(found.file.tolist(), found.start.tolist(), found.stop.tolist(), strict=True)
    return b"".join(files[file][a:b] for file, a, b in ranges)


@pytest.mark.parametrize("masked", [False, True])
def test_those_of_shards(tmp_path: Path, masked: bool) -> None:
    documents = distinct_documents(LENGTHS)
    masks = [np.arange(len(each)) % 3 > 0 for each in documents] if masked else None
    given_masks = {"train/a": masks} if masks else None
    sources = {"train/a": documents}
    dataset = write_dataset(
        tmp_path / "d", sources, given_masks, shard_documents=3, record_tokens=999
    )
    docs = dataset.source("train", "a")
    files = [(tmp_path / "d" / shard.name).read_bytes() for shard in docs.entry.shards]
    for number, tokens in enumerate(documents):
        for start, stop in ((0, len(tokens)), (len(tokens) // 3, len(tokens) - 1)):
            found = read(docs, files, number, start, stop - start)
            item = docs.dtype.itemsize
            stored = np.frombuffer(found[: (stop - start) * item], docs.dtype)
            assert np.array_equal(stored, tokens[start:stop])
            rest = found[(stop - start) * item :]
            assert rest == (masks[number][start:stop].tobytes() if masks else b"")
    assert (docs.file_sizes <= [len(each) for each in files]).all()
    last = read(docs, files, len(LENGTHS) - 1, 0, LENGTHS[-1])
    assert files[-1][: docs.file_sizes[-1]].endswith(last[-2:] if not masked else last[-1:])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.booleans(), st.data())
def test_those_of_one_file(lengths: list[int], masked: bool, data: st.DataObject) -> None:
    documents = [np.arange(n) + 10 * k for k, n in enumerate(lengths)]
    masks = [np.arange(n) % 2 for n in lengths] if masked else None
    docs = jaxdata.ArrayDocuments(documents, masks)
    parts = []
    for k, tokens in enumerate(documents):
        parts += [tokens.astype("<u2").tobytes(), bytes(masks[k].tolist()) if masks else b""]
    number = data.draw(st.integers(0, len(lengths) - 1))
    start = data.draw(st.integers(0, lengths[number] - 1))
    count = data.draw(st.integers(0, lengths[number] - start))
    wanted = documents[number][start : start + count].astype("<u2").tobytes()
    wanted += bytes(masks[number][start : start + count].tolist()) if masks else b""
    assert read(docs, [b"".join(parts)], number, start, count) == wanted
    one = OneFile(docs)
    assert one.file_sizes.tolist() == [len(b"".join(parts))]
    _, first = one.first_bytes(np.arange(len(lengths)))
    pages = np.split(first // 4, docs.page_ends(4)[:-1])
    assert all(len(set(page.tolist())) == 1 for page in pages)


def test_those_of_another_tools_files(tmp_path: Path) -> None:
    documents = [np.array([*range(1, 5 + k), 0]) for k in range(6)]
    spec = write_nanogpt(tmp_path / "train.bin", documents)
    docs = only_source(spec, eod_id=0)
    file = (tmp_path / "train.bin").read_bytes()
    for number, tokens in enumerate(documents):
        found = read(docs, [file], number, 1, len(tokens) - 1)
        assert np.array_equal(np.frombuffer(found, "<u2"), tokens[1:])
    assert docs.file_sizes.tolist() == [len(file)]


def test_those_of_masks_in_a_file_of_their_own(tmp_path: Path) -> None:
    documents = [np.array([*range(1, 5 + k), 0]) for k in range(6)]
    losses = [np.arange(len(each)) % 2 for each in documents]
    docs = only_source(write_datatrove(tmp_path / "c.ds", documents, masks=losses))
    names = [path for part in docs._ranges.parts for path in (part.tokens, part.mask)]
    files = [path.read_bytes() for path in names]
    assert docs.file_sizes.tolist() == list(map(len, files))
    for number, tokens in enumerate(documents):
        found = read(docs, files, number, 1, len(tokens) - 1)
        size = (len(tokens) - 1) * docs.dtype.itemsize
        assert np.array_equal(np.frombuffer(found[:size], docs.dtype), tokens[1:])
        assert list(found[size:]) == losses[number][1:].tolist()
