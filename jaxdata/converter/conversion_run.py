"""One conversion at work: its units are converted, then its sources published."""

from __future__ import annotations

import io
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import IO

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.converter.changes import check_unchanged, times_made, unfinished_changes
from jaxdata.converter.engines import MakeEngine, ProgressSum
from jaxdata.converter.inputs.files import InputFile, Unit, changed_since, stamp_of
from jaxdata.converter.inputs.reading import cut
from jaxdata.converter.job import Finished, Job
from jaxdata.converter.publish import publish
from jaxdata.converter.receipts import MergedReceipts, Quarantined, Receipt, RecordPlace
from jaxdata.converter.splits import SplitEnds, assign
from jaxdata.converter.tasks.base import Task
from jaxdata.dataset.history import InputHashes, hashes_name
from jaxdata.dataset.index import SourceIndex
from jaxdata.dataset.manifest import MANIFEST, SourceEntry, read_manifest
from jaxdata.dataset.unfinished import UnfinishedJob
from jaxdata.dataset.verify import damage_of_columns
from jaxdata.storage import Store
from jaxdata.tokenizers import Tokenizer
from jaxdata.tokenizers.encoders import (
    Choice,
    EncoderDiffers,
    EncoderName,
    EncodingSummary,
    choose,
    refuse,
)

_log = logging.getLogger("jaxdata")


@dataclass
class ConversionRun:
    """The units of a conversion, done by an engine, and its sources, published."""

    store: Store
    job: Job
    task: Task
    tokenizer: Tokenizer
    base: dict[str, SourceEntry] = field(default_factory=dict)
    """The existing sources that documents are appended to."""
    encoder: EncoderName = "auto"
    """What is to encode texts."""
    verify: bool = False
    """Whether inputs are read again that seem to be unchanged."""
    units: list[Unit] = field(default_factory=list, init=False)
    """Those that were cut so far."""
    stale: bool = field(default=False, init=False)
    """Whether there may be shards of units that were done anew, or exist no more."""

    @property
    def _unfinished(self) -> UnfinishedJob:
        return self.job.unfinished(self.store)

    @property
    def outputs(self) -> list[str]:
        """The sources that it may write."""
        return self.job.outputs(self.task)

    def run(
        self, make_engine: MakeEngine, progress: Callable[[int, int], None] | None
    ) -> tuple[dict[str, SourceEntry], EncodingSummary]:
        """Convert the units without a receipt, then publish the sources."""
        self._check_unchanged()
        self.job.check_tables(self.task)
        self._check_whole()
        self.job = replace(self.job, encoder=self._chosen_encoder(progress))
        self._begin()
        bar = ProgressSum(sum(file.size for file in self.job.files), progress)
        self._convert(make_engine, bar)
        if changed := changed_since(self.job.files):
            self._look_again_at(changed)
            self._convert(make_engine, ProgressSum(0, None))
        with tempfile.TemporaryFile() as bad_lines:
            merged = self._merge(bad_lines)
            return self._publish(merged), self._encoding(merged.encoding)

    def _check_whole(self) -> None:
        """Reject a damaged index: the new one begins with it, and its checksums would hide that."""
        spec = self.job.parameters.record_spec(self.task.masked)
        for name, entry in self.base.items():
            if damage := damage_of_columns(SourceIndex(self.store, name, entry, spec)):
                raise DatasetError(
                    f"nothing can be added to {name} of {self.store.url}: {damage[0]}. Restore it "
                    "from a copy; jaxdata verify says whether that is all"
                )

    def _check_unchanged(self) -> None:
        """Reject sources that another process published or added to, which the lease prevents."""
        if self.store.read(MANIFEST) is not None:
            manifest = read_manifest(self.store)
            check_unchanged(manifest, self.outputs, self.base, self.store.url)

    def _convert(self, make_engine: MakeEngine, bar: ProgressSum) -> None:
        try:
            self._convert_units(make_engine, bar)
        except EncoderDiffers as differs:
            refuse(self.tokenizer, differs)
            _log.warning(
                "%s. What it encoded in this conversion is encoded again by the library. Please "
                "report it with this text; jaxdata inspect names what encoded a dataset before",
                differs,
            )
            self.job = replace(self.job, encoder=Choice(reason=str(differs)))
            self.stale = True
            self._convert_units(make_engine, ProgressSum(0, None))

    def _chosen_encoder(self, progress: Callable[[int, int], None] | None) -> Choice:
        if not self.job.parameters.task.has_texts:
            return Choice(reason="there are no texts")
        size = sum(file.text_bytes for file in self.job.files)
        return choose(self.tokenizer, self.encoder, text_bytes=size, progress=progress)

    def _convert_units(self, make_engine: MakeEngine, bar: ProgressSum) -> None:
        self.units.clear()
        stopped: list[tuple[Unit, Finished]] = []

        def take(unit: Unit, answer: Finished) -> bool:
            if answer.changed:
                _log.warning("%s: converted again (%s)", _changed(answer.changed), unit.name)
            stopped.extend([(unit, answer)] if answer.stopped else [])
            return not stopped

        workers = self.job.for_workers()
        make_engine(workers, bar.advance).run(self._units_to_do(bar), take)
        if stopped:
            # Units are started in order: all before the first that stopped are done.
            raise self._first_bad(*min(stopped, key=lambda one: one[0].place))
        if self.job.parameters.split_contiguous:
            make_engine(workers, lambda _: None).run(self._units_to_reassign())
            self.stale = True

    def _look_again_at(self, changed: list[InputFile]) -> None:
        """Take files as they are now, if they are not others; their units are then compared."""
        known = self.job.parameters.inputs
        if other := next((file for file in changed if file.digest != known[file.name]), None):
            raise _modified_meanwhile(other, f"{self.store.url}/{self.job.folder}")
        now = {file.name: file for file in changed}
        self.job = replace(self.job, files=[now.get(file.name, file) for file in self.job.files])
        self.verify, self.stale = False, True

    def _merge(self, bad_lines: IO[bytes]) -> MergedReceipts:
        merged = MergedReceipts(self.job.files, bad_lines, self.job.parameters.first_file)
        spec = self.job.parameters.record_spec(self.task.masked)
        for name, entry in self.base.items():
            merged.begin_with(name, SourceIndex(self.store, name, entry, spec))
        for unit in self.units:
            merged.add(unit, self._receipt(unit))
        return merged

    def _publish(self, merged: MergedReceipts) -> dict[str, SourceEntry]:
        if merged.first_bad and self.job.stop_at_bad:
            raise _bad_record(*merged.first_bad)
        if not merged.fed:
            self._unfinished.end()  # so that the same with a better --text-key is not refused
            raise _no_documents(merged, self.job.parameters.task.key_options)
        if self.stale:
            self._discard_shards(merged.shards)
        self._check_unchanged()  # before anything is written that it may have published
        self._note_inputs(merged.contents)
        return publish(self.store, self.job, self.task, merged, self.base)

    def _note_inputs(self, contents: dict[str, str]) -> None:
        """Write what a later conversion knows the inputs by."""
        reading = self.job.reading(self.task)
        hashes = InputHashes(
            columns=None if reading.columns is None else list(reading.columns),
            record_bytes=reading.record_bytes,
            piece_bytes=reading.piece_bytes,
            joined=reading.joined,
            arrays=reading.arrays,
            unit_bytes=self.job.parameters.unit_bytes,
            contents=contents,
        )
        name = hashes_name(self.job.folder, times_made(self.base.values()))
        self.store.write(name, hashes.encode())

    def _begin(self) -> None:
        """Write the parameters; if units were finished before, check that they fit."""
        wanted = self.job.parameters
        if self._unfinished.resumes(lambda begun: unfinished_changes(begun, wanted)):
            self.stale = True
        else:
            self._discard_shards(set())
            self._unfinished.begin(wanted.encode())

    def _discard_shards(self, named: set[str]) -> None:
        """Remove shards but those named here or in the manifest: another cut has other names."""
        if self.store.read(MANIFEST) is not None:
            sources = read_manifest(self.store).sources.values()
            named = named | {shard.name for entry in sources for shard in entry.all_shards}
        for folder in self.outputs:
            for name in self.store.list(f"{folder}/"):
                own = name.endswith(".array_record") and name.rpartition("/")[0] == folder
                if own and name not in named:
                    self.store.delete(name)

    def _units_to_do(self, bar: ProgressSum) -> Iterator[Unit]:
        done, encoders = self._unfinished.done(), ("", self.job.encoder.version)
        for unit in self._cut():
            self.units.append(unit.without_data())
            if unit.name not in done or self._encoded_by(unit) not in encoders:
                yield unit
            elif self._seems_unchanged(unit):
                bar.advance(unit.size)
            else:
                yield replace(unit, recheck=True)

    def _encoded_by(self, unit: Unit) -> str:
        return self._unfinished.receipt(unit.name, Receipt.decode).encoder

    def _encoding(self, counts: Mapping[str, Mapping[str, int]]) -> EncodingSummary:
        """What encoded the texts of all units."""
        reason = self.job.encoder.reason
        return EncodingSummary(library=self.job.parameters.library, counts=counts, reason=reason)

    def _seems_unchanged(self, unit: Unit) -> bool:
        """Tell whether a unit that is done need not be read again."""
        was = self._unfinished.receipt(unit.name, Receipt.decode)  # perhaps of other parts
        return was.stamp == stamp_of(unit.files) and not self.verify

    def _units_to_reassign(self) -> Iterator[Unit]:
        """The units with documents of another split than the first, and where it begins."""
        outputs = [self.job.output(name, self.task.streams[0]) for name in self.job.splits]
        receipts = [self._receipt(u) for u in self.units]
        counts = [sum(_documents_of(receipt, outputs)) for receipt in receipts]
        assigned = assign(self.job.parameters.split_ratio or "", counts)
        wanted = {
            unit.name: ends
            for unit, receipt, ends in zip(self.units, receipts, assigned, strict=True)
            if not _is_assigned(receipt, outputs, ends)
        }
        for unit in self._cut():
            if unit.name in wanted:
                yield replace(unit, split_ends=wanted[unit.name])

    def _cut(self) -> Iterator[Unit]:
        parameters = self.job.parameters
        reading, first = self.job.reading(self.task), parameters.first_file
        return cut(self.job.files, reading, parameters.unit_bytes, first)

    def _receipt(self, unit: Unit) -> Receipt:
        def decode(data: bytes) -> Receipt:
            receipt = Receipt.decode(data)
            receipt.check(len(unit.parts), self._hashes, self.task.side)
            for name, wrote in receipt.outputs.items():
                if wrote.shard.name != f"{name}/{unit.name}.array_record":
                    raise ValueError(f"it is the receipt of another unit: of {wrote.shard.name}")
            return receipt

        return self._unfinished.receipt(unit.name, decode)

    def _first_bad(self, stopped: Unit, answer: Finished) -> InputError:
        """Say which record a worker stopped at, or an earlier one that was set aside before."""
        merged = MergedReceipts(self.job.files, io.BytesIO())
        for unit in self.units:
            if unit.place < stopped.place:
                merged.add(unit, self._receipt(unit))
        assert answer.stopped
        merged.add(stopped, answer.stopped)
        if answer.failure:
            return InputError(f"{merged.last}: {answer.failure}")
        assert merged.first_bad is not None
        return _bad_record(*merged.first_bad)

    @property
    def _hashes(self) -> dict[str, Sequence[str]]:
        """The columns of hashes of each source; those of all streams are beside the first."""
        kept, first = self.job.parameters.hashes.columns, self.task.streams[0]
        having = {self.job.output(split, first) for split in self.job.splits}
        return {name: kept if name in having else () for name in self.outputs}


def _documents_of(receipt: Receipt, outputs: Sequence[str]) -> list[int]:
    """How many documents a unit wrote to each of some sources."""
    wrote = receipt.outputs
    return [len(wrote[name].lengths) if name in wrote else 0 for name in outputs]


def _is_assigned(receipt: Receipt, outputs: Sequence[str], ends: SplitEnds) -> bool:
    """Tell whether a unit was written with this assignment; `outputs` has one of each split."""
    wanted = [end - start for start, end in pairwise([0, *ends])]
    return _documents_of(receipt, outputs) == wanted


def _changed(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
    return f"input {names[0]!r}{more} changed since it was converted"


def _modified_meanwhile(file: InputFile, folder: str) -> InputError:
    """The error for an input that became another one under a conversion in `folder`."""
    return InputError(
        f"{file.where} was modified while it was converted. Delete {folder}, run the same command "
        "again, and do not modify inputs meanwhile"
    )


def _bad_record(place: RecordPlace, bad: Quarantined) -> InputError:
    """The error for the record that a conversion stopped at."""
    return InputError(
        f"{place}: {bad.reason}. Fix the record, or skip such records with --on-error quarantine"
    )


def _no_documents(merged: MergedReceipts, options: str) -> InputError:
    """The error for a conversion without documents; `options` choose the fields that are read."""
    if merged.first_bad is None and merged.dropped:
        counts = ", ".join(f"{n:,} {reason}" for reason, n in sorted(merged.dropped.items()))
        return InputError(f"no document is left: {counts}")
    if merged.first_bad is None:
        return InputError("the input files are empty: there is no record in them")
    place, first = merged.first_bad
    (reason, *others) = reasons = merged.reasons
    if reason.startswith("no key ") and not others:
        chats = options == "--text-key" and {"messages", "conversations"} & {*first.keys}
        return InputError(
            f"no record has the key {reason.removeprefix('no key ')}; {place} has "
            f"{', '.join(map(repr, first.keys)) or 'no keys'}: name one of these with {options}"
            + ", or convert conversations with --task sft"
            * bool(chats)
        )
    counts = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
    return InputError(
        f"no record has a usable text: {counts}; the first is {place}. "
        f"Are these the files, and {'is' if ' ' not in options else 'are'} {options} right?"
    )
