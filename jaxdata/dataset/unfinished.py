"""Jobs that survive being killed: convert and materialize resume from what lies in `work/`.

A job records what it makes first. Each unit of it then commits what it wrote by a receipt, so
that a resumed job redoes only the units without one. When all is published, `work/` is deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from jaxdata.base.errors import DatasetError, InputError
from jaxdata.dataset.checksums import checked_bytes, with_checksum
from jaxdata.storage import Store

_PARAMETERS = "work/parameters.json"
_Receipt = TypeVar("_Receipt")


@dataclass(frozen=True)
class UnfinishedJob:
    """The `work/` folder of a job."""

    store: Store
    folder: str = ""
    """the folder in `store` that `work/` is in"""
    kind: str = "an unfinished conversion"
    """what messages call it"""
    parameters: str = _PARAMETERS
    """the file that records what is made"""

    def _name(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name

    def _receipt_name(self, unit: str) -> str:
        return self._name(f"work/{unit}.receipt")

    @property
    def record(self) -> str:
        """Name of the file that records what is made."""
        return self._name(self.parameters)

    def begun(self) -> bytes | None:
        """What is being made, as `begin` recorded it; None if nothing is."""
        return self.store.read(self.record)

    def resumes(self, changes: Callable[[bytes], Sequence[str]]) -> bool:
        """Whether units are done already; raises InputError if their job had different settings.

        `changes(recorded)` says what differs from this job, a line each; it raises ValueError if it
        cannot read the record.
        """
        begun = self.begun()
        if begun is None or not self.done():
            return False
        where = self.store.url + (f"/{self.folder}" if self.folder else "")
        try:
            found = changes(begun)
        except ValueError as error:
            raise InputError(
                f"{where} contains {self.kind} of another version of jaxdata; delete that folder "
                "to start over"
            ) from error
        if found:
            raise InputError(
                f"{where} contains {self.kind} with different settings: {'; '.join(found)}. Use "
                "the same settings to finish it, or delete that folder to start over"
            )
        return True

    def begin(self, parameters: bytes) -> None:
        """Record what is being made; forgets all receipts."""
        self.end()
        self.store.write(self.record, parameters)

    def files(self) -> list[str]:
        """Names of the files in `work/`."""
        start = self._name("work/")
        return [name.removeprefix(start) for name in self.store.list(start)]

    def done(self) -> set[str]:
        """Names of the units that have a receipt."""
        names, end = self.files(), ".receipt"
        return {name.removesuffix(end) for name in names if name.endswith(end)}

    def note(self, name: str, data: bytes) -> None:
        """Write a file of the job's own beside the receipts."""
        self.store.write(self._name(f"work/{name}"), data)

    def noted(self, name: str) -> bytes | None:
        """A file that `note` wrote; None without one."""
        return self.store.read(self._name(f"work/{name}"))

    def commit(self, unit: str, receipt: bytes) -> None:
        """Write the receipt of a unit with its checksum, after all else that the unit writes."""
        self.store.write(self._receipt_name(unit), with_checksum(receipt))

    def receipt(self, unit: str, decode: Callable[[bytes], _Receipt]) -> _Receipt:
        """The receipt of a unit; raises DatasetError if it is gone or cannot be decoded."""
        path = f"{self.store.url}/{self._receipt_name(unit)}"
        data = self.store.read(self._receipt_name(unit), None)  # a record may be of any size
        if data is None:
            raise DatasetError(
                f"{path} is gone: is another process writing to {self.folder or self.store.url}? "
                "Wait until it ends, then run the same command again"
            )
        try:
            if (content := checked_bytes(data)) is None:
                raise ValueError("it differs from its checksum")
            return decode(content)
        except (DatasetError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise DatasetError(
                f"{path} is damaged, or of another version of jaxdata: delete it and run the same "
                "command again, which repeats that part of the work"
            ) from None

    def end(self) -> None:
        """Delete `work/`: first the record, without which nobody resumes from what is left."""
        self.store.delete(self.record)
        self.store.delete(self._name("work/"))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Say what to do if the output cannot be written; reading the input raises other errors."""
        try:
            yield
        except OSError as error:
            file = f" ({error.filename})" if error.filename else ""
            raise DatasetError(
                f"{self.store.url} cannot be written: {error.strerror or error}{file}. Finished "
                "work is kept: fix the cause, and the same command resumes"
            ) from error


def unfinished_conversions(names: Iterable[str]) -> set[str]:
    """The sources in a list of the files of a dataset that a conversion is making."""
    end = f"/{_PARAMETERS}"
    return {name.removesuffix(end) for name in names if name.endswith(end)}
