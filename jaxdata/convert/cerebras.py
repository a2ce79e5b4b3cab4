"""Parameters of Cerebras' preprocessing, read as ours: `jaxdata convert --cerebras-params FILE`.

Each of its arguments has a rule (`cerebras_rules`): what it is here, or why it is not needed, or
refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from jaxdata.convert.cerebras_rules import RULES, Rule
from jaxdata.errors import InputError

__all__ = ["Translation", "read_params", "translate"]

_TASKS = {
    "LMData": "lm",
    "LMData_VSL": "lm",
    "Summarization": "sft",
    "Summarization_VSL": "sft",
    "FIM": "fim",
    "DPO": "dpo",
}


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
