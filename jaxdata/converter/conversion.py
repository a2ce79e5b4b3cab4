"""One conversion: what there is to do, and whether it was done before."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Self

from jaxdata.converter.continuing.append import added_to
from jaxdata.converter.continuing.compatibility import (
    check_dataset,
    check_finished,
)
from jaxdata.converter.continuing.known_inputs import check_known
from jaxdata.converter.conversion_run import ConversionRun
from jaxdata.converter.encoder_use import note_encoders
from jaxdata.converter.engines import MakeEngine
from jaxdata.converter.job import Job
from jaxdata.converter.parameters import Parameters
from jaxdata.converter.receipts import Receipt
from jaxdata.converter.tasks import Task
from jaxdata.errors import DatasetError, InputError
from jaxdata.format.history import note_conversion
from jaxdata.format.lease import clear, leased
from jaxdata.format.manifest import MANIFEST, SourceEntry, read_manifest
from jaxdata.format.storage import Store
from jaxdata.format.unfinished import UnfinishedJob
from jaxdata.tokenizers import Tokenizer
from jaxdata.tokenizers.encoders import EncoderName, EncodingSummary


@dataclass(frozen=True)
class Conversion:
    """What is to be converted, and the sources that it is added to."""

    store: Store
    job: Job
    task: Task
    base: dict[str, SourceEntry] = field(default_factory=dict)
    """The existing sources that documents are appended to."""
    verify: bool = False
    """Whether inputs are read again that seem to be unchanged."""
    encoder: EncoderName = "auto"
    """What is to encode texts."""
    tokenizer: Tokenizer | None = None
    """The tokenizer, loaded; None to load it from the job."""
    command: str = ""
    """What the history of the dataset says was run."""

    @classmethod
    def of(
        cls,
        job: Job,
        tokenizer: Tokenizer,
        *,
        verify: bool,
        encoder: EncoderName = "auto",
        command: str = "",
    ) -> Self:
        """The conversion of a job, not begun."""
        task = job.task(tokenizer, job.cleaner())
        made = cls(job.store(), job, task, verify=verify, encoder=encoder, tokenizer=tokenizer)
        return replace(made, command=command)

    @property
    def _unfinished(self) -> UnfinishedJob:
        return self.job.unfinished(self.store)

    @property
    def _folders(self) -> list[str]:
        """The folders that it may write to."""
        return [self.job.folder, *self.outputs]

    @property
    def outputs(self) -> list[str]:
        """The sources that it may write."""
        return self.job.outputs(self.task)

    def complete(
        self,
        make_engine: MakeEngine,
        progress: Callable[[int, int], None] | None,
        *,
        resume: bool,
        append: bool,
    ) -> tuple[dict[str, SourceEntry], EncodingSummary | None]:
        """Return the sources, and what encoded them; convert or resume unless they are complete.

        What encoded them is None where they were complete before.

        `progress` is called with the bytes of input done, and their total. With `resume` it is an
        error if no conversion was begun. With `append` the files that are new are added.
        """
        now = self._now(append)
        finished = now.finished()
        if known := finished or now.base:
            self._check_known(known)
        if finished and not self._left_behind(finished):
            self._tidy()
            return finished, None
        if resume and not finished and self._unfinished.begun() is None:
            raise InputError(
                f"nothing to resume: {self.store.url} has no unfinished {self.job.folder}. "
                "Check --output; remove --resume to start a conversion"
            )
        with self._unfinished.writing(), leased(self.store, self._folders) as lease:
            job = replace(self.job, lease=lease)
            conversion = replace(self, store=job.store(), job=job)._now(append)
            finished = conversion.finished()  # another process may have been faster
            encoding = None
            if not finished:
                finished, encoding = conversion._run(make_engine, progress)
                conversion._note(finished, encoding, _made(finished, conversion.base))
            elif conversion._left_behind(finished):
                conversion._note(finished, *conversion._of_receipts(finished))
            conversion._unfinished.end()
        return finished, encoding

    def _note(
        self,
        entries: dict[str, SourceEntry],
        encoding: EncodingSummary,
        made: dict[str, str],
    ) -> None:
        """Write into the history what this conversion made, and what encoded it."""
        encoded = encoding.model_dump(mode="json")
        note_conversion(self.store, sorted(entries), self.command, made, encoded)
        tokenizer = self.tokenizer or self.job.tokenizer()
        note_encoders(self.store, tokenizer, encoding, made, self.command)

    def _of_receipts(
        self, entries: dict[str, SourceEntry]
    ) -> tuple[EncodingSummary, dict[str, str]]:
        """What encoded a conversion that was killed after it was published, and what it made."""
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        made: dict[str, str] = {}
        for unit in self._unfinished.done():
            receipt = self._unfinished.receipt(unit, Receipt.decode)
            counts[receipt.encoder] += receipt.encoding
            made |= {name: entries[name].fingerprint for name in receipt.outputs}
        return EncodingSummary(library=self.job.parameters.library, counts=counts), made

    def _tidy(self) -> None:
        """Remove what a conversion that was killed after it had published left."""
        clear(self.store, self._folders)
        if self._unfinished.begun() is None and self._unfinished.files():
            with suppress(OSError, DatasetError), leased(self.store, self._folders):
                if self._unfinished.begun() is None:  # none has begun meanwhile
                    self._unfinished.end()

    def _now(self, append: bool) -> Conversion:
        """The conversion of what is to be done as the dataset is now."""
        return self._appending() if append else self

    def _left_behind(self, entries: dict[str, SourceEntry]) -> bool:
        """Tell whether a conversion that is part of these sources was killed before it cleaned up.

        What is being appended to them is not.
        """
        try:
            begun = Parameters.model_validate_json(self._unfinished.begun() or b"")
        except ValueError:
            return False
        return begun.first_file < max(len(entry.inputs) for entry in entries.values())

    def _appending(self) -> Conversion:
        """The conversion of the files that are new to its sources, which it appends to them."""
        if self.job.parameters.split_contiguous:
            raise InputError(
                "--append cannot be combined with --split-contiguous: it would move the borders"
            )
        if self.store.read(MANIFEST) is None:
            return self
        manifest = read_manifest(self.store)
        job, base = added_to(manifest, self.outputs, self.job)
        return replace(self, job=job, base=base)

    def _check_known(self, sources: dict[str, SourceEntry]) -> None:
        """Refuse inputs that changed since sources were made of them."""
        every, expansion = self.verify, self.job.max_expansion
        files, folder = self.job.files, self.job.folder
        check_known(self.store, folder, sources, files, every=every, expansion=expansion)

    def finished(self) -> dict[str, SourceEntry]:
        """Return the sources it made if it was finished before; rejects what cannot join."""
        if self.store.read(MANIFEST) is None:
            return {}
        manifest = read_manifest(self.store)
        if self.base:
            check_dataset(manifest, self.job.parameters, self.store.url)
            return {} if self.job.files else self.base
        found = [name for name in self.outputs if name in manifest.sources]
        for name in found:
            check_finished(manifest, name, self.job.parameters, self.store.url)
        check_dataset(manifest, self.job.parameters, self.store.url)
        return {name: manifest.sources[name] for name in found}

    def _run(
        self, make_engine: MakeEngine, progress: Callable[[int, int], None] | None
    ) -> tuple[dict[str, SourceEntry], EncodingSummary]:
        run = ConversionRun(
            self.store,
            self.job,
            self.task,
            self.base,
            self.tokenizer or self.job.tokenizer(),
            encoder=self.encoder,
            verify=self.verify,
        )
        return run.run(make_engine, progress)


def _made(entries: dict[str, SourceEntry], base: dict[str, SourceEntry]) -> dict[str, str]:
    """The sources that have changed, and the fingerprint of each."""
    now = {name: entry.fingerprint for name, entry in entries.items()}
    return {name: of for name, of in now.items() if name not in base or base[name] != entries[name]}
