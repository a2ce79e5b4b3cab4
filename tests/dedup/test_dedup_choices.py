"""What is compared with what, who stays, and what a user is told."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.dataset.opening import open_dataset
from jaxdata.dedup.leaks import leak_notes
from tests.commands import run
from tests.converter.here import objects, run_here, write_lines
from tests.dedup.planted import command, dropped, find, made, prose

SHARED, LONGER = prose(1), prose(1) + " And this is the end."
OWN = [prose(seed) for seed in range(10, 16)]


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A text that every source has, in `web` also longer by a sentence."""
    sources = {
        "train/web": [OWN[0], SHARED, LONGER, OWN[1], prose(5)],
        "train/wiki": [SHARED, OWN[2]],
        "val/web": [OWN[3], prose(5) + " Almost."],
    }
    return made(tmp_path, sources)


def test_a_view_on_a_view_and_the_manifest_says_how(dataset: Path) -> None:
    find(dataset, sources=["web"], near=False, against=["val"], exact="letters")
    assert dropped(dataset, "train/web") == {}
    find(dataset, sources=["train/web"], prefer="first", name="lower")
    given: Any = {"documents": "lower", "against": ["val", "train/wiki"]}
    report = find(dataset, sources=["web"], name="up", **given)
    assert [*report.views] == ["train/web"]
    assert dropped(dataset, "train/web", "up") == {
        1: ("exact copy in train", "train/wiki", 0),
        2: ("near copy", "train/web", 1),
        4: ("near copy in val", "val/web", 1),
    }
    against = {"against": ["val/web", "train/wiki"], "documents": "lower", "text_key": None}
    said = {"command": "dedup", "ngram": 5, "order": ["train/web", *against["against"]]}
    assert report.views["train/web"].parameters.items() >= (said | against).items()


WRONG: list[Any] = [
    ({"sources": ["wbe"]}, r"no source 'train/wbe' .*did you mean 'train/web'"),
    ({"sources": ["web", "train/web"]}, r"a source is named twice in web, train/web"),
    ({"split": "test"}, r"no split 'test': the dataset has train, val"),
    ({"against": ["vla"]}, r"against='vla' is neither a split or source .*mean 'val'"),
    ({"against": ["/no/*.jsonl"]}, r"^/no/.*: no such file or folder"),
    ({"documents": "d1"}, r"^the view 'd1' cannot be made of itself"),
    ({"documents": "no"}, r"no view 'no'"),
    ({"name": "a/b"}, r"a view cannot be named 'a/b'"),
    ({"exact": "words"}, r"exact='words'.*'letters'"),
    ({"of": "ids", "exact": "letters"}, r"exact='letters' normalises text, and of='ids'"),
    ({"decontaminate": "gpt3", "overlap": 8}, "'gpt3' has overlap=13: leave out overlap=8"),
    ({"decontaminate": "llama2"}, "'llama2' is a rule of ids: use of='ids'"),
    ({"decontaminate": "gpt5"}, "'gpt5': expected 'gpt3'"),
    ({"decontaminate": "palm"}, "'palm' compares with files of benchmarks"),
    ({"of": "bytes", "overlap_action": "mask"}, r"^overlap_action='mask' needs to know"),
    ({"threshold": 1.5}, r"threshold=1.5: expected at most 1"),
    ({"bans": 1}, r"there is no setting 'bans'; did you mean 'bands'"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_what_is_wrong_is_said(dataset: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        find(dataset, **options)


def test_the_command_makes_a_view_and_says_what_it_keeps(dataset: Path) -> None:
    words = ("dedup", dataset, "--output-name", "d1", "--against", "val")
    said = command(*words, "--sources", "wiki,web")
    assert "kept 2 of 5 documents" in said
    assert "documents: d1" in said
    listed = run("inspect", dataset, "--views").stdout
    made_with = "view d1: against val/web, bands 14, command dedup, near True, ngram 5, of words"
    assert made_with in listed
    assert "fingerprints" not in listed
    assert "give --output-name NAME to make a view" in run("dedup", dataset, status=2).stderr


def test_the_two_sides_of_pairs_are_one_document(tmp_path: Path) -> None:
    """They share a prompt, are no copies of each other, and no part of one goes."""
    keys = ("prompt", "chosen", "rejected")
    pair, other = (dict(zip(keys, (SHARED, *OWN[n : n + 2]), strict=True)) for n in (0, 2))
    data = made(tmp_path, {"train/web": [OWN[4]], "val/web": [OWN[5]]})
    for split, rows in (("train", (pair, other, pair)), ("val", (other,))):
        source = write_lines(tmp_path / f"{split}.jsonl", objects(*rows))
        run_here(source, data, source="prefs", split=split, task="dpo")
    sides = ["train/prefs/chosen", "train/prefs/rejected"]
    for of, name in (("words", "prefs"), ("ids", "train/prefs/rejected")):
        report = find(data, sources=[name], prefer="first", of=of)
        assert [*report.views] == sides
        for side in sides:
            assert dropped(data, side) == {2: ("exact copy", sides[0], 0)}
    report = find(data, against=["val/prefs/chosen", "train/web"])
    assert [*report.views] == [*sides, "train/web"]
    assert dropped(data, sides[1])[1] == ("exact copy in val", "val/prefs/chosen", 0)
    with pytest.raises(InputError, match=r"^repeats=50: train/prefs has preference pairs"):
        find(data, repeats=50)
    against = {"against": [str(tmp_path / "val.jsonl")], "text_key": "prompt"}
    with pytest.raises(InputError, match=r"^overlap_action='cut': train/prefs has .*use overlap"):
        find(data, overlap_action="cut", **against)
    assert find(data, overlap_action="cut", sources=["web"], **against).views


def test_what_may_leak_is_noted_unless_a_view_was_compared_with_it(dataset: Path) -> None:
    def notes(**views: str) -> list[str]:
        opened = open_dataset(dataset).with_views({f"train/{n}": v for n, v in views.items()})
        return leak_notes(opened, ["train/web", "train/wiki"], ["val/web"])

    (note,) = notes()
    assert note.startswith("train/web, train/wiki: never compared with val/web, so copies of it m")
    assert "jaxdata dedup DATASET --against val --output-name d1" in note
    find(dataset, against=["val"], sources=["web"])
    compared, never = notes(web="d1")
    assert compared == "train/web: copies of val/web are left out, by its view"
    assert never.startswith("train/wiki: never compared with val/web")
    jaxdata.select(dataset, "above", where="tokens > 3", documents="d1", sources=["web"])
    assert notes(web="above")[0] == compared


def test_a_search_says_how_far_it_has_come(tmp_path: Path) -> None:
    """And which pairs it compared, and which of them it refused."""
    halves = prose(2).split()[:72], prose(3).split()[72:]
    texts = [prose(2), prose(1), f"{prose(1)} More.", " ".join([*halves[0], *halves[1]])]
    data = made(tmp_path, {"train/web": texts, "val/web": [""]})
    said: dict[str, list[tuple[int, int]]] = {}

    @contextmanager
    def stage(label: str) -> Iterator[Any]:
        yield lambda done, total: said.setdefault(label, []).append((done, total))

    options = {"unit_tokens": 1_000, "bands": 60, "rows": 2, "memory": 2_000, "stage": stage}
    with mock.patch("jaxdata.dedup.minhash._PAIR_TOKENS", 1):
        report = find(data, against=["val"], overlap=0, **options)
    assert "; compared 2 pairs of documents by all their n-grams: 1 are less alike" in str(report)
    assert str(report).startswith("train/web:\n  kept 3 of 4 documents, ")
    tokens = sum(len(text) + 1 for text in texts)
    assert [(label, steps[-1][0]) for label, steps in said.items()] == [
        *(("reading documents", tokens + 1), ("comparing hashes", 5 * 256)),
        *(("comparing bands", 60 * 4 * 256), ("comparing n-grams", tokens)),
    ]
    assert len(said["reading documents"]) > 2, "units are as small as asked for"
    for steps in said.values():
        assert steps == sorted({*steps})
        assert {total for _, total in steps} == {steps[-1][0]}
