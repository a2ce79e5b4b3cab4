from __future__ import annotations

import argparse
import calendar
import colorsys
import gzip
import inspect
import json
import os
import statistics
import unicodedata
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tiktoken
import tiktoken.load
import tiktoken_ext.openai_public as published
import tokenizers as hf
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from jaxdata import tokenizers
from jaxdata.base.errors import InputError
from jaxdata.storage import small_files
from jaxdata.tokenizers import Tokenizer

FILES = {
    "mistral": "sentencepiece:mistral/tokenizer.mistral-v1.model",
    "t5": "sentencepiece:sentencepiece/t5_cc_all.32000.100extra.model",
    "sp-test": "sentencepiece:sentencepiece/test_model.model",
    "gpt2-hf": "hf:gpt2/tokenizer.json",
    "neox": "hf:gpt-neox/20B_tokenizer.json",
    "gpt2-files": "gpt2:gpt2",
    "gpt2": "tiktoken:tiktoken/gpt2.tiktoken",
    "cl100k": "tiktoken:tiktoken/cl100k_base.tiktoken",
}
SPECIAL = "a </s><s> <|endoftext|> <pad><|fim_prefix|> [INST] z"


@pytest.fixture(scope="module")
def sample(shared_data: Path) -> list[str]:
    with gzip.open(shared_data / "code-0.jsonl.gz") as code:
        texts = [json.loads(next(code))["text"] for _ in range(4)]
    with gzip.open(shared_data / "short.jsonl.gz") as short:
        texts += [json.loads(next(short))["text"] for _ in range(50)]
    with zstandard.open(shared_data / "multilingual.jsonl.zst", "rt") as many:
        texts += [json.loads(line)["text"] for line in islice(many, 0, None, 200)]
    return texts + json.loads((shared_data / "unicode/blns.json").read_text()) + [SPECIAL, ""]


def open_one(shared_data: Path, name: str, **chosen: int | str) -> Tokenizer:
    kind, _, path = FILES[name].partition(":")
    return tokenizers.load(f"{kind}:{shared_data / 'tokenizers' / path}", **chosen)


def library_encode(shared_data: Path, name: str, texts: list[str]) -> list[list[int]]:
    kind, _, path = FILES["gpt2-hf" if name == "gpt2-files" else name].partition(":")
    file = shared_data / "tokenizers" / path
    if kind == "sentencepiece":
        return sentencepiece.SentencePieceProcessor(model_file=str(file)).encode(texts)
    if kind == "hf":
        library = hf.Tokenizer.from_file(str(file))
        library.encode_special_tokens = True
        return [library.encode(text, add_special_tokens=False).ids for text in texts]
    return published_encoding(name, file).encode_ordinary_batch(texts)


def published_encoding(name: str, ranks: Path) -> tiktoken.Encoding:
    """What tiktoken itself makes of a rank file, had it downloaded it."""
    make = {"gpt2": published.r50k_base, "cl100k": published.cl100k_base}[name]
    with pytest.MonkeyPatch.context() as patch:
        load = published.load_tiktoken_bpe
        patch.setattr(published, "load_tiktoken_bpe", lambda *_, **__: load(str(ranks)))
        return tiktoken.Encoding(**make())


def test_special_ids_are_found_or_chosen(shared_data: Path) -> None:
    def ids(name: str, **chosen: int | str) -> tuple[int, int | None, int | None]:
        tokenizer = open_one(shared_data, name, **chosen)
        return tokenizer.eod_id, tokenizer.bos_id, tokenizer.pad_id

    assert ids("mistral") == (2, 1, None)
    assert ids("gpt2-hf") == (50256, None, None)
    assert ids("neox") == (0, None, 1)
    assert ids("cl100k", bos="<|endofprompt|>", pad=7) == (100257, 100276, 7)
    assert ids("mistral", eod="<s>", pad="</s>") == (1, 1, 2)
    with pytest.raises(InputError, match="eod='<nope>' is not a token of"):
        ids("mistral", eod="<nope>")
    with pytest.raises(InputError, match="an id from 0 to 50256"):
        ids("gpt2-hf", pad=50257)


@given(st.text())
def test_bytes_are_utf8(text: str) -> None:
    tokenizer = tokenizers.load("bytes")
    (ids,) = tokenizer.encode([text])
    assert ids.tolist() == list(text.encode())
    assert tokenizer.decode([*ids, tokenizer.eod_id]) == text
    assert tokenizer.token_bytes[ids].sum() == len(ids)
    assert (tokenizer.vocab_size, tokenizer.eod_id) == (257, 256)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (
            "meta-llama/Llama-3",
            r"'meta-llama/Llama-3'; a model of the Hub must .*: hf download "
            r"meta-llama/Llama-3 .* --local-dir FOLDER, and then given as hf:FOLDER$",
        ),
        ("byte", r"expected sentencepiece:FILE, hf:FILE.*; did you mean 'bytes'\?"),
        ("word:x", "unknown tokenizer 'word:x'"),
        ("hf:", "unknown tokenizer 'hf:'"),
        ("bytes:x", "unknown tokenizer 'bytes:x'"),
        ("hf:/none.json", "cannot read /none.json: No such file"),
        ("tiktoken:no_such", "knows no encoding 'no_such'.*cl100k_base"),
        ("no/such.model", "cannot read no/such.model: No such file"),
        ("hf:openai/gpt-oss-20b", "hf download openai/gpt-oss-20b --include"),
    ],
)
def test_a_wrong_spec_says_what_to_give(spec: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        tokenizers.load(spec)


def test_a_path_without_its_kind_is_taken_by_its_name_and_of_another_kind_refused(
    tmp_path: Path, shared_data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folders, kinds = shared_data / "tokenizers", ("sentencepiece", "hf", "tiktoken")
    mistral, neox, gpt2 = (
        str(folders / FILES[name].partition(":")[2]) for name in ("mistral", "neox", "gpt2")
    )
    for kind, path in zip(kinds, (mistral, neox, gpt2), strict=True):
        assert tokenizers.load(path).kind == tokenizers.load(f"{kind}:{path}").kind
        assert caplog.messages[-1] == f"tokenizer {path!r}: taken for {kind}:{path}"
        for other in set(kinds) - {kind}:
            with pytest.raises(InputError):
                tokenizers.load(f"{other}:{path}")
    (tmp_path / "ranks.tiktoken").touch()
    with pytest.raises(InputError, match=f"^tiktoken:{tmp_path} is a folder without"):
        tokenizers.load(str(tmp_path))
    (tmp_path / "tokenizer.json").touch()
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        tokenizers.load(str(tmp_path))


def test_a_tokenizer_of_endless_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"{" * 10)
    monkeypatch.setattr(small_files, "MOST_SMALL", 9)
    for where in ("", "/tokenizer.json"):
        with pytest.raises(InputError, match=r"tokenizer\.json has more than 9 bytes"):
            tokenizers.load(f"hf:{tmp_path}{where}")


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    for name in ("other.bin", "gpt2.tiktoken"):
        (tmp_path / name).write_bytes(b"not a tokenizer")
    for spec, says in (
        ("sentencepiece:{}/other.bin", r"'other\.bin' is not a SentencePiece model"),
        ("hf:{}/other.bin", r"'other\.bin' is not a tokenizer\.json"),
        ("tiktoken:{}/other.bin", "must be named after one that jaxdata knows: gpt2"),
        ("tiktoken:{}/gpt2.tiktoken", "line 1 of the rank file of 'gpt2' is not 'base64 rank'"),
    ):
        with pytest.raises(InputError, match=says):
            tokenizers.load(spec.format(tmp_path))


def test_no_end_of_document_token_names_the_option(tmp_path: Path) -> None:
    vocab = {"a": 0, "b": 1}
    file = tmp_path / "tokenizer.json"
    hf.Tokenizer(hf.models.WordLevel(vocab, unk_token="a")).save(str(file))
    with pytest.raises(InputError, match=r"no end-of-document token.*--eod"):
        tokenizers.load(f"hf:{file}")
    tokenizer = tokenizers.load(f"hf:{file}", eod="b")
    assert tokenizer.eod_id == 1
    assert tokenizer.token_bytes.tolist() == [0, 0]


def test_metaspace_and_byte_fallback_vocabularies_are_measured(tmp_path: Path) -> None:
    vocab = {"<unk>": 0, "</s>": 1, "<0xE2>": 2, "▁the": 3, "é": 4, "▁": 5}
    model = hf.models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>")
    library = hf.Tokenizer(model)
    library.decoder = hf.decoders.Metaspace()
    library.add_special_tokens(["</s>"])
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizers.load(f"hf:{tmp_path / 'tokenizer.json'}")
    assert tokenizer.token_bytes.tolist() == [0, 0, 1, 4, 2, 1]


def test_truncation_in_the_file_is_switched_off(shared_data: Path, tmp_path: Path) -> None:
    library = hf.Tokenizer.from_file(str(shared_data / "tokenizers/gpt2/tokenizer.json"))
    library.enable_truncation(4)
    library.enable_padding(length=4)
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizers.load(f"hf:{tmp_path / 'tokenizer.json'}")
    one, long = tokenizer.encode(["a", "a b c d e f g"])
    assert (len(one), len(long)) == (1, 7)


def test_restore_names_the_missing_file() -> None:
    with pytest.raises(InputError, match=r"lacks its file 'tokenizer\.model'; has \['x'\]"):
        tokenizers.restore("sentencepiece", {"x": b""}, eod_id=0, name="mine")
    with pytest.raises(InputError, match="unknown kind of tokenizer 'word'"):
        tokenizers.restore("word", {}, eod_id=0, name="mine")


TEXTS = [
    f"Line {i} of 20{i:03d}:\n\tthe number 31415926535 and {i * 7919}: größe, 大きさ, "
    + "١٢٣٤٥ " * (i % 3)
    for i in range(300)
]
TEXTS += [inspect.getsource(module) for module in (argparse, calendar, colorsys, statistics)]


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    file = tmp_path_factory.mktemp("trained") / "folder" / "tokenizer.model"
    size = tokenizers.train(TEXTS, file, vocab_size=600, digits=2, model_type=request.param)
    assert size == sum(len(text.encode()) for text in TEXTS)
    return tokenizers.load(f"sentencepiece:{file}")


@given(text=st.text())
@example("  two  spaces \r\n\t\x00 e\u0301 \u2581 \u2585 \ufeff </s> <0x0A>\x1f")
@example("\u2581")
@example("\u2581\u2581 a\u2581")
@example("\u2581" * 5_000)
def test_a_trained_tokenizer_loses_nothing(trained: Tokenizer, text: str) -> None:
    (ids,) = trained.encode([text])
    assert trained.decode(ids) == text
    assert trained.token_bytes[ids].sum() == len(text.encode())


@pytest.mark.parametrize("digits", [None, 1, 3])
def test_pieces_hold_as_many_digits_as_allowed(tmp_path: Path, digits: int | None) -> None:
    for name in ("a", "b"):
        tokenizers.train(TEXTS, tmp_path / name, vocab_size=600, digits=digits)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    tokenizer = tokenizers.load(f"sentencepiece:{tmp_path / 'a'}")
    (ids,) = tokenizer.encode(["31415926535 ١٢٣٤٥"])
    longest = max(sum(c.isdigit() for c in tokenizer.decode([i])) for i in ids)
    assert longest == digits if digits else longest > 3


def test_training_learns_newlines_tabs_and_long_lines(tmp_path: Path) -> None:
    long_line = ["".join(f"needle{i % 7}\n\t" for i in range(20_000))]
    tokenizers.train(long_line, tmp_path / "m.model", vocab_size=285)
    tokenizer = tokenizers.load(f"sentencepiece:{tmp_path / 'm.model'}")
    (ids,) = tokenizer.encode(["needle3\n\tneedle4"])
    assert len(ids) <= 8, "a line longer than SentencePiece takes must not be dropped"


@pytest.mark.parametrize("name", FILES)
def test_ids_are_the_librarys_and_come_back_as_text(
    shared_data: Path, name: str, sample: list[str]
) -> None:
    tokenizer = open_one(shared_data, name)
    found = tokenizer.encode(sample)
    assert [ids.tolist() for ids in found] == library_encode(shared_data, name, sample)
    assert all(ids.dtype.kind in "iu" for ids in found)
    sizes = tokenizer.token_bytes
    assert (sizes.dtype, sizes.shape) == (np.int32, (tokenizer.vocab_size,))
    assert (sizes[tokenizer.eod_id], tokenizer.decode([tokenizer.eod_id])) == (0, "")
    assert not sizes.flags.writeable
    for text, ids in zip(sample, found, strict=True) if name not in ("t5", "sp-test") else ():
        normal = unicodedata.normalize("NFC", text) if name == "neox" else text
        spaces = text.count("\u2581") if name == "mistral" else 0
        if not spaces and name != "neox":
            assert tokenizer.decode(ids) == text
        # Mistral takes three bytes for a space, and puts one in front.
        in_front = bool(text) and name == "mistral"
        assert sizes[ids].sum() == len(normal.encode()) - 2 * spaces + in_front
    if name in ("gpt2", "cl100k"):
        theirs = published_encoding(name, shared_data / "tokenizers" / FILES[name].split(":")[1])
        settings = json.loads(tokenizer.files()["encoding.json"])
        assert settings["special_tokens"] == theirs._special_tokens
        assert tokenizer.vocab_size == theirs.n_vocab
    again = tokenizers.restore(
        tokenizer.kind,
        tokenizer.files(),
        eod_id=tokenizer.eod_id,
        bos_id=None,
        pad_id=tokenizer.pad_id,
        name=tokenizer.name,
    )
    assert again.bos_id is None
    assert (again.eod_id, again.vocab_size) == (tokenizer.eod_id, tokenizer.vocab_size)
    assert again.files() == tokenizer.files()
    assert again.encode(sample[-2:])[0].tolist() == found[-2].tolist()


@pytest.mark.parametrize("kind", ["sentencepiece", "hf", "tiktoken"])
def test_pipes_and_links_to_devices_are_no_tokenizers(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe.tiktoken")
    (tmp_path / "link.tiktoken").symlink_to("/dev/zero")
    for name in ("pipe", "link"):
        path = tmp_path / f"{name}.tiktoken"
        with pytest.raises(InputError, match=f"{path} is a device or a pipe; expected a file"):
            tokenizers.load(f"{kind}:{path}")


def test_training_errors_say_what_to_do_and_it_reads_no_more_than_asked(tmp_path: Path) -> None:
    for texts, options, says in (
        ([], {}, "no text to train a tokenizer on"),
        (TEXTS, {"vocab_size": 50_000}, r"cannot train a vocabulary of 50000.*--vocab-size"),
        (TEXTS, {"digits": 0}, "digits=0; expected 1 or more"),
    ):
        with pytest.raises(InputError, match=says):
            tokenizers.train(texts, tmp_path / "m.model", **options)
    assert not (tmp_path / "m.model").exists()
    taken = []
    texts = (taken.append(text) or text for text in TEXTS * 100)
    size = tokenizers.train(texts, tmp_path / "m.model", vocab_size=400, max_bytes=9_000)
    assert 9_000 <= size < 14_000
    assert len(taken) < 200
