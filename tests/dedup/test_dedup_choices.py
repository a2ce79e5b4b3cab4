"""What is compared with what, who stays, and what a user is told."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import jaxdata
from jaxdata.base.errors import InputError
from jaxdata.dataset.manifest import read_manifest
from jaxdata.dataset.opening import open_dataset
from jaxdata.dedup.job import DedupJob
from jaxdata.dedup.leaks import leak_notes
from jaxdata.dedup.members import Member, Members
from jaxdata.dedup.settings import DedupSettings
from jaxdata.storage import open_store
from tests.commands import run
from tests.converter.here import run_here, write_lines
from tests.dedup.planted import dropped, find, made, prose

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


def test_sources_in_the_order_of_preference(dataset: Path) -> None:
    report = find(dataset, sources=["wiki", "web"], against=["val"])
    assert [*report.views] == ["train/wiki", "train/web"]
    assert report.views["train/web"].account.kept.documents == 2
    assert dropped(dataset, "train/wiki") == {}
    assert dropped(dataset, "train/web") == {
        1: ("exact copy", "train/wiki", 0),
        2: ("near copy", "train/wiki", 0),
        4: ("near copy in val", "val/web", 1),
    }
    find(dataset, sources=["web", "wiki"])
    assert dropped(dataset, "train/web") == {1: ("near copy", "train/web", 2)}
    assert dropped(dataset, "train/wiki") == {0: ("near copy", "train/web", 2)}


def test_benchmarks_by_file_and_line(dataset: Path, tmp_path: Path) -> None:
    rows = [{"question": "unrelated"}, {"no": 1}, {"question": OWN[1], "answer": None}]
    write_lines(tmp_path / "bench" / "a.jsonl", [json.dumps(row).encode() for row in rows])
    (tmp_path / "bench" / "b.txt").write_text(OWN[2])
    options = {"text_key": "question, answer", "against": [str(tmp_path / "bench/*")]}
    find(dataset, sources=["web", "wiki"], prefer="first", **options)
    assert dropped(dataset, "train/web")[3] == ("exact copy in a benchmark", "a.jsonl", 3)
    assert dropped(dataset, "train/wiki")[1] == ("exact copy in a benchmark", "b.txt", 1)
    ids = find(dataset, sources=["web"], of="ids", ngram=20, **options)
    assert dropped(dataset, "train/web")[3][0] == "exact copy in a benchmark"
    assert ids.views["train/web"].parameters["against"] == ["a.jsonl", "b.txt"]


QUESTION = "How many of the nineteen swans that slept by the old mill flew south before dawn today"


def tainted(dataset: Path, bench: Path, **options: Any) -> dict[str, dict[int, tuple[Any, ...]]]:
    given = {"against": [str(bench)], "text_key": "question", "prefer": "first"}
    find(dataset, **given | options)
    return {name: dropped(dataset, f"train/{name}") for name in ("web", "wiki")}


def test_documents_with_words_of_a_benchmark(tmp_path: Path) -> None:
    inside = [f"{prose(seed)} {QUESTION.upper()}? {prose(seed + 1)}" for seed in (20, 30)]
    partly = f"{OWN[3]} {' '.join(QUESTION.split()[:12])}"
    sources = {
        "train/web": [OWN[0], inside[0], partly],
        "train/wiki": [inside[0], inside[1], OWN[1]],
    }
    data = made(tmp_path, sources)
    rows = [json.dumps({"question": text}).encode() for text in ("A short one", QUESTION)]
    bench = write_lines(tmp_path / "b.jsonl", rows)
    why = ("13 words in a row in a benchmark", "b.jsonl", 2)
    found = tainted(data, bench)
    assert found == {"web": {1: why}, "wiki": {0: why, 1: why}}
    assert tainted(data, bench, near=False, memory=1_500) == found
    assert set(tainted(data, bench, overlap=12)["web"]) == {1, 2}
    copies = {"web": {}, "wiki": {0: ("exact copy", "train/web", 1)}}
    assert tainted(data, bench, overlap=0) == copies
    assert tainted(data, bench, overlap_most=2) == copies
    assert tainted(data, bench, overlap_most=3) == found
    ids = tainted(data, bench, of="ids", overlap=60)
    assert ids["web"] == {}  # bytes tell upper from lower case
    verdict = read_manifest(open_store(data)).sources["train/web"].views["d1"].parameters
    assert (verdict["overlap"], verdict["overlap_most"]) == (60, 10)


def replaced(text: str, first: int, name: str) -> str:
    """A text with fourteen words in a row replaced: a fifth of its n-grams are others."""
    words = text.split()
    words[first : first + 14] = [f"{name}{number}" for number in range(14)]
    return " ".join(words)


def test_validation_connects_nothing_of_its_own(tmp_path: Path) -> None:
    """Held-out documents that are copies of each other keep apart what is a copy of one alone."""
    one, other = replaced(SHARED, 0, "old"), replaced(SHARED, 120, "new")
    web = [replaced(one, 50, "x"), replaced(other, 80, "y")]
    data = made(tmp_path, {"train/web": web, "val/web": [SHARED, one, other]})
    find(data, against=["val"], threshold=0.75, bands=64, rows=2)
    assert dropped(data, "train/web") == {
        0: ("near copy in val", "val/web", 1),
        1: ("near copy in val", "val/web", 2),
    }


@pytest.mark.parametrize("tokenizer", ["bytes", "ids", "sentencepiece"])
def test_words_of_a_benchmark_are_masked(
    tmp_path: Path, request: pytest.FixtureRequest, tokenizer: str
) -> None:
    spec = "bytes"
    if tokenizer == "sentencepiece":
        folder = request.getfixturevalue("shared_data") / "tokenizers/mistral"
        spec = f"sentencepiece:{folder}/tokenizer.mistral-v1.model"
    before, after = "Já vím, 日本: " + prose(20, 2), prose(21, 2)
    texts = [OWN[0], f"{before} {QUESTION}. {after} {QUESTION}!", OWN[1]]
    data = made(tmp_path, {"train/web": texts}, tokenizer=spec)
    bench = write_lines(tmp_path / "b.jsonl", [json.dumps({"question": QUESTION}).encode()])
    of: dict[str, Any] = {"of": "ids", "overlap": 20} if tokenizer == "ids" else {}
    report = find(data, against=[str(bench)], text_key="question", overlap_action="mask", **of)
    opened = open_dataset(data)
    docs = opened.source("train", "web", documents="d1")
    assert len(docs) == 3
    tokens, mask = docs[1]["tokens"], docs[1]["loss_mask"]
    assert opened.decode(tokens[~mask]).split() == [*QUESTION.split(), *QUESTION.split()] or (
        opened.decode(tokens[~mask]) == QUESTION + QUESTION
    )
    assert docs[0]["loss_mask"].all()
    masked = report.views["train/web"].account.masked
    assert [*masked] == [f"{of.get('overlap', 13)} {of.get('of', 'words')} in a row"]


def test_a_view_on_a_view(dataset: Path) -> None:
    find(dataset, sources=["web"], near=False, against=["val"], exact="letters")
    assert dropped(dataset, "train/web") == {}
    find(dataset, sources=["web"], prefer="first", name="lower")
    assert set(dropped(dataset, "train/web", "lower")) == {2}
    find(dataset, sources=["web"], documents="lower", against=["val", "train/wiki"], name="up")
    assert dropped(dataset, "train/web", "up") == {
        1: ("exact copy in train", "train/wiki", 0),
        2: ("near copy", "train/web", 1),
        4: ("near copy in val", "val/web", 1),
    }
    said = [
        read_manifest(open_store(dataset)).sources["train/web"].views[n] for n in ("lower", "up")
    ]
    assert [view.parameters["documents"] for view in said] == [None, "lower"]
    with pytest.raises(InputError, match=r"view 'up' cannot be made of itself"):
        find(dataset, sources=["web"], documents="up", name="up")


def test_pairs_are_compared_as_wholes(tmp_path: Path) -> None:
    """The two sides of a pair share a prompt, and are no copies of each other."""
    pair = {"prompt": SHARED, "chosen": OWN[0], "rejected": OWN[1]}
    other = {"prompt": SHARED, "chosen": OWN[2], "rejected": OWN[3]}
    lines = [json.dumps(each).encode() for each in (pair, other, pair)]
    source = write_lines(tmp_path / "pairs.jsonl", lines)
    run_here(source, tmp_path / "d", source="prefs", task="dpo")
    find(tmp_path / "d", prefer="first")
    for side in ("chosen", "rejected"):
        assert dropped(tmp_path / "d", f"train/prefs/{side}") == {
            2: ("exact copy", "train/prefs/chosen", 0)
        }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sources": ["wbe"]}, r"no source 'train/wbe' .*did you mean 'train/web'"),
        ({"sources": ["web", "train/web"]}, r"a source is named twice in web, train/web"),
        ({"split": "test"}, r"no split 'test': the dataset has train, val"),
        ({"against": ["vla"]}, r"against='vla' is neither a split or source .*mean 'val'"),
        ({"against": ["/no/*.jsonl"]}, r"^/no/.*: no such file or folder"),
        ({"against": ["memory://no.jsonl"]}, r"^memory://no.jsonl: there is no such object"),
        ({"ngram": 0, "bands": 0}, r"^ngram=0: "),
        ({"documents": "d1"}, r"^the view 'd1' cannot be made of itself"),
        ({"documents": "no"}, r"no view 'no'"),
        ({"name": "a/b"}, r"a view cannot be named 'a/b'"),
        ({"exact": "words"}, r"exact='words'.*'letters'"),
        ({"of": "ids", "exact": "letters"}, r"exact='letters' normalises text, and of='ids'"),
        ({"of": "bytes", "overlap_action": "mask"}, r"^overlap_action='mask' needs to know"),
        ({"threshold": 1.5}, r"threshold=1.5: expected at most 1"),
        ({"bans": 1}, r"there is no setting 'bans'; did you mean 'bands'"),
    ],
)
def test_what_is_wrong_is_said(dataset: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        find(dataset, **options)


def test_settings_have_these_defaults_and_least_values() -> None:
    expected = {"near": True, "of": "words", "ngram": 5, "bands": 14, "rows": 8, "threshold": 0.8}
    expected |= {"exact": None, "compared_with": "cluster", "overlap": 13, "overlap_most": 10}
    expected |= {"overlap_action": "drop", "decontaminate": None, "repeats": 0, "prefer": "longest"}
    assert DedupSettings().model_dump() == expected | {"repeats_action": "mask"}
    least = {"ngram": 1, "bands": 1, "rows": 1, "threshold": 0, "overlap": 0, "overlap_most": 0}
    for name, number in (least | {"repeats": 0}).items():
        assert getattr(DedupSettings(**{name: number}), name) == number
        with pytest.raises(ValidationError):
            DedupSettings(**{name: number - 1})
    assert DedupSettings(threshold=1).threshold == DedupSettings(prefer="x").threshold + 0.2
    for wrong in ({"threshold": 1.1}, {"prefer": ""}):
        with pytest.raises(ValidationError):
            DedupSettings(**wrong)  # type: ignore[arg-type]
    rules = [DedupSettings(of=of).exact_rule for of in ("words", "bytes", "ids")]
    assert rules == ["whitespace", "whitespace", "none"]
    assert DedupSettings(exact="letters").exact_rule == "letters"
    assert DedupSettings(overlap=7, overlap_most=3).overlap_rule[:2] == (7, 3)


def test_all_that_decides_a_search_is_a_fact_of_it(tmp_path: Path) -> None:
    members = Members([Member("train/a", 2, "f1"), Member("b.jsonl", 3, "f2", against=True)])

    def facts(**settings: Any) -> dict[str, Any]:
        return DedupJob(str(tmp_path), "d1", DedupSettings(**settings), members, 70).facts()

    made = {"version": [2, 1], "unicode": unicodedata.unidata_version, "unit_tokens": 70}
    compared = {"order": ["train/a", "b.jsonl"], "against": ["b.jsonl"]}
    prints = {"fingerprints": {"train/a": "f1", "b.jsonl": "f2"}}
    own = DedupSettings().model_dump()
    assert facts() == {**made, **own, **compared, **prints}
    more = {"repeats": 9, "repeats_action": "cut", "decontaminate": "palm", "overlap": 8}
    more |= {"compared_with": "survivor", "overlap_most": 0}
    assert facts(**more) == {**made, **own, **compared, **prints, **more}


def test_the_copy_with_the_preferred_field(tmp_path: Path) -> None:
    kept = [("b", 3), ("a", 2), (None, 5), ("c", 4)]
    lines = [json.dumps({"text": SHARED, "url": url, "date": date}).encode() for url, date in kept]
    run_here(write_lines(tmp_path / "a.jsonl", lines), tmp_path / "d", keep=["url", "date"])
    for rule, stays in {"url": 1, "-url": 3, "-date": 2, "first": 0}.items():
        find(tmp_path / "d", prefer=rule)
        lost = dropped(tmp_path / "d", "train/web")
        assert {number: fate[2] for number, fate in lost.items()} == {
            number: stays for number in range(4) if number != stays
        }
    run_here(tmp_path / "a.jsonl", tmp_path / "d", split="val", keep=["url", "date"])
    find(tmp_path / "d", prefer="url", against=["val"])
    assert {fate[2] for fate in dropped(tmp_path / "d", "train/web").values()} == {0}
    with pytest.raises(InputError, match=r"prefer='-score': .*kept field 'score'; .*--keep"):
        find(tmp_path / "d", prefer="-score")


def test_only_the_sources_named_and_the_manifest_says_how(dataset: Path) -> None:
    report = find(dataset, sources=["train/web"], prefer="first", against=["val"], ngram=4)
    assert list(report.views) == ["train/web"]
    assert report.clusters == {"2": 2}
    assert find(dataset, against=["train"], sources=["web"]).views.keys() == {"train/web"}
    view = report.views["train/web"]
    said = {"command": "dedup", "ngram": 4, "order": ["train/web", "val/web"], "text_key": None}
    assert view.parameters.items() >= (said | {"against": ["val/web"]}).items()
    assert view.statistics["clusters"] == {"2": 2}


def test_the_command_makes_a_view_and_shows_examples(dataset: Path) -> None:
    words = ("dedup", dataset, "--output-name", "d1", "--against", "val", "--memory", "10M")
    said = run(*words, "--workers", "1", "--sources", "wiki,web").stdout
    assert "clusters by number of documents: 1 of 2, 1 of 3; took" in said
    assert "kept 2 of 5 documents" in said
    assert "documents: d1" in said
    listed = run("inspect", dataset, "--views").stdout
    made_with = "against val/web, bands 14, command dedup, compared_with cluster, near True"
    assert f"view d1: {made_with}, ngram 5, of words" in listed
    assert "fingerprints" not in listed
    find(dataset, against=["val"], prefer="first")
    shown = run("dedup", dataset, "--show", "d1", "--examples", "1").stdout.splitlines()
    assert shown[0] == "train/web:2 (near copy): train/web:1 stays"
    assert {"  + And this is the end.", "  - Almost."} <= {*shown}
    assert "train/web:4 (near copy in val): val/web:1 stays" in shown
    for more, status, says in (
        (["--show", "d2"], 1, "no source of"),
        ([], 2, "give --output-name NAME to make a view, or --show VIEW"),
        (["--output-name", "d1", "--memory", "much"], 2, "expected a size like 500M or 2G"),
    ):
        assert says in run("dedup", dataset, *more, status=status).stderr


def test_what_may_leak_is_noted_unless_a_view_was_compared_with_it(dataset: Path) -> None:
    def notes(**views: str) -> list[str]:
        opened = open_dataset(dataset).with_views({f"train/{n}": v for n, v in views.items()})
        return leak_notes(opened, ["train/web", "train/wiki"], ["val/web"])

    (note,) = notes()
    assert note.startswith(
        "train/web, train/wiki: never compared with val/web, so copies of it may"
    )
    assert "jaxdata dedup DATASET --against val --output-name d1" in note
    find(dataset, against=["val"], sources=["web"])
    compared, never = notes(web="d1")
    assert compared == "train/web: copies of val/web are left out, by its view"
    assert never.startswith("train/wiki: never compared with val/web")
    jaxdata.select(dataset, "above", where="tokens > 3", documents="d1", sources=["web"])
    assert notes(web="above")[0] == compared
