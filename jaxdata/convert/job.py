"""What the parent and its workers say to each other."""

from __future__ import annotations

from dataclasses import dataclass

from jaxdata import tokenizers
from jaxdata.convert.clean import Cleaner, make_cleaner
from jaxdata.convert.columns import check_columns, check_strings
from jaxdata.convert.inputs import InputFile
from jaxdata.convert.parameters import Parameters
from jaxdata.convert.parts import ReadSettings
from jaxdata.convert.receipts import Receipt
from jaxdata.convert.tasks import LmSettings, Task, make_task
from jaxdata.tokenizers import Tokenizer

__all__ = ["Finished", "Job", "Progress", "output_name", "parameters_name", "receipt_name"]


@dataclass(frozen=True)
class Job:
    """What every unit of one conversion has in common; sent to each worker once.

    Attributes:
        url: the dataset.
        split: the split that documents go to, or the first of those they are dealt to.
        source: what the source is called in it.
        files: the inputs, as parts of units count them.
        parameters: what is made of them.
        tokenizer_files: the files behind `parameters.tokenizer`.
        stop_at_bad: stop at the first bad record instead of setting it aside.
        max_expansion: times its size that a compressed file may grow to.
    """

    url: str
    split: str
    source: str
    files: list[InputFile]
    parameters: Parameters
    tokenizer_files: dict[str, bytes]
    stop_at_bad: bool
    max_expansion: int

    @property
    def folder(self) -> str:
        """Where receipts and quarantine lie: "<split>/<source>"."""
        return output_name(self.split, self.source)

    def output(self, split: str, stream: str) -> str:
        """The source that a stream of the task feeds: "<split>/<source>[/<stream>]"."""
        return output_name(split, self.source, stream)

    def reading(self, task: Task) -> ReadSettings:
        """What is read of files, and how much is too much."""
        columns = tuple(dict.fromkeys((*(task.keys or ()), *self.parameters.columns)))
        transform, lm = self.parameters.transform, isinstance(self.parameters.task, LmSettings)
        return ReadSettings(
            None if transform or task.keys is None else columns,
            self.parameters.max_record_bytes,
            self.max_expansion,
            self.parameters.piece_bytes,
            joined=lm and not transform,
        )

    @property
    def splits(self) -> list[str]:
        """The splits that documents are dealt to."""
        return self.parameters.splits(self.split)

    def task(self, tokenizer: Tokenizer, clean: Cleaner | None) -> Task:
        """Make the task; `clean` is done to every text."""
        return make_task(self.parameters.task, tokenizer, clean)

    def cleaner(self) -> Cleaner | None:
        """Make the cleaner; None where nothing is to be cleaned."""
        return make_cleaner(self.parameters.cleaning)

    def check_tables(self, task: Task) -> None:
        """Raise InputError where a table lacks a column; a transform may make it."""
        for file in self.files:
            if file.kind.table and not self.parameters.transform:
                check_columns(file, self.parameters.columns)
                if hasattr(self.parameters.task, "text_keys"):
                    check_strings(file, task.keys or ())
                else:
                    check_columns(file, task.keys or (), self.parameters.task.key_options)

    def tokenizer(self) -> Tokenizer:
        """Make the tokenizer in this process."""
        entry = self.parameters.tokenizer
        return tokenizers.restore(
            entry.kind,
            self.tokenizer_files,
            eod_id=entry.eod_id,
            bos_id=entry.bos_id,
            pad_id=entry.pad_id,
            name=entry.name,
        )


@dataclass(frozen=True)
class Progress:
    """A worker got on: the share of its unit, 0 to 1, that it has read."""

    share: float


@dataclass(frozen=True)
class Finished:
    """A worker finished its unit, or stopped at a record, having written nothing."""

    stopped: Receipt | None = None
    """Of what was read, the record last; None where the unit is done."""
    failure: str | None = None
    """What the transform did wrong at that record; None where the record is bad."""


def output_name(split: str, source: str, stream: str = "") -> str:
    """The name of a source in the manifest, and its folder."""
    return "/".join(filter(None, (split, source, stream)))


def receipt_name(folder: str, unit: str) -> str:
    """Where the receipt of a unit lies."""
    return f"{folder}/work/{unit}.receipt"


def parameters_name(folder: str) -> str:
    """Where the parameters of an unfinished conversion lie."""
    return f"{folder}/work/parameters.json"
