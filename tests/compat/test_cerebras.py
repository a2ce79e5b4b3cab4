"""Parameters of Cerebras' preprocessing, read as ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import jaxdata
from jaxdata.cli import cli
from jaxdata.compat.cerebras import read_params, translate
from jaxdata.errors import InputError

NEOX = {"tokenizer_type": "NeoXTokenizer", "encoder_file": "20B_tokenizer.json"}


def made(task: str | None = None, **given: Any) -> dict[str, Any]:
    found = translate(NEOX | given, task).options
    assert found.pop("tokenizer") == "hf:20B_tokenizer.json"
    return found


def note(**given: Any) -> str:
    (line,) = translate(NEOX | given).notes
    return line


@pytest.mark.parametrize(
    ("mode", "task"),
    [
        ("LMData", "lm"),
        ("LMData_VSL", "lm"),
        ("Summarization", "sft"),
        ("Summarization_VSL", "sft"),
        ("FIM", "fim"),
        ("DPO", "dpo"),
    ],
)
def test_the_six_modes(mode: str, task: str) -> None:
    assert made(mode=mode) == {"task": task}


def test_the_mode_is_told_from_the_arguments() -> None:
    assert made()["task"] == "lm"
    assert made(fim_prefix_tok="a", fim_rate=0.5)["task"] == "fim"
    assert made(prompt_key="p", completion_key="c")["task"] == "sft"
    assert made(prompt_key="p", chosen_key="c")["task"] == "dpo"
    assert made("fim")["task"] == "fim"
    with pytest.raises(InputError, match="mode='MLM': expected one of LMData, LMData_VSL"):
        made(mode="MLM")


def test_what_is_an_option() -> None:
    assert made(
        mode="LMData_VSL",
        input_dir="in", output_dir="out", processes=3, output_name="web", eos_id=0, pad_id=1,
        seed=7, use_ftfy=True, ftfy_normalizer="NFKC", wikitext_detokenize=True, jsonl_key="body",
        min_sequence_len=10, short_seq_prob=0.1, max_seq_length=512, fold_long_doc=False,
    ) == {
        "task": "lm", "inputs": ("in",), "output": "out", "workers": 3, "source": "web", "eod": 0,
        "pad_token": 1, "seed": 7, "ftfy": True, "normalize": "NFKC", "wikitext": True,
        "text_key": "body", "min_tokens": 10, "short_rate": 0.1, "short_length": 513,
        "max_tokens": 513,
    }  # fmt: skip
    assert made(metadata_files="a.txt, b.txt", input_dir="in") == {
        "task": "lm", "files_from": ("a.txt", "b.txt"),
    }  # fmt: skip
    assert made(
        prompt_key="q", completion_key="a", sep_token="<s>", prompt_prefix="Q", max_seq_length=100,
        completion_prefix="A", eos_after_prompt=True,
    ) == {
        "task": "sft", "prompt_key": "q", "completion_key": "a", "separator": "<s>",
        "add_special": ["<s>"], "prompt_prefix": "Q", "completion_prefix": "A",
        "eod_after_prompt": True, "max_tokens": 100,
    }  # fmt: skip
    assert made(fim_rate=0.5, spm_rate=0.1, fim_prefix_tok="<P>", fim_middle_tok="<M>",
                fim_suffix_tok="<S>") == {
        "task": "fim", "fim_rate": 0.5, "spm_rate": 0.1, "fim_prefix": "<P>", "fim_middle": "<M>",
        "fim_suffix": "<S>",
    }  # fmt: skip
    assert made(chosen_key="c", rejected_key="r", user_role="user", chat_template="{{ x }}") == {
        "task": "dpo", "chosen_key": "c", "rejected_key": "r", "chat_template": "{{ x }}",
    }  # fmt: skip


def test_turns_of_a_record() -> None:
    turns = {"multi_turn_key": "t", "prompt_key": "q", "completion_key": "a"}
    assert made(**turns) == {
        "task": "sft", "pairs": "turns", "prompt_key": "t.q", "completion_key": "t.a",
    }  # fmt: skip
    assert made(multi_turn_key="t", multi_turn_content_key="text") == {
        "task": "sft", "messages_key": "t", "content_key": "text",
    }  # fmt: skip


def test_the_tokenizers() -> None:
    gpt2 = {"tokenizer_type": "GPT2Tokenizer", "vocab_file": "v.bpe", "encoder_file": "e.json"}
    assert translate(gpt2).options["tokenizer"] == "gpt2:v.bpe,e.json"
    hub = {"tokenizer_type": "HuggingFaceTokenizer", "huggingface_tokenizer": "folder"}
    assert translate(hub).options["tokenizer"] == "hf:folder"
    with pytest.raises(InputError, match="'GPT2Tokenizer' needs encoder_file"):
        translate({"tokenizer_type": "GPT2Tokenizer", "vocab_file": "v"})
    with pytest.raises(InputError, match="tokenizer_type=None: expected one of GPT2Tokenizer"):
        translate({})


def test_what_is_decided_when_rows_are_made_says_how() -> None:
    assert "pack(seq_len=2048)" in note(max_seq_length=2048)
    assert "strategy='concat'" in note(pack_sequences=True)
    assert "strategy='pad'" in note(pack_sequences=False)
    assert "strategy='best_fit'" in note(mode="LMData_VSL", pack_sequences=True)
    assert "shuffled anew in every epoch" in note(shuffle=True)
    assert "pairs(max_prompt=256)" in note(mode="DPO", max_prompt_length=256)
    assert "pairs(seq_len=64)" in note(mode="DPO", max_seq_length=64)
    assert "use_ftfy is off" in note(ftfy_normalizer="NFC")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"inverted_mask": True}, "inverted_mask=True: loss_mask is True where there is loss"),
        ({"mlm_fraction": 0.15}, "masked language modelling is not supported"),
        ({"user_role": "me", "chosen_key": "c"}, "user_role='me': expected 'user'"),
        ({"short_seq_prob": 0.1, "mode": "FIM"}, "in LMData and LMData_VSL only; remove it"),
        ({"promt_key": "x"}, "'promt_key' is not an argument .* did you mean 'prompt_key'"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        translate(NEOX | given, name="p.yaml")


def test_files_that_are_none(tmp_path: Path) -> None:
    file = tmp_path / "p.yaml"
    for text, says in (("[1]", "contains no parameters"), ("{", "is not YAML")):
        file.write_text(text)
        with pytest.raises(InputError, match=says):
            read_params(file)
    with pytest.raises(InputError, match="cannot be read"):
        read_params(tmp_path / "none.yaml")


@pytest.fixture
def folder(tmp_path: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.jsonl").write_text(
        "".join(f'{{"q": "What is {n}?", "a": "{n} it is"}}\n' for n in range(20))
    )
    gpt2 = shared_data / "tokenizers/gpt2"
    params = {
        "setup": {"input_dir": "in.jsonl", "output_dir": "out", "processes": 1},
        "processing": {
            "tokenizer_type": "GPT2Tokenizer",
            "vocab_file": str(gpt2 / "vocab.bpe"),
            "encoder_file": str(gpt2 / "encoder.json"),
            "eos_id": 50256,
            "max_seq_length": 64,
            "output_name": "qa",
        },
        "dataset": {"prompt_key": "q", "completion_key": "a", "sep_token": "\n"},
    }
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    return tmp_path


def run(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["convert", "--cerebras-params", "params.yaml", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_file_is_enough_for_a_conversion(folder: Path) -> None:
    said = run()
    assert "read 20 documents" in said
    assert "wrote train/qa: " in said
    dataset = jaxdata.open_dataset(folder / "out")
    first = dataset.source("train", "qa")[3]
    assert dataset.decode(first["tokens"]) == "What is 3?\n3 it is"
    assert dataset.decode(first["tokens"][first["loss_mask"]]) == "3 it is"
    assert dataset.manifest.sources["train/qa"].parameters["max_tokens"] == 64


def test_what_is_typed_goes_before_the_file_and_the_file_before_defaults(folder: Path) -> None:
    said = run("--source", "b", "--separator", "=", "--split", "val")
    assert "read 20 documents" in said
    assert "wrote val/b: " in said
    dataset = jaxdata.open_dataset(folder / "out")
    first = dataset.source("val", "b")[3]
    assert dataset.decode(first["tokens"]) == "What is 3?=3 it is"
