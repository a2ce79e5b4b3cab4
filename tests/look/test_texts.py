"""Texts in documents: exactly those that hold them, and exactly when a run trained them."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from rich.cells import cell_len

import jaxdata
from jaxdata import tokenizers
from jaxdata.dataset.array_documents import ArrayDocuments
from jaxdata.look import texts as search
from jaxdata.look.texts import Scanner, find_texts, locate, pieces_of, read_texts
from tests import builders
from tests.commands import described, run
from tests.converter.here import convert_here

PIECES = [b"", b"a", b"b", b" ", b"ab", b" a", b"ba", b" ab", b"bab ", "é".encode()]
PIECES += [b"\xc3", b"\xa9", b"\xa9a", b"aa", b"aaa ", "日".encode(), b"\xe6\x97", b"\xa5b"]
IDS = st.lists(st.integers(0, len(PIECES)), max_size=40)  # and one that no vocabulary has


def decoded(ids: Any) -> str:
    known = [int(number) for number in ids if number < len(PIECES)]
    return b"".join(PIECES[number] for number in known).decode(errors="replace")


DOCUMENTS = st.lists(IDS, min_size=1, max_size=8)
TEXTS = st.lists(st.text("ab é日", min_size=1, max_size=24), min_size=1, max_size=6)


@given(DOCUMENTS, TEXTS, st.integers(0, 2**32))
@example([[2, 3, 1, *[0] * 20, 2, *[0] * 20, 3, 1, 1, 3, 2]], ["b ab aa b"], 0)
@example([[1], [2]], ["ab"], 0)
@example([[1]], ["q"], 0)
def test_documents_with_a_text_are_found_however_they_are_tokenised(
    documents: list[list[int]], texts: list[str], seed: int
) -> None:
    """Also texts of the documents themselves."""
    rng = np.random.default_rng(seed)
    for ids in documents:
        whole = decoded(ids)
        first, stop = np.sort(rng.integers(0, len(whole) + 1, 2)).tolist()
        texts.append(whole[first:stop])
    texts = [text for text in dict.fromkeys(texts) if text and "\ufffd" not in text]
    found = Scanner(decoded, texts, PIECES).holding(ArrayDocuments(documents), 0, len(documents))
    held = [[n for n, text in enumerate(texts) if text in decoded(ids)] for ids in documents]
    assert found == [(number, those) for number, those in enumerate(held) if those]


@given(IDS, st.text("ab é日", min_size=1, max_size=6), st.booleans(), st.booleans())
@example([5, 1, 2], "ab", True, True)
def test_every_place_of_a_text_is_located(ids: Any, text: str, known: bool, space: bool) -> None:
    """By the sizes of tokens, or where these are not those of the text, by decoding.

    SentencePiece does not decode a space in front.
    """

    def decode(some: Any) -> str:
        return decoded(some).removeprefix(" " * space)

    sizes = np.array([*map(len, PIECES), 0]) + (0 if known else 7)
    places = locate(decode, sizes, np.array(ids, np.uint32), text)
    whole = decode(ids)
    starts = [at for at in range(len(whole)) if whole.startswith(text, at)]
    assert len(places) == len(starts)
    for (first, stop), start in zip(places, starts, strict=True):
        assert text in decoded(ids[first:stop])
        assert text not in decoded(ids[first + 1 : stop])
        assert text not in decoded(ids[first : stop - 1])
        assert decode(ids[:stop])[start:].startswith(text)


@pytest.mark.parametrize("spec", ["gpt2:gpt2", "sentencepiece:sentencepiece/test_model.model"])
def test_texts_in_real_tokens_are_found(shared_data: Path, spec: str) -> None:
    tokenizer = tokenizers.load(spec.replace(":", f":{shared_data}/tokenizers/"))
    pieces = pieces_of(tokenizer)
    assert pieces is not None
    lines = ["one two, three  four\n\nfive 12345", "naïve — 日本語 größer 👍🏽!"]
    texts = tokenizer.encode([*lines, "Two spaces  end  ", "one", "two"])
    docs = ArrayDocuments([[*ids.tolist(), tokenizer.eod_id] for ids in texts])
    shown = [tokenizer.decode(ids) for ids in texts]
    parts = {line[a:b] for line in shown for a in range(len(line)) for b in (a + 3, a + 14)}
    wanted = [text for text in sorted(parts) if text and "\ufffd" not in text]
    found = Scanner(tokenizer.decode, wanted, pieces).holding(docs, 0, len(docs))
    held = [[n for n, text in enumerate(wanted) if text in line] for line in shown]
    assert dict(found) == dict(enumerate(held))


SECRETS = ["the first secret\x01", "größer als 日本 \x02", "over and\x03", "\x04", "one\x05two\x06"]
"""Texts whose last character is in nothing else, which tells when it was trained."""
HOLDERS: dict[str, dict[int, list[int]]] = {
    "web": {0: [0], 20: [1], 40: [0, 2], 60: [3] * 30, 80: [4]},
    "code": {0: [0], 20: [2, 2]},
}
"""The secrets in documents, by source and number."""


@pytest.fixture(scope="module")
def folder(module_path: Path) -> Path:
    """Two sources of documents with secrets, in records of 16 tokens, and a config."""
    folder, rng = module_path, np.random.default_rng(5)
    for name, holders in HOLDERS.items():
        lines = []
        for number in range(120):
            words = ["word" * int(rng.integers(1, 9)) for _ in range(rng.integers(1, 40))]
            for secret in holders.get(number, []):
                words.insert(int(rng.integers(len(words) + 1)), SECRETS[secret])
            lines.append({"text": " ".join(words), "licence": f"L{number}"})
        lines[-2]["text"], lines[-1]["text"] = "it ends with over", " and"
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        where = {"output": folder / "data", "source": name, "tokenizer": "bytes", "workers": 1}
        convert_here(str(file), **where, keep=["licence"], record_tokens=16)
    given = {"pack": {"seq_len": 64, "overlap": 9}, "epochs": {"web": 3, "code": 1.5}}
    builders.run(folder, dataset=str(folder / "data"), **given, loader={"batch_size": 4})
    (folder / "texts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in SECRETS))
    return folder


def test_the_account_of_texts_equals_a_search_of_the_batches(folder: Path, tmp_path: Path) -> None:
    """As far as a state says that they were trained."""
    config = folder / "run.yaml"
    loader, expected = jaxdata.load(config), defaultdict[str, list[int]](list)
    for step in range(len(loader) * 6 // 10):
        batch = next(loader)
        targets = batch["targets"][batch["loss_mask"]]
        for secret in SECRETS:
            expected[secret] += [step] * int((targets == ord(secret[-1])).sum())
    (tmp_path / "state.json").write_text(json.dumps(loader.get_state()))
    given = ["--find", f"@{folder}/texts.jsonl", "--state", tmp_path / "state.json"]
    found = described("inspect", config, *given)
    assert [text["text"] for text in found["texts"]] == SECRETS
    for text in found["texts"]:
        steps_in = expected[text["text"]]
        ends = min(steps_in, default=None), max(steps_in, default=None)
        assert (text["times"], text["first_step"], text["last_step"]) == (len(steps_in), *ends)
    for document in found["documents"]:
        assert document["times"] == sum(match["times"] for match in document["matches"])
        assert document["origin"]["kept"] == {"licence": f"L{document['document']}"}
        assert document["origin"]["line"] == document["document"] + 1
    assert [text["documents"] for text in found["texts"]] == [3, 1, 2, 1, 1]


def test_a_text_over_records_is_found_and_one_over_documents_is_not(folder: Path) -> None:
    lines = (folder / "web.jsonl").read_text().splitlines()
    long = max((json.loads(line)["text"] for line in lines), key=len)
    (found,) = described("inspect", folder / "data", "--find", long)["documents"]
    assert found["matches"] == [{"text": 0, "tokens": [0, len(long.encode())]}]
    said = run("trace", "with over and", folder / "data").stdout
    assert "no document of this dataset contains the text" in said
    assert "searched 240 documents, " in said


def test_the_terminal_shows_where_from_and_when(folder: Path) -> None:
    said = run("trace", SECRETS[1], "--config", folder / "run.yaml").stdout
    assert "licence: L20" in said
    assert not {"\x02", "\x1b"} & set(said), "untrusted text stays text"
    assert any(line.endswith("has the text") for line in said.splitlines())
    assert max(cell_len(line.rstrip()) for line in said.splitlines()[:-1]) <= 80


def test_texts_are_read_from_files_of_all_kinds(tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("\n".join(['"a\\nb"', "c", "as it is", "", '"no" JSON', '"c"']))
    assert read_texts(str(tmp_path / "texts")) == ["a\nb", "c", "as it is", '"no" JSON']
    for content, says in (
        (b"\n \n", "holds no text: expected one a line"),
        (b"\xff", "expected texts in UTF-8"),
        (b'"\\ud800"\n', "is no Unicode text"),
    ):
        (tmp_path / "texts").write_bytes(content)
        with pytest.raises(jaxdata.InputError, match=says):
            read_texts(str(tmp_path / "texts"))


def test_processes_find_the_same_and_so_does_decoding_all(folder: Path, monkeypatch: Any) -> None:
    dataset = jaxdata.open_dataset(folder / "data")
    sources = {name: dataset[name] for name in dataset}
    found = [find_texts(dataset, sources, SECRETS, lambda *_: None)]
    monkeypatch.setattr(search, "_TOKENS_A_TASK", 2_000)
    monkeypatch.setattr(search, "available_cores", lambda: 2)
    found.append(find_texts(dataset, sources, SECRETS, lambda *_: None))
    monkeypatch.setattr(search, "pieces_of", lambda _: None)
    monkeypatch.setattr(search, "available_cores", lambda: 1)
    found.append(find_texts(dataset, sources, SECRETS, lambda *_: None))
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 7


def test_of_a_view_only_what_it_keeps_is_trained_and_the_rest_is_named(folder: Path) -> None:
    jaxdata.select(folder / "data", "few", where="document < 30", sources=["web"])
    words = ("inspect", folder / "run.yaml", "--documents", "{web: few}")
    found = described(*words, "--find", f"@{folder}/texts.jsonl")["documents"]
    times = {one["document"]: one["times"] for one in found if one["source"] == "web"}
    assert times == {0: 3, 20: 3, 40: 0, 60: 0, 80: 0}
    assert "not trained with view few: where" in run(*words, "--find", SECRETS[3]).stdout


def test_what_is_asked_wrongly(folder: Path, tmp_path: Path) -> None:
    config, other = folder / "run.yaml", tmp_path / "state.json"
    other.write_text(json.dumps(jaxdata.load(config, seed=3).get_state()))
    for arguments, status, says in (
        (["--find", "x", "--step", "1"], 2, "give one of them"),
        (["--dataset", "nowhere"], 1, "nowhere is not a dataset"),
        (["--find", "@nowhere.jsonl"], 1, "nowhere.jsonl cannot be read ([Errno 2] No such file"),
        (["--document", "web"], 2, "expected [SPLIT/]SOURCE:ID, like web:17"),
        (["--document", f"web:{10**19}"], 1, f"no document web:{10**19}"),
        (["--document", "books:1"], 1, "no source 'books' in this run: it has "),
        (["--document", "web:999"], 1, "no document web:999: 'web' has 0 to "),
        (["--step", "1", "--row", "77"], 1, "the batch of step 1 has rows 0 to 3"),
        (["--row", "9999"], 2, "--row 9999: the run has rows 0 to "),
        (["--state", "nowhere"], 1, "no state at nowhere"),
        (["--state", other], 1, "seed was 3, is 0"),
    ):
        assert says in run("inspect", "--config", config, *arguments, status=status).stderr
