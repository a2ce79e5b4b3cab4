"""What rules are made of: functions of the value of an argument among the others.

A rule gives options of `jaxdata convert`, or a note on why there is none; or it refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxdata.compat.cerebras_splits import row_lengths, split_ratio
from jaxdata.compat.cerebras_values import any_text, flag, mapping, share, text, whole
from jaxdata.converter.chat.template_text import texts_like_tokens
from jaxdata.converter.tasks.registry import task_options
from jaxdata.errors import InputError

AT_LOAD = "decided when rows are made: "
NOT_NEEDED = "not needed: "
FORMS = ("NFC", "NFD", "NFKC", "NFKD")


@dataclass(frozen=True)
class Arguments:
    """All arguments of a file, with null where it says so."""

    given: Mapping[str, Any]
    mode: str
    task: str
    """ours"""
    later: bool = False
    """whether the file is of release 2.3 or later"""

    @property
    def seq_len(self) -> int:
        """Tokens of a row."""
        return whole(self.given.get("max_seq_length") or 2_048, 1)

    @property
    def packed(self) -> bool:
        """Whether documents are joined to rows that are all full."""
        packs = self.given.get("pack_sequences")
        return self.mode in ("LMData", "FIM") and (packs is None or flag(packs))


Rule = str | Callable[[Any, Arguments], Any]
"""A note, or a function of a value and all arguments that gives options or a note, or raises
InputError."""


def option(name: str, read: Callable[[Any], Any] = text) -> Rule:
    """The rule of an argument that is an option."""
    return lambda value, _: {name: read(value)}


def nothing(*_: Any) -> dict[str, Any]:
    """The rule of an argument that others ask for."""
    return {}


def read_in(modes: tuple[str, ...], rule: Rule) -> Rule:
    """A rule for some modes; the others read the argument neither there nor here."""

    def only(value: Any, all_: Arguments) -> Any:
        if all_.mode not in modes:
            return f"{NOT_NEEDED}{all_.mode} does not read it"
        return rule if isinstance(rule, str) else rule(value, all_)

    return only


def must_be_off(reason: str) -> Rule:
    """The rule of what is not supported, and why."""

    def check(value: Any, _: Arguments) -> dict[str, Any]:
        if value not in (False, "False", 0, "", [], {}):
            raise InputError(reason)
        return {}

    return check


def must_be(expected: str, reason: str) -> Rule:
    """The rule of an argument that has one value here."""

    def check(value: Any, _: Arguments) -> dict[str, Any]:
        if value != expected:
            raise InputError(f"expected {expected!r}, {reason}")
        return {}

    return check


def inputs(value: Any, all_: Arguments) -> Any:
    """The folder or files to read, unless lists name them."""
    if all_.given.get("metadata_files"):
        return f"{NOT_NEEDED}metadata_files is given, which overrides it"
    return {"inputs": (text(value),)}


def files_from(value: Any, _: Arguments) -> Any:
    """Lists of files."""
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list):
        raise InputError("expected names of files")
    return {"files_from": tuple(str(name).strip() for name in names)}


def splits(_: Any, all_: Arguments) -> dict[str, Any]:
    """The shares of splits, which two arguments say together."""
    return {"split_ratio": split_ratio(all_.given)}


def packing(value: Any, all_: Arguments) -> str:
    """The strategy, which rows choose."""
    kept_whole = all_.task == "fim" or all_.mode.endswith("_VSL")
    packs = flag(value) and all_.mode != "Summarization"
    strategy = "best_fit" if packs and kept_whole else "concat" if packs else "pad"
    return f"{AT_LOAD}jaxdata.pack(strategy={strategy!r})"


def length(value: Any, all_: Arguments) -> Any:
    """The length of rows: it limits answers and contexts, and is else decided later."""
    longest = max(row_lengths(all_.given), default=whole(value, 1))
    if all_.task == "sft":  # longer ones are dropped
        return {"max_tokens": longest}
    if all_.task == "fim":
        return {"fim_context": longest}
    call = f"pairs(seq_len={longest})" if all_.task == "dpo" else f"pack(seq_len={longest})"
    return f"{AT_LOAD}jaxdata.{call}"


def least(value: Any, all_: Arguments) -> Any:
    """The least tokens of a sequence: of a document, unless documents are joined."""
    tokens = whole(value)
    if all_.packed:
        return f"{NOT_NEEDED}with pack_sequences rows are full, and so none is that short"
    return {"min_tokens": tokens} if tokens else {}


def short(value: Any, all_: Arguments) -> Any:
    """How many sequences are shortened: windows, but documents in LMData_VSL."""
    rate = share(value)
    if not rate:
        return {}
    if all_.mode == "LMData_VSL":  # documents are shortened, before they are packed
        return {"short_rate": rate, "short_length": all_.seq_len + 1}
    if all_.mode == "FIM":
        raise InputError(
            "a context that is shortened after it was rearranged would lack its middle: sequences "
            "are shortened in LMData and LMData_VSL only; remove it"
        )
    return f"{AT_LOAD}jaxdata.compat.short_rows.short_rows(rows, {rate})"


def fold(value: Any, all_: Arguments) -> Any:
    """Whether long documents are cut."""
    if flag(value):
        return f"{NOT_NEEDED}long documents are always cut into windows when rows are made"
    return {"max_tokens": all_.seq_len + 1}


def ftfy(value: Any, all_: Arguments) -> dict[str, Any]:
    """Repairing texts, which also normalises them."""
    if not flag(value):
        return {"ftfy": False}
    form = all_.given.get("ftfy_normalizer", "NFC")  # null means none
    return {"ftfy": True} | ({} if form in (None, "None") else {"normalize": form})


def normal_form(value: Any, all_: Arguments) -> Any:
    """The form that repaired texts get."""
    if value not in (*FORMS, "None"):
        raise InputError(f"expected {', '.join(FORMS)} or None")
    return {} if flag(all_.given.get("use_ftfy") or False) else f"{NOT_NEEDED}use_ftfy is off"


def seed(value: Any, all_: Arguments) -> Any:
    """The root of random choices, where there are some."""
    if "seed" in task_options(all_.task):
        return {"seed": whole(value)}
    return f"{NOT_NEEDED}{all_.mode} draws nothing at random; rows are shuffled by pack(seed=…)"


def separator(value: Any, all_: Arguments) -> dict[str, Any]:
    """What is between a prompt and its completion."""
    separator = {"separator": any_text(value)}
    # White space stays text; so does what releases from 2.3 on put there, as any other text.
    if not all_.later and value and not value.isspace():
        return separator | {"add_special": [value]}
    return separator | ({"template_text_ok": True} if texts_like_tokens(value or "") else {})


def truncation(value: Any, all_: Arguments) -> dict[str, Any]:
    """Whether longer records are shortened, instead of left out."""
    rule = mapping(value or {})
    if unknown := rule.keys() - {"prompt_truncation_mode", "truncation_mode", "max_turn_length"}:
        raise InputError(f"{min(unknown)!r} is not known")
    if rule and (all_.given.get("chat_template") or all_.given.get("multi_turn_key")):
        raise InputError(
            "conversations are not shortened: longer ones are left out, by --max-tokens; remove it"
        )
    end = rule.get("prompt_truncation_mode")
    return (
        {}
        if not rule
        else {
            "truncate_to": all_.seq_len,
            "truncate_prompts": end if end == "keep_start" else "keep_end",  # as there
            "least_turn": whole(rule.get("max_turn_length", all_.seq_len), 1),
        }
    )


def key_in_turns(name: str) -> Rule:
    """The rule of a key that may be within the objects of `multi_turn_key`."""

    def translate(key: Any, all_: Arguments) -> dict[str, str]:
        turns = all_.task == "sft" and all_.given.get("multi_turn_key")
        inside = turns and not all_.given.get("multi_turn_content_key")
        return {name: f"{turns}.{text(key)}" if inside else text(key)}

    return translate


def turns(value: Any, all_: Arguments) -> dict[str, Any]:
    """Conversations, or several prompts and completions of a record."""
    alternating = all_.given.get("multi_turn_content_key") or not all_.given.get("prompt_key")
    return {"messages_key": text(value)} if alternating else {"pairs": "turns"}
