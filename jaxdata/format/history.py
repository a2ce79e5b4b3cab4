"""`history.jsonl`: which conversions made a dataset, when, and by which version, command, encoder.

It is for people. No reader needs it, no checksum or fingerprint covers it, and datasets that are
the same otherwise differ in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from jaxdata.format.redaction import redacted
from jaxdata.format.storage import Store
from jaxdata.version import VERSION

HISTORY = "history.jsonl"
_FIELDS = ("date", "version", "sources", "command")


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
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    values = (now, VERSION, [*sources], redacted(command), {**(made or {})}, encoding)
    facts = dict(zip((*_FIELDS, "made", "encoding"), values, strict=True))
    line = json.dumps(facts, ensure_ascii=False).encode() + b"\n"
    store.update(HISTORY, lambda before: (before or b"") + line)


def read_history(store: Store) -> list[dict[str, Any]]:
    """The conversions, the first one first: date, version, sources and command of each, and more.

    Lines that are none are passed over; nothing is known of datasets of an earlier jaxdata.
    """
    lines = (store.read(HISTORY) or b"").splitlines()
    return [found for line in lines if (found := _read(line))]


def maker_of(
    history: Sequence[Mapping[str, Any]], source: str, fingerprint: str
) -> Mapping[str, Any] | None:
    """The conversion that made a generation of a source; None where that is not known.

    The last one, if the same was made again.
    """
    made = (one for one in reversed(history) if _made(one).get(source) == fingerprint)
    return next(made, None)


def _made(conversion: Mapping[str, Any]) -> Mapping[str, Any]:
    made = conversion.get("made")
    return made if isinstance(made, dict) else {}


def _read(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and {*_FIELDS} <= found.keys() else None
