"""Which tasks there are, and their settings from what a user gave."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import to_jsonable_python

from jaxdata.convert.tasks.base import Settings
from jaxdata.convert.tasks.dpo import DpoSettings
from jaxdata.convert.tasks.fim import FimSettings
from jaxdata.convert.tasks.lm import LmSettings
from jaxdata.convert.tasks.sft import SftSettings
from jaxdata.convert.tasks.templates import find_template
from jaxdata.convert.tasks.turns import AFFIXES, TurnSettings
from jaxdata.errors import InputError
from jaxdata.tokenizers import SpecialToken, Tokenizer

__all__ = ["TaskOptions", "TaskSettings", "defaults", "make_settings"]

TaskSettings = Annotated[
    LmSettings | SftSettings | FimSettings | DpoSettings, Field(discriminator="name")
]
"""The settings of any task, told apart by their `name`."""


class TaskOptions(TypedDict, total=False):
    """Settings of tasks as keyword arguments; each task takes its own.

    Attributes:
        text_key: lm, fim: the key of each JSON object, or the column of tables, that holds the
            text; a dotted one goes into objects, several have commas between. "text" if not given.
        text_joiner: what stands between the texts of several keys; an empty line if not given.
        bos: all: begin each document with the tokenizer's begin-of-sequence token.
        short_rate: lm: share of documents that are cut short.
        short_length: they keep less than so many tokens; 2,048.
        fim_rate: fim: share of documents that are rearranged; 0.9.
        spm_rate: share of those that get the suffix before the prefix; 0.5.
        fim_prefix: token before the prefix, by text or id; the tokenizer's own if not given.
        fim_middle: token before the middle.
        fim_suffix: token before the suffix.
        seed: lm, fim: what is drawn follows from it and the document's content.
        prompt_key: sft: key of prompts, several joined; dpo: the one key. "prompt".
        completion_key: sft: key of completions; "completion".
        messages_key: sft: key of conversations, instead of both.
        content_key: sft: where messages have their text, if not in "content" or "value".
        pairs: sft: whether several pairs of a record become "documents" or "turns" of one.
        chosen_key: dpo: key of the better answer; "chosen".
        rejected_key: dpo: key of the other one; "rejected".
        chat_template: sft, dpo: a file of Jinja, "tokenizer" or "none"; the tokenizer's own, if it
            brings one and nothing else says how turns are written.
        template_variables: what the template gets besides the messages.
        allow_special: take texts of special tokens in messages for these.
        train_on: sft: "all" answers of a conversation have loss, or only the "last".
        separator: sft, dpo, without a template: between prompt and answer.
        prompt_prefix: before each prompt.
        completion_prefix: before each answer, without loss.
        eod_after_prompt: end prompts with EOD as well.
    """

    text_key: str
    text_joiner: str
    bos: bool
    short_rate: float
    short_length: int
    fim_rate: float
    spm_rate: float
    fim_prefix: SpecialToken
    fim_middle: SpecialToken
    fim_suffix: SpecialToken
    seed: int
    prompt_key: str | Sequence[str]
    completion_key: str
    messages_key: str
    content_key: str
    pairs: Literal["documents", "turns"]
    chosen_key: str
    rejected_key: str
    chat_template: str | None
    template_variables: Mapping[str, Any]
    allow_special: bool
    train_on: Literal["all", "last"]
    separator: str
    prompt_prefix: str
    completion_prefix: str
    eod_after_prompt: bool


_MODELS: dict[str, type[Settings]] = {
    "lm": LmSettings,
    "sft": SftSettings,
    "fim": FimSettings,
    "dpo": DpoSettings,
}


def make_settings(task: str, tokenizer: Tokenizer, options: Mapping[str, Any]) -> TaskSettings:
    """Make the settings of a task.

    Args:
        task: "lm", "sft", "fim" or "dpo".
        tokenizer: whose chat template is taken where none is named.
        options: the settings by name, as `convert` takes them: `chat_template` is a file,
            "tokenizer" or "none".

    Raises:
        InputError: there is no such task or option, or its value is wrong.
    """
    if task not in _MODELS:
        raise InputError(f"task={task!r}; expected one of {', '.join(_MODELS)}")
    model, given = _MODELS[task], dict(options)
    if given.get("text_key") == "text":  # as it is where nobody gave it
        del given["text_key"]
    if issubclass(model, TurnSettings):
        given["chat_template"] = _template(given, tokenizer)
    try:
        return model(**given)  # type: ignore[return-value]
    except ValidationError as error:
        raise InputError(_wrong(task, model, error)) from None


def defaults(task: str) -> dict[str, Any]:
    """The settings of a task at their defaults, as JSON has them; None for what it must be told."""
    return {
        name: to_jsonable_python(field.get_default(call_default_factory=True))
        for name, field in _MODELS[task].model_fields.items()
    }


def _template(given: Mapping[str, Any], tokenizer: Tokenizer) -> str | None:
    named = given.get("chat_template")
    affixes = [name for name in AFFIXES if given.get(name)]
    if named not in (None, "none") and affixes:
        raise InputError(
            f"{affixes[0]} and a chat template: the template writes what stands between turns; "
            "give one of the two"
        )
    plain = affixes or given.get("prompt_key") or given.get("completion_key")
    return None if named is None and plain else find_template(named, tokenizer)


def _wrong(task: str, model: type[BaseModel], error: ValidationError) -> str:
    first = error.errors()[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        has = ", ".join(known for known in model.model_fields if known != "name")
        return f"task {task!r} has no option {name!r}; it has {has}"
    return f"task {task!r}: {name}={first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}"
