"""The contract, for every kind of tokenizer: ids, text, bytes, special tokens, parts of texts."""

import gzip
import json
import unicodedata
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tiktoken
import tiktoken.load
import tiktoken_ext.openai_public as published
import tokenizers as hf
import zstandard
from hypothesis import given, settings, strategies as st

from jaxdata import tokenizers
from jaxdata.base.errors import InputError
from jaxdata.storage import small_files
from jaxdata.tokenizers import CannotEncode, Tokenizer

FILES = {
    "mistral": "sentencepiece:mistral/tokenizer.mistral-v1.model",
    "t5": "sentencepiece:sentencepiece/t5_cc_all.32000.100extra.model",
    "gpt2-hf": "hf:gpt2/tokenizer.json",
    "neox": "hf:gpt-neox/20B_tokenizer.json",
    "gpt2": "tiktoken:tiktoken/gpt2.tiktoken",
    "cl100k": "tiktoken:tiktoken/cl100k_base.tiktoken",
}
SPECIAL = "a </s><s> <|endoftext|> <pad><|fim_prefix|> [INST] z <|endofprompt|>"


Loaded = dict[str, Tokenizer]


@pytest.fixture(scope="module")
def sample(shared_data: Path) -> list[str]:
    with gzip.open(shared_data / "code-0.jsonl.gz") as code:
        texts = [json.loads(next(code))["text"] for _ in range(4)]
    with zstandard.open(shared_data / "multilingual.jsonl.zst", "rt") as many:
        texts += [json.loads(line)["text"] for line in islice(many, 0, None, 200)]
    return texts + json.loads((shared_data / "unicode/blns.json").read_text()) + [SPECIAL, ""]


def open_one(shared_data: Path, name: str, **chosen: int | str) -> Tokenizer:
    kind, _, path = FILES[name].partition(":")
    return tokenizers.load(f"{kind}:{shared_data / 'tokenizers' / path}", **chosen)


@pytest.fixture(scope="module")
def loaded(shared_data: Path) -> Loaded:
    return {name: open_one(shared_data, name) for name in FILES}


def library_encode(shared_data: Path, name: str, texts: list[str]) -> list[list[int]]:
    kind, _, path = FILES[name].partition(":")
    file = shared_data / "tokenizers" / path
    if kind == "sentencepiece":
        return sentencepiece.SentencePieceProcessor(model_file=str(file)).encode(texts)
    if kind == "hf":
        library = hf.Tokenizer.from_file(str(file))
        library.encode_special_tokens = True
        return [library.encode(text, add_special_tokens=False).ids for text in texts]
    make = {"gpt2": published.r50k_base, "cl100k": published.cl100k_base}[name]
    with pytest.MonkeyPatch.context() as patch:  # what tiktoken makes of a file, had it loaded it
        load = published.load_tiktoken_bpe
        patch.setattr(published, "load_tiktoken_bpe", lambda *_, **__: load(str(file)))
        return tiktoken.Encoding(**make()).encode_ordinary_batch(texts)


@pytest.mark.parametrize("name", FILES)
def test_ids_are_the_librarys_and_come_back_as_text(
    shared_data: Path, loaded: Loaded, name: str, sample: list[str]
) -> None:
    tokenizer = loaded[name]
    found = tokenizer.encode(sample)
    assert [ids.tolist() for ids in found] == library_encode(shared_data, name, sample)
    assert all(ids.dtype.kind in "iu" for ids in found)
    sizes = tokenizer.token_bytes
    assert (sizes.dtype, sizes.shape) == (np.int32, (tokenizer.vocab_size,))
    assert (sizes[tokenizer.eod_id], tokenizer.decode([tokenizer.eod_id])) == (0, "")
    assert not sizes.flags.writeable
    for text, ids in zip(sample, found, strict=True) if name != "t5" else ():
        normal = unicodedata.normalize("NFC", text) if name == "neox" else text
        spaces = text.count("\u2581") if name == "mistral" else 0
        if not spaces and name != "neox":
            assert tokenizer.decode(ids) == text
        # Mistral takes three bytes for a space, and puts one in front.
        in_front = bool(text) and name == "mistral"
        assert sizes[ids].sum() == len(normal.encode()) - 2 * spaces + in_front
    given = {"name": tokenizer.name, "eod_id": tokenizer.eod_id, "pad_id": tokenizer.pad_id}
    again = tokenizers.restore(tokenizer.kind, tokenizer.files(), bos_id=None, **given)
    assert (again.bos_id, again.eod_id, again.pad_id) == (None, tokenizer.eod_id, tokenizer.pad_id)
    assert (again.vocab_size, again.files()) == (tokenizer.vocab_size, tokenizer.files())
    assert again.encode(sample[-2:])[0].tolist() == found[-2].tolist()


@given(st.text())
def test_bytes_are_utf8_and_are_cut_anywhere(text: str) -> None:
    tokenizer = tokenizers.load("bytes")
    (ids,) = tokenizer.encode([text])
    assert ids.tolist() == list(text.encode())
    assert tokenizer.decode([*ids, tokenizer.eod_id]) == text
    assert tokenizer.token_bytes[ids].sum() == len(ids)
    assert (tokenizer.vocab_size, tokenizer.eod_id, tokenizer.special_tokens) == (257, 256, {})
    assert tokenizer.cuts(text, 2) == ([text[at : at + 2] for at in range(0, len(text), 2)] or [""])


PARTS = ["a", "Ab", "it's", "'s", "S'", " ", "  ", "\n", "1", "\u00e9", "e\u0301", "!", "_"]
TEXT = st.lists(st.sampled_from(PARTS) | st.text(), max_size=20).map("".join)


@pytest.mark.parametrize("name", FILES)
@given(parts=st.lists(TEXT, min_size=1))
@settings(max_examples=30)
def test_texts_that_go_on_add_nothing_and_parts_of_a_text_have_its_tokens(
    loaded: Loaded, name: str, parts: list[str]
) -> None:
    tokenizer = loaded[name]
    if name in ("mistral", "gpt2-hf", "gpt2", "cl100k"):
        if name == "mistral":  # takes a U+2581 of the text for a space
            parts = [part.replace("\u2581", "_") for part in parts]
        ids = [tokenizer.encode(parts[:1])[0], *tokenizer.encode(parts[1:], continuing=True)]
        assert tokenizer.decode(np.concatenate(ids)) == "".join(parts)
    for size in (0, 40):
        several(tokenizer, "".join(parts), size)


def several(tokenizer: Tokenizer, text: str, size: int) -> bool:
    """Whether a text has several parts; they have its tokens."""
    first, *rest = tokenizer.cuts(text, size)
    assert "".join([first, *rest]) == text
    ids = [*tokenizer.encode([first]), *tokenizer.encode(rest, continuing=True)]
    assert np.array_equal(np.concatenate(ids), tokenizer.encode([text])[0])
    return bool(rest)


@pytest.mark.parametrize("name", FILES)
def test_special_tokens_are_found_where_asked_and_naughty_strings_are_cut(
    shared_data: Path, loaded: Loaded, name: str
) -> None:
    tokenizer = loaded[name]
    found = tokenizer.encode([SPECIAL], special=True)[0].tolist()
    written = {i for text, i in tokenizer.special_tokens.items() if text in SPECIAL}
    assert written
    assert written <= {*found}
    assert not written & {*tokenizer.encode([SPECIAL])[0].tolist()}
    strings = "\n".join(json.loads((shared_data / "unicode/blns.json").read_text()))
    assert several(tokenizer, strings, 200) == (name != "t5")


def test_a_text_that_tiktoken_cannot_split_is_refused(loaded: Loaded) -> None:
    with pytest.raises(CannotEncode, match=r"'cl100k_base' cannot encode a text of 1,000,001"):
        loaded["cl100k"].encode(["fine", " " * 10**6 + "a"])


@pytest.mark.parametrize("name", ["mistral", "neox", "cl100k"])
def test_special_tokens_join_any_vocabulary(loaded: Loaded, name: str) -> None:
    was = loaded[name]
    made = was.with_special(["<|sep|>", next(iter(was.special_tokens)), "<\u2581x>", "<|sep|>"])
    added = {"<|sep|>": was.vocab_size, "<\u2581x>": was.vocab_size + 1}
    assert made.vocab_size == was.vocab_size + 2, "once each; a token that is there stays"
    assert (made.eod_id, made.bos_id, made.pad_id) == (was.eod_id, was.bos_id, was.pad_id)
    spelled = ["a <|sep|> b", "<|sep|><\u2581x>", "def f():\n\treturn 'gr\u00f6\u00dfe'", ""]
    for one, other in zip(made.encode(spelled), was.encode(spelled), strict=True):
        assert one.tolist() == other.tolist(), "plain text stays plain text"
    for text, i in added.items():
        assert made.encode([text], special=True, continuing=True)[0].tolist() == [i]
        assert (made.decode([i]), made.token_bytes[i]) == ("", 0)
    again = tokenizers.restore(made.kind, made.files(), eod_id=made.eod_id, name=name)
    assert {**again.special_tokens} == {**was.special_tokens, **added}
    assert made.with_special(["<|sep|>"]) is made


def test_special_ids_are_found_or_chosen_or_added(shared_data: Path, loaded: Loaded) -> None:
    def ids(tokenizer: Tokenizer) -> tuple[int, int | None, int | None]:
        return tokenizer.eod_id, tokenizer.bos_id, tokenizer.pad_id

    def chosen(**given: Any) -> Tokenizer:
        return open_one(shared_data, "mistral", **given)

    own = {"mistral": (2, 1, None), "gpt2-hf": (50256, None, None), "neox": (0, None, 1)}
    assert {name: ids(loaded[name]) for name in own} == own
    assert ids(chosen(eod="<s>", pad="</s>", bos=7)) == (1, 7, 2)
    assert ids(chosen(eod="<e>", pad="<p>", add_special=["<p>", "<e>"])) == (32_001, 1, 32_000)
    for wrong, says in (
        ({"eod": "<nope>"}, "eod='<nope>' is not a token of"),
        ({"pad": 32_000}, "an id from 0 to 31999"),
        ({"add_special": [""]}, "special token '': expected a text"),
    ):
        with pytest.raises(InputError, match=says):
            chosen(**wrong)


WRONG: list[Any] = [
    ("meta-llama/Llama-3", "of the Hub must .*: hf download meta-llama/Llama-3 .* hf:FOLD"),
    ("byte", r"expected sentencepiece:FILE, hf:FILE.*; did you mean 'bytes'\?"),
    ("bytes:x", "unknown tokenizer 'bytes:x'"),
    ("hf:{}", r"holds no tokenizer\.json: .*save_pretrained"),  # code in it is never run
    ("hf:/none.json", "cannot read /none.json: No such file"),
    ("tiktoken:no_such", "knows no encoding 'no_such'.*cl100k_base"),
    ("sentencepiece:{}/other.bin", r"'other\.bin' is not a SentencePiece model"),
    ("hf:{}/other.bin", r"'other\.bin' is not a tokenizer\.json"),
    ("tiktoken:{}/other.bin", "must be named after one that jaxdata knows: gpt2"),
    ("tiktoken:{}/gpt2.tiktoken", "line 1 of the rank file of 'gpt2' is not 'base64 rank'"),
    ("tiktoken:{}/link.tiktoken", "link.tiktoken is a device or a pipe; expected a file"),
    ("hf:{}/large.json", r"large\.json has more than 99 bytes"),
    ("hf:{}/words.json", "no end-of-document token.*--set eod="),
    ("{}", r"^tiktoken:.* is a folder without encoding\.json; an encoding has"),
]


@pytest.mark.parametrize(("spec", "says"), WRONG)
def test_a_wrong_spec_or_file_says_what_to_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, says: str
) -> None:
    for name in ("other.bin", "gpt2.tiktoken", "ranks.tiktoken"):
        (tmp_path / name).write_bytes(b"not a tokenizer")
    (tmp_path / "link.tiktoken").symlink_to("/dev/zero")
    hf.Tokenizer(hf.models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "words.json"))
    if "large" in spec:
        (tmp_path / "large.json").write_bytes(b"{" * 100)
        monkeypatch.setattr(small_files, "MOST_SMALL", 99)
    with pytest.raises(InputError, match=says):
        tokenizers.load(spec.format(tmp_path))


def test_restore_names_what_is_missing() -> None:
    with pytest.raises(InputError, match=r"lacks its file 'tokenizer\.model'; has \['x'\]"):
        tokenizers.restore("sentencepiece", {"x": b""}, eod_id=0, name="mine")
    with pytest.raises(InputError, match="unknown kind of tokenizer 'word'"):
        tokenizers.restore("word", {}, eod_id=0, name="mine")
    with pytest.raises(InputError, match="tokenizer 'bytes' has no file to keep '<p>' in"):
        tokenizers.load("bytes", add_special=["<p>"])


def test_a_path_without_its_kind_is_taken_by_its_name_and_of_another_kind_refused(
    shared_data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = {"mistral": "sentencepiece", "neox": "hf", "gpt2": "tiktoken"}
    for name, kind in kinds.items():
        path = str(shared_data / "tokenizers" / FILES[name].partition(":")[2])
        assert tokenizers.load(path).kind == kind
        assert caplog.messages[-1] == f"tokenizer {path!r}: taken for {kind}:{path}"
        for other in {*kinds.values()} - {kind}:
            with pytest.raises(InputError):
                tokenizers.load(f"{other}:{path}")


def test_metaspace_and_byte_fallback_vocabularies_are_measured(tmp_path: Path) -> None:
    vocab = {"<unk>": 0, "</s>": 1, "<0xE2>": 2, "▁the": 3, "é": 4, "▁": 5}
    library = hf.Tokenizer(hf.models.BPE(vocab, [], byte_fallback=True, unk_token="<unk>"))
    library.decoder = hf.decoders.Metaspace()
    library.add_special_tokens(["</s>"])
    library.enable_truncation(2)
    library.enable_padding(length=2)
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = tokenizers.load(f"hf:{tmp_path / 'tokenizer.json'}")
    assert tokenizer.token_bytes.tolist() == [0, 0, 1, 4, 2, 1]
    assert [*map(len, tokenizer.encode(["é", "éééé"]))] == [1, 4], "whole, and no more"


def test_a_splitting_rule_that_is_not_known_is_not_cut(tmp_path: Path) -> None:
    library = hf.Tokenizer(hf.models.BPE({"a": 0, " ": 1, "b": 2, "<eos>": 3}, []))
    words = "one two three four"
    for rule, added, cuts in (
        (hf.pre_tokenizers.ByteLevel(add_prefix_space=False), [], True),
        (hf.pre_tokenizers.Split(hf.Regex(r"\w+ \w+"), "isolated"), [], False),
        (hf.pre_tokenizers.Whitespace(), [], False),
        (hf.pre_tokenizers.ByteLevel(add_prefix_space=False), ["one two"], False),
    ):
        library.pre_tokenizer = rule
        library.add_tokens(added)
        library.save(str(tmp_path / "tokenizer.json"))
        assert (len(tokenizers.load(f"hf:{tmp_path}").cuts(words, 3)) > 1) == cuts


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder, its tokenizer of bytes with three added tokens."""
    alphabet = sorted(hf.pre_tokenizers.ByteLevel.alphabet())
    library = hf.Tokenizer(hf.models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    library.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = hf.decoders.ByteLevel()
    library.add_special_tokens(["<|im_start|>", "<|im_end|>", "<stop>"])
    library.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write(folder: Path, name: str, **content: Any) -> None:
    (folder / name).write_text(json.dumps(content))


def test_the_config_says_which_tokens_are_special(folder: Path) -> None:
    assert tokenizers.load(f"hf:{folder}").eod_id == 257, "the usual name, <|im_end|>"
    write(folder, "special_tokens_map.json", eos_token="<stop>", bos_token={"content": "a"})
    own = tokenizers.load(f"hf:{folder}")
    assert (own.eod_id, own.bos_id, own.pad_id) == (258, own.encode(["a"])[0][0], None)
    write(folder, "tokenizer_config.json", eos_token={"content": "<|im_start|>"}, pad_token=None)
    own = tokenizers.load(f"hf:{folder}")
    assert (own.eod_id, own.name) == (256, folder.name)
    assert tokenizers.load(f"hf:{folder}", eod="<|im_end|>").eod_id == 257
    other = tokenizers.restore("hf", own.files(), eod_id=own.eod_id, name=own.name)
    assert (other.files(), other.special_tokens) == (own.files(), own.special_tokens)
    for text, says in (("{", r"tokenizer_config\.json of .* is not JSON"), ("[]", "JSON object")):
        (folder / "tokenizer_config.json").write_text(text)
        with pytest.raises(InputError, match=says):
            tokenizers.load(f"hf:{folder}")


def test_tokens_that_only_the_config_adds_enlarge_the_vocabulary(folder: Path) -> None:
    added = {"260": {"content": "<b>", "special": True}, "259": {"content": "<a>"}}
    write(folder, "tokenizer_config.json", added_tokens_decoder=added)
    tokenizer = tokenizers.load(f"hf:{folder}")
    assert tokenizer.vocab_size == 261
    assert tokenizer.encode(["<a><b>"], special=True)[0].tolist() == [259, 260]
    assert tokenizer.token_bytes[259:].tolist() == [3, 0]
    write(folder, "tokenizer_config.json", added_tokens_decoder={"300": {"content": "<c>"}})
    with pytest.raises(InputError, match=r"gives '<c>' the id 300, which .* it would be 259"):
        tokenizers.load(f"hf:{folder}")


def test_the_template_is_found_wherever_models_keep_it(folder: Path) -> None:
    def found() -> str | None:
        return tokenizers.load(f"hf:{folder}").chat_template

    assert found() is None
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "its own"}]
    for template, expected in ((named, "its own"), ("one", "one")):
        write(folder, "tokenizer_config.json", chat_template=template)
        assert found() == expected
    (folder / "chat_template.jinja").write_text("new\n")
    assert found() == "new\n"


def test_gpt2_is_named_by_its_files_or_their_folder(shared_data: Path, tmp_path: Path) -> None:
    there = shared_data / "tokenizers/gpt2"
    by_files = tokenizers.load(f"gpt2:{there / 'vocab.bpe'},{there / 'encoder.json'}")
    assert by_files.files() == tokenizers.load(f"gpt2:{there}").files()
    assert (by_files.kind, by_files.vocab_size, by_files.eod_id) == ("hf", 50257, 50256)
    for merges, vocabulary, says in (
        (None, None, r"no folder with vocab\.bpe and encoder\.json"),
        ("#version: 0.2\na b c\n", '{"a": 0}', "the merge 'a b c' is not two pieces"),
        ("", "no", "is not the vocabulary of GPT-2's kind"),
    ):
        for name, text in (("vocab.bpe", merges), ("encoder.json", vocabulary)):
            if text is not None:
                (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=says):
            tokenizers.load(f"gpt2:{tmp_path}")
