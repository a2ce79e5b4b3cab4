"""What changed since a source was made, or begun: its inputs, its settings, or the dataset itself.

Inputs are told by their size, head and tail, and by a hash of the records that units read of them;
settings by the parameters that a source keeps.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import orjson
from isal import isal_zlib

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.base.facts import differences
from jaxdata.converter.inputs.files import FilePart, InputFile, ReadSettings, written_at
from jaxdata.converter.inputs.parsing import Raw, TextPiece, Unreadable, in_runs, plain_value
from jaxdata.converter.inputs.reading import cut, record_runs
from jaxdata.converter.parameters import Parameters, defaults_of
from jaxdata.dataset.history import InputHashes, hashes_name, read_hashes
from jaxdata.dataset.index import Member
from jaxdata.dataset.lease import leased
from jaxdata.dataset.manifest import Manifest, SourceEntry
from jaxdata.storage import Store

_DIGITS = 16


class ContentHash:
    """64 bits over records in their order: a CRC-32 and an Adler-32.

    Both together cost a hundredth of the fastest tokenizer's time (a cryptographic hash, a tenth
    where the processor has no instructions for it), and they need not resist an attacker: who can
    write the inputs has other ways.
    """

    def __init__(self) -> None:
        self._crc, self._adler = 0, 1

    def _update(self, data: bytes) -> None:
        self._crc = isal_zlib.crc32(data, self._crc)
        self._adler = isal_zlib.adler32(data, self._adler)

    def begin(self, member: Member | None) -> None:
        """Go on with a file of an archive."""
        if member:
            self._update(repr(tuple(member)).encode())

    def add(self, run: Sequence[Raw]) -> None:
        """Take some records; runs of the same records have to be the same."""
        self._update(b"%d\n" % len(run))
        self._update(_encoded(run))

    def hexdigest(self) -> str:
        """16 hex digits."""
        return f"{self._crc:08x}{self._adler:08x}"


def content_of(file: InputFile, part: FilePart, settings: ReadSettings) -> str:
    """Read a part of a file, and return its hash."""
    content = ContentHash()
    for member, records in record_runs(file, part, settings):
        content.begin(member)
        for run, _ in in_runs(records):
            content.add(run)
    return content.hexdigest()


def joined_content(contents: str) -> str:
    """One hash of 16 digits for those of the parts of a file, end to end."""
    several = len(contents) > _DIGITS
    return hashlib.sha256(contents.encode()).hexdigest()[:_DIGITS] if several else contents


def _encoded(run: Sequence[Raw]) -> bytes:
    kinds = set(map(type, run))
    if kinds == {bytes}:
        return b"\n".join(run)  # type: ignore[arg-type]
    if kinds == {dict}:
        return _rows(run)
    return b"\n".join(map(_encoded_one, run))


def _encoded_one(record: Raw) -> bytes:
    if isinstance(record, TextPiece):
        return b"%d%d" % (record.begins, record.ends) + record.data
    if isinstance(record, Unreadable):
        return record.reason.encode() + (record.raw or b"")
    return record if isinstance(record, bytes) else _rows([record])


def _rows(rows: Sequence[Raw]) -> bytes:
    try:
        return orjson.dumps(rows, default=plain_value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:  # numbers or characters that it does not take
        return json.dumps(rows, default=plain_value).encode()


_log = logging.getLogger("jaxdata")


def times_made(sources: Iterable[SourceEntry]) -> int:
    """How often sources that are made together were made, or files appended to them."""
    return max((len(entry.generations) + 1 for entry in sources), default=0)


def check_known(
    store: Store,
    folder: str,
    sources: dict[str, SourceEntry],
    files: Sequence[InputFile],
    *,
    every: bool,
    expansion: int,
) -> None:
    """Raise InputError if a file that was converted holds other records now.

    Args:
        store: the dataset.
        folder: the folder of the conversion.
        sources: what was made of the files, and perhaps of others.
        files: inputs; those with the digest of one that was converted are looked at.
        every: read all of them again; else those that may have changed since.
        expansion: as in `ReadSettings`.
    """
    longest = max(sources.values(), key=lambda entry: len(entry.inputs))
    names = dict(zip(longest.parameters["input_digests"], longest.inputs, strict=True))
    known = {names[file.digest]: file for file in files if file.digest in names}
    for times in range(times_made(sources.values())):
        name = hashes_name(folder, times)
        if not (hashes := read_hashes(store, name)):
            continue
        mine = {each: known.pop(each) for each in hashes.contents.keys() & known.keys()}
        since = store.written_at(name)
        again = {
            each: file
            for each, file in mine.items()
            if every or (since is not None and written_at(file) >= since)
        }
        if again:
            _compare(store, hashes, again, expansion)
            with suppress(OSError, DatasetError), leased(store, [folder]) as lease:
                # As new as what was compared; it may only be read, or another process is at work.
                lease.fenced(store).write(name, hashes.encode())


def _compare(
    store: Store, hashes: InputHashes, files: dict[str, InputFile], expansion: int
) -> None:
    """Read files again, and raise InputError for the first that differs from its hash."""
    size = sum(file.size for file in files.values()) / 1e6
    _log.warning("reading %d known inputs again (%.0f MB): they may have changed", len(files), size)
    own = {"version", "unit_bytes", "contents"}
    reading = ReadSettings(**hashes.model_dump(exclude=own), expansion=expansion)
    for name, file in sorted(files.items()):
        reads = (read for unit in cut([file], reading, hashes.unit_bytes) for read in unit.reads)
        content = joined_content("".join(content_of(*read, reading) for read in reads))
        if content != hashes.contents[name]:
            raise InputError(
                f"input {file.name!r} changed since it was converted, though not in size, head "
                f"and tail: {store.url} has its documents of before. Convert it into another "
                "--source or --output"
            )


_MAKERS = {"library", "hashing"}
"""What may be another where nothing is to be encoded."""
_FREELY_ADDED = {"text_key", "text_joiner", "transform", "transform_digest", "input_digests"}
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
    if was.first_file != wanted.first_file:
        changes.append(
            f"--append: the source had {was.first_file} input files, has {wanted.first_file}"
        )
    return [*changes, *inputs]


def _own_changes(
    was: Mapping[str, Any], now: Mapping[str, Any], ignored: Collection[str]
) -> list[str]:
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
    before, after = was.tokenizer.model_dump(include=names), now.tokenizer.model_dump(include=names)
    changes = [f"tokenizer {change}" for change in differences(before, after).values()]
    if was.tokenizer.files != now.tokenizer.files and not changes:
        other = f"is {now.tokenizer.name!r} with other content"
        changes = [f"tokenizer was {was.tokenizer.name!r}, {other}"]
    sizes = [{"record_tokens": one.record_tokens} for one in (was, now)]
    return [*changes, *differences(sizes[0], sizes[1]).values()]


def _input_changes(was: dict[str, str], now: dict[str, str]) -> Iterator[str]:
    """Name the first input that is missing, new or changed, of each kind."""
    gone, new = sorted(was.keys() - now.keys()), sorted(now.keys() - was.keys())
    changed = sorted(name for name in was.keys() & now.keys() if was[name] != now[name])
    for names, fate in ((gone, "is missing"), (new, "is new"), (changed, "has other content")):
        if names:
            more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            yield f"input {names[0]!r}{more} {fate}"
