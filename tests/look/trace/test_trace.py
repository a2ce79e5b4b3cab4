"""`jaxdata inspect`: what it says of a batch, and of a document, is what was really emitted."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import jaxdata
from jaxdata.config import build_rows, load_config
from jaxdata.look.trace import Tracer
from tests.look.trace.conftest import TEXTS, Place, asked, emitted, told


def test_a_batch_is_explained(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loader = jaxdata.load(config)
    batches = list(loader)
    for step in (0, 5, len(batches) - 1):
        found = asked(capsys, "--config", config, "--step", step)
        expected = list(emitted(batches[step], step))
        pieces = found["pieces"]
        assert [(p["source"], p["document"]) for p in pieces] == [whose for whose, _ in expected]
        assert told(pieces) == [place for _, place in expected]
        for piece in pieces:
            row, (first, stop) = piece["row_in_batch"], piece["slots"]
            assert piece["row"] == step * 24 + row
            document = TEXTS[piece["source"]][piece["document"]]
            assert piece["length"] == len(document)
            held = document[slice(*piece["tokens"])]
            inputs, targets = batches[step]["inputs"][row], batches[step]["targets"][row]
            assert inputs[first:stop].tolist() == held[: stop - first].tolist()
            assert targets[stop - 1] == held[-1]
            loss = batches[step]["loss_mask"][row][first:stop]
            assert piece["without_loss"] == int((~loss).sum())
            number, token = piece["document"], piece["tokens"][0]
            shard = f"train/{piece['source']}/{number // 64:05}-00000.array_record"
            assert piece["origin"]["shard"] == shard
            before = TEXTS[piece["source"]][number // 64 * 64 : number]
            records = sum(-(-len(each) // 50) for each in before) + token // 50
            assert piece["origin"]["record"] == records
            assert piece["origin"]["line"] == number
    one = asked(capsys, "--config", config, "--step", 5, "--row", 7)["pieces"]
    assert one == [
        p
        for p in asked(capsys, "--config", config, "--step", 5)["pieces"]
        if p["row_in_batch"] == 7
    ]


def of_loader(loader: Any, split: str = "") -> dict[tuple[str, int], list[Place]]:
    """Where each document was emitted."""
    seen: dict[tuple[str, int], list[Place]] = defaultdict(list)
    for step, batch in enumerate(loader):
        for (name, number), place in emitted(batch, step):
            seen[split + name, number].append(place)
    return seen


def of_tracer(tracer: Tracer) -> dict[tuple[str, int], list[Place]]:
    """Where it says that each was."""
    found = {
        (name, number): told([asdict(piece) for piece in tracer.pieces(name, number)])
        for name in tracer.names
        for number in range(len(tracer.documents(name)))
    }
    return {whose: places for whose, places in found.items() if places}


@pytest.mark.parametrize("strategy", ["concat", "crop"])
def test_every_document_is_where_it_was_emitted(config: Path, strategy: str) -> None:
    more = {"pack": {"strategy": strategy, "overlap": 0}}
    seen = of_loader(jaxdata.load(config, **more))
    assert of_tracer(Tracer(jaxdata.load(config, **more), None)) == seen
    assert len(seen) > 250


@pytest.mark.parametrize("kind", ["repeat", "evaluation"])
def test_rows_that_are_not_mixed_are_traced(config: Path, kind: str) -> None:
    if kind == "repeat":
        dataset = jaxdata.load(config).rows.sources["web"].table.documents[0]
        rows: Any = jaxdata.pack(dataset, seq_len=32, overlap=8).repeat(2)
    else:
        rows = build_rows(load_config(config), "train", shuffle=False)
    loader = jaxdata.Loader(rows, batch_size=4)
    seen, tracer = of_loader(loader, "train/"), Tracer(loader, None)
    assert loader.report().sources.keys() == set(tracer.names)
    assert of_tracer(tracer) == seen
    assert len(seen) > 100
