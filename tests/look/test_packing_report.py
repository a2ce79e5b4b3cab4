"""The comparison of packing strategies."""

from __future__ import annotations

import io

import numpy as np
from rich.console import Console

import jaxdata
from jaxdata.look.packing import compare_strategies, packing_table, rows_saved


def test_costs_add_up_and_are_those_of_the_plans() -> None:
    lengths = np.random.default_rng(0).integers(1, 300, 500)
    docs = jaxdata.ArrayDocuments([np.ones(length, np.int32) for length in lengths])
    costs = {cost.strategy: cost for cost in compare_strategies([docs, docs], seq_len=64)}
    targets = 2 * int((lengths - 1).sum())
    assert list(costs) == ["pad", "concat", "crop", "best_fit"]
    for strategy, cost in costs.items():
        plan = jaxdata.pack(docs, seq_len=64, strategy=strategy).plan
        assert (cost.rows, cost.padding) == (2 * plan.rows, 2 * plan.padding)
        assert cost.real + cost.padding == cost.slots == 64 * cost.rows
    assert costs["pad"].real == costs["best_fit"].real == targets
    assert costs["concat"].real == targets + 2 * len(lengths), "the last token of each is an input"
    assert costs["crop"].real + costs["crop"].dropped == targets
    assert costs["best_fit"].padding_share < 0.02 < costs["pad"].padding_share
    saved = rows_saved(list(costs.values()))
    assert saved == 1 - costs["best_fit"].rows / costs["pad"].rows > 0.1


def test_the_table_fits_a_terminal_and_has_every_number() -> None:
    docs = jaxdata.ArrayDocuments([np.ones(1000, np.int32)] * 20)
    costs = compare_strategies([docs], seq_len=512)
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(packing_table(costs, seq_len=512))
    text = console.export_text()
    assert "seq_len 512" in text
    for cost in costs:
        assert f"{cost.rows:,}" in text
        assert f"{cost.padding:,}" in text


def test_nothing_is_compared_without_documents() -> None:
    costs = compare_strategies([jaxdata.ArrayDocuments([])], seq_len=8)
    assert [cost.padding_share for cost in costs] == [0.0] * 4
    assert rows_saved(costs) == 0.0
