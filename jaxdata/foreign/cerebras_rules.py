"""Every argument of Cerebras' preprocessing, of all releases, its rule and its checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxdata.base.errors import InputError
from jaxdata.converter.chat.formatting import texts_like_tokens
from jaxdata.converter.tasks.registry import task_options
from jaxdata.foreign.cerebras_modes import (
    any_text,
    flag,
    mapping,
    row_lengths,
    share,
    split_ratio,
    text,
    token,
    whole,
)

AT_LOAD = "decided when rows are made: "
NOT_NEEDED = "not needed: "
FORMS = ("NFC", "NFD", "NFKC", "NFKD")


@dataclass(frozen=True)
class Arguments:
    """All arguments of a file, with null where it says so."""

    given: Mapping[str, Any]
    mode: str
    task: str
    """the task of jaxdata"""
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
    """The share of sequences that are shortened: windows, but documents in LMData_VSL."""
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
    return f"{AT_LOAD}jaxdata.foreign.data_params.short_rows(rows, {rate})"


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
    """The text between a prompt and its completion."""
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


_LM = ("LMData", "LMData_VSL", "FIM")
_SUMMARIZATION = ("Summarization", "Summarization_VSL")
_KNOWN_ROLE = "the role that chat templates know"


def _whole_or_none(value: object) -> int | None:
    return whole(value) or None


SETUP: dict[str, Rule] = {
    "params": f"{NOT_NEEDED}it is this file",
    **dict.fromkeys(("mode", "dataset_processor", "training_objective", "use_vsl"), nothing),
    "module": f"{NOT_NEEDED}the processor's name says which task it is",
    "input_dir": inputs,
    "metadata_files": files_from,
    "output_dir": option("output"),
    "output_name": option("source"),
    "processes": option("workers", _whole_or_none),
    **dict.fromkeys(
        ("num_nodes", "rank", "slurm"), f"{NOT_NEEDED}--engine ray converts on several nodes"
    ),
    **dict.fromkeys(("data_splits", "context_splits"), splits),
    "data_splits_dir": f"{NOT_NEEDED}splits are made in the dataset",
    "split_seed": f"{NOT_NEEDED}a document's split follows from its text",
    "files_per_record": f"{NOT_NEEDED}the input decides the shards",
    "write_in_batch": f"{NOT_NEEDED}shards are written in batches",
    "write_chunk_size": f"{NOT_NEEDED}the input decides the shards",
    "write_remainder": f"{NOT_NEEDED}nothing remains, because documents are stored whole",
    "resume_from_checkpoint": f"{NOT_NEEDED}the same command resumes where it stopped",
    "display_pbar": f"{NOT_NEEDED}a progress bar is shown on a terminal",
    **dict.fromkeys(
        ("max_chunk_size", "read_chunk_size"),
        f"{NOT_NEEDED}results do not depend on how the input is cut for workers",
    ),
    "fraction_of_RAM_alloted": f"{NOT_NEEDED}memory is bounded",
    "UNSAFE_skip_jsonl_decoding_errors": f"{NOT_NEEDED}bad records are set aside in "
    "quarantine.jsonl; --on-error fail stops at the first",
}
"""Rules of arguments about inputs, outputs and processes."""

TOKENIZER: dict[str, Rule] = {
    **dict.fromkeys(
        ("tokenizer_type", "vocab_file", "encoder_file", "huggingface_tokenizer"), nothing
    ),
    "auth_token": f"{NOT_NEEDED}nothing is downloaded: download the tokenizer's folder first",
    "eos_id": option("eod", token),
    "pad_id": option("pad_token", token),
    **dict.fromkeys(
        ("split_text_to_tokenize", "chunk_len_to_split"),
        f"{NOT_NEEDED}long texts are split where no token changes",
    ),
    "remove_bos_in_chunks": f"{NOT_NEEDED}tokenizers add no BOS",
}

TEXT: dict[str, Rule] = {
    "use_ftfy": ftfy,
    "ftfy_normalizer": normal_form,
    "wikitext_detokenize": option("wikitext", flag),
    "jsonl_key": read_in(_LM, option("text_key")),
    "prompt_key": read_in((*_SUMMARIZATION, "DPO"), key_in_turns("prompt_key")),
    "completion_key": read_in(_SUMMARIZATION, key_in_turns("completion_key")),
    "chosen_key": read_in(("DPO",), option("chosen_key")),
    "rejected_key": read_in(("DPO",), option("rejected_key")),
    "multi_turn_key": read_in(_SUMMARIZATION, turns),
    "multi_turn_content_key": read_in(_SUMMARIZATION, option("content_key")),
    "sep_token": read_in(_SUMMARIZATION, separator),
    "prompt_prefix": read_in(_SUMMARIZATION, option("prompt_prefix", any_text)),
    "completion_prefix": read_in(_SUMMARIZATION, option("completion_prefix", any_text)),
    "eos_after_prompt": read_in(_SUMMARIZATION, option("eod_after_prompt", flag)),
    "end_of_turn_token": f"{NOT_NEEDED}an answer ends with what the chat template writes after it",
    "user_role": read_in(("DPO",), must_be("user", _KNOWN_ROLE)),
    "assistant_role": read_in(("DPO",), must_be("assistant", _KNOWN_ROLE)),
    "chat_template": read_in((*_SUMMARIZATION, "DPO"), option("chat_template")),
    **dict.fromkeys(
        ("response_delimiter", "respose_delimiter"),
        f"{NOT_NEEDED}the record says where its prompt ends",
    ),
    "fim_rate": read_in(("FIM",), option("fim_rate", share)),
    "spm_rate": read_in(("FIM",), option("spm_rate", share)),
    "fim_prefix_tok": read_in(("FIM",), option("fim_prefix", token)),
    "fim_middle_tok": read_in(("FIM",), option("fim_middle", token)),
    "fim_suffix_tok": read_in(("FIM",), option("fim_suffix", token)),
}
"""Rules of arguments about records: the keys that are read, and the task."""

ROWS: dict[str, Rule] = {
    "max_seq_length": length,
    "min_sequence_len": least,
    "short_seq_prob": read_in(_LM, short),
    "fold_long_doc": read_in(("LMData_VSL",), fold),
    "truncate_to_msl": read_in(_SUMMARIZATION, truncation),
    "max_prompt_length": read_in(
        ("DPO",), lambda value, _: f"{AT_LOAD}jaxdata.pairs(max_prompt={whole(value, 1)})"
    ),
    "pack_sequences": read_in((*_LM, *_SUMMARIZATION), packing),
    "shuffle": f"{AT_LOAD}rows are shuffled anew in every epoch",
    "shuffle_seed": f"{AT_LOAD}jaxdata.pack(seed=…)",
    "seed": seed,
    "token_limit": must_be_off(
        "everything is converted: jaxdata.Phase(tokens=…) limits what is trained; remove it"
    ),
    "input_ids_dtype": f"{NOT_NEEDED}rows are int32; on disk tokens are uint16 where they can be",
    "input_mask_dtype": f"{NOT_NEEDED}loss masks are bool",
    "position_ids_dtype": f"{NOT_NEEDED}positions are int32",
    "seq_lengths_dtype": f"{NOT_NEEDED}segment_ids are int32",
    "inverted_mask": must_be_off("loss_mask is True where there is loss; remove it"),
}
"""Rules of arguments about rows."""

UNSUPPORTED: dict[str, Rule] = {
    **dict.fromkeys(
        ("mlm_fraction", "mlm_with_gather"),
        must_be_off("masked language modelling is not supported"),
    ),
    **dict.fromkeys(
        ("excluded_tokens", "ignore_index"), f"{NOT_NEEDED}masked language modelling reads it only"
    ),
    "semantic_loss_weight": must_be_off("a token has loss or has none; remove it"),
    "semantic_drop_mask": must_be_off("leave parts of a record out with --transform; remove it"),
    "semantic_attention_mask": must_be_off("attention follows from segment_ids; remove it"),
    **dict.fromkeys(
        ("is_multimodal", "multimodal"), must_be_off("jaxdata reads text only, and no images")
    ),
    **dict.fromkeys(
        (
            "image_dir",
            "image_key",
            "image_token",
            "num_patches",
            "max_num_img",
            "register_special_image_token",
            "use_single_image_token",
            "multi_modal_non_image_ex_key",
            "multi_modal_remove_text_prompt",
            "system_prompt_style",
        ),
        f"{NOT_NEEDED}there are no images",
    ),
}

RULES: dict[str, Rule] = SETUP | TOKENIZER | TEXT | ROWS | UNSUPPORTED
