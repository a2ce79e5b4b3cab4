"""Fill in the middle per context: pieces of long documents, and sources from before there were."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jaxdata
from jaxdata import InputError, tokenizers
from jaxdata.converter.tasks import make_settings, make_task
from jaxdata.converter.worker import UnitConverter
from jaxdata.tokenizers import Tokenizer
from tests.converter.here import run_here
from tests.converter.tasks.test_fim import BYTES, EOD, IDS, MID, PRE, SUF, parts
from tests.converter.test_convert import manifest
from tests.format.trees import tree
from tests.tokenizers.test_tokenizers import open_one

CODE = "".join(f"def f{n}(x):\n    return x + {n}\n" for n in range(400))
SENTINELS = [100258, 100259, 100260]  # of cl100k; no text is encoded to them


def pieces(text: str, tokenizer: Tokenizer = BYTES, **options: Any) -> list[list[int]]:
    task = make_task(make_settings("fim", tokenizer, IDS | options), tokenizer)
    ((encoded,),) = task.encode(task.prepare({"text": text}).documents)
    return [piece.tokens.tolist() for piece in encoded.pieces()]


# Without the bytes of the sentinels and of BOS, 4, which no tokenizer makes of text.
LONG = st.lists(
    st.text(st.characters(blacklist_characters="\x01\x02\x03\x04", codec="utf-8"), min_size=1),
    min_size=1,
    max_size=9,
).map(lambda words: "\n".join(words * 9))


@given(LONG, st.integers(64, 400), st.sampled_from([0.0, 0.6, 1.0]), st.booleans())
def test_pieces_fit_the_context_and_are_the_text(
    text: str, context: int, rate: float, bos: bool
) -> None:
    found = pieces(
        text, tokenizers.load("bytes", bos=4), fim_context=context, fim_rate=rate, bos=bos
    )
    assert max(map(len, found)) <= context
    assert [piece.count(EOD) for piece in found] == [0] * (len(found) - 1) + [1]
    assert found[-1][-1] == EOD
    whole = "".join(
        "".join(parts([*piece[bos:], *([] if piece[-1] == EOD else [EOD])])[1:]) for piece in found
    )
    assert whole == text
    assert all(piece[0] == 4 for piece in found) or not bos
    if rate == 1:
        assert all(piece.count(i) == 1 for piece in found for i in (PRE, MID, SUF))
    if len(found) == 1:
        assert found == pieces(
            text, tokenizers.load("bytes", bos=4), fim_context=0, fim_rate=rate, bos=bos
        )


def test_a_document_that_fits_is_as_it_was_and_one_token_more_is_cut() -> None:
    text = CODE[:500]
    (whole,) = pieces(text, fim_context=0, fim_rate=1)
    assert pieces(text, fim_context=len(whole), fim_rate=1) == [whole]
    assert len(pieces(text, fim_context=len(whole) - 1, fim_rate=1)) == 2
    assert pieces(CODE, fim_rate=1) == pieces(CODE, fim_context=2_048, fim_rate=1), "the default"


def test_pieces_are_cut_at_line_ends_and_mostly_full() -> None:
    found = pieces(CODE, fim_context=1_000, fim_rate=0)
    assert all(bytes(piece).endswith(b"\n") for piece in found[:-1])
    assert len(found) <= 1.25 * len(CODE) / 1_000


def test_a_piece_of_one_character_is_not_cut_further(shared_data: Path) -> None:
    ligature = "\ufdfa" * 99  # t5 reads each as 18 characters
    t5 = open_one(shared_data, "t5")
    found = pieces(ligature, t5, fim_context=64, fim_rate=1, fim_prefix=4, fim_middle=5,
                   fim_suffix=6)  # fmt: skip
    assert len(found) <= 99
    assert max(map(len, found)) <= 64


def test_pieces_that_continue_a_text_add_no_space(shared_data: Path) -> None:
    mistral = open_one(shared_data, "mistral")
    named = {"fim_prefix": "<s>", "fim_middle": "</s>", "fim_suffix": "<unk>", "eod": 5}
    mistral.eod_id = named.pop("eod")
    ids = mistral.token_id
    for rate in (0, 1):
        found = pieces(CODE, mistral, fim_context=256, fim_rate=rate, spm_rate=0, **named)
        assert len(found) > 10
        text: list[int] = []
        for piece in found:
            plain = piece[:-1] if piece[-1] == 5 else piece
            if rate:
                suf, mid = plain.index(ids("<unk>")), plain.index(ids("</s>"))
                plain = plain[1:suf] + plain[mid + 1 :] + plain[suf + 1 : mid]
            text += plain
        assert mistral.decode(text) == CODE


@pytest.mark.parametrize("given", [-1, 1, 63])
def test_a_context_too_small_is_refused(given: int) -> None:
    with pytest.raises(InputError, match=rf"fim_context={given}: .*64 tokens or more, or 0"):
        pieces("x", fim_context=given)


@pytest.fixture(scope="module")
def code(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    with gzip.open(shared_data / "code-0.jsonl.gz", "rt") as lines:
        (folder / "in.jsonl").write_text("".join(next(lines) for _ in range(200)))
    return folder


@pytest.mark.parametrize("seq_len", [2_048, 8_192])
def test_rearranged_tokens_share_a_window_with_all_sentinels(
    code: Path, shared_data: Path, seq_len: int
) -> None:
    cl100k = open_one(shared_data, "cl100k")
    common: dict[str, Any] = {"tokenizer": cl100k, "source": "code", "task": "fim", "fim_rate": 1.0}

    def share(context: int) -> float:
        run_here(code / "in.jsonl", code / f"out-{context}", fim_context=context, **common)
        docs = jaxdata.open_dataset(code / f"out-{context}").source("train", "code")
        inside = slots = 0
        for row in jaxdata.pack(docs, seq_len=seq_len):
            for number in range(1, row["segment_ids"].max() + 1):
                mine = row["segment_ids"] == number
                seen = {*row["inputs"][mine].tolist(), *row["targets"][mine].tolist()}
                inside += mine.sum() * ({*SENTINELS} <= seen)
                slots += mine.sum()
        return inside / slots

    assert share(seq_len) > 0.95
    assert share(0) < 0.8, "as it was: whole documents, cut when rows are made"


def write(folder: Path, name: str, texts: list[str]) -> Path:
    path = folder / "in" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"text": text, "n": len(text)}) + "\n" for text in texts))
    return path


def convert(folder: Path, output: str = "out", **options: Any) -> Any:
    return run_here(folder / "in", folder / output, **{"task": "fim", **IDS} | options)


def test_pieces_belong_to_their_record(tmp_path: Path) -> None:
    texts = [CODE[n:] for n in range(0, 4_000, 100)] + ["short", CODE[:90]]
    write(tmp_path, "a.jsonl", texts)
    report = convert(
        tmp_path, keep="n", split_ratio="train=1,val=1", min_chars=6, max_tokens=13_000
    )
    assert report.dropped == {"shorter than 6 characters": 1}
    dataset = jaxdata.open_dataset(tmp_path / "out")
    seen: dict[tuple[str, int], list[tuple[str, str]]] = {}
    for split in ("train", "val"):
        docs = dataset.source(split, "web")
        for number in range(len(docs)):
            tokens = docs[number]["tokens"].tolist()
            text = "".join(parts([*tokens, *([] if tokens[-1] == EOD else [EOD])])[1:])
            assert docs.kept(number) == {"n": len(texts[docs.origin(number)[1] - 1])}
            seen.setdefault(docs.origin(number), []).append((split, text))
    assert len(seen) == len(texts) - 1
    for (_, line), found in seen.items():
        assert len({split for split, _ in found}) == 1, "a text's pieces share its split"
        assert "".join(text for _, text in found) == texts[line - 1]
    entries = manifest(tmp_path / "out")["sources"]
    pieces = sum(entry["documents"] for entry in entries.values())
    assert pieces > 2 * len(texts)
    for entry in entries.values():
        assert entry["statistics"]["added"] == pieces - (len(texts) - 1)
    sizes = [sum(entry["statistics"][name] for entry in entries.values())
             for name in ("characters", "raw_bytes")]  # fmt: skip
    assert sizes == [sum(map(len, texts)) - len("short")] * 2


def test_limits_count_a_text_not_its_pieces(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", [CODE, CODE[:500]])
    report = convert(tmp_path, max_tokens=3_000)
    assert report.dropped == {"longer than 3,000 tokens": 1}
    report = convert(tmp_path, "other", min_tokens=3_000)
    assert report.dropped == {"shorter than 3,000 tokens": 1}
    assert report.documents > 4


GOLDEN = "ffcbf73f2ee5f73e4aa3dd0f0d0fdc1b19910b845d55fa532402fceab76024be"


def test_the_old_rule_makes_the_bytes_it_made(tmp_path: Path) -> None:
    texts = [CODE[start:] for start in (0, 9_000, 14_000, len(CODE) - 40)]
    (tmp_path / "in").mkdir()
    (tmp_path / "in/in.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    convert(tmp_path, fim_context=0)
    (entry,) = manifest(tmp_path / "out")["sources"].values()
    assert [shard["sha256"] for shard in entry["shards"]] == [GOLDEN]
    assert "fim_context" not in entry["parameters"], "as it was recorded before"
    convert(tmp_path, "new")
    (entry,) = manifest(tmp_path / "new")["sources"].values()
    assert entry["parameters"]["fim_context"] == 2_048


def test_a_source_of_the_old_rule_is_added_to_by_it(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", [CODE, CODE[50:]])
    convert(tmp_path, fim_context=0)
    assert convert(tmp_path).already_complete, "the same command again, without the option"
    write(tmp_path, "b.jsonl", [CODE[99:]])
    with pytest.raises(InputError, match="fim_context was 0, is 4096"):
        convert(tmp_path, append=True, fim_context=4_096)
    assert convert(tmp_path, append=True).documents == 3, "whole, as the source was"
    convert(tmp_path, "at-once", fim_context=0)
    of = [
        jaxdata.open_dataset(tmp_path / name).source("train", "web") for name in ("out", "at-once")
    ]
    for number in range(3):
        assert np.array_equal(*(docs[number]["tokens"] for docs in of))


def test_an_unfinished_conversion_of_the_old_rule_is_finished_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a.jsonl", [CODE[n:] for n in range(40)])
    options = {"unit_bytes": 100_000}
    convert(tmp_path, "at-once", fim_context=0, **options)
    done: list[str] = []
    whole = UnitConverter.convert

    def interrupted(self: UnitConverter, unit: Any, report: Any) -> Any:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(unit.name)
        return whole(self, unit, report)

    with monkeypatch.context() as patch:
        patch.setattr(UnitConverter, "convert", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert(tmp_path, fim_context=0, **options)
    begun = tmp_path / "out/train/web/work/parameters.json"
    fields = json.loads(begun.read_text())
    assert fields["task"].pop("fim_context") == 0
    begun.write_text(json.dumps(fields))  # as it was written before there was the option
    with pytest.raises(InputError, match="fim_context was 0, is 2048"):
        convert(tmp_path, fim_context=2_048, **options)
    convert(tmp_path, **options)
    assert tree(tmp_path / "out") == tree(tmp_path / "at-once")


@pytest.mark.filterwarnings("ignore:stream_text")
def test_streams_rearrange_pieces_where_asked_to(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", [CODE, CODE[:90]])

    def stream(**options: Any) -> Any:
        return jaxdata.stream_text(
            tmp_path / "in", tokenizer="bytes", seq_len=512, num_workers=0, task="fim", **IDS,
            **options,
        )  # fmt: skip

    asked = stream(fim_context=512, fim_rate=1)
    for batch in asked:
        for inputs, ids in zip(batch["inputs"], batch["segment_ids"], strict=True):
            for number in range(1, ids.max() + 1):
                assert {PRE, MID, SUF} <= {*inputs[ids == number].tolist()}
    assert asked.get_state()["run"]["fim_context"] == 512
    state = stream().get_state()
    assert "fim_context" not in state["run"], "states of before go on"
    stream().set_state(state)
