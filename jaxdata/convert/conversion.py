"""One conversion from beginning to end."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

from jaxdata import tokenizers
from jaxdata.convert import tables
from jaxdata.convert.engine import Stopped, run_units
from jaxdata.convert.inputs import InputFile, Inputs, find_inputs
from jaxdata.convert.parameters import (
    Parameters,
    check_dataset,
    check_finished,
    check_name,
    check_unfinished,
    make_parameters,
)
from jaxdata.convert.publish import Collected, publish
from jaxdata.convert.receipts import Quarantined, Receipt
from jaxdata.convert.report import ConversionReport
from jaxdata.convert.units import UNIT_BYTES, Unit, cut
from jaxdata.convert.work import Job, receipt_name
from jaxdata.errors import InputError
from jaxdata.format.manifest import MANIFEST, SourceEntry, read_manifest
from jaxdata.format.storage import Store, open_store
from jaxdata.processes import available_cores
from jaxdata.tokenizers import Tokenizer

__all__ = ["convert"]

OnError = Literal["quarantine", "fail"]


def convert(
    inputs: Inputs,
    *,
    output: str | os.PathLike[str],
    source: str,
    split: str = "train",
    tokenizer: str | Tokenizer,
    text_key: str = "text",
    workers: int | None = None,
    on_error: OnError = "quarantine",
    bos: bool = False,
    record_tokens: int = 16_384,
    unit_bytes: int = UNIT_BYTES,
    progress: Callable[[int, int], None] | None = None,
) -> ConversionReport:
    """Convert raw text into one source of a dataset; made or unfinished, it is gone on with.

    Args:
        inputs: files, folders or globs of .jsonl, .jsonl.gz, .txt, .txt.gz and .parquet; a text
            file is one document.
        output: the dataset, a folder or URL; made where there is none.
        source: what the source is called in its split.
        split: "train", "val", …
        tokenizer: a spec as `tokenizers.load` takes it, or a loaded tokenizer.
        text_key: the key of each JSON object, or the column of tables, that holds the text.
        workers: processes; None for one a core. The dataset does not depend on it.
        on_error: "quarantine" sets records without a usable text aside in a file, "fail" stops at
            the first.
        bos: begin each document with the tokenizer's begin-of-sequence token.
        record_tokens: longest record; longer documents lie in several.
        unit_bytes: text a unit of work holds, about.
        progress: called with bytes of input done, and in all.

    Raises:
        InputError: there is nothing to convert, or it does not fit what the dataset has; the text
            says what to do.
        WorkerDied: a worker was killed. The same call goes on from there.

    >>> report = convert("corpus/", output="data/web", source="web",
    ...                  tokenizer="bytes")  # doctest: +SKIP
    """
    started = time.monotonic()
    check_name("split", split)
    check_name("source", source)
    _check_options(workers, on_error, record_tokens)
    loaded = tokenizers.load(tokenizer) if isinstance(tokenizer, str) else tokenizer
    files = find_inputs(inputs)
    conversion = _Conversion(
        store=open_store(output),
        split=split,
        source=source,
        files=files,
        tokenizer=loaded,
        tokenizer_files=loaded.files(),
        parameters=make_parameters(files, loaded, text_key, bos, record_tokens, unit_bytes),
    )
    finished = conversion.finished()
    entry = finished or conversion.run(workers or available_cores(), on_error, progress)
    conversion.clean()
    return ConversionReport.of(
        conversion.store.url,
        conversion.folder,
        entry,
        time.monotonic() - started,
        already_complete=finished is not None,
    )


def _check_options(workers: int | None, on_error: str, record_tokens: int) -> None:
    if workers is not None and workers < 1:
        raise InputError(f"workers={workers}; expected 1 or more")
    if on_error not in get_args(OnError):
        raise InputError(f"on_error={on_error!r}; expected one of {get_args(OnError)}")
    if record_tokens < 1:
        raise InputError(f"record_tokens={record_tokens}; expected 1 or more")


@dataclass
class _Conversion:
    store: Store
    split: str
    source: str
    files: list[InputFile]
    tokenizer: Tokenizer
    tokenizer_files: dict[str, bytes]
    parameters: Parameters
    units: list[Unit] = field(default_factory=list)
    """Every unit so far, in order."""

    @property
    def folder(self) -> str:
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
        self, workers: int, on_error: OnError, progress: Callable[[int, int], None] | None
    ) -> SourceEntry:
        """Do the units without a receipt, then publish the source."""
        for file in self.files:
            if file.format == "parquet":
                tables.check_column(file, self.parameters.text_key)
        self._begin()
        bar = _Bar(sum(file.size for file in self.files), progress)
        stop_at_bad = on_error == "fail"
        try:
            run_units(self._job(stop_at_bad), self._units_to_do(bar), workers, bar.advance)
        except Stopped as stopped:
            raise self._first_bad(stopped) from None
        collected = Collected(self.files, self._receipts(self.units))
        if collected.quarantined and stop_at_bad:
            raise _bad_record(*collected.quarantined[0])
        if not len(collected.lengths):
            self.store.delete(f"{self.folder}/")  # so that a better --text-key is no other job
            raise _no_documents(collected, self.parameters.text_key)
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
            self.store.write(name, self.parameters.encode())

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

    def _receipts(self, units: list[Unit]) -> list[tuple[Unit, Receipt]]:
        names = [receipt_name(self.folder, unit.name) for unit in units]
        return [
            (unit, Receipt.decode(self.store.read(name) or b""))
            for unit, name in zip(units, names, strict=True)
        ]

    def _first_bad(self, stopped: Stopped) -> InputError:
        """Say which record a worker stopped at, or an earlier one that was quarantined before."""
        before = [unit for unit in self.units if unit.place < stopped.unit.place]
        collected = Collected(self.files, self._receipts(before))
        collected.add(stopped.unit, stopped.receipt)
        return _bad_record(*collected.quarantined[0])

    def _job(self, stop_at_bad: bool) -> Job:
        tokenizer = self.tokenizer
        return Job(
            url=self.store.url,
            folder=self.folder,
            files=self.files,
            text_key=self.parameters.text_key,
            bos=self.parameters.bos,
            layout=self.parameters.layout,
            tokenizer_kind=tokenizer.kind,
            tokenizer_name=tokenizer.name,
            tokenizer_files=self.tokenizer_files,
            special_ids={
                "eod_id": tokenizer.eod_id,
                "bos_id": tokenizer.bos_id,
                "pad_id": tokenizer.pad_id,
            },
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


def _bad_record(file: InputFile, row: int, bad: Quarantined) -> InputError:
    return InputError(
        f"{file.path}:{row}: {bad.reason}. Mend the record, or have such records set aside with "
        "--on-error quarantine"
    )


def _no_documents(collected: Collected, text_key: str) -> InputError:
    reasons = collected.reasons
    if not reasons:
        return InputError("the input files are empty: there is no record in them")
    file, row, first = collected.quarantined[0]
    if list(reasons) == [f"no key {text_key!r}"]:
        return InputError(
            f"no record has the key {text_key!r}; {file.path}:{row} has "
            f"{', '.join(map(repr, first.keys)) or 'no keys'}: name one of these with --text-key"
        )
    counts = ", ".join(f"{count:,} {reason}" for reason, count in reasons.items())
    return InputError(
        f"no record has a usable text: {counts}; the first is {file.path}:{row}. "
        "Are these the files, and is --text-key right?"
    )
