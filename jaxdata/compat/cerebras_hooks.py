"""The files of release 2.3 and later, rewritten in the arguments of before.

There a hook takes the texts out of a record; those that come with it are known here by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxdata.compat.cerebras_modes import LATER
from jaxdata.compat.cerebras_values import mapping, text
from jaxdata.errors import InputError

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
    for unread in ("sep_token",) * (name in _CHATS) + ("chat_template",) * (name in _PLAIN):
        if made.given.pop(unread, None):
            made.notes.append(f"{unread}: not needed: {name} does not use it")


def _keys(name: str, arguments: dict[str, Any], made: Rewritten) -> None:
    role, assistant = (arguments.pop(f"{one}_role{key}", None) for one, key in _ROLE_KEYS)
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


_ROLE_KEYS = (("multi_turn", "_key"), ("assistant", ""))


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
