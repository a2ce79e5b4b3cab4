"""One source in the making: its units done, then published."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from jaxdata.convert import tables
from jaxdata.convert.collected import Collected
from jaxdata.convert.engine import Stopped, run_units
from jaxdata.convert.inputs import InputFile
from jaxdata.convert.job import Job, receipt_name
from jaxdata.convert.parameters import Parameters
from jaxdata.convert.publish import publish
from jaxdata.convert.receipts import Receipt
from jaxdata.convert.refusals import (
    bad_record,
    check_dataset,
    check_finished,
    check_unfinished,
    no_documents,
)
from jaxdata.convert.units import Unit, cut
from jaxdata.errors import DatasetError, InputError
from jaxdata.format.manifest import MANIFEST, SourceEntry, read_manifest
from jaxdata.format.storage import Store

__all__ = ["Conversion"]


@dataclass
class Conversion:
    """What a conversion is of, and the units it has met so far."""

    store: Store
    split: str
    source: str
    files: list[InputFile]
    parameters: Parameters
    tokenizer_files: dict[str, bytes]
    units: list[Unit] = field(default_factory=list)

    @property
    def folder(self) -> str:
        """Where the source lies in the dataset."""
        return f"{self.split}/{self.source}"

    def finished(self) -> SourceEntry | None:
        """Return the source's entry if it was finished before; refuses what cannot join."""
        if self.store.read(MANIFEST) is None:
            return None
        manifest = read_manifest(self.store)
        if self.folder in manifest.sources:
            check_finished(manifest, self.folder, self.parameters, self.store.url)
        check_dataset(manifest, self.parameters, self.store.url)
        return manifest.sources.get(self.folder)

    def run(
        self, workers: int, stop_at_bad: bool, progress: Callable[[int, int], None] | None
    ) -> SourceEntry:
        """Do the units without a receipt, then publish the source."""
        for file in self.files:
            if file.format == "parquet":
                tables.check_column(file, self.parameters.text_key)
        self._begin()
        bar = _Bar(sum(file.size for file in self.files), progress)
        try:
            run_units(self._job(stop_at_bad), self._units_to_do(bar), workers, bar.advance)
        except Stopped as stopped:
            raise self._first_bad(stopped) from None
        with tempfile.TemporaryFile() as bad_lines:
            collected = Collected(self.files, bad_lines, self._receipts(self.units))
            return self._publish(collected, stop_at_bad)

    def _publish(self, collected: Collected, stop_at_bad: bool) -> SourceEntry:
        if collected.first_bad and stop_at_bad:
            raise bad_record(*collected.first_bad)
        if not len(collected.lengths):
            self.clean()  # so that the same with a better --text-key is not refused
            raise no_documents(collected, self.parameters.text_key)
        return publish(
            self.store, self.split, self.source, self.parameters, collected, self.tokenizer_files
        )

    def clean(self) -> None:
        """Remove what only a conversion in progress needs."""
        self.store.delete(f"{self.folder}/work/")
        self.store.sweep(f"{self.folder}/")

    def _begin(self) -> None:
        """Write down what is being made; where units of it are done, check that they fit."""
        name = f"{self.folder}/work/parameters.json"
        begun = self.store.read(name)
        if begun is not None and self._units_done():
            check_unfinished(begun, self.parameters, f"{self.store.url}/{self.folder}")
        else:
            self._discard_shards()
            self.store.write(name, self.parameters.encode())

    def _discard_shards(self) -> None:
        """Remove shards without a receipt: another cut would not write over them."""
        for name in self.store.list(f"{self.folder}/"):
            if name.endswith(".array_record") and name.rpartition("/")[0] == self.folder:
                self.store.delete(name)

    def _units_done(self) -> set[str]:
        """Names of the receipts there are."""
        names = self.store.list(f"{self.folder}/work/")
        return {name for name in names if name.endswith(".receipt")}

    def _units_to_do(self, bar: _Bar) -> Iterator[Unit]:
        done = self._units_done()
        for unit in cut(self.files, self.parameters.text_key, self.parameters.unit_bytes):
            self.units.append(unit.without_data())
            if receipt_name(self.folder, unit.name) in done:
                bar.advance(unit.size)
            else:
                yield unit

    def _receipts(self, units: list[Unit]) -> Iterator[tuple[Unit, Receipt]]:
        for unit in units:
            yield unit, self._receipt(receipt_name(self.folder, unit.name))

    def _receipt(self, name: str) -> Receipt:
        data = self.store.read(name)
        if data is None:
            raise DatasetError(
                f"{self.store.url}/{name} is gone: is {self.folder} being converted by somebody "
                "else? Wait for that to end, then give the same command again"
            )
        return Receipt.decode(data)

    def _first_bad(self, stopped: Stopped) -> InputError:
        """Say which record a worker stopped at, or an earlier one that was quarantined before."""
        before = [unit for unit in self.units if unit.place < stopped.unit.place]
        collected = Collected(self.files, io.BytesIO(), self._receipts(before))
        collected.add(stopped.unit, stopped.receipt)
        assert collected.first_bad is not None
        return bad_record(*collected.first_bad)

    def _job(self, stop_at_bad: bool) -> Job:
        return Job(
            url=self.store.url,
            folder=self.folder,
            files=self.files,
            parameters=self.parameters,
            tokenizer_files=self.tokenizer_files,
            stop_at_bad=stop_at_bad,
        )


class _Bar:
    """Adds up the bytes done and tells the caller."""

    def __init__(self, total: int, progress: Callable[[int, int], None] | None) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def advance(self, size: int) -> None:
        self._done += size
        if self._progress:
            self._progress(self._done, self._total)
