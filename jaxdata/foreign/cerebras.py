"""Parameters of Cerebras' preprocessing, of every release, read as options of `jaxdata convert`.

A file is flattened; what only releases from 2.3 on have is rewritten in the arguments of before;
then each argument has a rule, which makes options of it, or a note. A rule never guesses: what
cannot be had is refused with the reason.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxdata.base.errors import InputError, nearest
from jaxdata.base.settings import read_yaml
from jaxdata.foreign import cerebras_rules
from jaxdata.storage.small_files import read_small

_LATER = ("pretraining", "finetuning", "dpo", "nlg", "custom")
"""The modes of release 2.3 and later."""
_TOLD_BY = ("read_hook", "read_hook_kwargs", "data", "custom_tokenizer", "tokenizer_params")
"""The arguments that only later files have, which are rewritten in those of before."""


@dataclass
class Translation:
    """Options of `jaxdata convert` by name, and a note for each argument that is no option.

    Attributes:
        options: what the file asks for.
        notes: what is ignored, decided later, or otherwise there.
    """

    options: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_params(path: str | Path, task: str | None = None) -> Translation:
    """Read a YAML file of parameters; raises InputError for unsupported ones.

    The file may have Cerebras' sections setup, processing and dataset. `task` is "lm", "sft",
    "fim" or "dpo"; None to tell from the file.
    """
    try:
        given, _ = read_yaml(read_small(path).decode(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(given, dict):
        raise InputError(f"{path} contains no parameters; expected argument names and values")
    flat: dict[str, Any] = {}
    for key, value in given.items():
        if key in ("setup", "processing", "dataset"):
            with _named_in(f"{path}: section {key}"):
                flat |= cerebras_rules.mapping(value or {})
        else:
            flat[key] = value
    made = translate(flat, task, str(path))
    made.notes += _silent(flat, made.options["task"])
    output = "./output" if _is_later(flat) else "./data_dir"
    made.options = {"output": output, "source": "examples"} | made.options
    return made


def translate(given: Mapping[str, Any], task: str | None = None, name: str = "") -> Translation:
    """Translate arguments by their Cerebras names; see :func:`read_params`."""
    with _named_in(name):
        known = [*cerebras_rules.RULES, *_TOLD_BY]
        if unknown := sorted(str(argument) for argument in given if argument not in known):
            raise InputError(
                f"{unknown[0]!r} is not an argument of Cerebras' preprocessing"
                f"{nearest(unknown[0], known)}"
            )
        mode, made = _mode_of(given, task), Translation()
        flat = {name: value for name, value in given.items() if name not in _TOLD_BY}
        for argument, rewrite in (("data", _data), ("read_hook", _hook)):
            if given.get(argument) is not None:
                with _named_in(f"{argument}={given[argument]!r}"):
                    rewrite(given, flat, made)
        made.options["task"] = task or TASKS[mode]
        _tokenizer(given, made)
        all_ = cerebras_rules.Arguments(flat, mode, made.options["task"], _is_later(given))
        for argument, value in flat.items():
            if value is None:
                continue
            if mode not in cerebras_rules.READ_BY.get(argument, (mode,)):
                made.notes.append(f"{argument}: {cerebras_rules.NOT_NEEDED}{mode} does not read it")
                continue
            with _named_in(f"{argument}={value!r}"):
                result = cerebras_rules.RULES[argument](value, all_)
            if isinstance(result, str):
                made.notes.append(f"{argument}: {result}")
            else:
                made.options |= {name: one for name, one in result.items() if one is not None}
    return made


@contextmanager
def _named_in(name: str) -> Iterator[None]:
    """Say in errors where they are."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}" if name else str(error)) from None


def _is_later(given: Mapping[str, Any]) -> bool:
    return given.get("mode") in _LATER or any(name in given for name in _TOLD_BY)


def _silent(given: Mapping[str, Any], task: str) -> Iterator[str]:
    """Notes on what Cerebras' program does by default, and jaxdata does not."""
    there = "not in the file, so it is off; Cerebras' program"
    if given.get("use_ftfy") is None:
        yield f"use_ftfy: {there} has it on: give --set ftfy=true --set normalize=NFC"
    if given.get("min_sequence_len") is None and task != "fim":
        few = "leaves out what has fewer than 10 tokens"
        yield f"min_sequence_len: {there} {few}: --set min_tokens=10"
    if given.get("max_seq_length") is None and task == "sft":
        yield f"max_seq_length: {there} leaves out what has more than 2,048: --set max_tokens=2048"


TASKS = {
    "LMData": "lm",
    "LMData_VSL": "lm",
    "Summarization": "sft",
    "Summarization_VSL": "sft",
    "FIM": "fim",
    "DPO": "dpo",
}
"""Mode -> our task. The first mode of a task is what the task alone means."""
_PROCESSORS = {
    "LMDataPreprocessor": "LMData",
    "VSLLMDataPreprocessor": "LMData_VSL",
    "SummarizationPreprocessor": "Summarization",
    "CurationCorpusPreprocessor": "Summarization",
    "VSLSummarizationPreprocessor": "Summarization_VSL",
    "FIMDataPreprocessor": "FIM",
    "DPOPreprocessor": "DPO",
}
_TELLING = {
    "fim_prefix_tok": "FIM",
    "chosen_key": "DPO",
    "completion_key": "Summarization",
    "multi_turn_key": "Summarization",
}
"""Arguments that tell the mode of a file that does not name it."""


def _mode_of(given: Mapping[str, Any], task: str | None) -> str:
    """The mode of a file, by its earlier name; `task` is ours, where the user chose one."""
    vsl = "_VSL" if cerebras_rules.flag(given.get("use_vsl") or False) else ""
    known = {mode.lower(): mode for mode in TASKS} | {"finetuning": f"Summarization{vsl}"}
    objective = given.get("training_objective")
    if objective not in ("mlm", "bert_pretraining"):
        fims = [name for name, modes in cerebras_rules.READ_BY.items() if modes == ("FIM",)]
        fim = objective == "fim" or any(given.get(name) is not None for name in fims)
        known["pretraining"] = "FIM" if fim else f"LMData{vsl}"
    if named := given.get("mode"):
        mode, says = known.get(str(named).lower()), f"mode={named!r}"
    elif named := given.get("dataset_processor"):
        mode, says = _PROCESSORS.get(named), f"dataset_processor={named!r}"
    else:
        mode, says = next((_TELLING[name] for name in _TELLING if given.get(name)), "LMData"), ""
    if task is not None and TASKS.get(mode or "") != task:
        return next((mode for mode, its in TASKS.items() if its == task), "LMData")
    if mode is None:
        raise InputError(
            f"{says}: expected one of {', '.join((*TASKS, *_LATER[:3]))}, or a processor of these; "
            "jaxdata makes rows of texts for language models: not of token ids, images or "
            "embeddings, nor for masked language modelling, nor by code of your own (a --task or "
            "--transform is that: jaxdata/converter/README.md)"
        )
    return mode


def _data(given: Mapping[str, Any], flat: dict[str, Any], _: Translation) -> None:
    data = dict(cerebras_rules.mapping(given["data"]))
    if (kind := data.pop("type", "local")) != "local":
        raise InputError(
            f"type {kind!r}; expected local, as nothing is downloaded: hf download NAME "
            "--repo-type dataset --local-dir FOLDER, then type: local and source: FOLDER"
        )
    flat["input_dir"] = cerebras_rules.text(data.pop("source", None))
    if more := [name for name, value in data.items() if value]:
        raise InputError(
            f"{more[0]!r} is not known; expected type and source; convert subsets by commands of "
            "their own, each with its --source"
        )


_HOOKS_OF_THEIRS = "cerebras.modelzoo.data_preparation.data_preprocessing.hooks"
_PAIRS = ("prompt_key", "completion_key")
_HOOKS: dict[str, tuple[str, ...]] = {
    "text_read_hook": ("text_key",),
    "prompt_completion_text_read_hook": _PAIRS,
    "prompt_completion_key": _PAIRS,  # so a shipped file calls the one above
    "prompt_completion_chat_read_hook": _PAIRS,
    "chat_read_hook": ("multi_turn_key", "multi_turn_content_key"),
    "dpo_read_hook": ("prompt_key", "chosen_key", "rejected_key"),
}
"""Hook -> its keyword arguments, which are arguments of before but for the first."""
_WRITTEN_IN_HOOKS = {"multi_turn_role_key": ("role", "from"), "assistant_role": ("assistant:",)}
"""More keyword arguments of hooks, which can say only this."""
_PLAIN = ("prompt_completion_text_read_hook", "prompt_completion_key")
_SEPARATOR = "<|sep|>"


def _hook(given: Mapping[str, Any], flat: dict[str, Any], made: Translation) -> None:
    place, _, name = cerebras_rules.text(given["read_hook"]).replace(":", ".").rpartition(".")
    if name not in _HOOKS or not place.startswith(_HOOKS_OF_THEIRS):
        raise InputError(
            f"expected one of Cerebras' hooks {', '.join(_HOOKS)}; a hook of your own is not run: "
            "write it as a function of a record for --transform, replace read_hook by jsonl_key, "
            "or by prompt_key and completion_key, for the fields that it returns"
        )
    fields = dict(cerebras_rules.mapping(given.get("read_hook_kwargs") or {}))
    fields |= cerebras_rules.mapping(fields.pop("data_keys", {}))
    for key, values in _WRITTEN_IN_HOOKS.items():
        if (value := fields.pop(key, None)) not in (None, *values):
            raise InputError(f"{key}: {value!r}; here it is {' or '.join(values)}: --transform")
    if wrong := fields.keys() - {*_HOOKS[name]}:
        raise InputError(
            f"read_hook_kwargs: {min(wrong)!r} is not known; expected {', '.join(_HOOKS[name])}"
        )
    optional = ("prompt_key",) if name == "dpo_read_hook" else ()
    if missing := [key for key in _HOOKS[name] if key not in (*fields, *optional)]:
        raise InputError(f"read_hook_kwargs lacks {missing[0]}")
    flat |= {
        key.replace("text_key", "jsonl_key"): cerebras_rules.text(value)
        for key, value in fields.items()
    }
    if name not in _PLAIN:
        made.options["strip"] = True
    if name in ("prompt_completion_chat_read_hook", "dpo_read_hook"):
        flat["chat_template"] = given.get("chat_template") or "tokenizer"
    if name in _PLAIN and "sep_token" not in given:
        flat["sep_token"] = _SEPARATOR
        made.notes.append(
            f"sep_token: not in the file: {_SEPARATOR!r} is written between prompt and completion, "
            "as there; sep_token: null leaves it out"
        )
    unread = "chat_template" if name in _PLAIN else "sep_token" if "chat" in name else ""
    if flat.pop(unread, None):
        made.notes.append(f"{unread}: {cerebras_rules.NOT_NEEDED}{name} does not use it")


_TOKENIZERS = {
    "GPT2Tokenizer": ("gpt2:{},{}", ("vocab_file", "encoder_file")),
    "NeoXTokenizer": ("hf:{}", ("encoder_file",)),
    "HuggingFaceTokenizer": ("hf:{}", ("huggingface_tokenizer",)),
}
"""Type -> our tokenizer, of the files that these arguments name."""


def _tokenizer(given: Mapping[str, Any], made: Translation) -> None:
    """The tokenizer; one that is a class of the user's own must be named to us."""
    files = dict(cerebras_rules.mapping(given.get("tokenizer_params") or {}))
    files.pop("token", None)  # for downloads
    custom, kind = given.get("custom_tokenizer"), given.get("tokenizer_type")
    if custom is not None:
        kind = {"gpt2tokenizer": "GPT2Tokenizer", "neoxtokenizer": "NeoXTokenizer"}.get(custom)
        if kind is None:
            made.notes.append(
                f"custom_tokenizer: {custom} is not run: name the tokenizer's folder with "
                "--tokenizer hf:FOLDER"
            )
            return
    elif kind is None and given.get("huggingface_tokenizer"):
        kind = "HuggingFaceTokenizer"
    if kind not in _TOKENIZERS:
        raise InputError(
            f"tokenizer_type={kind!r}: expected one of {', '.join(_TOKENIZERS)}; for another "
            "tokenizer, give one of these and override it with --tokenizer"
        )
    spec, names = _TOKENIZERS[kind]
    found = [files.pop(name, None) or given.get(name) for name in names]
    if not all(found):
        raise InputError(f"tokenizer_type={kind!r} needs {' and '.join(names)}")
    made.options["tokenizer"] = spec.format(*found)
    if files:
        raise InputError(
            f"tokenizer_params: {min(files)!r} is not supported: save the tokenizer as it is to "
            "be, with save_pretrained, and name its folder with --tokenizer hf:FOLDER"
        )
