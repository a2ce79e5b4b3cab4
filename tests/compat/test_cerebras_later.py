"""Files of release 2.3 and later: sections, data, read hooks, splits."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

import jaxdata
from jaxdata import tokenizers
from jaxdata.cli import cli
from jaxdata.compat.cerebras import Translation, read_params, translate
from jaxdata.errors import InputError
from tests.converter.here import in_this_process

HOOKS = "cerebras.modelzoo.data_preparation.data_preprocessing.hooks"
GPT2 = {"custom_tokenizer": "gpt2tokenizer",
        "tokenizer_params": {"vocab_file": "v.bpe", "encoder_file": "e.json"}}  # fmt: skip
NEOX = {"custom_tokenizer": "neoxtokenizer", "tokenizer_params": {"encoder_file": "t.json"}}
HF = {"huggingface_tokenizer": "folder"}
CLEAN = {"use_ftfy": True, "ftfy_normalizer": "NFC", "wikitext_detokenize": False}
LOCAL = {"source": "in", "type": "local"}
PROCESSING = {
    "max_seq_length": 2_048, "write_in_batch": True, "resume_from_checkpoint": False,
    "shuffle_seed": 0, "shuffle": False, "UNSAFE_skip_jsonl_decoding_errors": False,
}  # fmt: skip
LM = {"seed": 0, "short_seq_prob": 0.0}
CLEANED = {"ftfy": True, "normalize": "NFC", "wikitext": False}
WRITTEN = {"inputs": ("in",), "output": "out", "workers": 1, "source": "examples"}


def hook(name: str, **arguments: Any) -> dict[str, Any]:
    return {"read_hook": f"{HOOKS}:{name}", "read_hook_kwargs": arguments}


def file(mode: str, hooked: dict[str, Any], tokenizer: Any = HF, **more: Any) -> dict[str, Any]:
    """A file in the form of the shipped ones."""
    setup = {"data": LOCAL, "mode": mode, "output_dir": "out", "processes": 1} | more.pop(
        "setup", {}
    )
    processing = tokenizer | PROCESSING | CLEAN | hooked | more.pop("processing", {})
    return {"setup": setup, "processing": processing, "dataset": more or None}


def read(tmp_path: Path, content: dict[str, Any], task: str | None = None) -> Translation:
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(content))
    return read_params(path, task)


TEXT = hook("text_read_hook", text_key="body")
PAIR = {"prompt_key": "article", "completion_key": "summary"}
SHIPPED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "autoregressive_lm",
        file("pretraining", TEXT | LM, GPT2, pack_sequences=True),
        {"task": "lm", "tokenizer": "gpt2:v.bpe,e.json", "text_key": "body", "strip": True,
         "seed": 0},
    ),
    (
        "hf_autoregressive_lm, as release 2.3 wrote it",
        file("pretraining", hook("text_read_hook", data_keys={"text_key": "body"}) | LM,
             pack_sequences=True),
        {"task": "lm", "tokenizer": "hf:folder", "text_key": "body", "strip": True, "seed": 0},
    ),
    (
        "fim_aug",
        file("pretraining", TEXT | LM | {"eos_id": 0}, NEOX, pack_sequences=True, fim_rate=0.9,
             spm_rate=0.5, fim_prefix_tok="<p>", fim_middle_tok="<m>", fim_suffix_tok="<s>"),
        {"task": "fim", "tokenizer": "hf:t.json", "text_key": "body", "strip": True, "seed": 0,
         "eod": 0, "fim_rate": 0.9, "spm_rate": 0.5, "fim_prefix": "<p>", "fim_middle": "<m>",
         "fim_suffix": "<s>", "fim_context": 2_048},
    ),
    (
        "curation_corpus_summarization",
        file("finetuning", hook("prompt_completion_key", **PAIR), GPT2, sep_token="<SEP>"),
        {"task": "sft", "tokenizer": "gpt2:v.bpe,e.json", "prompt_key": "article",
         "completion_key": "summary", "separator": "<SEP>", "max_tokens": 2_048},
    ),
    (
        "summarization",
        file("finetuning", hook("prompt_completion_text_read_hook", **PAIR), NEOX, sep_token=None,
             truncate_to_msl={"truncation_mode": "keep_start", "max_turn_length": 512}),
        {"task": "sft", "tokenizer": "hf:t.json", "prompt_key": "article",
         "completion_key": "summary", "max_tokens": 2_048, "truncate_to": 2_048,
         "truncate_prompts": "keep_end", "least_turn": 512},
    ),
    (
        "multi_turn_dialogue",
        file("finetuning", hook("chat_read_hook", multi_turn_key="messages",
             multi_turn_content_key="content", multi_turn_role_key="role"), truncate_to_msl=None),
        {"task": "sft", "tokenizer": "hf:folder", "messages_key": "messages",
         "content_key": "content", "strip": True, "max_tokens": 2_048},
    ),
    (
        "dpo",
        file("dpo", hook("dpo_read_hook", prompt_key="p", chosen_key="c", rejected_key="r"),
             user_role="user", assistant_role="assistant"),
        {"task": "dpo", "tokenizer": "hf:folder", "prompt_key": "p", "chosen_key": "c",
         "rejected_key": "r", "strip": True, "chat_template": "tokenizer"},
    ),
    (
        "pretraining_data_context_split",
        file("pretraining", TEXT | LM, pack_sequences=True, setup={
            "data_splits_dir": "d",
            "data_splits": {
                "train": {"split_fraction": 0.8, "context_splits": {
                    "MSL_List": ["1K", "2K"], "split_fractions": [0.75, 0.25]}},
                "val": {"split_fraction": 0.2}}}),
        {"task": "lm", "tokenizer": "hf:folder", "text_key": "body", "strip": True, "seed": 0,
         "split_ratio": "train-1024=0.6,train-2048=0.2,val=0.2"},
    ),
    (
        "finetuning_context_split",
        file("finetuning", hook("prompt_completion_text_read_hook", **PAIR), sep_token=None, setup={
            "context_splits": {"MSL_List": ["1K", "3K"], "split_fractions": [0.5, 0.5]}}),
        {"task": "sft", "tokenizer": "hf:folder", "prompt_key": "article",
         "completion_key": "summary", "max_tokens": 3_072,
         "split_ratio": "train-1024=0.5,train-3072=0.5"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "expected"), [one[1:] for one in SHIPPED], ids=[one[0] for one in SHIPPED]
)
def test_the_forms_of_shipped_files(
    tmp_path: Path, content: dict[str, Any], expected: dict[str, Any]
) -> None:
    made = read(tmp_path, content)
    assert made.options == CLEANED | WRITTEN | expected
    assert made.seq_len == {"train-1024=0.5,train-3072=0.5": 3_072}.get(
        made.options.get("split_ratio", ""), 2_048
    )


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llava", file("finetuning", hook("finetuning_llava_hook", image_key="i")), "and no images"),
    ("captions", file("pretraining", {"read_hook": f"{HOOKS}.pretraining_image_captions_hook"}),
     "and no images"),
    ("images", file("finetuning", TEXT, is_multimodal=True), "is_multimodal=True: .*no images"),
    ("bert", file("pretraining", TEXT, training_objective="bert_pretraining"),
     "masked language modelling is not supported"),
    ("esm2", file("pretraining", TEXT, training_objective="mlm"), "masked language modelling"),
    ("nlg", file("nlg", hook("nlg_read_hook", context_key="c")), "mode='NLG': .* hold token ids"),
    ("custom", file("custom", TEXT, setup={"token_generator": "a:B"}), "'token_generator' is not"),
    ("own hook", file("pretraining", {"read_hook": "mine:text_read_hook"}),
     "read_hook='mine:text_read_hook': .* a hook of your own is not run: .*--transform, replace"),
    ("hub", file("pretraining", TEXT, setup={"data": {"type": "huggingface", "source": "a/b"}}),
     "nothing is downloaded: hf download NAME --repo-type dataset"),
    ("subsets", file("pretraining", TEXT, setup={"data": LOCAL | {"subsets": ["a"]}}),
     "subsets: convert each folder by a command of its own"),
    ("no source", file("pretraining", TEXT, setup={"data": {"type": "local"}}), "expected a text"),
    ("data", file("pretraining", TEXT, setup={"data": "in"}), "data='in': expected names and"),
    ("role", file("finetuning", hook("chat_read_hook", multi_turn_key="m",
     multi_turn_role_key="who", multi_turn_content_key="c")),
     "multi_turn_role_key: 'who'; roles are read under 'role' or"),
    ("keys", file("finetuning", hook("chat_read_hook", multi_turn_key="m")),
     "read_hook_kwargs lacks multi_turn_content_key"),
    ("typo", file("pretraining", hook("text_read_hook", txt_key="a")), "'txt_key' is not known"),
    ("tokenizer", file("pretraining", TEXT, HF | {"tokenizer_params": {"add_bos_token": True}}),
     "tokenizer_params: 'add_bos_token' is not supported: save the tokenizer"),
    ("truncation", file("finetuning", hook("chat_read_hook", multi_turn_key="m",
     multi_turn_content_key="c"), truncate_to_msl={"max_turn_length": 5}),
     "truncate_to_msl=.*conversations are not shortened: .* by --max-tokens; remove it"),
    ("truncated", file("finetuning", TEXT, truncate_to_msl={"turns": 5}), "'turns' is not known"),
    ("limit", file("pretraining", TEXT, processing={"token_limit": 9}), "token_limit=9: "),
    ("mode", file("embedding_training", TEXT), "embeddings are not supported"),
    ("placeholder", file("dpo", TEXT, processing={"max_seq_length": "<max_seq_length>"}),
     "max_seq_length='<max_seq_length>': expected a whole number"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "says"), [one[1:] for one in REFUSED], ids=[one[0] for one in REFUSED]
)
def test_what_cannot_be_had_is_refused_by_name(
    tmp_path: Path, content: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=f"p.yaml: .*{says}"):
        read(tmp_path, content)


def test_packing_by_length_is_a_mode(tmp_path: Path) -> None:
    for mode, hooked in (("pretraining", TEXT), ("finetuning", hook("chat_read_hook",
                         multi_turn_key="m", multi_turn_content_key="c"))):  # fmt: skip
        made = read(tmp_path, file(mode, hooked, use_vsl=True, pack_sequences=True))
        assert [note for note in made.notes if "strategy='best_fit'" in note]


def test_a_tokenizer_of_their_own_is_to_be_named(tmp_path: Path) -> None:
    own = {"custom_tokenizer": "my.module:Llama", "tokenizer_params": {"token": "x"}}
    made = read(tmp_path, file("pretraining", TEXT, own))
    assert "tokenizer" not in made.options
    assert [note for note in made.notes if "my.module:Llama is not run: name the tok" in note]


def test_pairs_have_a_separator_unless_the_file_says_null(tmp_path: Path) -> None:
    pairs = hook("prompt_completion_text_read_hook", **PAIR)
    made = read(tmp_path, file("finetuning", pairs))
    assert made.options["separator"] == "<|sep|>"
    assert [note for note in made.notes if note.startswith("sep_token: not in the file")]
    assert "add_special" not in made.options, "since 2.3 it is text"
    chat = read(tmp_path, file("finetuning", hook("prompt_completion_chat_read_hook", **PAIR),
                               sep_token="<SEP>"))  # fmt: skip
    assert chat.options["chat_template"] == "tokenizer"
    assert "separator" not in chat.options
    assert "sep_token: not needed: prompt_completion_chat_read_hook does not use it" in chat.notes


def test_without_a_hook_the_keys_are_those_of_before(tmp_path: Path) -> None:
    made = read(tmp_path, file("pretraining", {"jsonl_key": "body"}))
    assert made.options["text_key"] == "body"
    assert "strip" not in made.options


@pytest.mark.parametrize("given", [{}, {"mode": "pretraining"}, {"data": LOCAL}])
def test_no_shape_of_a_hook_is_an_error_of_python(given: dict[str, Any]) -> None:
    for value in (None, 0, "", [], {}, [1], {"a": 1}, {1: 2}, "x" * 99, True):
        for name in ("data", "read_hook", "read_hook_kwargs", "tokenizer_params", "data_splits",
                     "custom_tokenizer", "huggingface_tokenizer", "mode", "use_vsl"):  # fmt: skip
            with suppress(InputError):
                translate(HF | given | {"read_hook": f"{HOOKS}:text_read_hook", name: value})


@pytest.fixture
def folder(tmp_path: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    talk = [{"role": "user", "content": " hi "}, {"role": "assistant", "content": "ho\n"}]
    lines = [{"body": f"  text {n}\n", "article": f"a{n}", "summary": f"s{n}", "messages": talk}
             for n in range(30)]  # fmt: skip
    (tmp_path / "in/a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    (tmp_path / "t.json").write_bytes(
        (shared_data / "tokenizers/gpt-neox/20B_tokenizer.json").read_bytes()
    )
    return tmp_path


def run(content: dict[str, Any], *typed: str) -> jaxdata.Dataset:
    Path("p.yaml").write_text(yaml.safe_dump(content))
    with in_this_process():
        done = CliRunner().invoke(cli, ["convert", "--cerebras-params", "p.yaml", *typed])
    assert done.exit_code == 0, done.output
    return jaxdata.open_dataset("out")


def test_texts_are_stripped_as_their_hook_does(folder: Path) -> None:
    dataset = run(file("pretraining", TEXT | LM, NEOX, pack_sequences=True))
    docs = dataset.source("train", "examples")
    assert [dataset.decode(docs[n]["tokens"]) for n in range(30)] == [
        f"text {n}" for n in range(30)
    ]


def test_prompts_and_completions(folder: Path) -> None:
    dataset = run(file("finetuning", hook("prompt_completion_text_read_hook", **PAIR), NEOX))
    neox = tokenizers.load("hf:t.json")
    first = dataset.source("train", "examples")[7]
    parts = [neox.encode([text])[0].tolist() for text in ("a7", "<|sep|>", "s7")]
    assert first["tokens"].tolist() == [*parts[0], *parts[1], *parts[2], neox.eod_id]
    assert dataset.manifest.tokenizer.vocab_size == neox.vocab_size


def test_conversations(folder: Path) -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    talk = hook("chat_read_hook", multi_turn_key="messages", multi_turn_content_key="content",
                multi_turn_role_key="role")  # fmt: skip
    dataset = run(file("finetuning", talk, NEOX, chat_template=template))
    first = dataset.source("train", "examples")[0]
    assert dataset.decode(first["tokens"]) == "<user>hi<assistant>ho"
    assert dataset.decode(first["tokens"][first["loss_mask"]]) == "ho"


def test_splits(folder: Path) -> None:
    splits = {"train": {"split_fraction": 0.7}, "val": {"split_fraction": "3/10"}}
    dataset = run(file("pretraining", TEXT, NEOX, setup={"data_splits": splits}))
    sizes = [len(dataset.source(split, "examples")) for split in ("train", "val")]
    assert sum(sizes) == 30
    assert 3 < sizes[1] < 17
