"""How a dataset was made: `history.jsonl` has its conversions, their commands without secrets."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from jaxdata.base.version import VERSION
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


HISTORY = "history.jsonl"


def note_conversion(
    store: Store, sources: Sequence[str], command: str, encoding: Mapping[str, Any] | None = None
) -> None:
    """Append a line: a conversion that made or added to `sources` ends now.

    Args:
        store: the dataset.
        sources: those that it could feed.
        command: what was run.
        encoding: what encoded their texts.
    """
    facts = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "version": VERSION,
        "sources": [*sources],
        "command": redacted(command),
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
