"""Sorted runs: fences, sections and layouts, counted record by record."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdata.dedup.units.sorted_runs import (
    PARTS,
    decode_layout,
    encode_layout,
    encode_run,
    even_fences,
    read_part,
)
from jaxdata.format.storage import open_store

KEYS = st.lists(st.integers(0, 600), max_size=12)


@given(st.integers(0, 2**64 - 1))
def test_fences_cut_the_keys_evenly(end: int) -> None:
    fences = even_fences(end).tolist()
    assert fences == [part * end // PARTS for part in range(PARTS)] + [end]


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from("abc"), KEYS, min_size=1))
def test_a_run_holds_its_records_sorted_section_after_section(given: dict[str, list[int]]) -> None:
    fences = even_fences(600)
    sections = {
        name: [np.array(keys, np.uint64), np.arange(len(keys), dtype=np.uint16)]
        for name, keys in given.items()
    }
    content, layout = encode_run(sections, fences)
    start = 0
    for name, keys in given.items():
        ordered = sorted((key, place) for place, key in enumerate(keys))
        at = start + 8 * len(keys)
        stop = at + 2 * len(keys)
        assert np.frombuffer(content[start:at], np.uint64).tolist() == [key for key, _ in ordered]
        assert np.frombuffer(content[at:stop], np.uint16).tolist() == [n for _, n in ordered]
        inner = [sum(key < fence for key in keys) for fence in fences.tolist()[1:-1]]
        found = layout[name]
        assert found == (start, len(keys), ["<u8", "<u2"], [0, *inner, len(keys)])
        start = stop
    assert len(content) == start
    data = encode_layout(layout)
    assert decode_layout(data) == layout
    with pytest.raises(ValueError, match=r"^a receipt differs from its checksum$"):
        decode_layout(data.replace(b'"', b"'", 1))


@settings(max_examples=40)
@given(st.lists(KEYS, min_size=1, max_size=3), st.data())
def test_a_part_of_runs_says_how_many_records_each_gave(
    runs: list[list[int]], data: st.DataObject
) -> None:
    fences = even_fences(600)
    store, layouts = open_store("memory://parts"), {}
    for number, keys in enumerate(runs):
        places = np.arange(len(keys), dtype=np.uint32)
        columns = [np.array(keys, np.uint64), places, places.astype(np.uint8)]
        content, layouts[f"{number}"] = encode_run({"x": columns[:2], "y": columns}, fences)
        store.write(f"{number}", content)
    first = data.draw(st.integers(0, PARTS))
    stop = data.draw(st.integers(first, PARTS))
    (keys, places, small), counts = read_part(store, layouts, "y", first, stop)
    limits = fences.tolist()
    high = 601 if stop == PARTS else limits[stop]
    low = 601 if first == PARTS else limits[first]
    expected = [
        sorted((key, place) for place, key in enumerate(keys) if low <= key < high) for keys in runs
    ]
    assert counts.tolist() == [*map(len, expected)]
    flat = [one for each in expected for one in each]
    assert [*zip(keys.tolist(), places.tolist(), strict=True)] == flat
    assert small.tolist() == [place for _, place in flat]
