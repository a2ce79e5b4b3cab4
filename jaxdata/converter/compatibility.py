"""Whether a conversion may go on where it writes: its own beginning, or sources that it adds to.

One function for each check; appending makes another generation of each source.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.facts import differences
from jaxdata.converter.inputs.files import InputFile
from jaxdata.converter.job import Job
from jaxdata.converter.parameters import Parameters, default_of
from jaxdata.converter.receipts import MergedReceipts, Quarantined, RecordPlace
from jaxdata.converter.splits import read_ratio
from jaxdata.converter.tasks.registry import kept_by_sources
from jaxdata.dataset.manifest import MANIFEST, Manifest, SourceEntry, read_manifest
from jaxdata.dataset.unfinished import UnfinishedJob
from jaxdata.storage import Store, open_store

_SHOWN = 8
_PLAIN = str | int | float | bool | None
_UNSAID = ("progress", "command")


def call_text(function: Callable[..., Any], arguments: Mapping[str, Any]) -> str:
    """The call of a function with some arguments, without those that are its defaults.

    Of long lists the first are named, and of objects that are no values the type or name.

    >>> def convert(inputs, *, output, split="train", **options): ...
    >>> call_text(convert, {"inputs": ["a"], "output": "b", "split": "train", "bos": True})
    "jaxdata.convert(['a'], output='b', bos=True)"
    """
    known = inspect.signature(function).parameters
    said = []
    for name, value in arguments.items():
        if name in _UNSAID or (name in known and value == known[name].default):
            continue
        said.append(_text(value) if name == "inputs" else f"{name}={_text(value)}")
    return f"jaxdata.{function.__name__}({', '.join(said)})"


def _text(value: Any) -> str:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, list | tuple):
        more = ["…"] if len(value) > _SHOWN else []
        return f"[{', '.join([*map(_text, value[:_SHOWN]), *more])}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_text(key)}: {_text(one)}' for key, one in value.items())}}}"
    name = getattr(value, "name", None) or getattr(value, "__qualname__", None)
    return repr(name) if isinstance(name, str) else f"<{type(value).__name__}>"


def with_kept_options(
    options: Mapping[str, Any], output: str | os.PathLike[str], split: str, source: str
) -> dict[str, Any]:
    """The options of a conversion, with what its source, begun or finished, was made with."""
    task = options.get("task", "lm")
    names = kept_by_sources(task) - options.keys() if isinstance(task, str) else ()
    if not names:  # as nearly always
        return dict(options)
    ratio = options.get("split_ratio")
    splits = list(read_ratio(ratio)) if ratio else [split]
    was = _made_with(open_store(output), [f"{name}/{source}" for name in splits])
    if was is None or was.get("task", "lm") != task:
        return dict(options)
    return {name: was.get(name, default_of(name, task)) for name in names} | {**options}


def _made_with(store: Store, outputs: Sequence[str]) -> dict[str, Any] | None:
    """The parameters of a source, without defaults; None if there is none yet."""
    begun = UnfinishedJob(store, outputs[0]).begun()
    with suppress(ValueError):  # what cannot be read is told of when it is to be resumed
        if begun is not None:
            return Parameters.model_validate_json(begun).own()
    if store.read(MANIFEST) is None:
        return None
    sources = read_manifest(store).sources
    return next((sources[name].parameters for name in outputs if name in sources), None)


def check_dataset(manifest: Manifest, wanted: Parameters, url: str) -> None:
    """Raise InputError unless a source with these parameters can join the dataset."""
    if changes := _shared_changes(manifest, wanted):
        raise InputError(
            f"{url}: all sources of a dataset share one tokenizer and record size: "
            f"{'; '.join(changes)}. Use the dataset's, or another --output"
        )


def check_finished(manifest: Manifest, source: str, wanted: Parameters, url: str) -> None:
    """Raise InputError if a finished source has other inputs or parameters."""
    entry = manifest.sources[source]
    changes = [_changes_since(entry.at(n), wanted) for n in range(len(entry.generations) + 1)]
    if all(changes):
        added = len(changes[-1]) == 1 and set(wanted.inputs) > set(entry.inputs)
        remedy = "Add these files with --append, or use" if added else "Use"
        raise InputError(
            f"{url} already has {source} with different "
            f"{'inputs' if added else 'settings'}: {'; '.join(changes[-1])}. "
            f"{remedy} another --source or --output"
        )


def check_unchanged(
    manifest: Manifest, outputs: Iterable[str], base: Mapping[str, SourceEntry], url: str
) -> None:
    """Raise DatasetError if sources are not what a conversion knows them as: files are replaced."""
    for name in outputs:
        if manifest.sources.get(name) != base.get(name):
            raise DatasetError(
                f"{url}: {name} was changed by another process while documents were added to "
                "it; run the same command again"
            )


_FREELY_ADDED = {"text_key", "text_joiner", "transform", "transform_digest"}
_FREELY_ADDED |= {"unit_bytes", "max_record_bytes", "piece_bytes"}
_MAKERS = {"library", "hashing"}
_HASHES = {"exact_hash", "minhash"}
_ABOUT_HASHES = "--dedup and --minhash keep hashes; jaxdata dedup finds copies without them, too"


def _changes_since(entry: SourceEntry, wanted: Parameters) -> list[str]:
    was = dict(entry.parameters)
    digests = dict(zip(entry.inputs, was.pop("input_digests", []), strict=False))
    inputs = list(_input_changes(digests, wanted.inputs))
    return [*_own_changes(was, wanted.own(), other_inputs=bool(inputs)), *inputs]


def check_addition(source: str, entry: SourceEntry, wanted: Parameters) -> None:
    """Raise InputError unless documents with these parameters can be appended to a source."""
    was = {k: v for k, v in entry.parameters.items() if k not in _FREELY_ADDED | {"input_digests"}}
    now = {k: v for k, v in wanted.own().items() if k not in _FREELY_ADDED}
    if changes := [*_own_changes(was, now), *_library_changes(was, now)]:
        raise InputError(
            f"--append: {source} was made with different settings: {'; '.join(changes)}. Use the "
            "same settings, or another --source"
        )


def unfinished_changes(begun: bytes, wanted: Parameters) -> list[str]:
    """Name what differs from an unfinished conversion; raises ValueError if it is unreadable."""
    was = Parameters.model_validate_json(begun)
    inputs = list(_input_changes(was.inputs, wanted.inputs))
    changes = [*_own_changes(was.own(), wanted.own(), other_inputs=bool(inputs))]
    changes += _library_changes(was.own(), wanted.own())
    changes += _shared_changes(was, wanted)
    if was.first_file != wanted.first_file:
        changes.append(
            f"--append: the source had {was.first_file} input files, has {wanted.first_file}"
        )
    return [*changes, *inputs]


def modified_meanwhile(file: InputFile, folder: str) -> InputError:
    """The error for an input that became another one under a conversion in `folder`."""
    return InputError(
        f"{file.where} was modified while it was converted. Delete {folder}, run the same command "
        "again, and do not modify inputs meanwhile"
    )


def bad_record(place: RecordPlace, bad: Quarantined) -> InputError:
    """The error for the record that a conversion stopped at."""
    return InputError(
        f"{place}: {bad.reason}. Fix the record, or skip such records with --on-error quarantine"
    )


def no_documents(merged: MergedReceipts, options: str) -> InputError:
    """The error for a conversion without documents; `options` choose the fields that are read."""
    if merged.first_bad is None and merged.dropped:
        counts = ", ".join(f"{n:,} {reason}" for reason, n in sorted(merged.dropped.items()))
        return InputError(f"no document is left: {counts}")
    if merged.first_bad is None:
        return InputError("the input files are empty: there is no record in them")
    place, first = merged.first_bad
    (reason, *others) = reasons = merged.reasons
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
    """Name the parameters that differ; a missing one has its default.

    Other inputs change the size of units, which is not worth naming then. The library of the
    tokenizer may be another, and what makes hashes, if nothing is to be encoded.
    """
    tasks = was.get("task", "lm"), now.get("task", "lm")
    if tasks[0] != tasks[1]:
        return [f"task was {tasks[0]!r}, is {tasks[1]!r}"]
    names = (was.keys() | now.keys()) - ({"unit_bytes"} if other_inputs else set()) - _MAKERS
    usual = {name: default_of(name, tasks[0]) for name in names}
    before, after = ({name: given.get(name, usual[name]) for name in names} for given in (was, now))
    changes = differences(before, after)
    return [*changes.values(), *([_ABOUT_HASHES] if changes.keys() & _HASHES else [])]


def _library_changes(was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Tell of a library that could give other ids; an earlier jaxdata did not keep which it was."""
    before, after = was.get("library"), now.get("library")
    if before and after and before != after:
        name, version = before.partition(",")[0].split(" ")
        yield (
            f"the tokenizer's library was {before}, is {after}, which could give other ids "
            f"(pip install '{name}=={version}' brings the first one back)"
        )
    before, after = was.get("hashing"), now.get("hashing")
    if before and after and before != after:
        yield f"hashes of documents were made by {before}, are by {after}"


def _shared_changes(was: Manifest | Parameters, now: Parameters) -> list[str]:
    """Name what differs in what all sources of a dataset share."""
    names = {"kind", "vocab_size", "eod_id", "bos_id", "pad_id"}
    before, after = was.tokenizer.model_dump(include=names), now.tokenizer.model_dump(include=names)
    changes = [f"tokenizer {change}" for change in differences(before, after).values()]
    if was.tokenizer.files != now.tokenizer.files and not changes:
        other = f"is {now.tokenizer.name!r} with other content"
        changes = [f"tokenizer was {was.tokenizer.name!r}, {other}"]
    records = [{"record_tokens": one.record_tokens} for one in (was, now)]
    return [*changes, *differences(records[0], records[1]).values()]


def _input_changes(was: dict[str, str], now: dict[str, str]) -> Iterator[str]:
    """Name the first input that is missing, new or changed, of each kind."""
    gone, new = sorted(was.keys() - now.keys()), sorted(now.keys() - was.keys())
    changed = sorted(name for name in was.keys() & now.keys() if was[name] != now[name])
    for names, fate in ((gone, "is missing"), (new, "is new"), (changed, "has other content")):
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            yield f"input {names[0]!r}{more} {fate}"


def added_to(
    manifest: Manifest, outputs: list[str], job: Job
) -> tuple[Job, dict[str, SourceEntry]]:
    """Return the job for files that are new to the sources that it may feed, and these sources.

    Raises:
        InputError: the sources have different settings, or a file of the same name.
    """
    known = manifest.sources
    entries = {name: known[name] for name in outputs if name in known}
    if not entries:
        return job, {}
    for name, entry in entries.items():
        check_addition(name, entry, job.parameters)
    # All were made at the same times; one may have got no document of the last files.
    longest = max(entries.values(), key=lambda entry: len(entry.inputs))
    new = _new_files(longest, job.parameters, job.files)
    parameters = job.parameters.model_copy(
        update={
            "inputs": {file.name: job.parameters.inputs[file.name] for file in new},
            "first_file": len(longest.inputs),
        }
    )
    return replace(job, files=new, parameters=parameters), entries


def _new_files(
    entry: SourceEntry, parameters: Parameters, files: list[InputFile]
) -> list[InputFile]:
    digests = entry.parameters["input_digests"]
    names = dict(zip(entry.inputs, digests, strict=True))
    new = [file for file in files if parameters.inputs[file.name] not in digests]
    same = next((file for file in new if file.name in names), None)
    if same:
        raise InputError(
            f"--append: {same.name!r} was converted before with other content, and appending it "
            "would repeat its documents. Give only new files, under new names: if two folders have "
            "files of the same names, give their parent folder, or rename the files"
        )
    return new
