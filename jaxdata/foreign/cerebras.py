"""Parameters of Cerebras' preprocessing, of every release, read as ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxdata.base.errors import InputError
from jaxdata.base.settings import read_yaml
from jaxdata.base.wording import nearest
from jaxdata.foreign.cerebras_modes import LATER, TASKS, mapping, mode_of, row_lengths, text
from jaxdata.foreign.cerebras_rules import RULES, Arguments, result_of
from jaxdata.storage.small_files import read_small

TOLD_BY = ("read_hook", "read_hook_kwargs", "data", "custom_tokenizer", "tokenizer_params")
"""The arguments that only later files have, beside those that `cerebras_rules` lists."""

_HOOKS_OF_THEIRS = re.compile(
    r"cerebras\.modelzoo\.data_preparation\.data_preprocessing\.hooks[:.]"
)
_OF_IMAGES = ("llava", "image")
_ROLES = ("role", "from")
_PAIRS = {"prompt_key": "prompt_key", "completion_key": "completion_key"}
_HOOKS: dict[str, dict[str, str]] = {
    "text_read_hook": {"text_key": "jsonl_key"},
    "prompt_completion_text_read_hook": _PAIRS,
    "prompt_completion_key": _PAIRS,  # so a shipped file calls the one above
    "prompt_completion_chat_read_hook": _PAIRS,
    "chat_read_hook": {
        "multi_turn_key": "multi_turn_key",
        "multi_turn_content_key": "multi_turn_content_key",
    },
    "dpo_read_hook": {name: name for name in ("prompt_key", "chosen_key", "rejected_key")},
}
"""Hook -> its keyword argument -> the argument of before."""
_CHATS = ("chat_read_hook", "prompt_completion_chat_read_hook")
_STRIPPING = ("text_read_hook", "dpo_read_hook", *_CHATS)
_WITH_TEMPLATE = ("prompt_completion_chat_read_hook", "dpo_read_hook")
_SEPARATOR = "<|sep|>"
_PLAIN = ("prompt_completion_text_read_hook", "prompt_completion_key")


@dataclass
class Rewritten:
    """A file in the arguments of before.

    Attributes:
        given: the arguments.
        options: options of ours that no argument of before is.
        notes: what there is to say.
    """

    given: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def is_later(given: Mapping[str, Any]) -> bool:
    """Whether a file is of release 2.3 or later."""
    return given.get("mode") in LATER or any(name in given for name in TOLD_BY)


def rewrite(given: Mapping[str, Any]) -> Rewritten:
    """Rewrite the arguments that only later releases have; InputError for what cannot be had."""
    made = Rewritten({name: value for name, value in given.items() if name not in TOLD_BY})
    for name, rewriting in (("data", _data), ("read_hook", _hook)):
        if given.get(name) is not None:
            try:
                rewriting(given[name], given, made)
            except InputError as error:
                raise InputError(f"{name}={given[name]!r}: {error}") from None
    _tokenizer(given, made)
    return made


def _data(value: Any, _: Mapping[str, Any], made: Rewritten) -> None:
    data = dict(mapping(value))
    kind = data.pop("type", "local")
    if kind == "huggingface":
        raise InputError(
            "nothing is downloaded: hf download NAME --repo-type dataset --local-dir FOLDER, then "
            "set type: local and source: FOLDER"
        )
    if kind != "local":
        raise InputError(f"type {kind!r}; expected local or huggingface")
    made.given["input_dir"] = text(data.pop("source", None))
    for subsets in ("subsets", "top_level_as_subsets"):
        if data.pop(subsets, None):
            raise InputError(
                f"{subsets}: convert each folder by a command of its own, with its --source"
            )
    if data:
        raise InputError(f"{next(iter(data))!r} is not known; expected type and source")


def _hook(value: Any, given: Mapping[str, Any], made: Rewritten) -> None:
    path = text(value)
    name = re.split("[:.]", path)[-1]
    if any(word in name for word in _OF_IMAGES) and _HOOKS_OF_THEIRS.match(path):
        raise InputError("jaxdata reads text only, and no images")
    if name not in _HOOKS or not _HOOKS_OF_THEIRS.match(path):
        raise InputError(
            f"expected one of Cerebras' hooks {', '.join(_HOOKS)}; a hook of your own is not run: "
            "write it as a function of a record for --transform, replace read_hook by jsonl_key, "
            "or by prompt_key and completion_key, for the fields that it returns"
        )
    arguments = dict(mapping(given.get("read_hook_kwargs") or {}))
    arguments |= mapping(arguments.pop("data_keys", {}))
    _keys(name, arguments, made)
    made.options |= {"strip": True} if name in _STRIPPING else {}
    if name in _WITH_TEMPLATE and given.get("chat_template") is None:
        made.given["chat_template"] = "tokenizer"
    if name in _PLAIN and "sep_token" not in given:
        made.given["sep_token"] = _SEPARATOR
        made.notes.append(
            f"sep_token: not in the file: {_SEPARATOR!r} is written between prompt and completion, "
            "as there; sep_token: null leaves it out"
        )
    unread = "sep_token" if name in _CHATS else "chat_template" if name in _PLAIN else ""
    if made.given.pop(unread, None):
        made.notes.append(f"{unread}: not needed: {name} does not use it")


def _keys(name: str, arguments: dict[str, Any], made: Rewritten) -> None:
    role, assistant = (
        arguments.pop("multi_turn_role_key", None),
        arguments.pop("assistant_role", None),
    )
    if role not in (None, *_ROLES):
        raise InputError(
            f"multi_turn_role_key: {role!r}; roles are read under {' or '.join(map(repr, _ROLES))}:"
            " rename the field with --transform"
        )
    if assistant not in (None, "assistant:"):
        raise InputError(f"assistant_role: {assistant!r}; the prompt ends after 'assistant:' only")
    known = _HOOKS[name]
    for key, value in arguments.items():
        if key not in known:
            raise InputError(f"read_hook_kwargs: {key!r} is not known; expected {', '.join(known)}")
        made.given[known[key]] = text(value)
    optional = "prompt_key" if name == "dpo_read_hook" else ""
    if missing := [key for key in known if key not in arguments and key != optional]:
        raise InputError(f"read_hook_kwargs lacks {missing[0]}")


def _tokenizer(given: Mapping[str, Any], made: Rewritten) -> None:
    """The tokenizer's arguments; one that is a class of the user's own must be named to us."""
    parameters = dict(mapping(given.get("tokenizer_params") or {}))
    parameters.pop("token", None)  # for downloads
    custom = given.get("custom_tokenizer")
    kinds = {"gpt2tokenizer": "GPT2Tokenizer", "neoxtokenizer": "NeoXTokenizer"}
    if custom is not None and custom not in kinds:
        made.given["tokenizer_type"] = "custom"
        made.notes.append(
            f"custom_tokenizer: {custom} is not run: name the tokenizer's folder with --tokenizer "
            "hf:FOLDER"
        )
        return
    if custom is not None:
        made.given["tokenizer_type"] = kinds[custom]
        for name in ("vocab_file", "encoder_file"):
            made.given[name] = parameters.pop(name, None)
    elif given.get("huggingface_tokenizer"):
        made.given["tokenizer_type"] = "HuggingFaceTokenizer"
    if parameters:
        raise InputError(
            f"tokenizer_params: {next(iter(parameters))!r} is not supported: save the tokenizer as "
            "it is to be, with save_pretrained, and name its folder with --tokenizer hf:FOLDER"
        )


_SECTIONS = ("setup", "processing", "dataset")


@dataclass
class Translation:
    """Options of `jaxdata convert` by name, and a note for each argument that is no option.

    Attributes:
        options: what the file asks for.
        notes: what is ignored, decided later, or otherwise there.
        seq_len: tokens of a row, where the file says.
    """

    options: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seq_len: int | None = None


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
    flat = _flat(given, str(path))
    made = translate(flat, task, str(path))
    made.notes += _silent(flat, made.options["task"])
    output = "./output" if is_later(flat) else "./data_dir"
    made.options = {"output": output, "source": "examples"} | made.options
    return made


def translate(given: Mapping[str, Any], task: str | None = None, name: str = "") -> Translation:
    """Translate arguments by their Cerebras names; see :func:`read_params`."""
    try:
        return _translated(given, task)
    except InputError as error:
        raise InputError(f"{name}: {error}" if name else str(error)) from None


def _translated(given: Mapping[str, Any], task: str | None) -> Translation:
    _check_names(given)
    mode, later = mode_of(given, task), is_later(given)
    written = rewrite(given) if later else Rewritten(dict(given))
    arguments = Arguments(written.given, mode, task or TASKS[mode], later)
    made = Translation({"task": arguments.task} | written.options, written.notes)
    if tokenizer := _tokenizer_of(written.given):
        made.options["tokenizer"] = tokenizer
    for argument, value in written.given.items():
        if value is not None:
            _apply(argument, value, arguments, made)
    if "max_seq_length" in given or row_lengths(given):
        made.seq_len = max(row_lengths(given), default=arguments.seq_len)
    return made


def _check_names(given: Mapping[str, Any]) -> None:
    known = [*RULES, *TOLD_BY]
    unknown = sorted(str(name) for name in given if name not in known)
    if unknown:
        raise InputError(
            f"{unknown[0]!r} is not an argument of Cerebras' preprocessing"
            f"{nearest(unknown[0], known)}"
        )


def _apply(argument: str, value: Any, arguments: Arguments, made: Translation) -> None:
    try:
        result = result_of(argument, value, arguments)
    except InputError as error:
        raise InputError(f"{argument}={value!r}: {error}") from None
    if isinstance(result, str):
        made.notes.append(f"{argument}: {result}")
    else:
        made.options |= {name: one for name, one in result.items() if one is not None}


def _flat(given: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The arguments of all sections."""
    flat: dict[str, Any] = {}
    for key, value in given.items():
        try:
            flat |= mapping(value or {}) if key in _SECTIONS else {key: value}
        except InputError as error:
            raise InputError(f"{path}: section {key}: {error}") from None
    return flat


def _tokenizer_of(given: Mapping[str, Any]) -> str | None:
    kind = given.get("tokenizer_type")
    needs = {
        "GPT2Tokenizer": ("gpt2:{},{}", ("vocab_file", "encoder_file")),
        "NeoXTokenizer": ("hf:{}", ("encoder_file",)),
        "HuggingFaceTokenizer": ("hf:{}", ("huggingface_tokenizer",)),
        "custom": ("", ()),
    }
    if kind not in needs:
        raise InputError(
            f"tokenizer_type={kind!r}: expected one of {', '.join([*needs][:3])}; for another "
            "tokenizer, give one of these and override it with --tokenizer"
        )
    spec, files = needs[kind]
    missing = [file for file in files if not given.get(file)]
    if missing:
        raise InputError(f"tokenizer_type={kind!r} needs {' and '.join(missing)}")
    return spec.format(*(given[file] for file in files)) or None


def _silent(given: Mapping[str, Any], task: str) -> Iterator[str]:
    """Notes on what Cerebras' program does by default, and jaxdata does not."""
    there = "not in the file, so it is off; Cerebras' program"
    if given.get("use_ftfy") is None:
        yield f"use_ftfy: {there} has it on: give --ftfy --normalize NFC"
    if given.get("min_sequence_len") is None and task != "fim":
        yield f"min_sequence_len: {there} leaves out what has fewer than 10 tokens: --min-tokens 10"
    if given.get("max_seq_length") is None and task == "sft":
        yield f"max_seq_length: {there} leaves out what has more than 2,048: --max-tokens 2048"
