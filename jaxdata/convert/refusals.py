"""What a conversion refuses, each by the name of what does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jaxdata.convert.collected import Collected
from jaxdata.convert.parameters import Parameters, default_of
from jaxdata.convert.places import Place
from jaxdata.convert.receipts import Quarantined
from jaxdata.errors import DatasetError, InputError
from jaxdata.format.manifest import Manifest, SourceEntry, TokenizerEntry

__all__ = [
    "bad_record",
    "check_addition",
    "check_dataset",
    "check_finished",
    "check_unfinished",
    "failed_transform",
    "no_documents",
    "writing",
]


def check_dataset(manifest: Manifest, wanted: Parameters, url: str) -> None:
    """Raise InputError unless a source made with `wanted` can join the dataset."""
    changes = _tokenizer_changes(manifest.tokenizer, wanted.tokenizer)
    if manifest.record_tokens != wanted.record_tokens:
        changes.append(_change("record_tokens", manifest.record_tokens, wanted.record_tokens))
    if changes:
        raise InputError(
            f"{url}: all sources of a dataset share one tokenizer and record size: "
            f"{'; '.join(changes)}. Use the dataset's, or another --output"
        )


def check_finished(manifest: Manifest, source: str, wanted: Parameters, url: str) -> None:
    """Raise InputError if a finished source was made from other inputs or parameters."""
    entry = manifest.sources[source]
    changes = [_changes_since(entry.at(n), wanted) for n in range(len(entry.generations) + 1)]
    if all(changes):
        raise InputError(
            f"{url} already has {source}, made otherwise: {'; '.join(changes[-1])}. "
            "Use another --source or --output"
        )


_FREELY_ADDED = (
    "text_key",
    "text_joiner",
    "transform",
    "transform_digest",
    "unit_bytes",
    "max_record_bytes",
    "piece_bytes",
)


def _changes_since(entry: SourceEntry, wanted: Parameters) -> list[str]:
    was = dict(entry.parameters)
    digests = dict(zip(entry.inputs, was.pop("input_digests"), strict=True))
    inputs = list(_input_changes(digests, wanted.inputs))
    return [*_own_changes(was, wanted.own(), other_inputs=bool(inputs)), *inputs]


def check_addition(source: str, entry: SourceEntry, wanted: Parameters) -> None:
    """Raise InputError unless documents made with `wanted` can be added to a source."""
    was = {k: v for k, v in entry.parameters.items() if k not in (*_FREELY_ADDED, "input_digests")}
    now = {k: v for k, v in wanted.own().items() if k not in _FREELY_ADDED}
    if changes := _own_changes(was, now):
        raise InputError(
            f"--append: {source} was made otherwise: {'; '.join(changes)}. Give the same again, or "
            "another --source"
        )


def check_unfinished(begun: bytes, wanted: Parameters, url: str) -> None:
    """Raise InputError if the unfinished conversion in `url` was asked for something else."""
    try:
        was = Parameters.model_validate_json(begun)
    except ValueError as error:
        raise InputError(
            f"{url} holds an unfinished conversion of another version of jaxdata; "
            "delete that folder to begin anew"
        ) from error
    inputs = list(_input_changes(was.inputs, wanted.inputs))
    changes = [
        *_own_changes(was.own(), wanted.own(), other_inputs=bool(inputs)),
        *_own_changes(
            {"record_tokens": was.record_tokens}, {"record_tokens": wanted.record_tokens}
        ),
        *_tokenizer_changes(was.tokenizer, wanted.tokenizer),
        *([] if was.first_file == wanted.first_file else ["--append was, or was not, given"]),
        *inputs,
    ]
    if changes:
        raise InputError(
            f"{url} holds an unfinished conversion of another kind: {'; '.join(changes)}. "
            "Give the same again to finish it, or delete that folder to begin anew"
        )


def bad_record(place: Place, bad: Quarantined) -> InputError:
    """Say which record a conversion stopped at."""
    return InputError(
        f"{place}: {bad.reason}. Mend the record, or have such records set aside with "
        "--on-error quarantine"
    )


def failed_transform(place: Place, failure: str) -> InputError:
    """Say at which record, and how, the user's function failed."""
    return InputError(f"{place}: {failure}")


def no_documents(collected: Collected, options: str) -> InputError:
    """Say why there is not one document; `options` say which fields are read."""
    if collected.first_bad is None and collected.dropped:
        counts = ", ".join(f"{n:,} {reason}" for reason, n in sorted(collected.dropped.items()))
        return InputError(f"no document is left: {counts}")
    if collected.first_bad is None:
        return InputError("the input files are empty: there is no record in them")
    reasons = collected.reasons
    place, first = collected.first_bad
    (reason, *others) = reasons
    if reason.startswith("no key ") and not others:
        return InputError(
            f"no record has the key {reason.removeprefix('no key ')}; {place} has "
            f"{', '.join(map(repr, first.keys)) or 'no keys'}: name one of these with {options}"
        )
    counts = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
    return InputError(
        f"no record has a usable text: {counts}; the first is {place}. "
        f"Are these the files, and {'is' if ' ' not in options else 'are'} {options} right?"
    )


def _own_changes(was: dict[str, Any], now: dict[str, Any], other_inputs: bool = False) -> list[str]:
    """Name the parameters that differ; one that is missing is at its default.

    With other inputs, another size of units is what follows, and nothing to tell of.
    """
    tasks = was.get("task", "lm"), now.get("task", "lm")
    if tasks[0] != tasks[1]:
        return [_change("task", *tasks)]
    before = {name: was.get(name, default_of(name, tasks[0])) for name in [*was, *now]}
    after = {name: now.get(name, default_of(name, tasks[0])) for name in before}
    return [
        _change(name, before[name], after[name])
        for name in before
        if before[name] != after[name] and not (other_inputs and name == "unit_bytes")
    ]


@contextmanager
def writing(url: str) -> Iterator[None]:
    """Say what to do where the dataset cannot be written; what is read has errors of its own."""
    try:
        yield
    except OSError as error:
        file = f" ({error.filename})" if error.filename else ""
        raise DatasetError(
            f"{url} cannot be written: {error.strerror or error}{file}. What is finished is kept: "
            "when that is mended, the same command goes on from there"
        ) from error


def _tokenizer_changes(was: TokenizerEntry, now: TokenizerEntry) -> list[str]:
    changes = [
        _change(f"tokenizer {key}", getattr(was, key), getattr(now, key))
        for key in ("kind", "vocab_size", "eod_id", "bos_id", "pad_id")
        if getattr(was, key) != getattr(now, key)
    ]
    if was.files != now.files and not changes:
        changes = [f"tokenizer was {was.name!r}, is {now.name!r} with other content"]
    return changes


def _input_changes(was: dict[str, str], now: dict[str, str]) -> Iterator[str]:
    """Name what differs between two sets of inputs, the first of each kind."""
    gone, new = sorted(was.keys() - now.keys()), sorted(now.keys() - was.keys())
    changed = sorted(name for name in was.keys() & now.keys() if was[name] != now[name])
    for names, fate in ((gone, "is missing"), (new, "is new"), (changed, "has other content")):
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            yield f"input {names[0]!r}{more} {fate}"


def _change(name: str, was: Any, now: Any) -> str:
    return f"{name} was {was!r}, is {now!r}"
