"""Parameters of Cerebras' preprocessing, of all releases: an option that fits, a note, or a no."""

import json
import shutil
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import jaxdata
from jaxdata import tokenizers
from jaxdata.base.errors import InputError
from jaxdata.cli.convert import convert as command
from jaxdata.converter.inputs.discovery import find_inputs
from jaxdata.converter.parameters import make_parameters
from jaxdata.foreign.cerebras import Translation, read_params, translate
from jaxdata.foreign.cerebras_rules import _UNNEEDED, RULES
from tests import commands

TOKENIZER = {"tokenizer_type": "NeoXTokenizer", "encoder_file": "t.json"}
MODES = ("LMData", "LMData_VSL", "Summarization", "Summarization_VSL", "FIM", "DPO")
LATER = {"pretraining": {"jsonl_key": "text"}, "dpo": {"prompt_key": "prompt"}}
LATER["finetuning"] = LATER["dpo"] | {"completion_key": "completion"}
FIM = {f"fim_{part}_tok": f"<{part}>" for part in ("prefix", "middle", "suffix")}
VALUES: dict[str, Any] = {
    "input_dir": "in", "metadata_files": "list.txt", "output_dir": "out", "output_name": "name",
    "processes": 2, "data_splits": {"train": {"split_fraction": 0.9}},
    "context_splits": {},
    "eos_id": 0, "pad_id": 1, "use_ftfy": True, "ftfy_normalizer": "NFKC",
    "wikitext_detokenize": False, "jsonl_key": "text", "prompt_key": "prompt",
    "completion_key": "completion", "chosen_key": "chosen", "rejected_key": "rejected",
    "multi_turn_key": "turns", "multi_turn_content_key": "content", "sep_token": "<|sep|>",
    "prompt_prefix": "Q", "completion_prefix": "A", "eos_after_prompt": False,
    "user_role": "user", "assistant_role": "assistant",
    "chat_template": "{{ messages[0]['content'] }}", "fim_rate": 0.5, "spm_rate": 1, **FIM,
    "max_seq_length": 128, "min_sequence_len": 10, "short_seq_prob": 0.0, "fold_long_doc": True,
    "truncate_to_msl": {}, "max_prompt_length": 512, "pack_sequences": True,
    "seed": 7, "token_limit": False, "inverted_mask": False, "mlm_fraction": 0,
    "mlm_with_gather": False, "semantic_loss_weight": {}, "semantic_drop_mask": {},
    "semantic_attention_mask": {}, "is_multimodal": False, "multimodal": False, "use_vsl": False,
    "mode": None, "dataset_processor": None, "training_objective": None,
    "tokenizer_type": "NeoXTokenizer", "vocab_file": "v", "encoder_file": "t.json",
    "huggingface_tokenizer": "falcon",
}  # fmt: skip


@pytest.mark.parametrize("mode", [*MODES, *LATER])
def test_every_argument_in_every_mode_is_an_option_or_says_why(mode: str, tmp_path: Path) -> None:
    assert RULES.keys() - {*_UNNEEDED.split(), "shuffle", "shuffle_seed"} == VALUES.keys()
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    known = {one.name for one in command.get_params(click.Context(command))}
    loading = {"inputs", "output", "source", "tokenizer", "workers", "eod", "pad_token"}
    loading |= {"files_from", "add_special", "template_text_ok"}
    common = TOKENIZER | {"mode": mode} | LATER.get(mode, FIM if mode == "FIM" else {})
    without = translate(common)
    silent = {"tokenizer_type", "vocab_file", "encoder_file", "huggingface_tokenizer"}
    silent |= {"user_role", "assistant_role", "multi_turn_content_key"}
    for argument in RULES:
        value = VALUES.get(argument, "some")
        if value is None:
            continue
        made = translate(common | {argument: value}, name="p.yaml")
        assert made.options.keys() <= known, "click would ignore another name in silence"
        own = {name: option for name, option in made.options.items() if name not in loading}
        make_parameters(find_inputs(tmp_path), tokenizers.load("bytes"), own).check("train")
        said = [note for note in made.notes if note.startswith(f"{argument}: ")]
        off = value in (False, 0.0, {}) or argument in silent
        gave = made.options != without.options
        assert gave or said or off or argument in common, f"{argument} vanished"


TRANSLATED: list[Any] = [
    ({"mode": "LMData_VSL", "input_dir": "in", "output_dir": "out", "processes": 3,
      "output_name": "web", "eos_id": 0, "pad_id": 1, "seed": 7, "jsonl_key": "body",
      "wikitext_detokenize": False, "min_sequence_len": 10, "short_seq_prob": 0.0,
      "max_seq_length": 512, "fold_long_doc": False},
     {"task": "lm", "inputs": ("in",), "output": "out", "workers": 3, "source": "web",
      "eod": 0, "pad_token": 1, "text_key": "body", "min_tokens": 10, "max_tokens": 513}),
    ({"prompt_key": "q", "completion_key": "a", "sep_token": "<s>", "prompt_prefix": "Q",
      "max_seq_length": 100, "completion_prefix": "A", "eos_after_prompt": False},
     {"task": "sft", "prompt_key": "q", "completion_key": "a", "separator": "<s>",
      "add_special": ["<s>"], "prompt_prefix": "Q", "completion_prefix": "A",
      "max_tokens": 100}),
    ({"multi_turn_key": "t", "prompt_key": "q", "completion_key": "a"},
     {"task": "sft", "pairs": "turns", "prompt_key": "t.q", "completion_key": "t.a"}),
    ({"mode": "LMData", "min_sequence_len": 9, "metadata_files": "a.txt, b.txt"},
     {"task": "lm", "files_from": ("a.txt", "b.txt")}),
    ({"mode": "LMData", "min_sequence_len": 9, "pack_sequences": False},
     {"task": "lm", "min_tokens": 9}),
    (FIM | {"max_seq_length": 4_096},
     {"task": "fim", "fim_context": 4_096, "fim_prefix": "<prefix>", "fim_middle": "<middle>",
      "fim_suffix": "<suffix>"}),
    ({"tokenizer_type": "HuggingFaceTokenizer", "huggingface_tokenizer": "folder"},
     {"task": "lm", "tokenizer": "hf:folder"}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), TRANSLATED)
def test_what_is_an_option(given: dict[str, Any], expected: dict[str, Any]) -> None:
    assert translate(TOKENIZER | given).options == {"tokenizer": "hf:t.json"} | expected


HOOKS = "cerebras.modelzoo.data_preparation.data_preprocessing.hooks"
GPT2 = {"custom_tokenizer": "gpt2tokenizer",
        "tokenizer_params": {"vocab_file": "v.bpe", "encoder_file": "e.json"}}  # fmt: skip
NEOX = {"custom_tokenizer": "neoxtokenizer", "tokenizer_params": {"encoder_file": "t.json"}}
HF = {"huggingface_tokenizer": "folder"}
LOCAL = {"source": "in", "type": "local"}
WRITTEN = {"inputs": ("in",), "output": "out", "workers": 1, "source": "examples"}


def hook(name: str, **arguments: Any) -> dict[str, Any]:
    return {"read_hook": f"{HOOKS}:{name}", "read_hook_kwargs": arguments}


def file(mode: str, hooked: dict[str, Any], tokenizer: Any = HF, **more: Any) -> dict[str, Any]:
    """A file in the form of those that release 2.3 and later ship."""
    setup = {"data": LOCAL, "mode": mode, "output_dir": "out", "processes": 1}
    setup |= more.pop("setup", {})
    clean = {"max_seq_length": 2_048, "use_ftfy": True, "ftfy_normalizer": "NFC"}
    processing = tokenizer | clean | hooked | more.pop("processing", {})
    return {"setup": setup, "processing": processing, "dataset": more or None}


def read(tmp_path: Path, content: Any) -> Translation:
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(content))
    return read_params(path)


TEXT = hook("text_read_hook", text_key="body")
CHAT = {"multi_turn_key": "messages", "multi_turn_content_key": "content"}
PAIR = {"prompt_key": "article", "completion_key": "summary"}
PAIRS = hook("prompt_completion_text_read_hook", **PAIR)
SHIPPED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        file("pretraining", TEXT | {"seed": 0}, GPT2, pack_sequences=True),
        {"task": "lm", "tokenizer": "gpt2:v.bpe,e.json", "text_key": "body", "strip": True},
    ),
    (
        file("pretraining", TEXT, NEOX, fim_rate=0.9),
        {"task": "fim", "tokenizer": "hf:t.json", "text_key": "body", "strip": True,
         "fim_rate": 0.9, "fim_context": 2_048},
    ),
    (
        file("finetuning", PAIRS, NEOX, sep_token=None, truncate_to_msl={}),
        {"task": "sft", "tokenizer": "hf:t.json", "prompt_key": "article",
         "completion_key": "summary", "max_tokens": 2_048},
    ),
    (
        file("finetuning", PAIRS),
        {"task": "sft", "tokenizer": "hf:folder", "prompt_key": "article",
         "completion_key": "summary", "max_tokens": 2_048, "separator": "<|sep|>",
         "template_text_ok": True},
    ),
    (
        file("finetuning", hook("chat_read_hook", **CHAT, multi_turn_role_key="role"),
             truncate_to_msl=None),
        {"task": "sft", "tokenizer": "hf:folder", "messages_key": "messages",
         "strip": True, "max_tokens": 2_048},
    ),
    (
        file("dpo", hook("dpo_read_hook", prompt_key="p", chosen_key="c", rejected_key="r")),
        {"task": "dpo", "tokenizer": "hf:folder", "prompt_key": "p", "chosen_key": "c",
         "rejected_key": "r", "strip": True, "chat_template": "tokenizer"},
    ),
    (
        file("pretraining", TEXT, setup={"data_splits": {
            "train": {"split_fraction": 0.75}, "val": {"split_fraction": "1/4"}}}),
        {"task": "lm", "tokenizer": "hf:folder", "text_key": "body", "strip": True,
         "split_ratio": "train=0.75,val=0.25"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("content", "expected"), SHIPPED)
def test_the_forms_of_shipped_files(tmp_path: Path, content: Any, expected: Any) -> None:
    made = read(tmp_path, content)
    assert made.options == {"ftfy": True, "normalize": "NFC"} | WRITTEN | expected


PACKED = file("finetuning", hook("chat_read_hook", **CHAT), use_vsl=True, pack_sequences=True)
OWN = {"custom_tokenizer": "my.module:Llama", "tokenizer_params": {"token": "x"}}


NOTED: list[Any] = [
    (TOKENIZER | {"max_seq_length": 2048}, "pack(seq_len=2048)"),
    (TOKENIZER | {"pack_sequences": True}, "strategy='concat'"),
    (TOKENIZER | {"mode": "LMData_VSL", "pack_sequences": True}, "strategy='best_fit'"),
    (TOKENIZER | {"mode": "DPO", "max_prompt_length": 256}, "pairs(max_prompt=256)"),
    (TOKENIZER | {"ftfy_normalizer": "NFC"}, "use_ftfy is off"),
    (TOKENIZER | {"mode": "DPO", "short_seq_prob": 0.2}, "not needed: DPO does not read it"),
    (PACKED, "strategy='best_fit'"),
    (file("pretraining", TEXT, OWN), "my.module:Llama is not run: name the tok"),
    (file("finetuning", PAIRS), "sep_token: not in the file"),
]


@pytest.mark.parametrize(("content", "note"), NOTED)
def test_what_is_decided_later_or_unneeded_is_said(tmp_path: Path, content: Any, note: str) -> None:
    made = read(tmp_path, content)
    assert [one for one in made.notes if note in one], made.notes
    assert "add_special" not in made.options, "since 2.3 a separator is text"


def with_value(argument: str, value: Any, says: str) -> tuple[dict[str, Any], str]:
    return TOKENIZER | {argument: value}, f"{argument}=.*{says}"


REFUSED: list[tuple[Any, str]] = [
    ([1], "contains no parameters"),
    with_value("max_seq_length", True, "a whole number, 1 or more"),
    with_value("token_limit", 10**9, "Phase.tokens=….* limits training; remove it"),
    with_value("context_splits", {"MSL_List": [1]}, "--split-ratio gives each length a split"),
    with_value("data_splits", {"a": {"split_fraction": 1, "context_splits": {"MSL_List": [1]}}},
               "context_splits of a: --split-ratio gives each length"),
    ({"tokenizer_type": "GPT2Tokenizer", "vocab_file": "v"}, "needs vocab_file and encoder_file"),
    (TOKENIZER | {"user_role": "me", "chosen_key": "c"}, "user_role='me': expected user: chat t"),
    (TOKENIZER | {"short_seq_prob": 0.1}, "sequences are not shortened at random; .*; remove it"),
    (TOKENIZER | {"fim_rate": 2, "mode": "FIM"}, "fim_rate=2: expected a number from 0 to 1"),
    (TOKENIZER | {"promt_key": "x"}, "'promt_key' is not an argument .* did you mean 'prompt_key'"),
    (TOKENIZER | {"dataset_processor": "NLGPreprocessor"}, "NLGPreprocessor': .* not of token ids"),
    (file("pretraining", {"read_hook": "mine:text_read_hook"}),
     "read_hook='mine:text_read_hook': .* a hook of your own is not run: .*--transform, replace"),
    (file("pretraining", TEXT, setup={"data": {"type": "huggingface", "source": "a/b"}}),
     "nothing is downloaded: hf download NAME --repo-type dataset"),
    (file("pretraining", TEXT, setup={"data": LOCAL | {"subsets": ["a"]}}),
     "'subsets' is not known; .*; convert subsets by commands of their own"),
    (file("finetuning", hook("chat_read_hook", **CHAT, multi_turn_role_key="who")),
     "multi_turn_role_key: 'who'; here it is role or from: --transform"),
    (file("pretraining", TEXT, HF | {"tokenizer_params": {"add_bos_token": True}}),
     "tokenizer_params: 'add_bos_token' is not supported: save the tokenizer"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "says"), REFUSED)
def test_what_cannot_be_had_is_refused_by_name(tmp_path: Path, content: Any, says: str) -> None:
    with pytest.raises(InputError, match=f"p.yaml:? .*{says}"):
        read(tmp_path, content)


def test_a_file_is_enough_and_what_is_typed_goes_before_it(
    tmp_path: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    lines = [{"prompt": f"What is {n}?", "completion": f"{n} it is"} for n in range(20)]
    Path("in/a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    shutil.copy(shared_data / "tokenizers/gpt-neox/20B_tokenizer.json", "t.json")
    params = {
        "setup": {"input_dir": "in", "output_name": "qa"},
        "processing": TOKENIZER | {"max_seq_length": 64},
        "dataset": {"prompt_key": "prompt", "completion_key": "completion", "sep_token": "<|s|>"},
    }
    Path("p.yaml").write_text(yaml.safe_dump(params))
    given = ("--cerebras-params", "p.yaml", "--output", "out", "--split", "val")
    done = commands.run("convert", *given)
    assert "use_ftfy: not in the file, so it is off; Cerebras' program" in done.stdout + done.stderr
    dataset, neox = jaxdata.open_dataset("out"), tokenizers.load("hf:t.json")
    found = dataset.source("val", "qa")[3]
    prompt, answer = (one.tolist() for one in neox.encode(["What is 3?", "3 it is"]))
    assert found["tokens"].tolist() == [*prompt, neox.vocab_size, *answer, neox.eod_id]
    assert dataset.decode(found["tokens"][found["loss_mask"]]) == "3 it is"
    assert dataset.manifest.sources["val/qa"].parameters["max_tokens"] == 64
