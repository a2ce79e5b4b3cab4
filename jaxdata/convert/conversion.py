"""One conversion in the making: its units done, then its sources published."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import IO

from jaxdata.convert.adding import added_to
from jaxdata.convert.collected import Collected
from jaxdata.convert.contiguous import deals, documents_of, is_dealt
from jaxdata.convert.engines import MakeEngine, Stopped
from jaxdata.convert.job import Job, parameters_name, receipt_name
from jaxdata.convert.parts import Unit
from jaxdata.convert.publish import publish
from jaxdata.convert.receipts import Receipt
from jaxdata.convert.refusals import (
    bad_record,
    check_dataset,
    check_finished,
    check_unfinished,
    failed_transform,
    no_documents,
    writing,
)
from jaxdata.convert.tasks import Task
from jaxdata.convert.units import cut
from jaxdata.errors import DatasetError, InputError
from jaxdata.format.index import SourceIndex
from jaxdata.format.manifest import MANIFEST, SourceEntry, read_manifest
from jaxdata.format.storage import Store
from jaxdata.format.verify.index import damage_of_columns

__all__ = ["Conversion"]


@dataclass
class Conversion:
    """What a conversion is of, and the units it has met so far."""

    store: Store
    job: Job
    task: Task
    base: dict[str, SourceEntry] = field(default_factory=dict)
    """The sources as they are, where documents are added to them."""
    units: list[Unit] = field(default_factory=list)

    @property
    def outputs(self) -> list[str]:
        """The sources that it may feed."""
        splits, streams = self.job.splits, self.task.streams
        return [self.job.output(split, stream) for split in splits for stream in streams]

    def complete(
        self,
        make_engine: MakeEngine,
        progress: Callable[[int, int], None] | None,
        *,
        resume: bool,
    ) -> tuple[dict[str, SourceEntry], bool]:
        """Return the sources, and whether they were there before; else begins or goes on.

        Args:
            make_engine: who converts the units.
            progress: called with bytes of input done, and in all.
            resume: do not begin.
        """
        finished = self.finished()
        if resume and not finished:
            self._check_begun()
        with writing(self.store.url):
            entries = finished or self.run(make_engine, progress)
            self.clean()
        return entries, bool(finished)

    def adding(self) -> Conversion:
        """The conversion of the files that its sources do not have yet, added to them."""
        if self.job.parameters.split_contiguous:
            raise InputError("--append would move the borders of --split-contiguous: give one")
        if self.store.read(MANIFEST) is None:
            return self
        manifest = read_manifest(self.store, to_change=True)
        job, base = added_to(manifest, self.outputs, self.job)
        for name in base if job.files else ():
            self._check_whole(SourceIndex(self.store, name, base[name], manifest.layout(name)))
        return replace(self, job=job, base=base)

    def _check_whole(self, index: SourceIndex) -> None:
        """Refuse a damaged index: the new one begins with it, and its checksums would hide that."""
        if damage := damage_of_columns(index):
            raise DatasetError(
                f"nothing can be added to {index.name} of {self.store.url}: {damage[0]}. Restore "
                "it from a copy; jaxdata verify says whether that is all"
            )

    def finished(self) -> dict[str, SourceEntry]:
        """Return the sources it made if it was finished before; refuses what cannot join."""
        if self.store.read(MANIFEST) is None:
            return {}
        manifest = read_manifest(self.store, to_change=True)
        if self.base:
            check_dataset(manifest, self.job.parameters, self.store.url)
            return {} if self.job.files else self.base
        found = [name for name in self.outputs if name in manifest.sources]
        for name in found:
            check_finished(manifest, name, self.job.parameters, self.store.url)
        check_dataset(manifest, self.job.parameters, self.store.url)
        return {name: manifest.sources[name] for name in found}

    def run(
        self, make_engine: MakeEngine, progress: Callable[[int, int], None] | None
    ) -> dict[str, SourceEntry]:
        """Do the units without a receipt, then publish the sources."""
        self.job.check_tables(self.task)
        self._begin()
        bar = _Bar(sum(file.size for file in self.job.files), progress)
        try:
            make_engine(self.job, bar.advance).run(self._units_to_do(bar))
            if self.job.parameters.split_contiguous:
                make_engine(self.job, lambda _: None).run(self._units_to_deal())
                self._discard_shards(self._shards_of_receipts())
        except Stopped as stopped:
            raise self._first_bad(stopped) from None
        except BaseException:
            self._sweep()  # workers were ended wherever they were
            raise
        with tempfile.TemporaryFile() as bad_lines:
            return self._publish(self._collect(bad_lines))

    def _collect(self, bad_lines: IO[bytes]) -> Collected:
        collected = Collected(self.job.files, bad_lines, self.job.parameters.first_file)
        layout = self.job.parameters.layout(self.task.masked)
        for name, entry in self.base.items():
            collected.begin_with(name, SourceIndex(self.store, name, entry, layout))
        for unit in self.units:
            collected.add(unit, self._receipt(receipt_name(self.job.folder, unit.name)))
        return collected

    def _publish(self, collected: Collected) -> dict[str, SourceEntry]:
        if collected.first_bad and self.job.stop_at_bad:
            raise bad_record(*collected.first_bad)
        if not collected.fed:
            self.clean()  # so that the same with a better --text-key is not refused
            raise no_documents(collected, self.job.parameters.task.key_options)
        return publish(self.store, self.job, self.task.masked, collected, self.base)

    def clean(self) -> None:
        """Remove what only a conversion in progress needs."""
        self.store.delete(f"{self.job.folder}/work/")
        self._sweep()

    def _sweep(self) -> None:
        """Remove what killed workers were writing."""
        for folder in {self.job.folder, *self.outputs}:
            self.store.sweep(f"{folder}/")

    def _check_begun(self) -> None:
        """Raise InputError unless this conversion was begun before."""
        folder = self.job.folder
        if self.store.read(parameters_name(folder)) is None:
            raise InputError(
                f"there is nothing to resume: {folder} was not begun in {self.store.url}. "
                "Is --output right? Leave --resume out to begin"
            )

    def _begin(self) -> None:
        """Write down what is being made; where units of it are done, check that they fit."""
        name = parameters_name(self.job.folder)
        begun = self.store.read(name)
        if begun is not None and self._units_done():
            check_unfinished(begun, self.job.parameters, f"{self.store.url}/{self.job.folder}")
            self._sweep()
        else:
            self.clean()
            self._discard_shards(set())
            self.store.write(name, self.job.parameters.encode())

    def _discard_shards(self, named: set[str]) -> None:
        """Remove shards that belong to no receipt: another cut would not write over them."""
        kept = named | {shard.name for entry in self.base.values() for shard in entry.shards}
        for folder in self.outputs:
            for name in self.store.list(f"{folder}/"):
                own = name.endswith(".array_record") and name.rpartition("/")[0] == folder
                if own and name not in kept:
                    self.store.delete(name)

    def _units_done(self) -> set[str]:
        """Names of the receipts there are."""
        names = self.store.list(f"{self.job.folder}/work/")
        return {name for name in names if name.endswith(".receipt")}

    def _units_to_do(self, bar: _Bar) -> Iterator[Unit]:
        done = self._units_done()
        for unit in self._cut():
            self.units.append(unit.without_data())
            if receipt_name(self.job.folder, unit.name) in done:
                bar.advance(unit.size)
            else:
                yield unit

    def _units_to_deal(self) -> Iterator[Unit]:
        """The units with documents of another split than the first, and how they are dealt."""
        outputs = [self.job.output(name, self.task.streams[0]) for name in self.job.splits]
        receipts = [self._receipt(receipt_name(self.job.folder, u.name)) for u in self.units]
        counts = [sum(documents_of(receipt, outputs)) for receipt in receipts]
        dealt = deals(self.job.parameters.split_ratio or "", counts)
        wanted = {
            unit.name: deal
            for unit, receipt, deal in zip(self.units, receipts, dealt, strict=True)
            if not is_dealt(receipt, outputs, deal)
        }
        for unit in self._cut():
            if unit.name in wanted:
                yield replace(unit, deal=wanted[unit.name])

    def _shards_of_receipts(self) -> set[str]:
        receipts = (self._receipt(receipt_name(self.job.folder, u.name)) for u in self.units)
        return {wrote.shard.name for receipt in receipts for wrote in receipt.outputs.values()}

    def _cut(self) -> Iterator[Unit]:
        parameters = self.job.parameters
        reading, first = self.job.reading(self.task), parameters.first_file
        return cut(self.job.files, reading, parameters.unit_bytes, first)

    def _receipt(self, name: str) -> Receipt:
        data = self.store.read(name)
        if data is None:
            raise DatasetError(
                f"{self.store.url}/{name} is gone: is {self.job.folder} being converted by "
                "somebody else? Wait for that to end, then give the same command again"
            )
        try:
            return Receipt.decode(data)
        except ValueError:
            raise DatasetError(
                f"{self.store.url}/{name} is damaged, or of another version of jaxdata: delete it "
                "and give the same command again, which does that part of the work once more"
            ) from None

    def _first_bad(self, stopped: Stopped) -> InputError:
        """Say which record a worker stopped at, or an earlier one that was set aside before."""
        before = [unit for unit in self.units if unit.place < stopped.unit.place]
        collected = Collected(self.job.files, io.BytesIO())
        for unit in before:
            collected.add(unit, self._receipt(receipt_name(self.job.folder, unit.name)))
        collected.add(stopped.unit, stopped.receipt)
        if stopped.failure:
            return failed_transform(collected.last, stopped.failure)
        assert collected.first_bad is not None
        return bad_record(*collected.first_bad)


class _Bar:
    """Adds up the bytes done and tells the caller."""

    def __init__(self, total: int, progress: Callable[[int, int], None] | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def advance(self, size: int) -> None:
        self._done += size
        if self._progress:
            self._progress(self._done, self._total)
