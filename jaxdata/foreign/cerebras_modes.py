"""What a parameters file of Cerebras says: its values, its mode, its splits and lengths of rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from jaxdata.base.errors import InputError


def flag(value: Any) -> bool:
    """True or False, also as text; raises InputError for anything else."""
    found = {"true": True, "false": False}.get(str(value).lower())
    if found is None:
        raise InputError("expected True or False")
    return found


def whole(value: Any, least: int = 0) -> int:
    """A whole number, at least so large."""
    number = value if isinstance(value, int) else int(value) if str(value).isdecimal() else None
    if number is None or isinstance(value, bool) or number < least:
        raise InputError(f"expected a whole number, {least} or more")
    return number


def share(value: Any) -> float:
    """A number from 0 to 1."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if isinstance(value, bool) or not 0 <= number <= 1:
        raise InputError("expected a number from 0 to 1")
    return number


def text(value: Any) -> str:
    """A text, which is not empty."""
    if not isinstance(value, str) or not value:
        raise InputError("expected a text")
    return value


def any_text(value: Any) -> str:
    """A text, perhaps empty."""
    return "" if value == "" else text(value)


def token(value: Any) -> str | int:
    """A token by its text or id."""
    return whole(value) if isinstance(value, int) else text(value)


def mapping(value: Any) -> dict[str, Any]:
    """Names and values."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise InputError("expected names and values")
    return value


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
    if mode := str(given.get("mode") or ""):
        known = {name.lower(): name for name in (*TASKS, *_REFUSED)}
        if mode not in LATER and mode.lower() not in known:
            raise InputError(f"mode={mode!r}: {_EXPECTED}")
        return _later(mode, given) if mode in LATER else known[mode.lower()]
    if processor := given.get("dataset_processor"):
        if processor not in _PROCESSORS:
            raise InputError(
                f"dataset_processor={processor!r}: expected one of {', '.join(_PROCESSORS)}; for "
                "a processor of your own give --task, and what it does to a record as --transform"
            )
        return _PROCESSORS[processor]
    return next((mode for argument, mode in _TELLING.items() if given.get(argument)), "LMData")


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


def split_ratio(given: Mapping[str, Any]) -> str:
    """The splits of `data_splits` and `context_splits` as `--split-ratio`.

    Documents for rows of one length are a split of their own, named after the length.

    >>> contexts = {"MSL_List": ["0.5K", 1024], "split_fractions": ["1/4", 0.75]}
    >>> split_ratio({"context_splits": contexts})
    'train-512=0.25,train-1024=0.75'
    """
    found = dict(_shares(given))
    return ",".join(
        f"{name}={float(share):.9f}".rstrip("0").rstrip(".") for name, share in found.items()
    )


def row_lengths(given: Mapping[str, Any]) -> list[int]:
    """The lengths of rows in all `context_splits`; empty without."""
    splits = mapping(given.get("data_splits") or {}).values()
    contexts = [
        given.get("context_splits"),
        *(mapping(one).get("context_splits") for one in splits),
    ]
    return sorted({length for one in contexts if one for length, _ in _contexts(one)})


def _shares(given: Mapping[str, Any]) -> Iterator[tuple[str, Fraction]]:
    splits = mapping(given.get("data_splits") or {"train": {"split_fraction": 1}})
    for name, settings in splits.items():
        share = _fraction(mapping(settings).get("split_fraction"))
        contexts = settings.get("context_splits") or given.get("context_splits")
        if not contexts:
            yield name, share
        else:
            yield from ((f"{name}-{length}", share * part) for length, part in _contexts(contexts))


def _contexts(value: Any) -> list[tuple[int, Fraction]]:
    contexts = mapping(value)
    lengths, parts = contexts.get("MSL_List"), contexts.get("split_fractions")
    if not (isinstance(lengths, list) and isinstance(parts, list) and len(lengths) == len(parts)):
        raise InputError("context_splits: expected MSL_List and split_fractions, equally long")
    return [(_length(one), _fraction(part)) for one, part in zip(lengths, parts, strict=True)]


def _length(value: Any) -> int:
    thousands = str(value).upper().removesuffix("K")
    if thousands == str(value):
        return whole(value, 1)
    try:
        return whole(int(Fraction(thousands) * 1_024), 1)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"MSL_List: {value!r}: expected a length such as 2048 or 2K") from None


def _fraction(value: Any) -> Fraction:
    try:
        share = Fraction(str(value))
    except (ValueError, ZeroDivisionError):
        share = Fraction(-1)
    if not 0 <= share <= 1:
        raise InputError(f"a share of {value!r}: expected a number from 0 to 1")
    return share
