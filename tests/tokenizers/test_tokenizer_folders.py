"""Tokenizers as models bring them: folders of Hugging Face, GPT-2's two files."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers as hf

from jaxdata import tokenizers
from jaxdata.base.errors import InputError, MissingExtra, install_command
from tests.tokenizers.test_tokenizers import SPECIAL

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


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
    assert tokenizers.load(f"hf:{folder}").eod_id == 256
    assert tokenizers.load(f"hf:{folder}", eod="<|im_end|>").eod_id == 257
    assert tokenizers.load(f"hf:{folder}", eod="<|im_end|>").name == folder.name


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
    assert tokenizers.load(f"hf:{folder}").chat_template is None
    write(folder, "chat_template.json", chat_template="old")
    assert tokenizers.load(f"hf:{folder}").chat_template == "old"
    named = [{"name": "tool_use", "template": "t"}, {"name": "default", "template": TEMPLATE}]
    write(folder, "tokenizer_config.json", chat_template=named)
    assert tokenizers.load(f"hf:{folder}").chat_template == TEMPLATE
    write(folder, "tokenizer_config.json", chat_template="one")
    assert tokenizers.load(f"hf:{folder}").chat_template == "one"
    (folder / "chat_template.jinja").write_text("new\n")
    assert tokenizers.load(f"hf:{folder}").chat_template == "new\n"


def test_a_folder_is_restored_from_its_files_and_damaged_ones_are_named(folder: Path) -> None:
    write(folder, "tokenizer_config.json", eos_token="<stop>", chat_template=TEMPLATE)
    one = tokenizers.load(f"hf:{folder}")
    other = tokenizers.restore("hf", one.files(), eod_id=one.eod_id, name=one.name)
    assert other.files() == one.files()
    assert set(one.files()) == {"tokenizer.json", "tokenizer_config.json"}
    assert other.chat_template == TEMPLATE
    assert other.special_tokens == one.special_tokens
    for text, says in (("{", r"tokenizer_config\.json of .* is not JSON"), ("[]", "JSON object")):
        (folder / "tokenizer_config.json").write_text(text)
        with pytest.raises(InputError, match=says):
            tokenizers.load(f"hf:{folder}")


def test_a_folder_without_a_fast_tokenizer_is_converted(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "slow"
    folder.mkdir()
    with pytest.raises(InputError, match=r"slow holds no tokenizer\.json, nor another"):
        tokenizers.load(f"hf:{folder}")
    for name, there in (("vocab.json", "encoder.json"), ("merges.txt", "vocab.bpe")):
        shutil.copy(shared_data / "tokenizers/gpt2" / there, folder / name)
    write(folder, "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")
    tokenizer = tokenizers.load(f"hf:{folder}")
    expected = tokenizers.load(f"gpt2:{folder}")
    assert tokenizer.eod_id == 50256
    texts = [SPECIAL, "größe  größe\n\n", ""]
    for one, other in zip(tokenizer.encode(texts), expected.encode(texts), strict=True):
        assert one.tolist() == other.tolist()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=re.escape(install_command("transformers"))):
        tokenizers.load(f"hf:{folder}")


def test_code_in_a_folder_is_never_run(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "vocab.json")
    marker = folder / "was_run"
    (folder / "custom.py").write_text(f"open({str(marker)!r}, 'w')\nclass Own: ...\n")
    own = {"auto_map": {"AutoTokenizer": ["custom.Own", None]}, "tokenizer_class": "Own"}
    write(folder, "tokenizer_config.json", **own)
    with pytest.raises(InputError, match="transformers cannot make it from what is there"):
        tokenizers.load(f"hf:{folder}")
    assert not marker.exists()


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


def test_a_datasets_own_tiktoken_folder_is_a_tokenizer(shared_data: Path, tmp_path: Path) -> None:
    one = tokenizers.load(f"tiktoken:{shared_data / 'tokenizers/tiktoken/gpt2.tiktoken'}")
    for name, data in one.files().items():
        (tmp_path / name).write_bytes(data)
    other = tokenizers.load(f"tiktoken:{tmp_path}")
    assert (other.files(), other.eod_id) == (one.files(), one.eod_id)
