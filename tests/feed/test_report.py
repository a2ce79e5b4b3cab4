"""`loader.report()`: what was really delivered, counted independently from the batches."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdata
from jaxdata.errors import InputError
from jaxdata.testing import distinct_documents, write_dataset

RNG = np.random.default_rng(5)
NAMES = ("web", "code", "wiki")
DOCUMENTS = {
    name: jaxdata.ArrayDocuments(
        distinct_documents(RNG.integers(1, 150, count)), name=f"train/{name}"
    )
    for name, count in zip(NAMES, (400, 250, 90), strict=True)
}


def mixed(strategy: str = "best_fit", overlap: int = 0, lanes: int = 0, **options: Any) -> Any:
    pools = {"lanes": lanes, "chunk_bytes": 400, "block_bytes": 1600}
    order: Any = pools if lanes else {"block_bytes": 6400}
    rows = {
        name: jaxdata.pack(documents, seq_len=32, strategy=strategy, overlap=overlap, **order)
        for name, documents in DOCUMENTS.items()
    }
    phases = [
        jaxdata.Phase(rows=350, weights={"web": 0.6, "code": 0.3, "wiki": 0.1}),
        jaxdata.Phase(rows=450, weights={"web": 0.3, "code": 0.3, "wiki": 0.4}),
    ]
    options = {
        "epochs": {"web": 1, "code": 2, "wiki": 3.5},
        "on_exhaustion": "renormalize",
    } | options
    return jaxdata.mix(rows, phases=phases, **options)


class Count:
    """What batches hold by source, looked up in them slot by slot."""

    def __init__(self) -> None:
        self.tokens, self.begun, self.finished = (Counter() for _ in range(3))
        self.slots, self.rows = Counter(), Counter()

    def add(self, batch: Any, names: Any = NAMES) -> None:
        for row in range(len(batch["inputs"])):
            source = batch["source"][row]
            if source[0] < 0:
                continue  # completes the last batch
            name = names[source[0]]
            begins = (batch["positions"][row] == 0) & (batch["segment_ids"][row] > 0)
            first = batch["inputs"][row][begins]
            starts = [
                DOCUMENTS[name].lengths.cumsum()[d - 1] + 1 if d else 1
                for d in batch["document"][row][begins].tolist()
            ]
            self.rows[name] += 1
            self.begun[name] += int((first == starts).sum())
            self.finished[name] += self._finished(batch, row, DOCUMENTS[name])
            self.tokens[name] += int(batch["loss_mask"][row].sum())
            self.slots[name] += int((batch["segment_ids"][row] > 0).sum())

    def _finished(self, batch: Any, row: int, documents: Any) -> int:
        """Documents whose last token is a target, or that are one token, which is an input."""
        there = batch["segment_ids"][row] > 0
        number = batch["document"][row][there]
        lasts = np.array([documents[int(d)]["tokens"][-1] for d in number])
        alone = (documents.lengths[number] == 1) & (batch["inputs"][row][there] == lasts)
        ends = (batch["targets"][row][there] == lasts) & batch["loss_mask"][row][there]
        return int((ends | alone).sum())


def check(report: Any, count: Count) -> None:
    for name, source in report.sources.items():
        key = name.split("/")[-1]
        assert source.tokens == count.tokens[key]
        assert source.documents_begun == count.begun[key]
        assert source.documents_finished == count.finished[key]
        assert source.rows == count.rows[key]
        assert source.padding == 32 * count.rows[key] - count.slots[key]
    assert report.tokens == sum(count.tokens.values())
    assert report.documents_begun == sum(count.begun.values())
    assert report.documents_finished == sum(count.finished.values())
    assert report.rows == sum(count.rows.values())


@pytest.mark.parametrize(
    ("strategy", "overlap", "lanes"),
    [
        *(("best_fit", 0, 0), ("best_fit", 9, 0), ("concat", 0, 0), ("crop", 0, 0), ("pad", 5, 0)),
        *(("best_fit", 9, 1), ("best_fit", 9, 8), ("concat", 0, 512), ("crop", 0, 8)),
    ],
)
def test_it_is_what_was_delivered_at_every_step(strategy: str, overlap: int, lanes: int) -> None:
    rows = mixed(strategy, overlap, lanes)
    loader = jaxdata.Loader(rows, batch_size=30, extras=("source", "document"))
    count = Count()
    check(loader.report(), count)
    for batch in loader:
        count.add(batch)
        check(loader.report(), count)
    report = loader.report()
    assert (report.step, report.next_row, report.rows) == (len(loader), 800, 800)
    assert report.slots == 800 * 32
    for name, source in report.sources.items():
        plan = loader.rows.sources[name].plan
        assert source.epochs == pytest.approx(source.rows / plan.rows)
        assert source.share == source.tokens / report.tokens
        assert source.planned is not None
    assert sum(source.planned or 0 for source in report.sources.values()) == pytest.approx(1)


def test_shares_are_near_the_weights_while_no_source_is_dry() -> None:
    loader = jaxdata.Loader(mixed(epochs=dict.fromkeys(NAMES, 30)), batch_size=50)
    loader.seek(row=350)
    for name, weight in {"web": 0.6, "code": 0.3, "wiki": 0.1}.items():
        source = loader.report().sources[name]
        assert source.planned == pytest.approx(weight)
        assert source.share == pytest.approx(weight, abs=0.01)
    loader.seek(row=800)
    planned = {name: each.planned for name, each in loader.report().sources.items()}
    assert planned["wiki"] == pytest.approx((350 * 0.1 + 450 * 0.4) / 800, abs=0.01)


def test_a_seek_a_resume_hosts_and_a_mesh_report_the_same() -> None:
    one = jaxdata.Loader(mixed(), batch_size=24, skip_rows=[(30, 75)])
    for _ in range(11):
        next(one)
    one.skip(400, 430)
    for _ in range(12):
        next(one)
    report, state = one.report(), json.loads(json.dumps(one.get_state()))
    assert report.rows == 23 * 24
    devices = np.array(jax.devices()[:4])
    sharding = NamedSharding(Mesh(devices, ("x",)), PartitionSpec("x"))
    for settings_ in (
        {"shard": (2, 3)},
        {"shard": (0, 1), "num_workers": 1},
        {"sharding": sharding},
    ):
        other = jaxdata.Loader(mixed(), batch_size=48, **settings_)
        other.set_state(state)
        assert other.report() == report
        other.close()


@settings(max_examples=30)
@given(
    st.integers(0, 800), st.lists(st.tuples(st.integers(0, 799), st.integers(1, 90)), max_size=3)
)
def test_skipped_rows_are_not_counted(row: int, skips: list[tuple[int, int]]) -> None:
    ranges = [(first, min(first + rows, 800)) for first, rows in skips]
    loader = jaxdata.Loader(mixed(), batch_size=8, skip_rows=ranges)
    loader.seek(row=row)
    whole = jaxdata.Loader(mixed(), batch_size=8)
    whole.seek(row=loader.next_row)
    gone = {r for a, b in ranges for r in range(a, b) if r < loader.next_row}
    assert loader.report().rows == loader.next_row - len(gone)
    everything = mixed()
    lost = sum(int(everything[r]["loss_mask"].sum()) for r in sorted(gone))
    assert loader.report().tokens == whole.report().tokens - lost


def test_rows_of_one_source_epochs_and_evaluation(tmp_path: Path) -> None:
    rows = jaxdata.pack(DOCUMENTS["wiki"], seq_len=32, block_bytes=3200)
    loader = jaxdata.Loader(rows.repeat(3), batch_size=1)
    loader.seek(row=len(rows) * 5 // 2)
    source = loader.report().sources["train/wiki"]
    assert source.epochs == pytest.approx(2.5, abs=0.01)
    assert source.planned is None
    loader.seek(row=2 * len(rows))
    source = loader.report().sources["train/wiki"]
    assert source.tokens == 2 * rows.plan.trained_tokens
    whole = 2 * int((DOCUMENTS["wiki"].lengths > 1).sum())
    assert (source.documents_begun, source.documents_finished) == (whole, whole)
    texts = {f"val/{name}": [d["tokens"] for d in DOCUMENTS[name]] for name in NAMES}
    dataset = write_dataset(tmp_path / "d", texts)
    scored = jaxdata.Loader(
        jaxdata.evaluation_rows(dataset, "val", seq_len=32),
        batch_size=7,
        extras=("source", "document"),
    )
    count = Count()
    for batch in scored:
        count.add(batch, [name.split("/")[1] for name in scored.source_names])
        check(scored.report(), count)


def test_transformed_rows_cannot_be_counted() -> None:
    with pytest.raises(InputError, match="not transformed ones"):
        jaxdata.Loader(mixed().map(dict), batch_size=8).report()


def test_it_prints_and_is_plain_json() -> None:
    loader = jaxdata.Loader(mixed(), batch_size=8)
    loader.seek(row=500)
    report = loader.report()
    lines = str(report).splitlines()
    assert lines[0].startswith(f"500 rows, {report.tokens:,} tokens, ")
    assert lines[1] == (
        f"beginnings of {report.documents_begun:,} documents, ends of "
        f"{report.documents_finished:,}; parts come in any order"
    )
    assert [line.split()[0] for line in lines[2:]] == ["source", *NAMES]
    assert all(len(line) < 80 for line in lines)
    assert json.loads(json.dumps(report.as_dict()))["sources"]["web"]["tokens"] > 0
