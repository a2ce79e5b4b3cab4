"""What changed since a source was made, or begun: its inputs, its settings, or the dataset itself.

Inputs are told by their size, head and tail; settings by the parameters that a source keeps.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jaxdata.base.errors import DatasetError, InputError, differences
from jaxdata.converter.parameters import Parameters, defaults_of
from jaxdata.dataset.manifest import Manifest, SourceEntry

_MAKERS = {"library", "hashing"}
"""What may be another where nothing is to be encoded."""
_FREELY_ADDED = {"text_key", "transform", "transform_digest", "input_digests"}
_FREELY_ADDED |= {"unit_bytes", "max_record_bytes", "piece_bytes"}
_HASHES = {"exact_hash", "minhash", "hashing"}


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


def _changes_since(entry: SourceEntry, wanted: Parameters) -> list[str]:
    digests = dict(zip(entry.inputs, entry.parameters["input_digests"], strict=True))
    inputs = [*_input_changes(digests, wanted.inputs)]
    ignored = _MAKERS | {"input_digests", *(["unit_bytes"] if inputs else [])}
    return [*_own_changes(entry.parameters, wanted.own(), ignored), *inputs]


def check_addition(source: str, entry: SourceEntry, wanted: Parameters) -> None:
    """Raise InputError unless documents with these parameters can be appended to a source."""
    if changes := _own_changes(entry.parameters, wanted.own(), _FREELY_ADDED):
        raise InputError(
            f"--append: {source} was made with different settings: {'; '.join(changes)}. Use the "
            "same settings, or another --source"
        )


def unfinished_changes(begun: bytes, wanted: Parameters) -> list[str]:
    """Name what differs from an unfinished conversion; raises ValueError if it is unreadable."""
    was = Parameters.model_validate_json(begun)
    inputs = [*_input_changes(was.inputs, wanted.inputs)]
    ignored = {"unit_bytes"} if inputs else set()
    changes = _own_changes(was.own(), wanted.own(), ignored) + _shared_changes(was, wanted)
    before, now = was.first_file, wanted.first_file
    if before != now:
        changes.append(f"--append: the source had {before} input files, has {now}")
    return [*changes, *inputs]


def _own_changes(was: Mapping[str, Any], now: Mapping[str, Any], ignored: set[str]) -> list[str]:
    """Name the parameters that differ, but for some; one that is missing has its default.

    Other inputs change the size of units, which is not worth naming then.
    """
    task, is_now = was.get("task", "lm"), now.get("task", "lm")
    if task != is_now:
        return [f"task was {task!r}, is {is_now!r}"]
    usual = defaults_of(task)
    found = differences({**usual, **was}, {**usual, **now})
    changes = {name: said for name, said in found.items() if name not in ignored}
    said = [*changes.values()]
    if "library" in changes and (first := was.get("library")):
        name, version = first.partition(",")[0].split(" ")
        said.append(
            "another library of the tokenizer could give other ids "
            f"(pip install '{name}=={version}' brings the first one back)"
        )
    if changes.keys() & _HASHES:
        said.append("--dedup and --minhash keep hashes; jaxdata dedup finds copies without, too")
    return said


def _shared_changes(was: Manifest | Parameters, now: Parameters) -> list[str]:
    """Name what differs in what all sources of a dataset share."""
    names = {"kind", "vocab_size", "eod_id", "bos_id", "pad_id"}
    before, after = (one.tokenizer.model_dump(include=names) for one in (was, now))
    changes = [f"tokenizer {change}" for change in differences(before, after).values()]
    if was.tokenizer.files != now.tokenizer.files and not changes:
        other = f"is {now.tokenizer.name!r} with other content"
        changes = [f"tokenizer was {was.tokenizer.name!r}, {other}"]
    before, after = ({"record_tokens": one.record_tokens} for one in (was, now))
    return [*changes, *differences(before, after).values()]


def _input_changes(was: dict[str, str], now: dict[str, str]) -> Iterator[str]:
    """Name the first input that is missing, new or changed, of each kind."""
    gone, new = sorted(was.keys() - now.keys()), sorted(now.keys() - was.keys())
    changed = sorted(name for name in was.keys() & now.keys() if was[name] != now[name])
    for names, fate in ((gone, "is missing"), (new, "is new"), (changed, "has other content")):
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            yield f"input {names[0]!r}{more} {fate}"
