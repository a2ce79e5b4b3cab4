"""What every place that can hold inputs must do, besides this machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

from jaxdata.base.errors import InputError
from jaxdata.storage.objects.public_urls import public_url, without_secrets


class Facts(NamedTuple):
    """What is known of an object before it is read.

    Attributes:
        size: bytes.
        tag: differs when the object was written again: its ETag or generation.
        modified: when it was written, in ns since 1970; 0 if that is unknown.
    """

    size: int
    tag: str
    modified: int = 0


class Place(Protocol):
    """A place that holds objects, each of which has a URL."""

    def look(self, url: str) -> Facts | None:
        """The facts of an object, None if there is none."""

    def listed(self, prefix: str) -> Iterator[tuple[str, Facts]]:
        """The URLs that begin with a prefix, with their facts.

        Raises:
            InputError: this place lists nothing.
        """

    def read(self, url: str, start: int, stop: int, tag: str) -> bytes:
        """Bytes `[start, stop)` of the version with this tag.

        Raises:
            InputError: the object is another one now, or cannot be read.
        """


def changed(url: str) -> InputError:
    """The error for an object that was replaced or deleted after it was looked at."""
    return InputError(
        f"{public_url(url)} changed while it was read: let it be as it is and run the same "
        "command again, which reads it anew"
    )


def unreadable(url: str, reason: object) -> InputError:
    """The error for an object that its place does not hand out."""
    return InputError(
        f"{public_url(url)} cannot be read: {without_secrets(str(reason), url)}. Look whether it "
        "is there and these credentials may read it"
    )
