"""What each argument of Cerebras' preprocessing is here, or why it is nothing, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jaxdata.errors import InputError

__all__ = ["RULES", "Rule"]

_AT_LOAD = "decided when rows are made: "
_NOT_NEEDED = "not needed: "

Rule = str | Callable[[Any, Mapping[str, Any], str], Any]
"""What an argument is: an option's name, a note on why it is none, or a function of its value, all
arguments and the task, which gives options, a note, or raises InputError."""


def _inputs(value: Any, given: Mapping[str, Any], _: str) -> Any:
    if given.get("metadata_files"):
        return f"{_NOT_NEEDED}metadata_files is given, which goes before it"
    return {"inputs": (str(value),)}


def _files_from(value: Any, _: Mapping[str, Any], __: str) -> Any:
    names = value.split(",") if isinstance(value, str) else value
    return {"files_from": tuple(str(name).strip() for name in names)}


def _packing(value: Any, given: Mapping[str, Any], _: str) -> str:
    vsl = str(given.get("mode", "")).endswith("VSL")
    strategy = "best_fit" if vsl else "concat" if value else "pad"
    return f"{_AT_LOAD}jaxdata.pack(strategy={strategy!r})"


def _length(value: Any, _: Mapping[str, Any], task: str) -> Any:
    if task == "sft":  # longer ones are dropped
        return {"max_tokens": int(value)}
    call = f"pairs(seq_len={value})" if task == "dpo" else f"pack(seq_len={value})"
    return f"{_AT_LOAD}jaxdata.{call}"


def _short(value: Any, given: Mapping[str, Any], task: str) -> Any:
    if not value:
        return {}
    if task != "lm":
        raise InputError("documents are cut short in LMData and LMData_VSL only; leave it out")
    return {"short_rate": value, "short_length": given.get("max_seq_length", 2_048)}


def _minimum(value: Any, _: Mapping[str, Any], __: str) -> Any:
    return {"min_tokens": int(value)} if int(value) > 0 else {}


def _fold(value: Any, given: Mapping[str, Any], _: str) -> Any:
    if value:
        return f"{_NOT_NEEDED}long documents are always cut into windows when rows are made"
    return {"max_tokens": int(given.get("max_seq_length", 2_048)) + 1}


def _normal_form(value: Any, given: Mapping[str, Any], _: str) -> Any:
    if not given.get("use_ftfy"):
        return f"{_NOT_NEEDED}use_ftfy is off"
    return {"normalize": value} if value != "None" else {}


def _must_be_off(reason: str) -> Rule:
    def check(value: Any, _: Mapping[str, Any], __: str) -> dict[str, Any]:
        if value:
            raise InputError(reason)
        return {}

    return check


def _role(expected: str) -> Rule:
    def check(value: Any, _: Mapping[str, Any], __: str) -> dict[str, Any]:
        if value != expected:
            raise InputError(f"expected {expected!r}, the role that chat templates know")
        return {}

    return check


def _prompts(value: Any, given: Mapping[str, Any], _: str) -> dict[str, Any]:
    return {"prompt_key": _in_turns(value, given)}


def _completions(value: Any, given: Mapping[str, Any], _: str) -> dict[str, Any]:
    return {"completion_key": _in_turns(value, given)}


def _in_turns(key: str, given: Mapping[str, Any]) -> str:
    turns = given.get("multi_turn_key")
    return f"{turns}.{key}" if turns and not given.get("multi_turn_content_key") else key


def _turns(value: Any, given: Mapping[str, Any], _: str) -> dict[str, Any]:
    alternating = given.get("multi_turn_content_key") or not given.get("prompt_key")
    return {"messages_key": value} if alternating else {"pairs": "turns"}


RULES: dict[str, Rule] = {
    "params": f"{_NOT_NEEDED}it is this file",
    "input_dir": _inputs,
    "metadata_files": _files_from,
    "output_dir": "output",
    "processes": "workers",
    "tokenizer_type": lambda *_: {},
    "vocab_file": lambda *_: {},
    "encoder_file": lambda *_: {},
    "huggingface_tokenizer": lambda *_: {},
    "eos_id": "eod",
    "pad_id": "pad_token",
    "max_seq_length": _length,
    "short_seq_prob": _short,
    "output_name": "source",
    "files_per_record": f"{_NOT_NEEDED}shards follow from the input",
    "write_in_batch": f"{_NOT_NEEDED}shards are written in batches",
    "write_remainder": f"{_NOT_NEEDED}nothing remains: documents are stored whole",
    "resume_from_checkpoint": f"{_NOT_NEEDED}the same command goes on where it stopped",
    "display_pbar": f"{_NOT_NEEDED}a terminal gets a progress bar",
    "seed": "seed",
    "auth_token": f"{_NOT_NEEDED}nothing is downloaded: download the tokenizer's folder before",
    "max_chunk_size": f"{_NOT_NEEDED}nothing depends on how the input is cut for workers",
    "shuffle": f"{_AT_LOAD}rows are shuffled anew in every epoch",
    "shuffle_seed": f"{_AT_LOAD}jaxdata.pack(seed=…)",
    "use_ftfy": "ftfy",
    "ftfy_normalizer": _normal_form,
    "wikitext_detokenize": "wikitext",
    "jsonl_key": "text_key",
    "pack_sequences": _packing,
    "min_sequence_len": _minimum,
    "input_ids_dtype": f"{_NOT_NEEDED}rows are int32; on disk tokens are uint16 where they can be",
    "input_mask_dtype": f"{_NOT_NEEDED}loss masks are bool",
    "position_ids_dtype": f"{_NOT_NEEDED}positions are int32",
    "inverted_mask": _must_be_off("loss_mask is True where there is loss; leave it out"),
    "split_text_to_tokenize": f"{_NOT_NEEDED}long texts are split where no token changes by it",
    "chunk_len_to_split": f"{_NOT_NEEDED}long texts are split where no token changes by it",
    "remove_bos_in_chunks": f"{_NOT_NEEDED}tokenizers add no BOS",
    "fold_long_doc": _fold,
    "sep_token": "separator",
    "prompt_key": _prompts,
    "completion_key": _completions,
    "multi_turn_key": _turns,
    "multi_turn_content_key": "content_key",
    "prompt_prefix": "prompt_prefix",
    "completion_prefix": "completion_prefix",
    "eos_after_prompt": "eod_after_prompt",
    "fim_rate": "fim_rate",
    "spm_rate": "spm_rate",
    "fim_prefix_tok": "fim_prefix",
    "fim_middle_tok": "fim_middle",
    "fim_suffix_tok": "fim_suffix",
    "chosen_key": "chosen_key",
    "rejected_key": "rejected_key",
    "user_role": _role("user"),
    "assistant_role": _role("assistant"),
    "chat_template": "chat_template",
    "response_delimiter": f"{_NOT_NEEDED}the record says where its prompt ends",
    "max_prompt_length": lambda value, *_: f"{_AT_LOAD}jaxdata.pairs(max_prompt={value})",
    "mlm_fraction": _must_be_off("masked language modelling is not among the tasks"),
}
"""Every argument, by its name."""
