"""Every argument of Cerebras' preprocessing, of all releases, and its rule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from jaxdata.base.errors import InputError
from jaxdata.converter.chat.formatting import texts_like_tokens

IMAGES = "jaxdata reads text only, and no images"
MASKED = "masked language modelling is not supported"
Read = Callable[[Any], Any]


def _reader(kind: Any, expected: str) -> Read:
    """What reads a value of a kind; it raises InputError for another."""
    adapter = TypeAdapter(kind)

    def read(value: Any) -> Any:
        try:
            if isinstance(value, bool) and kind is not bool:
                raise ValueError(value)
            return adapter.validate_python(value)
        except ValueError:
            raise InputError(f"expected {expected}") from None

    return read


flag = _reader(bool, "True or False")
whole = _reader(Annotated[int, Field(ge=0)], "a whole number, 0 or more")
count = _reader(Annotated[int, Field(ge=1)], "a whole number, 1 or more")
share = _reader(Annotated[float, Field(ge=0, le=1)], "a number from 0 to 1")
text = _reader(Annotated[str, Field(min_length=1)], "a text")
any_text = _reader(str, "a text")
token = _reader(
    Annotated[int, Field(ge=0)] | Annotated[str, Field(min_length=1)], "a token's text or id"
)
mapping = _reader(dict[str, Any], "names and values")
names = _reader(list[str], "names of files")

_LM, _SFT = ("LMData", "LMData_VSL", "FIM"), ("Summarization", "Summarization_VSL")
_FIM, _DPO = ("FIM",), ("DPO",)


@dataclass(frozen=True)
class Arguments:
    """All arguments of a file, with null where it says so."""

    given: Mapping[str, Any]
    mode: str
    task: str
    """ours"""
    later: bool
    """whether the file is of release 2.3 or later"""


Rule = Callable[[Any, Arguments], dict[str, Any] | str]
"""The options that a value asks for, or a note; raises InputError for what cannot be had."""
_AT_LOAD, NOT_NEEDED = "decided when rows are made: ", "not needed: "


def _option(name: str, read: Read) -> Rule:
    return lambda value, _: {name: read(value)}


def _note(text: str) -> Rule:
    return lambda _value, _all: text


def _refused(reason: str) -> Rule:
    """Of an argument that must be off."""

    def check(value: Any, _: Arguments) -> dict[str, Any]:
        if value not in (False, "False", 0, "", [], {}):
            raise InputError(f"{reason}; remove it")
        return {}

    return check


def _must_be(*values: str, why: str) -> Rule:
    """Of an argument that has one meaning here, whatever the file says."""

    def check(value: Any, _: Arguments) -> dict[str, Any]:
        if value not in values:
            raise InputError(f"expected {' or '.join(values)}: {why}")
        return {}

    return check


def _inputs(value: Any, all_: Arguments) -> dict[str, Any] | str:
    if all_.given.get("metadata_files"):
        return f"{NOT_NEEDED}metadata_files is given, which overrides it"
    return {"inputs": (text(value),)}


def _files_from(value: Any, _: Arguments) -> dict[str, Any]:
    files = names(value.split(",") if isinstance(value, str) else value)
    return {"files_from": tuple(file.strip() for file in files)}


def _packing(value: Any, all_: Arguments) -> str:
    kept_whole = all_.task == "fim" or all_.mode.endswith("_VSL")
    packs = flag(value) and all_.mode != "Summarization"
    strategy = "best_fit" if packs and kept_whole else "concat" if packs else "pad"
    return f"{_AT_LOAD}jaxdata.pack(strategy={strategy!r})"


def _row_length(value: Any, all_: Arguments) -> dict[str, Any] | str:
    """It limits answers and contexts, and is else decided later."""
    longest = count(value)
    if all_.task == "sft":  # longer ones are dropped
        return {"max_tokens": longest}
    if all_.task == "fim":
        return {"fim_context": longest}
    call = f"pairs(seq_len={longest})" if all_.task == "dpo" else f"pack(seq_len={longest})"
    return f"{_AT_LOAD}jaxdata.{call}"


def _least(value: Any, all_: Arguments) -> dict[str, Any] | str:
    """Of a document, unless documents are joined to rows that are all full."""
    tokens, packs = whole(value), all_.given.get("pack_sequences")
    if all_.mode in ("LMData", "FIM") and (packs is None or flag(packs)):
        return f"{NOT_NEEDED}with pack_sequences rows are full, and so none is that short"
    return {"min_tokens": tokens} if tokens else {}


def _fold(value: Any, all_: Arguments) -> dict[str, Any] | str:
    if flag(value):
        return f"{NOT_NEEDED}long documents are always cut into windows when rows are made"
    return {"max_tokens": count(all_.given.get("max_seq_length") or 2_048) + 1}


def _ftfy(value: Any, all_: Arguments) -> dict[str, Any]:
    """Repairing texts, which also normalises them."""
    form = all_.given.get("ftfy_normalizer", "NFC")  # null means none
    if not flag(value) or form in (None, "None"):
        return {"ftfy": flag(value)}
    return {"ftfy": True, "normalize": form}


def _normal_form(value: Any, all_: Arguments) -> dict[str, Any] | str:
    if value not in (forms := ("NFC", "NFD", "NFKC", "NFKD", "None")):
        raise InputError(f"expected {' or '.join(forms)}")
    return {} if flag(all_.given.get("use_ftfy") or False) else f"{NOT_NEEDED}use_ftfy is off"


def _separator(value: Any, all_: Arguments) -> dict[str, Any]:
    separator = {"separator": any_text(value)}
    # White space stays text; so does what releases from 2.3 on put there, as any other text.
    if not all_.later and value and not value.isspace():
        return separator | {"add_special": [value]}
    return separator | ({"template_text_ok": True} if texts_like_tokens(value) else {})


def _split_ratio(value: Any, _: Arguments) -> dict[str, Any]:
    """Splits by their share, which may be text such as 1/5."""
    shares = {name: mapping(split).get("split_fraction") for name, split in mapping(value).items()}
    try:
        ratios = [f"{name}={float(Fraction(str(share)))}" for name, share in shares.items()]
    except (ValueError, ZeroDivisionError):
        raise InputError("split_fraction: expected a number from 0 to 1") from None
    if inner := [name for name in mapping(value) if value[name].get("context_splits")]:
        raise InputError(
            f"context_splits of {inner[0]}: --split-ratio gives each length of rows a split"
        )
    return {"split_ratio": ",".join(ratios)}


def _in_turns(name: str) -> Rule:
    """The field of a prompt or completion, perhaps within the objects of `multi_turn_key`."""

    def read(key: Any, all_: Arguments) -> dict[str, Any]:
        turns = all_.task == "sft" and all_.given.get("multi_turn_key")
        inside = turns and not all_.given.get("multi_turn_content_key")
        return {name: f"{turns}.{text(key)}" if inside else text(key)}

    return read


def _turns(value: Any, all_: Arguments) -> dict[str, Any]:
    """Conversations, or several prompts and completions of a record."""
    alternating = all_.given.get("multi_turn_content_key") or not all_.given.get("prompt_key")
    return {"messages_key": text(value)} if alternating else {"pairs": "turns"}


_ELSEWHERE = (
    "mode dataset_processor training_objective use_vsl tokenizer_type vocab_file encoder_file "
    "huggingface_tokenizer"
)
"""Arguments that say the mode and the tokenizer."""
_UNNEEDED = (
    "params module num_nodes rank slurm data_splits_dir split_seed files_per_record "
    "write_chunk_size write_in_batch write_remainder resume_from_checkpoint display_pbar "
    "max_chunk_size read_chunk_size fraction_of_RAM_alloted UNSAFE_skip_jsonl_decoding_errors "
    "auth_token split_text_to_tokenize chunk_len_to_split remove_bos_in_chunks end_of_turn_token "
    "response_delimiter respose_delimiter input_ids_dtype input_mask_dtype position_ids_dtype "
    "seq_lengths_dtype excluded_tokens ignore_index image_dir image_key image_token num_patches "
    "max_num_img system_prompt_style register_special_image_token use_single_image_token "
    "multi_modal_non_image_ex_key multi_modal_remove_text_prompt"
)
"""Arguments that are read, and have nothing to say here."""
RULES: dict[str, Rule] = {
    "output_dir": _option("output", text),
    "output_name": _option("source", text),
    "processes": _option("workers", lambda value: whole(value) or None),
    "eos_id": _option("eod", token),
    "pad_id": _option("pad_token", token),
    "jsonl_key": _option("text_key", text),
    **{name: _option(name, text) for name in ("chosen_key", "rejected_key", "chat_template")},
    "multi_turn_content_key": _must_be(
        "content", "value", "text", why="messages have their texts there; use --transform"
    ),
    **{name: _option(name, any_text) for name in ("prompt_prefix", "completion_prefix")},
    **{name: _option(name, share) for name in ("fim_rate", "spm_rate")},
    **{f"fim_{part}_tok": _option(f"fim_{part}", token) for part in ("prefix", "middle", "suffix")},
    "input_dir": _inputs,
    "metadata_files": _files_from,
    "data_splits": _split_ratio,
    "context_splits": _refused(
        "rows of any length are made of the same documents: --split-ratio gives each length a split"
    ),
    "use_ftfy": _ftfy,
    "ftfy_normalizer": _normal_form,
    "prompt_key": _in_turns("prompt_key"),
    "completion_key": _in_turns("completion_key"),
    "multi_turn_key": _turns,
    "sep_token": _separator,
    "user_role": _must_be("user", why="chat templates know that role"),
    "assistant_role": _must_be("assistant", why="chat templates know that role"),
    "max_seq_length": _row_length,
    "min_sequence_len": _least,
    "short_seq_prob": _refused(
        "sequences are not shortened at random; rows.random_map does what you like with rows"
    ),
    "fold_long_doc": _fold,
    "max_prompt_length": lambda value, _: f"{_AT_LOAD}jaxdata.pairs(max_prompt={count(value)})",
    "pack_sequences": _packing,
    "seed": _note(f"{NOT_NEEDED}what is drawn follows from each text; pack(seed=…) shuffles rows"),
    "shuffle": _note(f"{_AT_LOAD}rows are shuffled anew in every epoch"),
    "shuffle_seed": _note(f"{_AT_LOAD}jaxdata.pack(seed=…)"),
    **dict.fromkeys(_ELSEWHERE.split(), lambda _value, _all: {}),
    "wikitext_detokenize": _refused("undo marks of WikiText in a function for --transform"),
    "eos_after_prompt": _refused("a prompt ends with separator, the text of a token, say"),
    "truncate_to_msl": _refused(
        "prompts and answers are not shortened: longer ones are left out, by max_tokens, or "
        "shortened in a function for --transform"
    ),
    "token_limit": _refused("everything is converted: jaxdata.Phase(tokens=…) limits training"),
    "inverted_mask": _refused("loss_mask is True where there is loss"),
    "semantic_loss_weight": _refused("a token has loss or has none"),
    "semantic_drop_mask": _refused("leave parts of a record out with --transform"),
    "semantic_attention_mask": _refused("attention follows from segment_ids"),
    **dict.fromkeys(("mlm_fraction", "mlm_with_gather"), _refused(MASKED)),
    **dict.fromkeys(("is_multimodal", "multimodal"), _refused(IMAGES)),
    **dict.fromkeys(_UNNEEDED.split(), _note(f"{NOT_NEEDED}jaxdata/foreign/README.md says why")),
}
"""Every argument, of all releases."""
READ_BY: dict[str, tuple[str, ...]] = {
    argument: modes
    for modes, arguments in (
        (_LM, "jsonl_key short_seq_prob"),
        ((*_SFT, *_DPO), "prompt_key chat_template"),
        (_SFT, "completion_key multi_turn_key multi_turn_content_key sep_token prompt_prefix"),
        (_SFT, "completion_prefix eos_after_prompt truncate_to_msl"),
        (_DPO, "chosen_key rejected_key user_role assistant_role max_prompt_length"),
        (_FIM, "fim_rate spm_rate fim_prefix_tok fim_middle_tok fim_suffix_tok"),
        (("LMData_VSL",), "fold_long_doc"),
        ((*_LM, *_SFT), "pack_sequences"),
    )
    for argument in arguments.split()
}
"""The modes that read an argument, where not all do."""
