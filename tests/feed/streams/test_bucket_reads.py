"""Which sources are read by pages, against giving away the room of a cache one by one; warnings."""

import logging
import re
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxdata.feed import bucket_reads
from jaxdata.feed.bucket_reads import choose_pages
from jaxdata.storage.pages.paged_files import PagedFiles


class One(NamedTuple):
    """A source: the bytes of its files, of tokens and of side arrays; None where they are local."""

    dtype: str
    open_bytes: int | None
    size: int | None
    sides: dict[str, tuple[str, int | None]]


class Files:
    """As many bytes of files, and what was chosen for them."""

    fit = PagedFiles.fit

    def __init__(self, size: int) -> None:
        self.size = size


def files(dtype: str, size: int | None) -> Any:
    """Documents in a bucket, or not (None)."""
    pages = None if size is None else Files(size)
    return SimpleNamespace(dtype=np.dtype(dtype), is_far=size is not None, pages=pages)


def need(size: int, width: int, each: One, eighths: int) -> int:
    """Bytes that are open at a time, of `width` for each token."""
    if each.open_bytes is None:
        return size
    return min(size, each.open_bytes * width * eighths // (np.dtype(each.dtype).itemsize * 8))


def bytes_up_to(tenths: int) -> st.SearchStrategy[int | None]:
    """None, or so many tenths of a megabyte, about."""
    return st.none() | st.integers(0, tenths).map(lambda n: n * 100_001)


SIZES = bytes_up_to(90)
SOURCES = st.builds(
    One,
    st.sampled_from(["<u2", "<u4"]),
    SIZES,
    SIZES,
    st.fixed_dictionaries(
        {"mask": st.tuples(st.just("u1"), SIZES), "weight": st.tuples(st.just("<f8"), SIZES)}
    ),
)


@given(
    st.dictionaries(st.sampled_from(["web", "code", "wiki"]), SOURCES, max_size=3),
    bytes_up_to(240),
    st.integers(1, 8),
    st.lists(st.sampled_from(["mask", "weight"]), unique=True),
)
def test_the_least_that_is_open_is_read_by_pages_as_far_as_a_cache_has_room(
    given_: dict[str, One], most: int | None, eighths: int, sides: list[str]
) -> None:
    tables, asked = dict[str, Any](), list[tuple[int, Any, str]]()
    for name, each in given_.items():
        documents = files(each.dtype, each.size)
        documents.side = {side: files(*given) for side, given in each.sides.items()}
        tables[name] = SimpleNamespace(documents=[documents], open_bytes=each.open_bytes)
        asked += [
            (need(one.pages.size, one.dtype.itemsize, each, eighths), one.pages, name)
            for one in (documents, *(documents.side[side] for side in sorted(sides)))
            if one.is_far
        ]
    warnings = list[str]()
    with pytest.MonkeyPatch.context() as patch:
        cache = None if most is None else SimpleNamespace(most=most)
        patch.setattr(bucket_reads, "page_cache", lambda: cache)
        patch.setattr(
            logging.getLogger("jaxdata"), "warning", lambda text, *to: warnings.append(text % to)
        )
        choose_pages(tables, eighths / 8, sides)
    room, expected = (most or 0) * 7 // 8, list[str]()
    for size, pages, name in sorted(asked, key=lambda each: each[0]):
        assert pages.dealt_by_pages == (size < pages.size)
        assert pages.by_pages == (size <= room)
        if size <= room:
            room -= size
        elif most is not None:
            expected.append(
                f"{name}: its rows are read from {size // 1_000_000} MB at a time, of which a "
                f"cache of {most // 1_000_000} MB has no room left: they are fetched by exact"
            )
    assert [said[: len(start)] for said, start in zip(warnings, expected, strict=True)] == expected


def made(name: str, size: int, lanes: int, chunk_bytes: int, *, shuffle: bool = True) -> Any:
    """Packed rows of a source in a bucket, of which only this is known."""
    rows = object.__new__(bucket_reads.PackedRows)
    settings = SimpleNamespace(shuffle=shuffle, chunk_bytes=chunk_bytes)
    vars(rows).update(documents=[SimpleNamespace(name=name, is_far=True)], settings=settings)
    vars(rows).update(_deals=[SimpleNamespace(lanes=SimpleNamespace(count=lanes))], bytes=size)
    return rows


@pytest.mark.parametrize(
    ("hosts", "tables", "says"),
    [
        (1, [("web", 9, 1, 0)], ""),
        (4, [("web", 9, 1, 0)], "4 hosts download 4.0 .* web: add chunk_bytes: 1048576 to"),
        (12, [("web", 9, 8, 2**20)], "12 hosts download 2.0 .* web: add lanes: 16 to"),
        (8, [("web", 9, 64, 2**20)], ""),
        (8, [("web", 90, 64, 2**20), ("code", 10, 1, 0)], "8 hosts download 1.7 .* code: add c"),
        (2, [("web", 5, 2, 2**20), ("code", 5, 1, 0)], ""),
    ],
)
def test_hosts_that_download_a_dataset_again_and_again_are_told_once(
    hosts: int,
    tables: Any,
    says: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bucket_reads.PackedRows, "stored_bytes", property(lambda t: t.bytes))
    evaluation = made("val", 90, 1, 0, shuffle=False)
    bucket_reads.warn_of_downloads([evaluation, *(made(*each) for each in tables)], hosts)
    assert len(caplog.messages) == bool(says)
    assert re.match(says, "".join(caplog.messages))
