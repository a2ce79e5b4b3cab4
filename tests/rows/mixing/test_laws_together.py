"""The laws with everything at once: mixtures, views, side arrays, masks, amendments, hosts.

Every token differs, so that a delivered target says which token of which document it is.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxdata
from jaxdata.testing import distinct_documents, write_dataset
from tests.dataset.views.made import dropping, write

pytestmark = pytest.mark.exhaustive

NAMES = ("web", "code")
LENGTHS = {name: np.random.default_rng(seed).integers(1, 40, 18) for seed, name in enumerate(NAMES)}
TOKENS = {
    "web": distinct_documents(LENGTHS["web"]),
    "code": distinct_documents(LENGTHS["code"], 10_000),
}
MASKS = [np.random.default_rng(n).integers(0, 2, len(d)) for n, d in enumerate(TOKENS["code"])]
DROPPED = (3, 7)


def weight(tokens: np.ndarray) -> np.ndarray:
    return (tokens * 1.5 - 0.25).astype(np.float32)


@pytest.fixture(scope="module")
def opened() -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder:
        named = {f"train/{name}": documents for name, documents in TOKENS.items()}
        side = {name: {"weight": [*map(weight, each)]} for name, each in named.items()}
        write_dataset(Path(folder), named, {"train/code": MASKS}, side=side, record_tokens=16)
        write(Path(folder), dropping(18, *DROPPED))
        yield jaxdata.open_dataset(folder)


class Case(NamedTuple):
    packing: list[dict[str, dict[str, Any]]]
    """of each source, from the first row, and from each amendment on"""
    places: list[float]
    """where amendments are, as shares of the rows"""
    epochs: dict[str, int]
    hosts: int
    viewed: bool


@st.composite
def cases(draw: st.DrawFn) -> Case:
    def packing(multiple: int, seq_len: int) -> dict[str, Any]:
        strategy = draw(st.sampled_from(["best_fit", "best_fit", "pad", "concat"]))
        overlaps = [0] if strategy == "concat" else [0, 1, seq_len // 2]
        chunks = {"chunk_bytes": 64, "block_bytes": 256, "lanes": draw(st.sampled_from([1, 4]))}
        return {
            "strategy": strategy,
            "overlap": draw(st.sampled_from(overlaps)),
            "seq_len": seq_len,
            "multiple": multiple,
            "reshuffle": draw(st.sampled_from(["rows", "documents", "documents"])),
            "seed": draw(st.integers(0, 3)),
            **draw(st.sampled_from([{}, chunks])),
        }

    ways = []
    for _ in range(draw(st.integers(1, 3))):
        multiple = draw(st.sampled_from([1, 2, 4, 8]))
        seq_len = multiple * draw(st.integers(1, 32 // multiple))
        ways.append({name: packing(multiple, seq_len) for name in NAMES})
    places = sorted(draw(st.floats(0, 0.99)) for _ in ways[1:])
    epochs = {name: draw(st.integers(1, 3)) for name in NAMES}
    return Case(ways, places, epochs, draw(st.integers(1, 4)), draw(st.booleans()))


def mixed(dataset: Any, case: Case) -> Any:
    def packed(way: dict[str, dict[str, Any]]) -> dict[str, Any]:
        views = {"web": "d1"} if case.viewed else {}
        return {
            name: jaxdata.pack(dataset.source("train", name, documents=views.get(name)), **given_)
            for name, given_ in way.items()
        }

    first, *later = case.packing
    made = jaxdata.mix(packed(first), epochs=case.epochs)
    for way, place in zip(later, case.places, strict=True):
        made = made.amend(max(int(place * len(made)), _last(made)), rows=packed(way))
    return made


def _last(made: Any) -> int:
    """The first row that another amendment may change."""
    return made.amendments[-1]["row"] if made.amendments else 0


@settings(max_examples=25, deadline=None)
@given(case=cases())
def test_every_target_is_trained_as_often_as_its_source_is_read(opened: Any, case: Case) -> None:
    rows = mixed(opened, case)
    hosts = [
        jaxdata.Loader(rows, batch_size=12, shard=(n, case.hosts), extras=["weight"], prefetch=0)
        for n in range(case.hosts)
    ]
    times: Counter[int] = Counter()
    for step, parts in enumerate(zip(*hosts, strict=True)):
        batch = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        _check(batch, rows.table.section_at(hosts[0].batch_rows(step)[0]).multiple)
        times.update(batch["targets"][batch["loss_mask"]].tolist())
    expected: Counter[int] = Counter()
    for name, documents in TOKENS.items():
        for number, tokens in enumerate(documents):
            if name == "web" and case.viewed and number in DROPPED:
                continue
            kept = MASKS[number][1:] == 1 if name == "code" else slice(None)
            expected.update(dict.fromkeys(tokens[1:][kept].tolist(), case.epochs[name]))
    assert times == expected
    assert rows.epochs() == case.epochs


def _check(batch: dict[str, np.ndarray], multiple: int) -> None:
    inside = batch["segment_ids"] > 0
    assert (batch["weight"] == np.where(inside, weight(batch["inputs"]), 0)).all()
    begins = inside.copy()
    begins[:, 1:] &= batch["segment_ids"][:, 1:] != batch["segment_ids"][:, :-1]
    assert not (np.nonzero(begins)[1] % multiple).any()
    for name in ("inputs", "targets", "positions", "loss_mask"):
        assert not batch[name][~inside].any()
