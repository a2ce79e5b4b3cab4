"""The modes of Cerebras' preprocessing, under every name that a release gave them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxdata.compat.cerebras_values import flag
from jaxdata.errors import InputError

TASKS = {
    "LMData": "lm",
    "LMData_VSL": "lm",
    "Summarization": "sft",
    "Summarization_VSL": "sft",
    "FIM": "fim",
    "DPO": "dpo",
}
"""Mode -> our task. The first mode of a task is what the task alone means."""

_PROCESSORS = {
    "LMDataPreprocessor": "LMData",
    "VSLLMDataPreprocessor": "LMData_VSL",
    "SummarizationPreprocessor": "Summarization",
    "CurationCorpusPreprocessor": "Summarization",
    "VSLSummarizationPreprocessor": "Summarization_VSL",
    "FIMDataPreprocessor": "FIM",
    "DPOPreprocessor": "DPO",
    "NLGPreprocessor": "NLG",
    "MLMPreprocessor": "MLM",
    "LlavaPhaseOnePreprocessor": "LlavaPhaseOne",
    "LlavaPhaseTwoPreprocessor": "LlavaPhaseTwo",
}
LATER = ("pretraining", "finetuning", "dpo", "nlg", "custom")
"""The modes of release 2.3 and later."""

_EXPECTED = f"expected one of {', '.join((*TASKS, *LATER[:3]))}"
_IMAGES = "jaxdata reads text only, and no images"
_MASKED = "masked language modelling is not supported"
_REFUSED = {
    "NLG": "its records hold token ids, and jaxdata tokenizes text: convert the texts that they "
    "were made of, with mode Summarization (finetuning)",
    "MLM": _MASKED,
    "LlavaPhaseOne": _IMAGES,
    "LlavaPhaseTwo": _IMAGES,
    "custom": "a token generator of your own is not run: choose the --task whose rows it makes, or "
    "write one (jaxdata/converter/README.md, To add a task)",
    "embedding_training": "embeddings are not supported",
    "embedding_generation": "embeddings are not supported",
}
_TELLING = {"fim_prefix_tok": "FIM", "chosen_key": "DPO", "completion_key": "Summarization"}
_TELLING |= {"multi_turn_key": "Summarization"}
_FIM = ("fim_rate", "spm_rate", "fim_prefix_tok", "fim_middle_tok", "fim_suffix_tok")


def mode_of(given: Mapping[str, Any], task: str | None) -> str:
    """The mode of a file, by its earlier name; `task` is ours, where the user chose one.

    Raises:
        InputError: there is no such mode, or it has no task here.
    """
    named = _named(given)
    if task is not None and TASKS.get(named) != task:
        return next((mode for mode, its in TASKS.items() if its == task), "LMData")
    if named not in TASKS:
        raise InputError(f"mode={named!r}: {_EXPECTED}; {_REFUSED[named]}")
    return named


def _named(given: Mapping[str, Any]) -> str:
    if mode := given.get("mode"):
        return _later(str(mode), given) if mode in LATER else _earlier(str(mode))
    if processor := given.get("dataset_processor"):
        if processor not in _PROCESSORS:
            raise InputError(
                f"dataset_processor={processor!r}: expected one of {', '.join(_PROCESSORS)}; for "
                "a processor of your own give --task, and what it does to a record as --transform"
            )
        return _PROCESSORS[processor]
    return next((mode for argument, mode in _TELLING.items() if given.get(argument)), "LMData")


def _earlier(mode: str) -> str:
    known = {name.lower(): name for name in (*TASKS, *_REFUSED)}
    if mode.lower() not in known:
        raise InputError(f"mode={mode!r}: {_EXPECTED}")
    return known[mode.lower()]


def _later(mode: str, given: Mapping[str, Any]) -> str:
    vsl = "_VSL" if flag(given.get("use_vsl") or False) else ""
    if mode == "pretraining":
        objective = given.get("training_objective")
        if objective in ("mlm", "bert_pretraining"):
            return "MLM"
        if objective == "fim" or any(given.get(name) is not None for name in _FIM):
            return "FIM"
        return f"LMData{vsl}"
    return {"finetuning": f"Summarization{vsl}", "dpo": "DPO", "nlg": "NLG"}.get(mode, mode)
