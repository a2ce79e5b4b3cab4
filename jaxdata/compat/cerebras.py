"""Parameters of Cerebras' preprocessing, read as ours: `jaxdata convert --cerebras-params FILE`.

Each argument has a rule (`cerebras_rules`): the option it is, or why it is ignored or rejected.
Files of release 2.3 and later are rewritten in the arguments of before first (`cerebras_hooks`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jaxdata.compat.cerebras_functions import Arguments
from jaxdata.compat.cerebras_hooks import TOLD_BY, Rewritten, is_later, rewrite
from jaxdata.compat.cerebras_modes import TASKS, mode_of
from jaxdata.compat.cerebras_rules import RULES
from jaxdata.compat.cerebras_splits import row_lengths
from jaxdata.compat.cerebras_values import mapping
from jaxdata.errors import InputError
from jaxdata.format.storage.small_files import read_small
from jaxdata.settings import read_yaml
from jaxdata.wording import nearest

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
    rule = RULES[argument]
    try:
        result = rule if isinstance(rule, str) else rule(value, arguments)
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
    """What Cerebras' program does where a file says nothing, and we do not."""
    there = "not in the file, so it is off; Cerebras' program"
    if given.get("use_ftfy") is None:
        yield f"use_ftfy: {there} has it on: give --ftfy --normalize NFC"
    if given.get("min_sequence_len") is None and task != "fim":
        yield f"min_sequence_len: {there} leaves out what has fewer than 10 tokens: --min-tokens 10"
    if given.get("max_seq_length") is None and task == "sft":
        yield f"max_seq_length: {there} leaves out what has more than 2,048: --max-tokens 2048"
