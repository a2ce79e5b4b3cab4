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
    if all_.mode != "LMData":
        raise InputError(
            "documents are not shortened before they are packed, and a context that is shortened "
            "after it was rearranged would lack its middle: rows are, in LMData only; remove it"
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
    """What is between a prompt and its completion."""
    separator = {"separator": any_text(value)}
    # White space stays text; so does what releases from 2.3 on put there, as any other text.
    if not all_.later and value and not value.isspace():
        return separator | {"add_special": [value]}
    return separator | ({"template_text_ok": True} if texts_like_tokens(value or "") else {})


def truncation(value: Any, _: Arguments) -> dict[str, Any]:
    """Whether longer records are shortened, instead of left out."""
    if mapping(value or {}):
        raise InputError(
            "prompts and answers are not shortened: longer ones are left out, by --max-tokens; "
            "remove it, or shorten them in a function for --transform"
        )
    return {}


def prompt_key(key: Any, all_: Arguments) -> dict[str, str]:
    """The field of the prompt, perhaps within the objects of `multi_turn_key`."""
    return {"prompt_key": _in_turns(key, all_)}


def completion_key(key: Any, all_: Arguments) -> dict[str, str]:
    """The field of the completion, as that of the prompt."""
    return {"completion_key": _in_turns(key, all_)}


def _in_turns(key: Any, all_: Arguments) -> str:
    turns = all_.task == "sft" and all_.given.get("multi_turn_key")
    inside = turns and not all_.given.get("multi_turn_content_key")
    return f"{turns}.{text(key)}" if inside else text(key)


def turns(value: Any, all_: Arguments) -> dict[str, Any]:
    """Conversations, or several prompts and completions of a record."""
    alternating = all_.given.get("multi_turn_content_key") or not all_.given.get("prompt_key")
    return {"messages_key": text(value)} if alternating else {"pairs": "turns"}


def known_role(role: str) -> Callable[[Any, Arguments], Any]:
    """The name of a role, which has one value here."""

    def check(value: Any, _: Arguments) -> dict[str, Any]:
        if value != role:
            raise InputError(f"expected {role!r}, the role that chat templates know")
        return {}

    return check


def longest_prompt(value: Any, _: Arguments) -> str:
    """Tokens of a prompt, which pairs are limited to."""
    return f"{AT_LOAD}jaxdata.pairs(max_prompt={whole(value, 1)})"


_LM = ("LMData", "LMData_VSL", "FIM")
_SFT = ("Summarization", "Summarization_VSL")
_FIM, _DPO = ("FIM",), ("DPO",)

OPTIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "output_dir": ("output", text),
    "output_name": ("source", text),
    "processes": ("workers", lambda value: whole(value) or None),
    "eos_id": ("eod", token),
    "pad_id": ("pad_token", token),
    "wikitext_detokenize": ("wikitext", flag),
    "jsonl_key": ("text_key", text),
    "chosen_key": ("chosen_key", text),
    "rejected_key": ("rejected_key", text),
    "multi_turn_content_key": ("content_key", text),
    "prompt_prefix": ("prompt_prefix", any_text),
    "completion_prefix": ("completion_prefix", any_text),
    "eos_after_prompt": ("eod_after_prompt", flag),
    "chat_template": ("chat_template", text),
    "fim_rate": ("fim_rate", share),
    "spm_rate": ("spm_rate", share),
    "fim_prefix_tok": ("fim_prefix", token),
    "fim_middle_tok": ("fim_middle", token),
    "fim_suffix_tok": ("fim_suffix", token),
}
"""Arguments that are an option: its name, and what reads the value."""

DERIVED: dict[str, Callable[[Any, Arguments], Any]] = {
    "input_dir": inputs,
    "metadata_files": files_from,
    "data_splits": splits,
    "context_splits": splits,
    "use_ftfy": ftfy,
    "ftfy_normalizer": normal_form,
    "prompt_key": prompt_key,
    "completion_key": completion_key,
    "multi_turn_key": turns,
    "sep_token": separator,
    "user_role": known_role("user"),
    "assistant_role": known_role("assistant"),
    "max_seq_length": length,
    "min_sequence_len": least,
    "short_seq_prob": short,
    "fold_long_doc": fold,
    "truncate_to_msl": truncation,
    "max_prompt_length": longest_prompt,
    "pack_sequences": packing,
    "seed": seed,
}
"""Arguments whose options, or note, depend on the others too."""

ELSEWHERE = (
    *("mode", "dataset_processor", "training_objective", "use_vsl"),
    *("tokenizer_type", "vocab_file", "encoder_file", "huggingface_tokenizer"),
)
"""Arguments that say the mode and the tokenizer."""

NOT_SUPPORTED = {
    "token_limit": "everything is converted: jaxdata.Phase(tokens=…) limits what is trained; "
    "remove it",
    "inverted_mask": "loss_mask is True where there is loss; remove it",
    "mlm_fraction": "masked language modelling is not supported",
    "mlm_with_gather": "masked language modelling is not supported",
    "semantic_loss_weight": "a token has loss or has none; remove it",
    "semantic_drop_mask": "leave parts of a record out with --transform; remove it",
    "semantic_attention_mask": "attention follows from segment_ids; remove it",
    "is_multimodal": "jaxdata reads text only, and no images",
    "multimodal": "jaxdata reads text only, and no images",
}
"""Arguments that must be off, and why."""

WITHOUT_EFFECT = {
    "params": "it is this file",
    "module": "the processor's name says which task it is",
    **dict.fromkeys(("num_nodes", "rank", "slurm"), "--engine ray converts on several nodes"),
    "data_splits_dir": "splits are made in the dataset",
    "split_seed": "a document's split follows from its text",
    "files_per_record": "the input decides the shards",
    "write_in_batch": "shards are written in batches",
    "write_chunk_size": "the input decides the shards",
    "write_remainder": "nothing remains, because documents are stored whole",
    "resume_from_checkpoint": "the same command resumes where it stopped",
    "display_pbar": "a progress bar is shown on a terminal",
    "max_chunk_size": "results do not depend on how the input is cut for workers",
    "read_chunk_size": "results do not depend on how the input is cut for workers",
    "fraction_of_RAM_alloted": "memory is bounded",
    "UNSAFE_skip_jsonl_decoding_errors": "bad records are set aside in quarantine.jsonl; "
    "--on-error fail stops at the first",
    "auth_token": "nothing is downloaded: download the tokenizer's folder first",
    "split_text_to_tokenize": "long texts are split where no token changes",
    "chunk_len_to_split": "long texts are split where no token changes",
    "remove_bos_in_chunks": "tokenizers add no BOS",
    "end_of_turn_token": "an answer ends with what the chat template writes after it",
    "response_delimiter": "the record says where its prompt ends",
    "respose_delimiter": "the record says where its prompt ends",
    "input_ids_dtype": "rows are int32; on disk tokens are uint16 where they can be",
    "input_mask_dtype": "loss masks are bool",
    "position_ids_dtype": "positions are int32",
    "seq_lengths_dtype": "segment_ids are int32",
    "excluded_tokens": "masked language modelling reads it only",
    "ignore_index": "masked language modelling reads it only",
    **dict.fromkeys(("image_dir", "image_key", "image_token"), "there are no images"),
    **dict.fromkeys(("num_patches", "max_num_img"), "there are no images"),
    "register_special_image_token": "there are no images",
    "use_single_image_token": "there are no images",
    "multi_modal_non_image_ex_key": "there are no images",
    "multi_modal_remove_text_prompt": "there are no images",
    "system_prompt_style": "there are no images",
}
"""Arguments that are not needed, and why."""

AT_ROWS = {
    "shuffle": "rows are shuffled anew in every epoch",
    "shuffle_seed": "jaxdata.pack(seed=…)",
}
"""Arguments that are decided when rows are made, and how."""

READ_BY: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("jsonl_key", "short_seq_prob"), _LM),
    **dict.fromkeys(("prompt_key", "chat_template"), (*_SFT, *_DPO)),
    **dict.fromkeys(("completion_key", "multi_turn_key", "multi_turn_content_key"), _SFT),
    **dict.fromkeys(("sep_token", "prompt_prefix", "completion_prefix"), _SFT),
    **dict.fromkeys(("eos_after_prompt", "truncate_to_msl"), _SFT),
    **dict.fromkeys(("chosen_key", "rejected_key", "user_role", "assistant_role"), _DPO),
    **dict.fromkeys(("fim_rate", "spm_rate"), _FIM),
    **dict.fromkeys(("fim_prefix_tok", "fim_middle_tok", "fim_suffix_tok"), _FIM),
    "max_prompt_length": _DPO,
    "fold_long_doc": ("LMData_VSL",),
    "pack_sequences": (*_LM, *_SFT),
}
"""The modes that read an argument, where not all do."""

RULES = {*OPTIONS, *DERIVED, *ELSEWHERE, *NOT_SUPPORTED, *WITHOUT_EFFECT, *AT_ROWS}
"""All arguments."""


def result_of(argument: str, value: Any, all_: Arguments) -> dict[str, Any] | str:
    """The options that an argument asks for, or a note; raises InputError for what cannot be."""
    if all_.mode not in READ_BY.get(argument, (all_.mode,)):
        return f"{NOT_NEEDED}{all_.mode} does not read it"
    if argument in OPTIONS:
        name, read = OPTIONS[argument]
        return {name: read(value)}
    if argument in NOT_SUPPORTED and value not in (False, "False", 0, "", [], {}):
        raise InputError(NOT_SUPPORTED[argument])
    if argument in WITHOUT_EFFECT:
        return NOT_NEEDED + WITHOUT_EFFECT[argument]
    if argument in AT_ROWS:
        return AT_LOAD + AT_ROWS[argument]
    found: dict[str, Any] | str = DERIVED[argument](value, all_) if argument in DERIVED else {}
    return found
