"""What packing is asked for where nothing is said, and what its totals show."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.rows.packing import dealt_blocks
from jaxdata.rows.packing.packed_rows import PackedRows
from jaxdata.rows.packing.planner import _groups
from jaxdata.rows.packing.settings import PackSettings, PackSummary
from jaxdata.rows.packing.strategies import STRATEGIES, strategy_names

BOUNDS: dict[str, tuple[int, int]] = {
    "seq_len": (1, 2**30),
    "overlap": (0, 2**62),
    "max_segments": (1, 2**62),
    "chunk_bytes": (0, 2**62),
    "block_bytes": (1, 2**62),
    "lanes": (1, 2**16),
}
DEFAULTS: dict[str, Any] = {
    "strategy": "best_fit",
    "overlap": 0,
    "seed": 0,
    "positions": "segment",
    "max_segments": None,
    "reshuffle": "rows",
    "multiple": 1,
    "chunk_bytes": None,
    "block_bytes": None,
    "lanes": None,
    "shuffle": True,
}


def test_settings_have_defaults_and_bounds() -> None:
    made = PackSettings.checked(seq_len=8)
    assert {name: getattr(made, name) for name in DEFAULTS} == DEFAULTS


def test_facts_of_before_a_setting_was_there_stay_the_same() -> None:
    later = {"reshuffle": "documents", "multiple": 4}
    facts = PackSettings.checked(seq_len=8).facts()
    assert facts == {"seq_len": 8} | {n: v for n, v in DEFAULTS.items() if n not in later}
    assert PackSettings.checked(seq_len=8, **later).facts() == facts | later


@pytest.mark.parametrize("name", BOUNDS)
def test_a_bound_is_taken_and_what_lies_beyond_refused(name: str) -> None:
    least, most = BOUNDS[name]
    for value in (least, most):
        overlaps = name == "overlap" and value
        if not overlaps:
            PackSettings.checked(**{"seq_len": 8, name: value})
    for value, expected in ((least - 1, f"at least {least:,}"), (most + 1, f"at most {most:,}")):
        with pytest.raises(InputError) as caught:
            PackSettings.checked(**{"seq_len": 8, name: value})
        assert str(caught.value) == f"{name}={value}: expected {expected}"
    PackSettings.checked(seq_len=8, overlap=4)
    with pytest.raises(InputError, match="overlap=5: expected 0 to seq_len/2 = 4"):
        PackSettings.checked(seq_len=9, overlap=5)


def test_strategies_say_what_they_take_and_keep() -> None:
    told = {
        name: (each.takes_overlap, each.keeps_all, each.streams)
        for name, each in STRATEGIES.items()
    }
    assert told == {
        "pad": (True, True, False),
        "concat": (False, True, True),
        "crop": (False, False, False),
        "best_fit": (True, True, False),
    }
    assert strategy_names() == sorted(STRATEGIES)
    assert {*strategy_names(taking_overlap=True)} == {"pad", "best_fit"}


def test_totals_are_shown_with_what_the_slots_hold() -> None:
    summary = PackSummary(7, 3, 240, 150, 30, 20, 40, 5)
    assert summary.fill == 1 - 40 / 240
    shown = summary.html("some rows")
    for text in ("some rows", "documents", "trained tokens", "62.5", "12.5", "dropped"):
        assert text in shown, text
    assert "an epoch of packed rows" in summary._repr_html_()
    nothing = PackSummary(0, 0, 0, 0, 0, 0, 0, 0)
    assert nothing.fill == 1
    assert "0" in nothing.html("none")


def test_blocks_are_grouped_by_documents_and_number() -> None:
    spans = [(0, 10), (10, 14), (14, 20), (20, 60), (60, 61), (61, 62), (62, 63), (63, 64)]
    assert [*_groups(spans, 20, 3)] == [spans[:3], spans[3:4], spans[4:7], spans[7:]]
    assert [*_groups(spans, 19, 8)] == [spans[:2], spans[2:3], spans[3:4], spans[4:]]
    assert [*_groups(spans, 1, 8)] == [[span] for span in spans]
    assert [*_groups([], 9, 9)] == []


def packed(**settings: Any) -> PackedRows:
    docs = jaxdata.ArrayDocuments([np.zeros(1 + n % 60, np.uint16) for n in range(400)])
    return jaxdata.pack(docs, seq_len=64, **settings).table


def test_so_many_bytes_are_open_as_the_blocks_of_its_lanes_have() -> None:
    assert packed().open_bytes is None, "single documents lie anywhere"
    table = packed(chunk_bytes=512, block_bytes=2_048, lanes=4)
    size = 2 * sum(1 + n % 60 for n in range(400))
    assert table.open_bytes == 4 * 5 * size // (4 * table.blocks)
    assert repr(table).endswith(" rows of 64, best_fit of 'documents')")
    assert "trained tokens" in table.html("a title")
    assert dealt_blocks.PLANS.has((table.deal(0)._token, 0, 0)) is False


def test_lengths_of_several_blocks_are_fetched_at_once_and_only_to_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = packed(chunk_bytes=512, block_bytes=2_048, lanes=1)
    fetched: list[set[int]] = []
    monkeypatch.setattr(dealt_blocks.PLANS, "prepare", lambda *_: None)
    documents = type(table.documents[0])
    monkeypatch.setattr(documents, "is_far", True)
    monkeypatch.setattr(
        documents, "fetch_lengths", lambda _, asked: fetched.append({*asked.tolist()})
    )
    rows = [table.block_rows(0, visit) for visit in range(3)]
    table.segments(rows[0])
    assert fetched == [], "one block is planned by itself"
    found = table.segments(np.concatenate(rows))
    held = [
        {*found.document[np.isin(found.row, [*range(a, a + len(r))])]}
        for a, r in zip((0, len(rows[0]), len(rows[0]) + len(rows[1])), rows, strict=True)
    ]
    assert len(fetched) == 1
    assert held[1] | held[2] <= fetched[0]
    assert not held[0] & fetched[0]
    table.segments(np.concatenate(rows))
    assert len(fetched) == 1, "they are planned"
