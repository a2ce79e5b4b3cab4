"""Benchmarks by published rules, and spans that occur before: what the slow way finds, no more."""

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxdata.base.errors import InputError
from jaxdata.dataset.opening import open_dataset
from tests.commands import run
from tests.converter.here import objects, records, write_lines
from tests.dedup.planted import QUESTION, command, dropped, find, made, prose

QUESTIONS = [prose(seed, 4) for seed in range(200, 203)] + ["too short to count"]
QUESTIONS[1] += " Odd"


def benchmark(folder: Path) -> Path:
    return write_lines(folder / "b.jsonl", records(*QUESTIONS))


def runs(things: list[Any], n: int) -> list[tuple[Any, ...]]:
    return [tuple(things[at : at + n]) for at in range(len(things) - n + 1)]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def has_palm(document: list[Any], text: list[Any]) -> bool:
    """At least 70 % of the text's 8-grams."""
    grams, own = runs(text, 8), set(runs(document, 8))
    return bool(grams) and 10 * sum(gram in own for gram in grams) >= 7 * len(grams)


def covered(document: list[Any], text: list[Any], n: int) -> int:
    """The text's words that lie in an n-gram that the document has."""
    own = set(runs(document, n))
    return len({at + k for at, g in enumerate(runs(text, n)) if g in own for k in range(n)})


def has_tulu3(document: list[Any], text: list[Any]) -> bool:
    """More than half of the text's words lie in common 8-grams."""
    return 2 * covered(document, text, 8) > len(text)


def has_llama2(document: list[Any], text: list[Any]) -> bool:
    """At least 80 % of the text's tokens lie in common runs longer than 10."""
    found = covered(document, text, 11)
    return found > 0 and 10 * found >= 8 * len(text)


SHARES = {"palm": (has_palm, words), "tulu3": (has_tulu3, words), "llama2": (has_llama2, list)}


@pytest.mark.parametrize("rule", SHARES)
def test_documents_with_a_share_of_a_text(tmp_path: Path, rule: str) -> None:
    """Documents have parts of two questions, in pieces of any length."""
    chance = random.Random(rule)
    has, cut_up = SHARES[rule]
    texts = []
    for number in range(60):
        question = chance.choice(QUESTIONS[:3]).split()
        cut = sorted(chance.sample(range(len(question)), 3))
        second = question[cut[1] : cut[1] + 9 * (number % 5)]
        most = " ".join([*question[: cut[0]], "between", *second])
        texts.append(f"{prose(number, 2)} {most} {prose(number + 100, 1)}")
    for question in QUESTIONS[:3]:  # on the border: half of the words, 70 % of the 8-grams
        for share in (0.5, 0.7, 0.8):
            parts = question.split()
            size = round(share * len(parts))
            texts += [" ".join(parts[: size + more]) for more in range(-4, 5)]
    texts = [*dict.fromkeys(texts)]
    data = made(tmp_path, {"train/web": texts})
    of = {"of": "ids"} if rule == "llama2" else {}
    find(data, against=[str(benchmark(tmp_path))], near=False, decontaminate=rule, **of)
    found = dropped(data, "train/web")
    expected = {
        number: ("overlap (" + rule + ") in a benchmark", "b.jsonl", 1 + min(having))
        for number, text in enumerate(texts)
        if (having := [n for n, q in enumerate(QUESTIONS) if has(cut_up(text), cut_up(q))])
    }
    assert found == expected
    assert 10 < len(found) < len(texts) - 10


def left_by_gpt3(texts: list[str]) -> list[list[str]]:
    """What is left of each text: its pieces, a character at a time."""
    grams = {gram for question in QUESTIONS for gram in runs(words(question), 13)}
    times = Counter(g for text in texts for g in set(runs(words(text), 13)) & grams)
    found = []
    for text in texts:
        gone = [False] * len(text)
        spans = [match.span() for match in re.finditer(r"\w+", text)]
        for at, gram in enumerate(runs(words(text), 13)):
            if 0 < times[gram] <= 10:
                first, last = max(spans[at][0] - 200, 0), min(spans[at + 12][1] + 200, len(text))
                gone[first:last] = [True] * (last - first)
        pieces = re.finditer("-+", "".join("x" if each else "-" for each in gone))
        left = [text[match.start() : match.end()] for match in pieces]
        long = [piece for piece in left if len(piece) >= 200 or len(piece) == len(text)]
        found.append([] if len(left) > 10 else long)
    return found


def test_gpt3_cuts_what_is_around(tmp_path: Path) -> None:
    """Documents with any number of questions; one that is split too often; a common phrase."""
    chance = random.Random(3)
    texts = []
    for number in range(24):
        seeds = range(1_000 * number, 1_000 * number + 1 + number % 5)
        parts = [prose(seed, 1 + chance.randrange(9)) for seed in seeds]
        texts.append(f" {chance.choice(QUESTIONS[:2])} ".join(parts) if number < 10 else parts[0])
    for pieces in (10, 11):
        seeds = range(2_000 * pieces, 2_001 * pieces)
        texts.append(f" {QUESTIONS[0]} ".join(prose(seed, 8) for seed in seeds))
    texts += [f"{prose(seed, 5)} {QUESTIONS[2]}" for seed in range(400, 412)]  # more than 10
    texts += [f"{QUESTIONS[1]} {prose(500, 1)}", QUESTIONS[1].upper()]
    data = made(tmp_path, {"train/web": texts})
    options = {"near": False, "decontaminate": "gpt3", "exact": "none"}
    report = find(data, against=[str(benchmark(tmp_path))], **options)
    opened = open_dataset(data)
    docs: Any = opened.source("train", "web", documents="d1")
    left: list[list[str]] = [[] for _ in texts]
    for at, number in enumerate(docs.document.tolist()):
        left[number].append(opened.decode(docs[at]["tokens"]))
    assert left == left_by_gpt3(texts)
    account = report.views["train/web"].account
    assert [*account.cut] == ["overlap (gpt3)"]
    assert account.dropped["overlap (gpt3)"].documents == left.count([]) >= 3
    assert any(len(pieces) > 2 for pieces in left)


def test_documents_with_words_of_a_benchmark(tmp_path: Path) -> None:
    inside = [f"{prose(seed)} {QUESTION.upper()}? {prose(seed + 1)}" for seed in (20, 30)]
    partly = f"{prose(13)} {' '.join(QUESTION.split()[:12])}"
    web, wiki = [prose(10), inside[0], partly], [inside[0], inside[1], prose(11)]
    sources = {"train/web": web, "train/wiki": wiki}
    data = made(tmp_path, sources)
    rows = [{"question": "A short one"}, {"no": 1}, {"question": QUESTION}, {"question": prose(11)}]
    bench = write_lines(tmp_path / "b.jsonl", objects(*rows))
    why = ("13 words in a row in a benchmark", "b.jsonl", 3)
    copy = ("exact copy in a benchmark", "b.jsonl", 4)

    def lost(**options: Any) -> list[dict[int, tuple[Any, ...]]]:
        find(data, against=[str(bench)], text_key="question", prefer="first", **options)
        return [dropped(data, source) for source in sources]

    assert lost(near=False) == [{1: why}, {0: why, 1: why, 2: copy}]
    assert {*lost(overlap=12)[0]} == {1, 2}
    copies = [{}, {0: ("exact copy", "train/web", 1), 2: copy}]
    assert lost(overlap=0) == copies
    assert lost(of="ids", overlap=60) == copies, "bytes tell upper from lower case"


@pytest.mark.parametrize("tokenizer", ["ids", "sentencepiece"])
def test_words_of_a_benchmark_are_masked(tmp_path: Path, request: Any, tokenizer: str) -> None:
    spec = "bytes"
    if tokenizer == "sentencepiece":
        folder = request.getfixturevalue("shared_data") / "tokenizers/mistral"
        spec = f"sentencepiece:{folder}/tokenizer.mistral-v1.model"
    before, after = "Já vím, 日本: " + prose(20, 2), prose(21, 2)
    texts = [prose(10), f"{before} {QUESTION}. {after} {QUESTION}!", prose(11)]
    data = made(tmp_path, {"train/web": texts}, tokenizer=spec)
    bench = write_lines(tmp_path / "b.jsonl", objects({"question": QUESTION}))
    of: dict[str, Any] = {"of": "ids", "overlap": 20} if tokenizer == "ids" else {}
    report = find(data, against=[str(bench)], text_key="question", overlap_action="mask", **of)
    opened = open_dataset(data)
    docs = opened.source("train", "web", documents="d1")
    assert len(docs) == 3
    tokens, mask = docs[1]["tokens"], docs[1]["loss_mask"]
    assert opened.decode(tokens[~mask]).replace(" ", "") == 2 * QUESTION.replace(" ", "")
    assert docs[0]["loss_mask"].all()
    masked = report.views["train/web"].account.masked
    assert [*masked] == [f"{of.get('overlap', 13)} {of.get('of', 'words')} in a row"]


def before(documents: list[list[int]], span: int) -> list[list[bool]]:
    """Which tokens lie in spans that occur before, the slow way."""
    seen: set[tuple[int, ...]] = set()
    found = [[False] * len(document) for document in documents]
    for document, masked in zip(documents, found, strict=True):
        for at in range(len(document) - span + 1):
            window = tuple(document[at : at + span])
            if window in seen:
                masked[at : at + span] = [True] * span
            seen.add(window)
    return found


def test_masked_is_what_brute_force_finds(tmp_path: Path) -> None:
    """Over alphabets in which spans overlap and repeat themselves; copies are dropped first."""
    chance = random.Random(2)
    texts = ["".join(chance.choices("ab "[: 1 + n % 3], k=1 + n * 3 % 37)) for n in range(40)]
    texts += [prose(n % 3, 2)[n : 90 + n * 5] for n in range(8)]
    texts += texts[25:30]
    chance.shuffle(texts)
    data = made(tmp_path, {"train/web": texts[:30], "train/wiki": texts[30:]})
    small = {"near": False, "unit_tokens": 150, "memory": 12_000}
    for span in (1, 3, 33):
        report = find(data, sources=["wiki", "web"], repeats=span, **small)
        docs = [open_dataset(data).source("train", n, documents="d1") for n in ("wiki", "web")]
        tokens = [[each[at]["tokens"].tolist() for at in range(len(each))] for each in docs]
        assert sum(map(len, tokens)) < len(texts)
        expected = iter(before([*tokens[0], *tokens[1]], span))
        for name, some, kept in zip(("wiki", "web"), docs, tokens, strict=True):
            every = [np.ones(len(each), bool) for each in kept]
            masks = [some[at].get("loss_mask", one) for at, one in enumerate(every)]
            masked = [(~np.asarray(mask)).tolist() for mask in masks]
            assert masked == [next(expected) for _ in kept]
            account = report.views[f"train/{name}"].account
            assert account.masked["repeated span"].tokens == sum(map(sum, masked))
            assert account.kept.tokens == sum(map(len, kept))


NOTICE = prose(70, 2)


def test_a_user_cuts_a_notice(tmp_path: Path) -> None:
    """It is in no row, all else is; the account, `inspect` says what was cut."""
    web = [f"{prose(1, 3)} {NOTICE} {prose(2, 3)}", prose(3, 3)]
    wiki = [f"{prose(4, 3)}\n{NOTICE}\n{prose(5, 3)}", f"{prose(6, 3)}\t{NOTICE}"]
    dataset = made(tmp_path, {"train/web": web, "train/wiki": wiki, "val/web": [NOTICE]})
    words = ("dedup", dataset, "--sources", "web,wiki", "--repeats", "50", "--output-name", "d1")
    said = command(*words, "--set", "repeats_action=cut")
    assert f"cut out {2 * len(NOTICE) + 1:,} tokens in 2 ranges: repeated span" in said
    opened = open_dataset(dataset)
    docs: Any = opened.source("train", "wiki", documents="d1")
    texts = [opened.decode(document["tokens"]) for document in docs[:]]
    assert texts == [prose(4, 3) + "\n", "\n" + prose(5, 3), prose(6, 3) + "\t"]
    first = len(prose(4, 3)) + 1
    said = run("inspect", dataset, "--document", "train/wiki:0", "--documents", "d1").stdout
    assert f"d1 cuts out tokens {first:,} to {first + len(NOTICE) - 1:,}: repeated" in said
    assert "d1 makes 2 documents of what is left" in said
    with pytest.raises(InputError, match=r"documents='d1': this view cuts ranges out of documents"):
        find(dataset, name="d2", documents="d1")
