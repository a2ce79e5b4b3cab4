"""The contract of a task: what a record becomes.

A worker parses raw records to mappings, has the task take the texts out of each, and then, some
hundred documents at a time, has it tokenise them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Dropped", "Encoded", "Rate", "Record", "Settings", "Task", "token_dtype"]

Record = Mapping[str, Any]
"""A JSON object, a row of a table, or a text file under the text key."""


Rate = Annotated[float, Field(ge=0, le=1)]
"""A share or probability."""


class Dropped(Exception):
    """A record or document that is left out on purpose: counted by reason, not set aside.

    Attributes:
        reason: why, in words that are the same for all that are dropped for it.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Encoded(NamedTuple):
    """A document as it will be stored.

    Attributes:
        tokens: its ids, those that begin and end it included; at least one.
        mask: uint8, of the same length, in masked tasks: 1 where the token has loss as a target.
    """

    tokens: NDArray[Any]
    mask: NDArray[np.uint8] | None = None


class Settings(BaseModel):
    """What a task is told; a part of the parameters, so that a resume compares it by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    key_options: ClassVar[str] = "--text-key"
    """Where a user says which fields are read."""

    name: str
    bos: bool = False
    """Begin each document with the begin-of-sequence token."""


class Task(Protocol):
    """What one kind of training wants of a record; lives in one worker, used by one thread.

    A record becomes any number of documents (mostly one), and a document one sequence of tokens
    for each stream. What a document is between `prepare` and `encode` is the task's own.
    """

    masked: bool
    """Whether its documents carry loss masks."""
    plain: bool
    """Whether a document is the text of one field, as it is there."""
    streams: tuple[str, ...]
    """The sources it feeds: ("",) for `<source>` itself, a name for `<source>/<name>`."""
    keys: tuple[str, ...] | None
    """The fields it reads (see `records.field_of`): the columns that tables must have, and that
    are read of them. None: whatever there is."""

    def prepare(self, record: Record) -> Sequence[Any]:
        """Take the documents out of a record, cleaned; cheap. One may be `Dropped` among others.

        Raises:
            BadRecord: there is no usable text: the record is set aside.
            Dropped: the record is left out.
        """
        ...

    def texts(self, document: Any, stream: str | None = None) -> Sequence[str]:
        """The texts of a document: what its size is counted by, and its split drawn from.

        With a stream, those of them that it gets.
        """
        ...

    def encode(self, documents: Sequence[Any]) -> Sequence[tuple[Encoded, ...] | Dropped]:
        """Tokenise: for each document one `Encoded` a stream, or why it is left out."""
        ...


def token_dtype(vocab_size: int) -> Literal["uint16", "uint32"]:
    """The type of a stored token.

    >>> token_dtype(65_536), token_dtype(65_537)
    ('uint16', 'uint32')
    """
    return "uint16" if vocab_size <= 2**16 else "uint32"
