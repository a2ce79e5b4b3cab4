"""Runs that were amended and halted: foretold, explained and counted as they were delivered."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import jaxdata
from jaxdata.cli import main
from jaxdata.look.trace import Tracer
from jaxdata.testing import distinct_documents, write_dataset

RNG = np.random.default_rng(23)
TEXTS = {
    name: distinct_documents(RNG.integers(1, 150, count), first=1 + 20_000 * number)
    for number, (name, count) in enumerate({"web": 250, "code": 180, "wiki": 60}.items())
}
OWNERS = {
    int(token): (name, number, place)
    for name, documents in TEXTS.items()
    for number, document in enumerate(documents)
    for place, token in enumerate(document)
}
EPOCHS = {"web": 2, "code": 2, "wiki": 3}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Two phases, amended twice; it halts where wiki runs dry."""
    sources = {f"train/{name}": documents for name, documents in TEXTS.items()}
    write_dataset(tmp_path / "d", sources)
    path = tmp_path / "run.yaml"
    fields = {
        "dataset": str(tmp_path / "d"),
        "pack": {"seq_len": 32, "block_bytes": 4000},
        "curriculum": [
            {"rows": 150, "mix": {"web": 0.7, "code": 0.3}},
            {"rows": 900, "mix": {"web": 0.5, "code": 0.5}},
        ],
        "epochs": {"web": 2, "code": 2},
        "on_exhaustion": "halt",
        "amendments": [
            {
                "at_row": 240,
                "epochs": {"wiki": 3},
                "curriculum": [{"rows": 200, "mix": {"web": 3, "code": 2, "wiki": 1}}],
            },
            {
                "at_row": 360,
                "pack": {"seq_len": 64, "strategy": "concat"},
                "curriculum": [
                    {"rows": 60, "mix": {"web": 0.4, "code": 0.4, "wiki": 0.2}},
                    {"rows": 5000, "mix": {"web": 0.1, "code": 0.1, "wiki": 0.8}},
                ],
            },
        ],
        "loader": {"batch_size": 12},
    }
    path.write_text(yaml.safe_dump(fields))
    return path


def deliver(config: Path, hosts: int) -> Iterator[Any]:
    """The batches of a run, put together from all its hosts, to where it halts."""
    group = [jaxdata.load(config, shard=(host, hosts)) for host in range(hosts)]
    while True:
        try:
            parts = [next(loader) for loader in group]
        except (StopIteration, jaxdata.SourceExhausted):
            return
        yield {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@pytest.mark.slow
def test_every_document_is_where_it_was_delivered_on_one_host_and_on_three(config: Path) -> None:
    for hosts in (1, 3):
        seen = defaultdict(list)
        times: Counter[int] = Counter()
        for step, batch in enumerate(deliver(config, hosts)):
            times.update(batch["targets"][batch["loss_mask"]].tolist())
            for row, ids in enumerate(batch["segment_ids"]):
                for segment in range(1, int(ids.max()) + 1):
                    slot = int(np.flatnonzero(ids == segment)[0])
                    name, number, token = OWNERS[int(batch["inputs"][row][slot])]
                    seen[name, number].append((step, row, slot, token))
        assert all(count <= EPOCHS[OWNERS[token][0]] for token, count in times.items())
        tracer = Tracer(jaxdata.load(config), None)
        for name, documents in TEXTS.items():
            for number in range(len(documents)):
                told = [
                    (p.step, p.row_in_batch, p.slots[0], p.tokens[0])
                    for p in tracer.pieces(name, number)
                ]
                assert told == seen[name, number], (hosts, name, number)
    assert len(seen) > 400


def test_what_is_foretold_is_what_is_delivered(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["validate", "--config", str(config), "--json"])
    assert not ended.value.code
    found = json.loads(capsys.readouterr().out)
    starts = [interval["first_row"] for interval in found["stretches"]]
    phase_of = [interval["phase"] for interval in found["stretches"]]
    counts: dict[int, Counter[str]] = defaultdict(Counter)
    row, targets = 0, Counter[str]()
    for batch in deliver(config, 1):
        for tokens, loss in zip(batch["targets"], batch["loss_mask"], strict=True):
            owners = Counter(OWNERS[token][0] for token in tokens[loss].tolist())
            if owners:
                phase = phase_of[int(np.searchsorted(starts, row, side="right")) - 1]
                counts[phase] += owners
                targets += owners
                row += 1
    assert row == found["rows"] == found["exhaustions"][-1]["row"]
    assert [part["seq_len"] for part in found["sections"]] == [32, 64]
    for phase in found["phases"]:
        for name, source in phase["sources"].items():
            assert source["tokens"] == counts[phase["phase"]][name]
    for name, source in found["sources"].items():
        assert source["run"]["tokens"] == targets[name]
        assert source["run"]["epochs"] <= EPOCHS[name]
        parts = [each["sources"].get(name, {"epochs": 0})["epochs"] for each in found["phases"]]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(source["run"]["epochs"])
    loader = jaxdata.load(config)
    loader.seek(row=row)
    assert {n: s.tokens for n, s in loader.report().sources.items()} == dict(targets)
    # A halted run: the same up to there, from then on the others share.
    more = jaxdata.load(config, on_exhaustion="renormalize", **{"loader.batch_size": 4})
    assert len(more.rows) > row
