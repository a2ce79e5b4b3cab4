"""The law the project stands on: every token is trained on exactly once.

At last with everything at once: mixtures, views, side arrays, masks, amendments, hosts.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings as examples, strategies as st

import jaxdata
from jaxdata.testing import assert_exactly_once, distinct_documents, write_dataset
from tests.dataset.views.made import dropping, write
from tests.rows.packing.test_packed_rows import Case, cases, packings, shapes

HOSTS = st.integers(1, 5)
EACH = st.integers(1, 4)


def source_of(case: Case) -> jaxdata.ArrayDocuments:
    return jaxdata.ArrayDocuments(distinct_documents(case.lengths), case.masks)


def batches_of(rows: Any, hosts: int, each: int) -> Iterator[dict[str, np.ndarray]]:
    """Those of each host, one after another, with so many rows of each."""
    for host in range(hosts):
        shard = {"batch_size": hosts * each, "shard": (host, hosts)}
        yield from jaxdata.Loader(rows, **shard, prefetch=0)


@given(cases(("best_fit", "concat", "pad")), st.integers(1, 3), HOSTS, EACH)
def test_every_token_is_a_target_exactly_once_in_every_epoch(
    case: Case, epochs: int, hosts: int, each: int
) -> None:
    source = source_of(case)
    rows = jaxdata.pack(source, **case.settings)
    for start, stop in pairwise([rows.table.first_row(epoch) for epoch in range(epochs + 1)]):
        assert_exactly_once([rows[row] for row in range(start, stop)], [source])
    assert_exactly_once(batches_of(rows.repeat(epochs), hosts, each), [source], epochs)


@given(cases(("crop",)), HOSTS, EACH)
def test_crop_has_true_targets_and_counts_what_it_drops(case: Case, hosts: int, each: int) -> None:
    rows = jaxdata.pack(source_of(case), **case.settings)
    targets = [batch["targets"][batch["loss_mask"]] for batch in batches_of(rows, hosts, each)]
    emitted = [token for each in targets for token in each.tolist()]
    assert len({*emitted}) == len(emitted), "none comes twice"
    wanted = set[int]()
    for number, tokens in enumerate(distinct_documents(case.lengths)):
        masked = slice(None) if case.masks is None else case.masks[number][1:]
        wanted |= {*tokens[1:][masked].tolist()}
    assert {*emitted} <= wanted
    if case.masks is None:
        assert rows.plan.dropped_tokens == len(wanted) - len(emitted)
        assert rows.plan.trained_tokens == len(emitted)


def test_the_check_itself_can_fail() -> None:
    docs = jaxdata.ArrayDocuments(distinct_documents([5, 4]))
    rows = jaxdata.pack(docs, seq_len=4)
    good = [rows[k] for k in range(len(rows))]
    assert assert_exactly_once(good, [docs]) == 7
    with pytest.raises(AssertionError, match="1x, 3 delivered: 4 missing"):
        assert_exactly_once(good[:1], [docs])
    with pytest.raises(AssertionError, match="too often"):
        assert_exactly_once([*good, good[0]], [docs])


NAMES = ("web", "code")
LENGTHS = {name: np.random.default_rng(seed).integers(1, 40, 18) for seed, name in enumerate(NAMES)}
TOKENS = {"web": distinct_documents(LENGTHS["web"])}
TOKENS["code"] = distinct_documents(LENGTHS["code"], 10_000)
MASKS = [np.random.default_rng(n).integers(0, 2, len(d)) for n, d in enumerate(TOKENS["code"])]
DROPPED = (3, 7)


def weight(tokens: np.ndarray) -> np.ndarray:
    return (tokens * 1.5 - 0.25).astype(np.float32)


@pytest.fixture(scope="module")
def opened(module_path: Path) -> Any:
    named = {f"train/{name}": documents for name, documents in TOKENS.items()}
    side = {name: {"weight": [*map(weight, each)]} for name, each in named.items()}
    write_dataset(module_path, named, {"train/code": MASKS}, side=side, record_tokens=16)
    write(module_path, dropping(18, *DROPPED))
    return jaxdata.open_dataset(module_path)


class Mixed(NamedTuple):
    packing: list[dict[str, dict[str, Any]]]
    """of each source, from the first row, and from each amendment on"""
    places: list[float]
    """where amendments are, as shares of the rows"""
    epochs: dict[str, int]
    hosts: int
    viewed: bool


@st.composite
def mixtures(draw: st.DrawFn) -> Mixed:
    ways = []
    for _ in range(draw(st.integers(1, 3))):
        shape = draw(shapes)
        ways.append({name: draw(packings(("best_fit", "pad", "concat"), shape)) for name in NAMES})
    places = sorted(draw(st.floats(0, 0.99)) for _ in ways[1:])
    epochs = {name: draw(st.integers(1, 3)) for name in NAMES}
    return Mixed(ways, places, epochs, draw(st.integers(1, 4)), draw(st.booleans()))


def mixed(dataset: Any, case: Mixed) -> Any:
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


@pytest.mark.exhaustive
@examples(max_examples=25)
@given(case=mixtures())
def test_every_target_is_trained_as_often_as_its_source_is_read(opened: Any, case: Mixed) -> None:
    rows = mixed(opened, case)
    given_ = {"batch_size": 12, "extras": ["weight"], "prefetch": 0}
    hosts = [jaxdata.Loader(rows, shard=(n, case.hosts), **given_) for n in range(case.hosts)]
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
