"""Parameters of Cerebras' preprocessing, read as ours: `jaxdata convert --cerebras-params FILE`.

Each of its arguments has a rule below: what it is here, or why it is not needed, or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from jaxdata.errors import InputError

__all__ = ["RULES", "Translation", "read_params", "translate"]

_TASKS = {
    "LMData": "lm",
    "LMData_VSL": "lm",
    "Summarization": "sft",
    "Summarization_VSL": "sft",
    "FIM": "fim",
    "DPO": "dpo",
}
_AT_LOAD = "decided when rows are made: "
_NOT_NEEDED = "not needed: "


@dataclass
class Translation:
    """What parameters come to.

    Attributes:
        options: options of `jaxdata convert`, by name.
        notes: a line for each argument that is none of them: what to do, or why there is nothing.
    """

    options: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_params(path: str | Path, task: str | None = None) -> Translation:
    """Read a YAML file of parameters; raises InputError where it says what we cannot do.

    Args:
        path: the file, with or without Cerebras' sections setup, processing and dataset.
        task: "lm", "sft", "fim" or "dpo"; None to tell from the file.
    """
    try:
        given = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(given, dict):
        raise InputError(f"{path} holds no parameters; expected the names and values of arguments")
    return translate(_flat(given), task, str(path))


def translate(given: Mapping[str, Any], task: str | None = None, name: str = "") -> Translation:
    """Translate arguments by their Cerebras names; see :func:`read_params`."""
    unknown = sorted(set(given) - set(RULES) - {"mode"})
    if unknown:
        near = get_close_matches(unknown[0], RULES, 1)
        raise InputError(
            f"{name}: {unknown[0]!r} is no argument of Cerebras' preprocessing"
            + (f"; did you mean {near[0]!r}?" if near else "")
        )
    made = Translation({"task": task or _task_of(given, name)})
    made.options["tokenizer"] = _tokenizer_of(given, name)
    for argument, value in given.items():
        if argument != "mode" and value is not None:
            _apply(RULES[argument], argument, value, given, made, name)
    return made


Rule = str | Callable[[Any, Mapping[str, Any], str], Any]
"""What an argument is: an option's name, a note on why it is none, or a function of its value, all
arguments and the task, which gives options, a note, or raises InputError."""


def _apply(
    rule: Rule, argument: str, value: Any, given: Mapping[str, Any], made: Translation, name: str
) -> None:
    if isinstance(rule, str):
        result: Any = rule if " " in rule else {rule: value}
    else:
        try:
            result = rule(value, given, made.options["task"])
        except InputError as error:
            raise InputError(f"{name}: {argument}={value!r}: {error}") from None
    if isinstance(result, str):
        made.notes.append(f"{argument}: {result}")
    else:
        made.options |= result


def _flat(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of all sections."""
    flat: dict[str, Any] = {}
    for key, value in given.items():
        flat |= _flat(value) if isinstance(value, dict) else {key: value}
    return flat


def _task_of(given: Mapping[str, Any], name: str) -> str:
    mode = given.get("mode")
    if mode is not None:
        if mode not in _TASKS:
            raise InputError(f"{name}: mode={mode!r}: expected one of {', '.join(_TASKS)}")
        return _TASKS[mode]
    telling = {"fim_prefix_tok": "fim", "chosen_key": "dpo", "completion_key": "sft"}
    telling["multi_turn_key"] = "sft"
    return next((task for argument, task in telling.items() if given.get(argument)), "lm")


def _tokenizer_of(given: Mapping[str, Any], name: str) -> str:
    kind = given.get("tokenizer_type")
    needs = {
        "GPT2Tokenizer": ("gpt2:{},{}", ("vocab_file", "encoder_file")),
        "NeoXTokenizer": ("hf:{}", ("encoder_file",)),
        "HuggingFaceTokenizer": ("hf:{}", ("huggingface_tokenizer",)),
    }
    if kind not in needs:
        raise InputError(
            f"{name}: tokenizer_type={kind!r}: expected one of {', '.join(needs)}; for another "
            "tokenizer give one of these and --tokenizer"
        )
    spec, files = needs[kind]
    missing = [file for file in files if not given.get(file)]
    if missing:
        raise InputError(f"{name}: tokenizer_type={kind!r} needs {' and '.join(missing)}")
    return spec.format(*(given[file] for file in files))


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
