"""How a dataset was made: `history.jsonl` has its conversions, `inputs.json` what they read.

Commands are kept without their secrets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field

from jaxdata.base.version import VERSION
from jaxdata.dataset.checksums import decode_json, encode_json
from jaxdata.dataset.manifest import Entry, Positive
from jaxdata.storage import Store

_MOST = 2**14
_HIDDEN = "…"
_NAMED = r"(?:password|passwd|secret|credentials?|api[_-]?key)"
_VALUE = r"(?:'[^']*'|\"[^\"]*\"|[^\s,)}]+)"
# As Hugging Face, GitHub, OpenAI, Amazon, Google and JSON web tokens write theirs.
_KEY = r"\b(?:hf_|gh[opsu]_|github_pat_|sk-|AKIA|ASIA|ya29\.|AIza|eyJ)[\w.-]{12,}"
_SECRETS = (
    (re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^/ '\"]*@"), rf"\1{_HIDDEN}@"),  # who asks
    (re.compile(r"(?<=[?&])([\w.~%-]+)=[^&#\s'\"]*"), rf"\1={_HIDDEN}"),  # signatures, and others
    (re.compile(rf"(?i)({_NAMED}[\w-]*['\"]?[=:\s]+){_VALUE}"), rf"\1{_HIDDEN}"),
    (re.compile(_KEY), _HIDDEN),
)


def redacted(command: str) -> str:
    """A command without names and passwords in URLs, values of their queries, and known tokens.

    At most 16,384 characters are kept.

    >>> redacted("jaxdata convert 'https://me:pass@host/a.jsonl?X-Amz-Signature=ab12&v=3'")
    "jaxdata convert 'https://…@host/a.jsonl?X-Amz-Signature=…&v=…'"
    """
    for secret, instead in _SECRETS:
        command = secret.sub(instead, command)
    return command if len(command) <= _MOST else f"{command[:_MOST]} {_HIDDEN}"


_VERSION = 1
_NAME = re.compile(r"(.+/)?inputs(-[1-9][0-9]*)?\.json")


class InputHashes(Entry):
    """The content of the file.

    Attributes:
        columns: the columns that were read of tables; None for all.
        record_bytes: records that were longer were not read whole.
        piece_bytes: about the size of the pieces of a huge text; `joined`: they are one document.
        arrays: columns whose lists were read as arrays, which are larger than lists seem to be.
        unit_bytes: about the size of the units that files were cut into.
        contents: name of an input -> hash of its records as they were read.
    """

    version: int = _VERSION
    columns: list[str] | None
    record_bytes: Positive
    piece_bytes: Annotated[Positive, Field(ge=16)]
    joined: bool
    arrays: tuple[str, ...] = ()
    unit_bytes: Positive
    contents: dict[str, str]

    def encode(self) -> bytes:
        return encode_json(self)


def hashes_name(folder: str, times: int) -> str:
    """The name for a folder to which files were appended so many times."""
    return f"{folder}/inputs-{times}.json" if times else f"{folder}/inputs.json"


def is_hashes_name(name: str) -> bool:
    """Tell whether a file of a dataset is one of these.

    >>> [is_hashes_name(name) for name in ("train/web/inputs-1.json", "train/web/input.json")]
    [True, False]
    """
    return _NAME.fullmatch(name) is not None


def read_hashes(store: Store, name: str) -> InputHashes | None:
    """Read a file of hashes, None if there is none; raises DatasetError if it is damaged."""
    data = store.read(name)
    return (data and decode_json(data, f"{store.url}/{name}", InputHashes, _VERSION)) or None


HISTORY = "history.jsonl"


def note_conversion(
    store: Store,
    sources: Sequence[str],
    command: str,
    made: Mapping[str, str] | None = None,
    encoding: Mapping[str, Any] | None = None,
) -> None:
    """Append a line: a conversion that made or added to `sources` ends now.

    Args:
        store: the dataset.
        sources: those that it could feed.
        command: what was run.
        made: those that it did feed, and the fingerprint that each has since.
        encoding: what encoded their texts.
    """
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "version": VERSION,
        "sources": [*sources],
        "command": redacted(command),
        "made": dict(made or {}),
        "encoding": encoding,
    }
    line = json.dumps(facts, ensure_ascii=False).encode() + b"\n"
    store.update(HISTORY, lambda before: (before or b"") + line)


def read_history(store: Store) -> list[dict[str, Any]]:
    """The conversions, the first one first: date, version, sources and command of each, and more.

    Lines that are none are passed over.
    """
    found = []
    for line in (store.read(HISTORY) or b"").splitlines():
        with suppress(ValueError, RecursionError):
            one = json.loads(line)
            if isinstance(one, dict) and {"date", "version", "sources", "command"} <= one.keys():
                found.append(one)
    return found


def maker_of(
    history: Sequence[Mapping[str, Any]], source: str, fingerprint: str
) -> Mapping[str, Any] | None:
    """The conversion that made a generation of a source; None where that is not known.

    The last one, if the same was made again.
    """

    def has(one: Mapping[str, Any]) -> bool:
        made = one.get("made")
        return isinstance(made, dict) and bool(made.get(source) == fingerprint)

    return next(filter(has, reversed(history)), None)
