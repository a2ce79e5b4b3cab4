"""What a user names, as members; their texts; and how far a search has come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from jaxdata.base.errors import InputError
from jaxdata.converter.hashes import BETWEEN_SIDES
from jaxdata.dataset.opening import open_dataset
from jaxdata.dataset.views.writing import write_views
from jaxdata.dedup.api import _sides, _unit_tokens, against_of, sources_of
from jaxdata.dedup.job import DedupJob, Search, Workbench, worker_of
from jaxdata.dedup.members import KeptHashes, Member, Members
from jaxdata.dedup.minhash import signature_units
from jaxdata.dedup.settings import DedupSettings
from jaxdata.dedup.spans import check_no_pairs
from tests.converter.here import run_here, write_lines
from tests.dedup.planted import find, made, prose


@pytest.fixture
def dataset(tmp_path: Path) -> Any:
    """Pairs between other sources."""
    data = made(tmp_path, {"train/aa": ["a"], "train/web": ["b", "c"], "val/web": ["d"]})
    pairs = [{"prompt": "p", "chosen": f"c{n}", "rejected": "r" * (n + 1)} for n in range(3)]
    lines = write_lines(tmp_path / "p.jsonl", [json.dumps(pair).encode() for pair in pairs])
    for split in ("train", "val"):
        run_here(lines, data, source="prefs", split=split, task="dpo")
    return open_dataset(data)


def facts(members: list[Member]) -> list[tuple[Any, ...]]:
    return [(m.name, m.documents, m.sides, m.against, m.table) for m in members]


def test_the_two_sides_of_pairs_are_one_member(dataset: Any) -> None:
    sides = ("train/prefs/chosen", "train/prefs/rejected")
    prefs = "train/prefs", 3, sides, False, ""
    aa, web = (
        (f"train/{name}", n, (f"train/{name}",), False, "") for name, n in (("aa", 1), ("web", 2))
    )
    every = sources_of(dataset, "train", None, None)
    assert facts(every) == [aa, prefs, web]
    assert len({member.fingerprint for member in every}) == 3
    for name in ("prefs", "train/prefs", "prefs/rejected", "train/prefs/chosen"):
        assert facts(sources_of(dataset, "train", [name, "web"], None)) == [prefs, web]
    own = sources_of(dataset, "train", ["prefs"], None)
    held = "val/prefs", 3, ("val/prefs/chosen", "val/prefs/rejected"), True, ""
    for name in ("val/prefs", "val/prefs/chosen"):
        members, files = against_of(dataset, [name], own)
        assert (facts(members), files) == ([held], [])
    members, files = against_of(dataset, ["train", "val"], own)
    rest = [("train/aa", 1), ("train/web", 2), ("val/prefs", 3), ("val/web", 1)]
    assert [(m.name, m.documents) for m in members] == rest
    assert files == []
    job = DedupJob(dataset.url, "d1", DedupSettings(), Members(own), 10**6)
    (texts,) = Workbench(job).texts
    one, other = dataset["train/prefs/chosen"].lengths, dataset["train/prefs/rejected"].lengths
    assert texts.lengths.tolist() == [int(a) + int(b) for a, b in zip(one, other, strict=True)]
    assert texts.texts(np.array([2, 1])) == [
        "pc2" + BETWEEN_SIDES + "prrr",
        "pc1" + BETWEEN_SIDES + "prr",
    ]
    assert [bytes(ids.astype(np.uint8)) for ids in texts.ids(np.array([2]))] == [b"pc2prrr"]


class Sources:
    """Sources of so many documents."""

    def __init__(self, **sizes: int) -> None:
        self.sizes = {name.replace("_", "/"): size for name, size in sizes.items()}
        self.names = [*self.sizes]

    def __getitem__(self, name: str) -> range:
        return range(self.sizes[name])

    def source(self, split: str, name: str) -> None:
        if f"{split}/{name}" not in self.names:
            raise InputError("none")


def test_sides_of_other_lengths_or_without_another_are_sources_of_their_own() -> None:
    uneven: Any = Sources(train_p_chosen=2, train_p_rejected=3, train_q_chosen=1)
    for name in uneven.names:
        assert _sides(uneven, name) == (name, (name,))
    for name in ("train/p", "train/q/rejected", "no/p"):
        with pytest.raises(InputError, match="none"):
            _sides(uneven, name)


def test_kept_hashes_are_those_of_the_documents_of_a_member() -> None:
    exact, bands = np.arange(10, dtype=np.uint64).reshape(5, 2), np.arange(5, dtype=np.uint64)
    columns = {"exact_hash": exact, "band_hash": bands}
    for numbers, rows in ((None, [1, 2]), (np.array([0, 3, 4]), [3, 4])):
        found = KeptHashes(columns, numbers).between(1, 3)
        assert {name: each.tolist() for name, each in found.items()} == {
            "exact_hash": [[2 * row, 2 * row + 1] for row in rows],
            "band_hash": rows,
        }
    for names, near, suffice in (
        ("exact_hash band_hash", True, True),
        *(("exact_hash", True, False), ("exact_hash", False, True)),
        *(("band_hash", True, False), ("band_hash", False, False)),
    ):
        kept = KeptHashes(dict.fromkeys(names.split(), bands))
        assert kept.suffice(DedupSettings(near=near)) == suffice


def test_a_unit_says_how_far_it_is_and_few_are_done_here(dataset: Any) -> None:
    members = Members(sources_of(dataset, "train", ["web", "aa"], None))
    job = DedupJob(dataset.url, "d1", DedupSettings(), members, 10**6)
    units = signature_units(Workbench(job))
    assert [(unit.name, unit.size, unit.where, unit.without_data()) for unit in units] == [
        ("hashes-000-0000000000", 4, "train/web", units[0]),
        ("hashes-001-0000000000", 2, "train/aa", units[1]),
    ]
    said: list[float] = []
    with mock.patch("jaxdata.dedup.minhash._TOKENS_AT_ONCE", 1):
        for unit in units:
            worker_of(job)(unit, said.append)
    assert said == [0.5, 1, 1, 1, 1]
    bench = Workbench(job)
    assert bench.lengths(np.array([0, 2, 1])).tolist() == [2, 2, 2]
    engine = mock.Mock()
    for count, calls in ((0, 0), (2, 0), (3, 1)):
        bench.unfinished.end()
        search = Search(job, engine, 2**30, lambda _: mock.MagicMock())
        search.do("label", signature_units_of(bench, count))
        assert engine.call_count == calls


def signature_units_of(bench: Workbench, count: int) -> list[Any]:
    one = signature_units(bench)[0]
    return [SimpleNamespace(**vars(one) | {"name": f"{n}"}) for n in range(count)]


@pytest.mark.parametrize("name", ["repeats", "overlap_action"])
def test_spans_of_pairs_are_refused_unless_they_stay_whole(name: str) -> None:
    def check(sides: tuple[str, ...], against: bool, **settings: Any) -> None:
        members = [Member("p", 1, "", sides, against=against), Member("b", 1, "", table="t")]
        check_no_pairs(DedupJob("d", "d1", DedupSettings(**settings), Members(members), 1))

    for value in {"repeats": (1, 50), "overlap_action": ("mask", "cut")}[name]:
        check(("p/a", "p/b"), True, **{name: value})
        check(("p/a",), False, **{name: value})
        with pytest.raises(InputError, match=rf"^{name}={value!r}: p has preference pairs"):
            check(("p/a", "p/b"), False, **{name: value})
    check(("p/a", "p/b"), False, overlap_action="cut", overlap=0)
    check(("p/a", "p/b"), False)


def test_a_dataset_is_cut_into_256_units_neither_small_nor_large() -> None:
    expected = {0: 2**20, 2**28 + 255: 2**20, 2**28 + 256: 2**20 + 1, 2**34: 2**26, 2**40: 2**26}
    assert {tokens: _unit_tokens(tokens) for tokens in expected} == expected


def test_a_search_says_how_far_it_has_come(tmp_path: Path) -> None:
    """And how long it took; which pairs it compared, and which of them it refused."""
    halves = prose(2).split()[:72], prose(3).split()[72:]
    texts = [prose(2), prose(1), f"{prose(1)} More.", " ".join([*halves[0], *halves[1]])]
    data = made(tmp_path, {"train/web": texts, "val/web": [""]})
    said: dict[str, list[tuple[int, int]]] = {}

    @contextmanager
    def stage(label: str) -> Iterator[Any]:
        yield lambda done, total: said.setdefault(label, []).append((done, total))

    clock = SimpleNamespace(monotonic=iter([1_000.0, 1_007.5]).__next__)
    options = {"unit_tokens": 1_000, "bands": 60, "rows": 2, "memory": 2_000, "stage": stage}
    with (
        mock.patch("jaxdata.dedup.api.time", clock),
        mock.patch("jaxdata.dedup.minhash._PAIR_TOKENS", 1),
        mock.patch("jaxdata.dedup.api.write_views", wraps=write_views) as written,
    ):
        report = find(data, against=["val"], overlap=0, **options)
    fingerprint = open_dataset(data)["train/web"].fingerprint
    assert written.call_args.kwargs["made_of"] == {"train/web": fingerprint}
    assert report.seconds == 7.5
    assert (report.compared, report.refused) == (2, 1)
    tokens = sum(len(text) + 1 for text in texts)
    totals = {"reading documents": tokens + 1, "comparing hashes": 5 * 256}
    totals |= {"comparing bands": 60 * 4 * 256, "comparing n-grams": tokens}
    assert len(said["reading documents"]) > 2, "units are as small as asked for"
    assert len(said["comparing n-grams"]) == 3, "told at the beginning, and a pair is a unit here"
    assert {label: steps[-1] for label, steps in said.items()} == {
        label: (total, total) for label, total in totals.items()
    }
    assert all(steps == sorted({*steps}) for steps in said.values())
