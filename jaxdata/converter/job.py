"""A conversion as its workers get it, and what a worker answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from jaxdata import tokenizers
from jaxdata.converter.filters import make_cleaner
from jaxdata.converter.inputs.files import InputFile, ReadSettings
from jaxdata.converter.inputs.formats.base import reader_of
from jaxdata.converter.inputs.formats.tables import check_columns, check_strings, list_type
from jaxdata.converter.parameters import Parameters
from jaxdata.converter.receipts import Receipt
from jaxdata.converter.tasks.base import Task
from jaxdata.converter.tasks.registry import make_task
from jaxdata.dataset.lease import Lease, UnfinishedJob
from jaxdata.storage import Store, open_store
from jaxdata.tokenizers import Tokenizer
from jaxdata.tokenizers.encoders.choice import Choice, attach


@dataclass(frozen=True)
class Job:
    """A conversion, as every unit sees it; sent to each worker once.

    Attributes:
        url: the dataset.
        split: the split that documents go to, or the first of several.
        source: what the source is called in it.
        files: the inputs, as parts of units count them.
        stop_at_bad: stop at the first bad record instead of setting it aside.
        encoder: what encodes texts with the ids of the tokenizer's library.
        unread: files that were found and are of no kind that is read, by suffix.
        lease: the right to write to the dataset; None for whoever writes elsewhere.
    """

    url: str
    split: str
    source: str
    files: list[InputFile]
    parameters: Parameters
    tokenizer_files: dict[str, bytes]
    stop_at_bad: bool
    encoder: Choice = field(default_factory=Choice)
    lease: Lease | None = None
    unread: Mapping[str, int] = field(default_factory=dict)

    def for_workers(self) -> "Job":
        """The job without the list of its inputs, which may be long: units bring their own."""
        parameters = self.parameters.model_copy(update={"inputs": {}})
        return replace(self, files=[], parameters=parameters)

    @property
    def folder(self) -> str:
        """Where receipts and quarantine lie: "<split>/<source>"."""
        return f"{self.split}/{self.source}"

    def store(self) -> Store:
        """Open the dataset, to write as long as the lease is held."""
        store = open_store(self.url)
        return self.lease.fenced(store) if self.lease else store

    @property
    def unfinished(self) -> UnfinishedJob:
        """What this job leaves behind when it is killed."""
        return UnfinishedJob(self.store(), self.folder)

    @property
    def splits(self) -> list[str]:
        """The splits that documents are assigned to."""
        return self.parameters.splits(self.split)

    def output(self, split: str, stream: str) -> str:
        """The source that a stream of the task feeds: "<split>/<source>[/<stream>]"."""
        return "/".join(filter(None, (split, self.source, stream)))

    def outputs(self, task: Task) -> list[str]:
        """The sources that it may write."""
        return [self.output(split, stream) for split in self.splits for stream in task.streams]

    def task(self, tokenizer: Tokenizer) -> Task:
        """Make the task, which cleans every text first."""
        return make_task(self.parameters.task, tokenizer, make_cleaner(self.parameters))

    def reading(self, task: Task) -> ReadSettings:
        """What is read from files, and the limits on sizes."""
        columns = tuple(dict.fromkeys((*(task.keys or ()), *self.parameters.columns)))
        transform = self.parameters.transform
        return ReadSettings(
            None if transform or task.keys is None else columns,
            self.parameters.max_record_bytes,
            self.parameters.piece_bytes,
            arrays=() if transform else task.array_keys,
        )

    def check_tables(self, task: Task) -> None:
        """Raise InputError where a table lacks a column; a transform may make it."""
        for file in self.files:
            if reader_of(file.kind).table and not self.parameters.transform:
                check_columns(file, self.parameters.columns)
                if task.strings:
                    check_strings(file, task.keys or ())
                else:
                    check_columns(file, task.keys or (), self.parameters.task.key_options)
                for name in task.side:
                    list_type(file, name)

    def tokenizer(self) -> Tokenizer:
        """Make the tokenizer in this process, with its encoder."""
        entry = self.parameters.tokenizer
        made = tokenizers.restore(
            entry.kind,
            self.tokenizer_files,
            eod_id=entry.eod_id,
            bos_id=entry.bos_id,
            pad_id=entry.pad_id,
            name=entry.name,
        )
        attach(made, self.encoder)
        return made


@dataclass(frozen=True)
class Finished:
    """A worker finished its unit, or stopped at a record, having written nothing."""

    stopped: Receipt | None = None
    """Of what was read, the record last; None where the unit is done."""
    failure: str | None = None
    """What the transform did wrong at that record; None where the record is bad."""
