"""What a stream of text reads documents from: the contract of files and of records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from jaxdata.converter.document_batch import Document
from jaxdata.converter.inputs.input_file import InputFile
from jaxdata.converter.job import Job
from jaxdata.converter.tasks import Task
from jaxdata.wording import counted


@dataclass(frozen=True)
class Position:
    """The next row of a stream, as its state has it; in a reader, the next record."""

    epoch: int = 0
    block: int = 0
    """number in the epoch"""
    document: int = 0
    """documents before the block, in the epoch"""
    row: int = 0
    """number in the block"""


@dataclass
class InputCounts:
    """What became of the records read so far; a thread that reads ahead adds to it."""

    documents: int = 0
    tokens: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    """Bad records and dropped documents by reason."""
    first_bad: str | None = None

    def __str__(self) -> str:
        said = f"{counted(self.documents, 'document')}, {counted(self.tokens, 'token')}"
        if self.left_out:
            reasons = [f"{count:,} {reason}" for reason, count in dict(self.left_out).items()]
            said += f"; left out: {', '.join(reasons)}"
        return said + (f"; the first is {self.first_bad}" if self.first_bad else "")


class TextSource(Protocol):
    """Documents in an order of their own, read from any position; `str()` says what it is."""

    @property
    def files(self) -> list[InputFile]:
        """The files that it reads, if it does."""
        ...

    @property
    def start(self) -> Position:
        """The position of the first record."""
        ...

    def identity(self, inputs: dict[str, str]) -> dict[str, Any]:
        """The named facts by which a state knows it; `inputs` are the files' digests."""
        ...

    def advice(self) -> tuple[str, str]:
        """What it reads in every pass, and the inputs of the command that converts it."""
        ...

    def documents(
        self, job: Job, task: Task, start: Any, counts: InputCounts
    ) -> Iterator[tuple[list[Document], Position]]:
        """Read from a position on; records without documents go to `counts`.

        Yields:
            (documents of a record, position after the record).
        """
        ...
