"""Every argument of Cerebras' preprocessing, of all releases, and its rule."""

from __future__ import annotations

from jaxdata.compat.cerebras_functions import (
    AT_LOAD,
    NOT_NEEDED,
    Rule,
    files_from,
    fold,
    ftfy,
    inputs,
    key_in_turns,
    least,
    length,
    must_be,
    must_be_off,
    normal_form,
    nothing,
    option,
    packing,
    read_in,
    seed,
    separator,
    short,
    splits,
    truncation,
    turns,
)
from jaxdata.compat.cerebras_values import any_text, flag, share, token, whole

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
"""Where data comes from and goes to."""

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
"""What is read of a record, and what becomes of it."""

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
"""What is decided of rows."""

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
