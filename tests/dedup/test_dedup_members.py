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
from jaxdata.dataset.opening import open_dataset
from jaxdata.dataset.views.writing import write_views
from jaxdata.dedup.api import _sides, against_of, sources_of
from jaxdata.dedup.job import DedupJob, Workbench
from jaxdata.dedup.members import KeptSignatures, Member, Members, PairTexts
from jaxdata.dedup.repeated_spans import check_no_pairs
from jaxdata.dedup.search import worker_of
from jaxdata.dedup.settings import DedupSettings
from tests.converter.here import run_here
from tests.converter.test_convert import write_lines
from tests.dedup.planted import find, made, prose


@pytest.fixture
def dataset(tmp_path: Path) -> Any:
    """Pairs between other sources."""
    data = made(tmp_path, {"train/aa": ["a"], "train/web": ["b", "c"], "val/web": ["d"]})
    pair = {"prompt": "p", "chosen": "c", "rejected": "r"}
    lines = write_lines(tmp_path / "p.jsonl", [json.dumps(pair).encode()] * 3)
    for split in ("train", "val"):
        run_here(lines, data, source="prefs", split=split, task="dpo")
    return open_dataset(data)


def pairs_of(name: str) -> tuple[str, str]:
    return f"{name}/chosen", f"{name}/rejected"


def facts(members: list[Member]) -> list[tuple[Any, ...]]:
    return [(m.name, m.documents, m.sides, m.against, m.table) for m in members]


def test_the_two_sides_of_pairs_are_one_member(dataset: Any) -> None:
    prefs = "train/prefs", 3, pairs_of("train/prefs"), False, ""
    aa, web = (f"train/{name}" for name in ("aa", "web"))
    every = sources_of(dataset, "train", None, None)
    assert facts(every) == [(aa, 1, (aa,), False, ""), prefs, (web, 2, (web,), False, "")]
    assert len({member.fingerprint for member in every}) == 3
    for name in ("prefs", "train/prefs", "prefs/rejected", "train/prefs/chosen"):
        assert facts(sources_of(dataset, "train", [name, "web"], None)) == [
            prefs,
            (web, 2, (web,), False, ""),
        ]
    own = sources_of(dataset, "train", ["prefs"], None)
    held = "val/prefs", 3, pairs_of("val/prefs"), True, ""
    for name in ("val/prefs", "val/prefs/chosen"):
        members, files = against_of(dataset, [name], own)
        assert (facts(members), files) == ([held], [])
    members, files = against_of(dataset, ["train", "val"], own)
    rest = [("train/aa", 1), ("train/web", 2), ("val/prefs", 3), ("val/web", 1)]
    assert [(m.name, m.documents) for m in members] == rest
    assert files == []


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


def test_a_pair_is_read_as_both_its_sides() -> None:
    def side(mark: str, *sizes: int) -> Any:
        return SimpleNamespace(
            lengths=np.array(sizes, np.uint32),
            texts=lambda documents: [f"{mark}{n}" for n in documents],
            ids=lambda documents: [np.array([n, len(mark)]) for n in documents],
            kept=lambda settings: (mark, settings),
        )

    pairs = PairTexts([side("a", 3, 2**32 - 1), side("bb", 5, 7)])
    assert pairs.lengths.tolist() == [8, 2**32 + 6]
    assert [text.split() for text in pairs.texts(np.array([1, 0]))] == [
        ["a1", "bb1"],
        ["a0", "bb0"],
    ]
    assert [ids.tolist() for ids in pairs.ids(np.array([4]))] == [[4, 1, 4, 2]]
    settings: Any = "how"
    assert pairs.kept(settings) == ("a", "how")


def test_kept_hashes_are_those_of_the_documents_of_a_member() -> None:
    exact, bands = np.arange(10, dtype=np.uint64).reshape(5, 2), np.arange(5, dtype=np.uint64)
    columns = {"exact_hash": exact, "band_hash": bands}
    for numbers, rows in ((None, [1, 2]), (np.array([0, 3, 4]), [3, 4])):
        found = KeptSignatures(columns, numbers).between(1, 3)
        assert {name: each.tolist() for name, each in found.items()} == {
            "exact_hash": [[2 * row, 2 * row + 1] for row in rows],
            "band_hash": rows,
        }
    for names, near, suffice in (
        ("exact_hash band_hash", True, True),
        ("exact_hash", True, False),
        ("exact_hash", False, True),
        ("band_hash", True, False),
        ("band_hash", False, False),
    ):
        kept = KeptSignatures(dict.fromkeys(names.split(), bands))
        assert kept.suffice(DedupSettings(near=near)) == suffice


def test_a_unit_of_hashes_says_how_far_it_is(dataset: Any) -> None:
    members = Members(sources_of(dataset, "train", ["web", "aa"], None))
    job = DedupJob(dataset.url, "d1", DedupSettings(), members, 10**6)
    bench = Workbench(job)
    units = list(job.signature_units([texts.lengths for texts in bench.texts]))
    assert [(unit.name, unit.size) for unit in units] == [
        ("hashes-000-0000000000", 4),
        ("hashes-001-0000000000", 2),
    ]
    said: list[float] = []
    with mock.patch("jaxdata.dedup.minhash._TOKENS_AT_ONCE", 1):
        for unit in units:
            worker_of(job)(unit, said.append)
    assert said == [0.5, 1, 1, 1, 1]
    assert bench.signatures == {"hashes-000-0000000000": 0, "hashes-001-0000000000": 2}
    assert bench.lengths(np.array([0, 2, 1])).tolist() == [2, 2, 2]
    assert [bench.looks_in(number) for number in (0, 1)] == [False, False]
    assert [bench.reads_text(number) for number in (0, 1)] == [True, True]


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
        mock.patch("jaxdata.dedup.search._PAIR_TOKENS", 1),
        mock.patch("jaxdata.dedup.api.write_views", wraps=write_views) as written,
    ):
        report = find(data, against=["val"], overlap=0, **options)
    fingerprint = open_dataset(data)["train/web"].fingerprint
    assert written.call_args.kwargs["made_of"] == {"train/web": fingerprint}
    assert report.seconds == 7.5
    assert (report.compared, report.refused, report.chained) == (2, 1, 0)
    tokens = sum(len(text) + 1 for text in texts)
    totals = {"reading documents": tokens + 1, "comparing hashes": 5 * 256}
    totals |= {"comparing bands": 60 * 5 * 256, "comparing n-grams": tokens}
    assert len(said["reading documents"]) > 2, "units are as small as asked for"
    assert len(said["comparing n-grams"]) == 3, "told at the beginning, and a pair is a unit here"
    assert {label: steps[-1] for label, steps in said.items()} == {
        label: (total, total) for label, total in totals.items()
    }
    assert all(steps == sorted({*steps}) for steps in said.values())
