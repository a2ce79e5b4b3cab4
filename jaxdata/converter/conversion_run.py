"""A conversion: what there is to do, its units converted, then its sources published."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from jaxdata.base.errors import DatasetError, InputError, counted, digest, log
from jaxdata.converter import changes
from jaxdata.converter.engines import Engine, OnProgress, ProgressSum, do_units
from jaxdata.converter.inputs.files import InputFile, Unit, changed_since, stamp_of
from jaxdata.converter.inputs.reading import cut
from jaxdata.converter.parameters import Parameters
from jaxdata.converter.receipts import MergedReceipts, Quarantined, Receipt, RecordPlace
from jaxdata.converter.statistics import Made, derived
from jaxdata.converter.tasks import Task
from jaxdata.converter.worker import Finished, Job, worker_of
from jaxdata.dataset.index import SourceIndex, write_index
from jaxdata.dataset.lease import clear, leased, note_conversion
from jaxdata.dataset.manifest import (
    MANIFEST,
    Amount,
    Manifest,
    ShardEntry,
    SideEntry,
    SourceEntry,
    read_manifest,
    update_manifest,
)
from jaxdata.dataset.verify import damage_of_columns
from jaxdata.storage import Store
from jaxdata.tokenizers import Tokenizer
from jaxdata.tokenizers.encoders.base import EncoderDiffers, EncoderName
from jaxdata.tokenizers.encoders.choice import Choice, EncodingSummary, choose, refuse


@dataclass
class Conversion:
    """A conversion of all files, the rest, those that are new, or none, by what is there."""

    job: Job
    task: Task
    tokenizer: Tokenizer
    base: dict[str, SourceEntry] = field(default_factory=dict)
    """The existing sources that documents are appended to."""
    encoder: EncoderName = "auto"
    """What is to encode texts."""
    known_by_name: bool = False
    """Whether the name of the input says its content: it was written for this conversion."""
    command: str = ""
    """What the history of the dataset says was run."""
    units: list[Unit] = field(default_factory=list, init=False)
    """Those that were cut so far."""

    @property
    def store(self) -> Store:
        """The dataset, to write while the lease of the job is held."""
        return self.job.store()

    @property
    def outputs(self) -> list[str]:
        """The sources that it may write."""
        return self.job.outputs(self.task)

    def manifest(self) -> Manifest | None:
        """The manifest of the dataset; None if it has none yet."""
        return read_manifest(self.store) if self.store.read(MANIFEST) is not None else None

    def complete(self, engine: Engine, progress: OnProgress, append: bool) -> Made:
        """Convert or resume unless the sources are complete; with `append` new files are added."""
        folders = [self.job.folder, *self.outputs]
        now = self._now(append)
        finished = now._finished()
        if finished and not now._left_behind(finished):
            clear(self.store, folders)
            return finished, None
        encoding = None
        with self.job.unfinished.writing(), leased(self.store, folders) as lease:
            now = replace(self, job=replace(self.job, lease=lease))._now(append)
            finished = now._finished()  # another process may have been faster
            if not finished:
                finished, encoding = now.run(engine, progress)
            now.job.unfinished.end()
        return finished, encoding

    def _now(self, append: bool) -> "Conversion":
        """The conversion of what is to be done as the dataset is now.

        With `append` it is that of the files that are new to the sources that are there.

        Raises:
            InputError: these have different settings, or a file of the same name.
        """
        manifest = self.manifest() if append else None
        known = manifest.sources if manifest else {}
        base = {name: known[name] for name in self.outputs if name in known}
        if not base:
            return self
        for name, entry in base.items():
            changes.check_addition(name, entry, self.job.parameters)
        # All were made at the same times; one may have got no document of the last files.
        longest = max(base.values(), key=lambda entry: len(entry.inputs))
        digests = longest.parameters["input_digests"]
        new = [file for file in self.job.files if file.digest not in digests]
        if same := next((file for file in new if file.name in longest.inputs), None):
            raise InputError(
                f"--append: {same.name!r} was converted before with other content, and appending "
                "it would repeat its documents. Give only new files, under new names: if two "
                "folders have files of the same names, give their parent folder, or rename the "
                "files"
            )
        inputs = {file.name: file.digest for file in new}
        update = {"inputs": inputs, "first_file": len(longest.inputs)}
        parameters = self.job.parameters.model_copy(update=update)
        return replace(self, job=replace(self.job, files=new, parameters=parameters), base=base)

    def _finished(self) -> dict[str, SourceEntry]:
        """Return the sources it made if it was finished before; rejects what cannot join."""
        manifest, parameters, url = self.manifest(), self.job.parameters, self.store.url
        if manifest is None:
            return {}
        if not self.base:
            found = {n: manifest.sources[n] for n in self.outputs if n in manifest.sources}
            for name in found:
                changes.check_finished(manifest, name, parameters, url)
        else:
            found = {} if self.job.files else self.base
        changes.check_dataset(manifest, parameters, url)
        return found

    def _left_behind(self, entries: dict[str, SourceEntry]) -> bool:
        """Tell whether a conversion that is part of these sources was killed before it cleaned up.

        What is being appended to them is not.
        """
        begun = self.job.unfinished.begun()
        if begun is None:
            return bool(self.job.unfinished.files())
        with suppress(ValueError):
            first = Parameters.model_validate_json(begun).first_file
            return first < max(len(entry.inputs) for entry in entries.values())
        return False

    def run(self, engine: Engine, progress: OnProgress) -> Made:
        """Convert the units without a receipt, then publish the sources."""
        self.job.check_tables(self.task)
        indexes = self._indexes()
        self.job = replace(self.job, encoder=self._choose_encoder())
        wanted = self.job.parameters
        if not self.job.unfinished.resumes(lambda begun: changes.unfinished_changes(begun, wanted)):
            self.job.unfinished.begin(wanted.encode())
        self._convert(engine, ProgressSum(sum(f.size for f in self.job.files), progress))
        if changed := changed_since(self.job.files):
            self._look_again_at(changed)
            self._convert(engine, ProgressSum(0, None))
        merged = MergedReceipts(self.job.files, wanted.first_file, indexes)
        for unit in self.units:
            merged.add(unit, self._receipt(unit))
        if merged.first_bad and self.job.stop_at_bad:
            raise _bad_record(*merged.first_bad)
        if not merged.outputs:
            self.job.unfinished.end()  # so that the same with a better --text-key is not refused
            raise _no_documents(merged, wanted.task.key_options)
        return self._publish(merged)

    def _indexes(self) -> dict[str, SourceIndex]:
        """Those of the base; the new ones begin with them, and would hide that they are damaged."""
        spec, found = self.job.parameters.record_spec(self.task.masked), {}
        for name, entry in self.base.items():
            found[name] = SourceIndex(self.store, name, entry, spec)
            if damage := damage_of_columns(found[name]):
                raise DatasetError(
                    f"nothing can be added to {name} of {self.store.url}: {damage[0]}. Restore it "
                    "from a copy; jaxdata verify says whether that is all"
                )
        return found

    def _convert(self, engine: Engine, bar: ProgressSum) -> None:
        try:
            self._convert_units(engine, bar)
        except EncoderDiffers as differs:
            refuse(self.tokenizer, differs)
            log.warning(
                "%s. What it encoded in this conversion is encoded again by the library. Please "
                "report it with this text; history.jsonl names what encoded a dataset before",
                str(differs),  # a record that is kept keeps no frames
            )
            self.job = replace(self.job, encoder=Choice(reason=str(differs)))
            self._convert_units(engine, ProgressSum(0, None))

    def _convert_units(self, engine: Engine, bar: ProgressSum) -> None:
        self.units.clear()
        stopped: list[tuple[Unit, Finished]] = []

        def take(unit: Unit, answer: Finished) -> bool:
            stopped.extend([(unit, answer)] if answer.stopped else [])
            return not stopped

        places = engine(self.job.for_workers(), worker_of)
        do_units(places, self._units_to_do(bar), bar.advance, take)
        if stopped:
            # Units are started in order: all before the first that stopped are done.
            raise self._first_bad(*min(stopped, key=lambda one: one[0].place))

    def _units_to_do(self, bar: ProgressSum) -> Iterator[Unit]:
        """Those without a receipt, or whose files may have changed since they were read."""
        done, encoders = self.job.unfinished.done(), ("", self.job.encoder.version)
        changed, parameters = 0, self.job.parameters
        sizes = parameters.unit_bytes, parameters.first_file
        for unit in cut(self.job.files, self.job.reading(self.task), *sizes):
            self.units.append(unit.without_data())
            was = self._receipt(unit) if unit.name in done else None
            if was is None or was.encoder not in encoders:
                yield unit
            elif self.known_by_name or was.stamp == stamp_of(unit.files):
                bar.advance(unit.size)
            else:
                changed += 1
                yield unit
        if changed:
            units = counted(changed, "finished unit")
            log.warning("%s converted again: inputs may have changed since they were read", units)

    def _receipt(self, unit: Unit) -> Receipt:
        return self.job.unfinished.receipt(unit.name, partial(Receipt.decode, unit.name))

    def _first_bad(self, stopped: Unit, answer: Finished) -> InputError:
        """Say which record a worker stopped at, or an earlier one that was set aside before."""
        merged = MergedReceipts(self.job.files)
        for unit in self.units:
            if unit.place < stopped.place:
                merged.add(unit, self._receipt(unit))
        assert answer.stopped
        merged.add(stopped, answer.stopped)
        if answer.failure:
            return InputError(f"{merged.last}: {answer.failure}")
        assert merged.first_bad
        return _bad_record(*merged.first_bad)

    def _look_again_at(self, changed: list[InputFile]) -> None:
        """Take files as they are now, if they are not others; their units are then compared."""
        known = self.job.parameters.inputs
        if other := next((file for file in changed if file.digest != known[file.name]), None):
            raise InputError(
                f"{other.where} was modified while it was converted. Delete "
                f"{self.store.url}/{self.job.folder}, run the same command again, and do not "
                "modify inputs meanwhile"
            )
        now = {file.name: file for file in changed}
        self.job = replace(self.job, files=[now.get(file.name, file) for file in self.job.files])

    def _choose_encoder(self) -> Choice:
        if not self.job.parameters.task.has_texts:
            return Choice(reason="there are no texts")
        size = sum(file.text_bytes for file in self.job.files)
        return choose(self.tokenizer, self.encoder, text_bytes=size)

    def _publish(self, merged: MergedReceipts) -> Made:
        """Make sources of receipts; the last act is the manifest."""
        manifest = self.manifest()
        if manifest:  # before anything is written that another may have made
            changes.check_unchanged(manifest, self.outputs, self.base, self.store.url)
        self._discard_shards(merged, manifest)
        entries = {name: self._written(name, merged) for name in merged.outputs}
        files = {}
        if merged.first_bad:
            # Each that adds to sources has its own.
            times = max((len(was.generations) + 1 for was in self.base.values()), default=0)
            name = f"{self.job.folder}/quarantine{f'-{times}' if times else ''}.jsonl"
            lines = merged.bad_lines.mapped
            with self.store.create(name) as path:
                lines.tofile(path)
            files[name] = hashlib.sha256(lines.data).hexdigest()
        library, reason = self.job.parameters.library, self.job.encoder.reason
        encoding = EncodingSummary(library=library, counts=merged.encoding, reason=reason)
        encoded = encoding.model_dump(mode="json")
        note_conversion(self.store, self.outputs, self.command, encoded)
        # The files of the tokenizer and the first manifest do not change in one moment.
        with nullcontext() if manifest else leased(self.store, [""], wait=True):
            update_manifest(self.store, partial(self._changed_manifest, entries, files))
        return self.base | entries, encoding

    def _discard_shards(self, merged: MergedReceipts, manifest: Manifest | None) -> None:
        """Remove shards but those of receipts and the manifest: another cut has other names."""
        lists = [each for output in merged.outputs.values() for each in output.shards.values()]
        if manifest:
            lists += [entry.all_shards for entry in manifest.sources.values()]
        named = {shard.name for shards in lists for shard in shards}
        for folder in self.outputs:
            for name in self.store.list(f"{folder}/"):
                own = name.endswith(".array_record") and name.rpartition("/")[0] == folder
                if own and name not in named:
                    self.store.delete(name)

    def _changed_manifest(
        self, entries: dict[str, SourceEntry], files: dict[str, str], manifest: Manifest | None
    ) -> Manifest:
        store, parameters = self.store, self.job.parameters
        if manifest is None:
            for name, data in self.job.tokenizer_files.items():
                store.write(f"tokenizer/{name}", data)
            manifest = Manifest(
                tokenizer=parameters.tokenizer,
                dtype=parameters.dtype,
                record_tokens=parameters.record_tokens,
            )
        changes.check_dataset(manifest, parameters, store.url)
        changes.check_unchanged(manifest, self.outputs, self.base, store.url)
        sources, every = manifest.sources | entries, manifest.files | files
        return manifest.model_copy(update={"sources": sources, "files": every})

    def _written(self, name: str, merged: MergedReceipts) -> SourceEntry:
        """Write the index of a source, and describe it."""
        output, was, sides = merged.outputs[name], self.base.get(name), self.task.side
        wanted, masked = self.job.parameters, self.task.masked
        columns, shards = output.columns(), output.shards[""]
        lengths, index = columns["length"], f"index-{len(was.generations) + 1}" if was else "index"
        side = {
            one: SideEntry(dtype=dtype, shards=output.shards[one])  # type: ignore[arg-type]
            for one, dtype in sides.items()
        }
        parameters, inputs = wanted.of_source(), [*wanted.inputs]
        if known := max(self.base.values(), key=lambda entry: len(entry.inputs), default=None):
            digests = known.parameters["input_digests"] + parameters["input_digests"]
            parameters, inputs = parameters | {"input_digests": digests}, known.inputs + inputs
        unread = {"files_not_read": dict(self.job.unread)} if self.job.unread else {}
        spec = wanted.record_spec(masked)
        checksums = write_index(self.store, f"{name}/{index}", columns, spec, sides)
        return SourceEntry(
            documents=len(lengths),
            tokens=int(lengths.sum(dtype=np.int64)),
            masked=masked,
            shards=shards,
            fingerprint=self._fingerprint(shards, side, was),
            inputs=inputs,
            parameters=parameters,
            statistics=derived(output.counts, lengths)
            | _summed(was.statistics if was else {}, merged.statistics)
            | unread,
            index=index,
            checksums=checksums,
            generations=[*was.generations, was.as_generation()] if was else [],
            views=was.views if was else {},
            side=side,
            deleted=was.deleted if was else Amount(),
        )

    def _fingerprint(
        self, shards: Sequence[ShardEntry], side: dict[str, SideEntry], was: SourceEntry | None
    ) -> str:
        """A digest of all that determines the content of a source."""
        parameters = self.job.parameters
        content: dict[str, Any] = {
            "tokenizer": parameters.tokenizer.model_dump(exclude={"name"}),
            "dtype": parameters.dtype,
            "record_tokens": parameters.record_tokens,
            "shards": [[shard.documents, shard.sha256] for shard in shards],
        }
        if side:
            content["side"] = {
                name: [each.dtype, *(shard.sha256 for shard in each.shards)]
                for name, each in side.items()
            }
        if was and was.deleted.documents:
            content["deleted"] = was.checksums["deleted"]
        return digest(content)


def _summed(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Counts, or counts by reason, added to what was counted before."""
    found: dict[str, Any] = {}
    for name, count in now.items():
        if isinstance(count, Mapping):
            was = before.get(name, {})
            found[name] = {one: was.get(one, 0) + count.get(one, 0) for one in {**was, **count}}
        else:
            found[name] = before.get(name, 0) + count
    return found


def _bad_record(place: RecordPlace, bad: Quarantined) -> InputError:
    """The error for the record that a conversion stopped at."""
    return InputError(
        f"{place}: {bad.reason}. Fix the record, or skip such records with "
        "--set on_error=quarantine"
    )


def _no_documents(merged: MergedReceipts, options: str) -> InputError:
    """The error for a conversion without documents; `options` choose the fields that are read."""
    every = sorted((merged.reasons + merged.dropped).items())
    counts = ", ".join(f"{count:,} {reason}" for reason, count in every)
    if not every:
        return InputError("the input files are empty: there is no record in them")
    if not merged.first_bad:
        return InputError(f"no document is left: {counts}")
    place, first = merged.first_bad
    has = f", which has {', '.join(map(repr, first.keys))}" if first.keys else ""
    chats = options == "--text-key" and {"messages", "conversations"} & {*first.keys}
    return InputError(
        f"no record has a usable text: {counts}; the first is {place}{has}. Are these the files? "
        f"Name the keys to read with {options}"
        + (", or convert conversations with --task sft" if chats else "")
    )
