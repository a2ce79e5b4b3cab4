"""What packing is asked for, what is decided by size, and which documents are dealt together."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.rows.packing.dealing import ChunkOrder, DocumentOrder, order_of, resolved
from jaxdata.rows.packing.settings import PackSettings


def documents(lengths: list[int]) -> jaxdata.ArrayDocuments:
    return jaxdata.ArrayDocuments([np.zeros(n, np.uint16) for n in lengths])


def order(docs: Any, **settings: Any) -> DocumentOrder:
    return order_of(docs, PackSettings.checked(seq_len=8, **settings))


def starts(docs: Any, chunk_bytes: int) -> list[int]:
    found = order(docs, chunk_bytes=chunk_bytes)
    assert isinstance(found, ChunkOrder)
    return found.starts.tolist()


def test_a_chunk_is_what_begins_in_a_page() -> None:
    docs = documents([10, 20, 30, 100, 1, 5])  # bytes 0, 20, 60, 120, 320, 322
    assert starts(docs, 64) == [0, 3, 4, 6]
    masked = jaxdata.ArrayDocuments(
        [np.zeros(n, np.uint16) for n in (10, 20, 30)], [np.ones(n, int) for n in (10, 20, 30)]
    )  # bytes 0, 30, 90
    assert starts(masked, 64) == [0, 2, 3]


LENGTHS = st.lists(st.integers(0, 60), min_size=1, max_size=200)


@given(LENGTHS, st.integers(0, 200), st.integers(1, 900), st.integers(0, 9), st.booleans())
def test_every_document_has_one_place(
    lengths: list[int], chunk_bytes: int, block_bytes: int, seed: int, shuffle: bool
) -> None:
    given_settings = {"block_bytes": block_bytes, "seed": seed, "shuffle": shuffle}
    found = order(documents(lengths), chunk_bytes=chunk_bytes, **given_settings)
    positions = np.arange(len(lengths))
    dealt = found.documents_at(positions)
    assert sorted(dealt.tolist()) == positions.tolist()
    assert [found.position(document) for document in dealt.tolist()] == positions.tolist()
    edges = found.bounds.tolist()
    assert found.documents_of(0, len(edges) - 1).tolist() == dealt.tolist()
    blocks = [found.documents_of(k, k + 1).tolist() for k in range(len(edges) - 1)]
    assert blocks == [dealt[a:b].tolist() for a, b in pairwise(edges)]
    if not isinstance(found, ChunkOrder):
        size = max(block_bytes * len(lengths) // max(2 * sum(lengths), 1), 1)
        assert [len(block) for block in blocks[:-1]] == [size] * (len(blocks) - 1)
        assert shuffle or dealt.tolist() == positions.tolist()
        return
    of_document = np.searchsorted(found.starts, positions, side="right")
    for block in blocks:  # whole chunks, so many to a block
        numbers = {int(of_document[document]) for document in block}
        assert len(numbers) <= max(block_bytes // chunk_bytes, 1)
        assert len(block) == sum(int((of_document == number).sum()) for number in numbers)


class Sized:
    """Documents of which only the size is known."""

    dtype = np.dtype(np.uint16)

    def __init__(self, tokens: int, masked: bool = False) -> None:
        self.total_tokens, self.masked = tokens, masked


DECIDED = [
    (2**30 - 1, False, 0, 1),  # below 2 GiB: single documents
    (2**30, False, 2**20, 256),  # 256 blocks of 8 MiB, all of them open
    (2**31, False, 2**20, 256),
    (2**34, False, 2**20, 512),  # 4,096 blocks, at least 8 a lane
    (5 * 10**12, False, 2**20, 4096),
    (2**31 // 3, True, 0, 1),  # masks take a byte a token
    (2**31 // 3 + 1, True, 2**20, 256),
]


@pytest.mark.parametrize(("tokens", "masked", "chunk_bytes", "lanes"), DECIDED)
def test_what_is_decided_by_size(tokens: int, masked: bool, chunk_bytes: int, lanes: int) -> None:
    docs: Any = Sized(tokens, masked)
    found = resolved(docs, PackSettings.checked(seq_len=2048))
    assert (found.chunk_bytes, found.lanes) == (chunk_bytes, lanes)
    assert found.block_bytes == (2**23 if chunk_bytes else None)
    unshuffled = resolved(docs, PackSettings.checked(seq_len=2048, shuffle=False))
    assert (unshuffled.chunk_bytes, unshuffled.lanes) == (0, 1)
    kept = resolved(docs, PackSettings.checked(seq_len=2048, lanes=4, block_bytes=2**22))
    assert (kept.chunk_bytes, kept.lanes, kept.block_bytes) == (chunk_bytes, 4, 2**22)


def test_facts_of_before_a_setting_was_there_stay_the_same_and_name_what_was_decided() -> None:
    made, later = PackSettings.checked(seq_len=8), {"reshuffle": "documents", "multiple": 4}
    assert not made.facts().keys() & later.keys()
    assert PackSettings.checked(seq_len=8, **later).facts() == made.facts() | later
    facts = jaxdata.pack(documents([9] * 9), seq_len=8).table.identity()
    chosen = {"chunk_bytes": 0, "block_bytes": None, "lanes": 1}
    assert {name: facts[name] for name in chosen} == chosen


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"seq_len": 0}, "seq_len=0: expected at least 1"),
    ({"seq_len": 2**30 + 1}, "expected at most 1,073,741,824"),
    ({"seq_len": 1.5}, "seq_len=1.5: expected a whole number"),
    ({"max_segments": 0}, "max_segments=0: expected at least 1"),
    ({"chunk_bytes": -1}, "chunk_bytes=-1: expected at least 0"),
    ({"block_bytes": 0}, "block_bytes=0: expected at least 1"),
    ({"lanes": 2**16 + 1}, "expected at most 65,536"),
    ({"lanes": 3}, "lanes=3: expected a power of two"),
    ({"strategy": "tetris"}, "strategy='tetris': expected 'best_fit', 'concat', 'crop' or 'pad'"),
    ({"overlap": -1}, "overlap=-1: expected at least 0"),
    ({"overlap": 9, "seq_len": 17}, "overlap=9: expected 0 to seq_len/2 = 8"),
    ({"overlap": 1, "strategy": "concat"}, "overlap=1 with strategy='concat': concat cuts no"),
    ({"overlap": 1, "strategy": "crop"}, "use overlap=0, or strategy 'best_fit' or 'pad'"),
    ({"positions": "both"}, "positions='both': expected 'row' or 'segment'"),
    ({"reshuffle": "both"}, "reshuffle='both': expected 'rows' or 'documents'"),
    ({"multiple": 6}, "multiple=6 with seq_len=16: expected a seq_len that is a multiple of it"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        jaxdata.pack(documents([3]), **{"seq_len": 16, **settings})
    assert message in str(caught.value)
